// Products compiled for AVX-512.
#include "products.hpp"
#include "../target.hpp"

#ifdef OOC_WIDER

OOC_TARGET_AVX512

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

OOC_TARGET_END

const ooc::products::Kernels *ooc::products::kernels_avx512() {
  static const Kernels kernels = {ooc::products_avx512::multiply, ooc::products_avx512::attend};
  return &kernels;
}

#else

const ooc::products::Kernels *ooc::products::kernels_avx512() { return nullptr; }

#endif
