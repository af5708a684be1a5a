// Direct convolution kernels compiled for the baseline of the target (SSE2 on x86-64, NEON on
// AArch64): GCC and Clang vector extensions only.
#include <cmath>
#include <cstring>

#include "direct.hpp"

namespace ooc {
namespace direct_base {
namespace {
// 16 registers at least: 4 x 3 sums, 3 loaded vectors, one broadcast weight.
constexpr int VEC_BYTES = 16, MR = 4, WMR = 6;
#include "direct_impl.inl"
}  // namespace
}  // namespace direct_base
}  // namespace ooc

const ooc::direct::Backend *ooc::direct::backend_base() {
  static const Backend backend = {"base", ooc::direct_base::workspace, ooc::direct_base::run};
  return &backend;
}
