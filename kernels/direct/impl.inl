// Direct convolution kernels, included once per instruction set inside an anonymous namespace.
// The including file defines VEC_BYTES (vector size), MR (output channels per register block),
// WMR (weight rows per register block), FMA_CYCLES (from one fused multiply-add of vectors to the next), OOC_FMA_F32 and
// OOC_FMA_F64 (a * b + c of vectors), and has included <cmath>, <cstring>, direct.hpp.
//
// Without memory for tiles and packed weights, and where they would not pay, the ordered loops serve.

using direct::Operands;
using direct::Pass;
using direct::Problem;
using direct::Workspace;

#include "vectors.inl"
#include "geometry.inl"
#include "epilogue.inl"
#include "task.inl"
#include "tiles.inl"

#include "ordered.inl"
#include "ordered_depthwise.inl"
#include "ordered_turned.inl"
#include "ordered_columns.inl"
#include "ordered_gather.inl"
#include "ordered_wgrad.inl"

#include "gather_kernel.inl"
#include "gather_plan.inl"
#include "gather.inl"
#include "gather_call.inl"

#include "wgrad_plan.inl"
#include "wgrad_kernel.inl"
#include "wgrad.inl"
#include "wgrad_parts.inl"

#include "winograd_plan.inl"
#include "winograd.inl"
#include "winograd_wgrad.inl"
#include "winograd_call.inl"

// ---------------------------------------------------------------------------- entry points

template <class T>
static Workspace workspace_of(const Problem &p) {
  if (tiny(p) || is_depthwise(p) || too_many_residues(p)) return {0, 0, 0};
  if (p.pass == Pass::wgrad) {
    if (halo_too_large(p)) return {0, 0, 0};
    Problem alone = p;
    alone.threads = 1;
    const i64 whole = wgrad_plan<T>(alone, 1).total;
    const auto at_most = [&](i64 least, i64 bytes) { return some_parts_fit<T>(alone, least) ? imin(whole, bytes) : whole; };
    const i64 usual = at_most(WGRAD_THREAD_BYTES, wgrad_thread_bytes(p)), some = lean_wgrad_thread_bytes(p);
    // The least room that holds parts: that of small tiles, else the usual one, else that of the whole plan.
    const i64 lean = imin(at_most(LEAN_WGRAD_THREAD_BYTES, some), at_most(WGRAD_THREAD_BYTES, imax(some, WGRAD_THREAD_BYTES)));
    return {0, p.threads * usual, p.threads * lean};
  }
  const GatherNeed need = gather_need<T>(p);
  const i64 scratch = need.offsets + p.threads * need.thread;
  return {need.packed, scratch, imin(need.packed + scratch, need.offsets + p.threads * need.packing)};
}

static Workspace workspace(const Problem &p) {
  return p.dtype == Dtype::f32 ? workspace_of<float>(p) : workspace_of<double>(p);
}

template <class T>
static void run_as(const Problem &given, const Operands &operands) {
  Problem p = given;
  Operands o = operands;
  join_rows(p, o);
  if (p.pass == Pass::wgrad)
    conv_wgrad<T>(p, o);
  else
    conv_gather<T>(p, o);
}

static void run(const Problem &p, const Operands &o) {
  if (p.dtype == Dtype::f32)
    run_as<float>(p, o);
  else
    run_as<double>(p, o);
}

// As many independent chains as a register block has sums.
static double peak(i64 rounds) {
  typedef Vec<float>::type V;
  constexpr int CHAINS = MR * NV;
  V s[CHAINS];
  volatile float start = 0.5f, factor = 0.999f;
  for (V &v : s) v = start - V{};
  const V a = factor - V{}, b = start - V{};
  for (i64 i = 0; i < rounds; ++i)
#pragma GCC unroll 24
    for (int j = 0; j < CHAINS; ++j) s[j] = fused(s[j], a, b);
  V sum{};
  for (const V &v : s) sum += v;
  start = sum[0];  // so that none of it is left out
  return double(rounds) * CHAINS * Vec<float>::lanes;
}

#undef OOC_FMA_F32
#undef OOC_FMA_F64
#undef OOC_INLINE
