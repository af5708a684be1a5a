// Products compiled for AVX2 with FMA. Standard headers come before the target pragma: inline functions of the standard library must
// never be emitted with instructions the processor may lack, because the linker may keep this copy for the whole program.
#include "products.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#pragma GCC push_options
#pragma GCC target("avx2,fma")

namespace ooc {
namespace products_avx2 {
namespace {
// 16 registers: 6 x 2 sums.
constexpr int VEC_BYTES = 32;
constexpr i64 HIGH = 6, LINES = 1;
#include "impl.inl"
}  // namespace
}  // namespace products_avx2
}  // namespace ooc

#pragma GCC pop_options

const ooc::products::Kernels *ooc::products::kernels_avx2() {
  static const Kernels kernels = {ooc::products_avx2::multiply, ooc::products_avx2::attend};
  return &kernels;
}

#else

const ooc::products::Kernels *ooc::products::kernels_avx2() { return nullptr; }

#endif
