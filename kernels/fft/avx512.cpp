// Convolution by transforms compiled for AVX-512.
#include "headers.hpp"
#include "../target.hpp"

#ifdef OOC_WIDER

#include <immintrin.h>

OOC_TARGET_AVX512

#define pocketfft pocketfft_avx512
#include "pocketfft.hpp"

namespace ooc {
namespace fft_avx512 {
namespace {
constexpr int VEC_BYTES = 64, HIGH = 3, WIDE = 3;
#define OOC_FMA_F32 _mm512_fmadd_ps
#define OOC_FMA_F64 _mm512_fmadd_pd
#include "impl.inl"
}  // namespace
}  // namespace fft_avx512
}  // namespace ooc

OOC_TARGET_END

const ooc::fft::Kernels *ooc::fft::kernels_avx512() {
  static const Kernels kernels = {ooc::fft_avx512::prepare, ooc::fft_avx512::run};
  return &kernels;
}

#else

const ooc::fft::Kernels *ooc::fft::kernels_avx512() { return nullptr; }

#endif
