// Convolution by transforms compiled for AVX2 with FMA.
#include "headers.hpp"
#include "../target.hpp"

#ifdef OOC_WIDER

#include <immintrin.h>

OOC_TARGET_AVX2

#define pocketfft pocketfft_avx2
#include "pocketfft.hpp"

namespace ooc {
namespace fft_avx2 {
namespace {
constexpr int VEC_BYTES = 32, HIGH = 2, WIDE = 2;
#define OOC_FMA_F32 _mm256_fmadd_ps
#define OOC_FMA_F64 _mm256_fmadd_pd
#include "impl.inl"
}  // namespace
}  // namespace fft_avx2
}  // namespace ooc

OOC_TARGET_END

const ooc::fft::Kernels *ooc::fft::kernels_avx2() {
  static const Kernels kernels = {ooc::fft_avx2::prepare, ooc::fft_avx2::run};
  return &kernels;
}

#else

const ooc::fft::Kernels *ooc::fft::kernels_avx2() { return nullptr; }

#endif
