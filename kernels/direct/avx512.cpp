// Direct convolution kernels compiled for AVX-512.
// Standard headers come before the target pragma: inline functions of the standard library
// must never be emitted with instructions the processor may lack, because the linker may keep
// this copy for the whole program.
#include <cmath>
#include <cstring>

#include "direct.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512dq,avx512bw,fma,avx2")

namespace ooc {
namespace direct_avx512 {
namespace {
// 32 registers: 8 x 3 sums, 3 loaded vectors, weights broadcast from memory by the FMA itself.
constexpr int VEC_BYTES = 64, MR = 8, WMR = 12;
constexpr double FMA_CYCLES = 1;
#define OOC_FMA_F32 _mm512_fmadd_ps
#define OOC_FMA_F64 _mm512_fmadd_pd
#include "impl.inl"
}  // namespace
}  // namespace direct_avx512
}  // namespace ooc

#pragma GCC pop_options

const ooc::direct::Backend *ooc::direct::backend_avx512() {
  static const Backend backend = {ooc::direct_avx512::workspace, ooc::direct_avx512::run, ooc::direct_avx512::winograd,
                                  ooc::direct_avx512::peak};
  return &backend;
}

#else

const ooc::direct::Backend *ooc::direct::backend_avx512() { return nullptr; }

#endif
