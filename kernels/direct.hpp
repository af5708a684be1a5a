// Direct convolution on strided views: forward, data gradient and weight gradient, without
// cuDNN, BLAS or any allocation. One source (direct_impl.inl) is compiled for several
// instruction sets; direct.cpp picks one of the tables below when the module is first used.
#pragma once
#include "common.hpp"

namespace pybind11 {
class module_;
}

namespace ooc {

void bind_direct(pybind11::module_ &m);

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
  void *workspace;
  i64 workspace_bytes;
};

struct Workspace {
  i64 packed_bytes, scratch_bytes;
};

struct Backend {
  const char *name;
  Workspace (*workspace)(const Problem &);
  void (*run)(const Problem &, const Operands &);
};

// Null when the compiler or the processor lacks the instruction set.
const Backend *backend_avx512();
const Backend *backend_avx2();
const Backend *backend_base();

}  // namespace direct
}  // namespace ooc
