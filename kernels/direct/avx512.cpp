// Direct convolution kernels compiled for AVX-512.
#include <cmath>
#include <cstring>

#include "../target.hpp"
#include "direct.hpp"

#ifdef OOC_WIDER

#include <immintrin.h>

OOC_TARGET_AVX512

namespace ooc {
namespace direct_avx512 {
namespace {
// 32 registers: 8 x 3 sums, 3 loaded vectors, weights broadcast from memory by the FMA itself.
constexpr int VEC_BYTES = 64, MR = 8, WMR = 12;
constexpr double FMA_CYCLES = 1;
#define OOC_FMA_F32 _mm512_fmadd_ps
#define OOC_FMA_F64 _mm512_fmadd_pd
#define OOC_MASKED
#include "impl.inl"
}  // namespace
}  // namespace direct_avx512
}  // namespace ooc

OOC_TARGET_END

const ooc::direct::Backend *ooc::direct::backend_avx512() {
  static const Backend backend = {ooc::direct_avx512::workspace, ooc::direct_avx512::run, ooc::direct_avx512::winograd,
                                  ooc::direct_avx512::peak};
  return &backend;
}

#else

const ooc::direct::Backend *ooc::direct::backend_avx512() { return nullptr; }

#endif
