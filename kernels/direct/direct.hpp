// Direct convolution on strided views: forward, data gradient and weight gradient, without
// cuDNN, BLAS or any allocation. One source (impl.inl) is compiled for several
// instruction sets; direct.cpp picks one of the tables below when the module is first used.
//
// Tiles: a block of x may be cut out of a larger x. Positions outside the block are absent, so
// that with pad = (first row of the block) + (whole pad) - (first row of y) * stride the three
// passes compute that block's share: all of dx, or one of the terms that accumulate to dw. The
// pad may be larger than the filter, negative, and y may have rows that touch no x.
//
// Results: fprop writes y, dgrad writes x, wgrad writes w, as act(old + sum + bias) with old = 0
// unless `accumulate`. The bias has one value for each channel of what is written, K for fprop and
// C for dgrad (a transposed convolution); wgrad takes neither bias nor activation.
//
// Packed weights: fprop and dgrad put packed weights first into the workspace. With `packed` a call
// uses what an earlier one left there: same pass, dtype, groups, w (shape and values), and for dgrad
// stride and dilation; everything else may differ. wgrad keeps nothing between calls.
//
// Order: without a workspace (workspace_bytes = 0) and `chained` the bits of a result depend on its own inputs
// and the instruction set alone, not on extents, strides in memory, blocks or threads:
//   fprop  one chain of multiply-adds from the old value on, over c ascending, then taps row-major;
//   dgrad  the same over k ascending, then taps in descending row-major order;
//   wgrad  for images, then rows (d, h) of y ascending: a chain from 0 over the row, added to w.
// Absent positions take no part. Bias and activation follow the last term, in the call that has them.
// So cutting c (fprop), k (dgrad), or the rows of x in the order (n, d, h) (wgrad; never along w) into
// consecutive accumulating calls gives the bits of the single call. The loops take up to 120 KiB of stack per thread.
//
// Workspace: any amount helps. What direct_workspace asks for is what makes no difference any more; with less,
// each thread packs the weights of its own tiles, again for each, and a weight gradient is computed in parts.
//
// Winograd's way (winograd*.inl) takes any workspace too, and says whether it has computed the call: else nothing was written.
#pragma once
#include "../common.hpp"
#include "../team.hpp"

namespace ooc {
namespace direct {

enum class Pass { fprop, dgrad, wgrad };

// Shapes and geometry: all that decides path, tiles and workspace.
// Forward meaning: y[o] = sum_t x[o * stride - pad + t * dilation] * w[t] on each axis.
struct Problem {
  Pass pass;
  Dtype dtype;
  i64 n, c, k, groups;
  i64 x[3], f[3], y[3];
  i64 stride[3], dilation[3], pad[3];
  int threads;
};

// Where the data is (strides in elements) and what to do with the result.
struct Operands {
  void *x, *w, *y;
  i64 xs[5], ws[5], ys[5];
  const void *bias;
  Act act;
  double coef;
  bool accumulate, packed;
  bool chained;  // without a workspace: the order of a chain is a promise; else few sums of many terms are taken in blocks
  void *workspace;
  i64 workspace_bytes;
};

struct Workspace {
  i64 packed_bytes, scratch_bytes;
  i64 lean_bytes;  // instead of both: threads pack the weights of their own tiles, again for each; dw in the smallest parts
};

struct Backend {
  Workspace (*workspace)(const Problem &);
  void (*run)(const Problem &, const Operands &);
  bool (*winograd)(const Problem &, const Operands &);
  double (*peak)(i64 rounds);  // multiply-adds of f32 on registers alone: how many were done
};

// Null when the compiler lacks the instruction set.
const Backend *backend_avx512();
const Backend *backend_avx2();
const Backend *backend_base();

}  // namespace direct
}  // namespace ooc
