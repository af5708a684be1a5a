// Convolution by transforms compiled for avx512. Standard headers come before the target pragma: inline functions of the standard library
// must never be emitted with instructions the processor may lack, because the linker may keep this copy for the whole program.
#include "headers.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512dq,avx512bw,fma,avx2")

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

#pragma GCC pop_options

const ooc::fft::Kernels *ooc::fft::kernels_avx512() {
  static const Kernels kernels = {ooc::fft_avx512::prepare, ooc::fft_avx512::run};
  return &kernels;
}

#else

const ooc::fft::Kernels *ooc::fft::kernels_avx512() { return nullptr; }

#endif
