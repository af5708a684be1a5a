// Products compiled for AVX-512. Standard headers come before the target pragma: inline functions of the standard library must
// never be emitted with instructions the processor may lack, because the linker may keep this copy for the whole program.
#include "products.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512dq,avx512bw,fma,avx2")

namespace ooc {
namespace products_avx512 {
namespace {
// 32 registers: 6 x 4 sums.
constexpr int VEC_BYTES = 64;
constexpr i64 HIGH = 6, LINES = 4;
#include "impl.inl"
}  // namespace
}  // namespace products_avx512
}  // namespace ooc

#pragma GCC pop_options

const ooc::products::Kernels *ooc::products::kernels_avx512() {
  static const Kernels kernels = {ooc::products_avx512::multiply, ooc::products_avx512::attend};
  return &kernels;
}

#else

const ooc::products::Kernels *ooc::products::kernels_avx512() { return nullptr; }

#endif
