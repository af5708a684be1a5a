// Products compiled for the baseline of the target (SSE2 on x86-64, NEON on AArch64), and the choice among what is compiled.
#include "products.hpp"

namespace ooc {
namespace products_base {
namespace {
// 16 registers at least: 3 x 4 sums.
constexpr int VEC_BYTES = 16;
constexpr i64 HIGH = 3, LINES = 1;
#include "impl.inl"
}  // namespace
}  // namespace products_base

namespace products {

const Kernels *kernels_base() {
  static const Kernels kernels = {products_base::multiply, products_base::attend};
  return &kernels;
}

const Kernels &kernels() { return widest<Kernels>({kernels_base(), kernels_avx2(), kernels_avx512()}); }

}  // namespace products
}  // namespace ooc
