// Convolution by transforms compiled for avx2. Standard headers come before the target pragma: inline functions of the standard library
// must never be emitted with instructions the processor may lack, because the linker may keep this copy for the whole program.
#include "headers.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma")

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

#pragma GCC pop_options

const ooc::fft::Kernels *ooc::fft::kernels_avx2() {
  static const Kernels kernels = {ooc::fft_avx2::prepare, ooc::fft_avx2::run};
  return &kernels;
}

#else

const ooc::fft::Kernels *ooc::fft::kernels_avx2() { return nullptr; }

#endif
