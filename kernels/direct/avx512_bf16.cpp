// Convolution of bf16 by dot products of pairs, compiled for processors that have AVX-512 with them.
#include <cmath>
#include <cstring>

#include "../isa.hpp"
#include "../target.hpp"
#include "pairs.hpp"

#ifdef OOC_WIDER

#include <immintrin.h>

OOC_TARGET("avx512bf16,avx512f,avx512vl,avx512dq,avx512bw,fma,avx2")

namespace ooc {
namespace direct_avx512_bf16 {
namespace {
constexpr int VEC_BYTES = 64, MR = 8;
constexpr double FMA_CYCLES = 1;
#define OOC_FMA_F32 _mm512_fmadd_ps
#define OOC_FMA_F64 _mm512_fmadd_pd
#define OOC_MASKED
#define OOC_DOT(sum, a, b) ((V)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)(a), (__m512bh)(b)))
#define OOC_BROADCAST(pair) ((V)_mm512_set1_ps(pair))  // not w - V{}: arithmetic would change bits that are NaN as f32
using direct::Operands;
using direct::Pass;
using direct::Problem;
#include "vectors.inl"
#include "geometry.inl"
#include "epilogue.inl"
#include "task.inl"
#include "tiles.inl"
#include "gather_kernel.inl"
#include "gather_plan.inl"
#include "gather.inl"
#include "pairs.inl"
}  // namespace
}  // namespace direct_avx512_bf16
}  // namespace ooc

OOC_TARGET_END

ooc::direct::PairedConv ooc::direct::paired_conv() {
  const bool serves = chosen_isa() == Isa::avx512 && __builtin_cpu_supports("avx512bf16");
  return serves ? direct_avx512_bf16::run_paired : nullptr;
}

#else

ooc::direct::PairedConv ooc::direct::paired_conv() { return nullptr; }

#endif
