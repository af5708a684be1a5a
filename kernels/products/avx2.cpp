// Products compiled for AVX2 with FMA.
#include "products.hpp"
#include "../target.hpp"

#ifdef OOC_WIDER

OOC_TARGET_AVX2

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

OOC_TARGET_END

const ooc::products::Kernels *ooc::products::kernels_avx2() {
  static const Kernels kernels = {ooc::products_avx2::multiply, ooc::products_avx2::attend};
  return &kernels;
}

#else

const ooc::products::Kernels *ooc::products::kernels_avx2() { return nullptr; }

#endif
