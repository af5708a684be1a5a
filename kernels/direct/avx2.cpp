// Direct convolution kernels compiled for AVX2 with FMA.
#include <cmath>
#include <cstring>

#include "../target.hpp"
#include "direct.hpp"

#ifdef OOC_WIDER

#include <immintrin.h>

OOC_TARGET_AVX2

namespace ooc {
namespace direct_avx2 {
namespace {
// 16 registers: 4 x 3 sums, 3 loaded vectors, one broadcast weight.
constexpr int VEC_BYTES = 32, MR = 4, WMR = 6;
constexpr double FMA_CYCLES = 0.5;
#define OOC_FMA_F32 _mm256_fmadd_ps
#define OOC_FMA_F64 _mm256_fmadd_pd
#include "impl.inl"
}  // namespace
}  // namespace direct_avx2
}  // namespace ooc

OOC_TARGET_END

const ooc::direct::Backend *ooc::direct::backend_avx2() {
  static const Backend backend = {ooc::direct_avx2::workspace, ooc::direct_avx2::run, ooc::direct_avx2::winograd,
                                  ooc::direct_avx2::peak};
  return &backend;
}

#else

const ooc::direct::Backend *ooc::direct::backend_avx2() { return nullptr; }

#endif
