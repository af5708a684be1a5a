// Direct convolution kernels compiled for the baseline of the target (SSE2 on x86-64, NEON on
// AArch64): GCC and Clang vector extensions only.
#include <cmath>
#include <cstring>

#include "direct.hpp"

#ifdef __aarch64__
#include <arm_neon.h>
#endif

namespace ooc {
namespace direct_base {
namespace {
// 16 registers at least: 4 x 3 sums, 3 loaded vectors, one broadcast weight.
constexpr int VEC_BYTES = 16, MR = 4, WMR = 6;
constexpr double FMA_CYCLES = 1;
#ifdef __aarch64__
#define OOC_FMA_F32(a, b, c) vfmaq_f32(c, a, b)
#define OOC_FMA_F64(a, b, c) vfmaq_f64(c, a, b)
#else
// Elsewhere the compiler may join products and sums if it was told of a processor that can; it
// does so with whole vectors or not at all.
#define OOC_FMA_F32(a, b, c) ((a) * (b) + (c))
#define OOC_FMA_F64(a, b, c) ((a) * (b) + (c))
#endif
#include "impl.inl"
}  // namespace
}  // namespace direct_base
}  // namespace ooc

const ooc::direct::Backend *ooc::direct::backend_base() {
  static const Backend backend = {ooc::direct_base::workspace, ooc::direct_base::run, ooc::direct_base::winograd,
                                  ooc::direct_base::peak};
  return &backend;
}
