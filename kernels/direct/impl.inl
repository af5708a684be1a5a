// Direct convolution kernels, included once per instruction set inside an anonymous namespace.
// The including file defines VEC_BYTES (vector size), MR (output channels per register block),
// WMR (weight rows per register block) and OOC_FMA_F32 and OOC_FMA_F64 (a * b + c of vectors), and
// has included <cmath>, <cstring>, direct.hpp.
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
#include "ordered_gather.inl"
#include "ordered_wgrad.inl"

#include "gather_kernel.inl"
#include "gather_plan.inl"
#include "gather.inl"

#include "wgrad_plan.inl"
#include "wgrad_kernel.inl"
#include "wgrad.inl"
#include "wgrad_parts.inl"

// ---------------------------------------------------------------------------- entry points

template <class T>
static Workspace workspace_of(const Problem &p) {
  if (tiny(p) || is_depthwise(p) || too_many_residues(p)) return {0, 0};
  if (p.pass == Pass::wgrad) {
    if (halo_too_large(p)) return {0, 0};
    Problem alone = p;
    alone.threads = 1;
    const i64 whole = wgrad_plan<T>(alone, 1).total;
    return {0, p.threads * (some_parts_fit<T>(alone, WGRAD_THREAD_BYTES) ? imin(whole, WGRAD_THREAD_BYTES) : whole)};
  }
  const GatherNeed need = gather_need<T>(p);
  return {need.packed, need.offsets + p.threads * need.thread};
}

static Workspace workspace(const Problem &p) {
  return p.dtype == Dtype::f32 ? workspace_of<float>(p) : workspace_of<double>(p);
}

template <class T>
static void run_as(const Problem &p, const Operands &o) {
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

#undef OOC_FMA_F32
#undef OOC_FMA_F64
#undef OOC_INLINE
