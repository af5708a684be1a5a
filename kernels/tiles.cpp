// Tiles of any dtype to a compute dtype and back, once for all kernels that pass through buffers.
#include "tiles.hpp"

#include <cstdlib>

namespace ooc {
namespace {

template <typename C, typename T>
OOC_INLINE void load_tile(C *out, const T *in, const Grid &g) {
  if (g.col_stride == 1) {
    for (i64 r = 0; r < g.rows; ++r)
      for (i64 c = 0; c < g.cols; ++c) out[r * g.cols + c] = static_cast<C>(widen(in[r * g.row_stride + c]));
  } else if (std::abs(g.row_stride) < std::abs(g.col_stride) && g.rows > 1) {
    for (i64 c = 0; c < g.cols; ++c)  // in the order of memory
      for (i64 r = 0; r < g.rows; ++r)
        out[r * g.cols + c] = static_cast<C>(widen(in[r * g.row_stride + c * g.col_stride]));
  } else {
    for (i64 r = 0; r < g.rows; ++r)
      for (i64 c = 0; c < g.cols; ++c)
        out[r * g.cols + c] = static_cast<C>(widen(in[r * g.row_stride + c * g.col_stride]));
  }
}

template <typename C, typename T>
OOC_INLINE void store_tile(T *out, const C *in, const Grid &g) {
  for (i64 r = 0; r < g.rows; ++r) {
    if (g.col_stride == 1) {
      for (i64 c = 0; c < g.cols; ++c) narrow(in[r * g.cols + c], out[r * g.row_stride + c]);
    } else {
      for (i64 c = 0; c < g.cols; ++c) narrow(in[r * g.cols + c], out[r * g.row_stride + c * g.col_stride]);
    }
  }
}

template <typename C>
OOC_INLINE void load_any(C *out, const char *in, Dtype t, const Grid &g) {
  switch (t) {
    case Dtype::f64: return load_tile(out, reinterpret_cast<const double *>(in), g);
    case Dtype::f32: return load_tile(out, reinterpret_cast<const float *>(in), g);
    case Dtype::f16: return load_tile(out, reinterpret_cast<const Half *>(in), g);
    case Dtype::bf16: return load_tile(out, reinterpret_cast<const Bfloat *>(in), g);
  }
}

template <typename C>
OOC_INLINE void store_any(char *out, Dtype t, const C *in, const Grid &g) {
  switch (t) {
    case Dtype::f64: return store_tile(reinterpret_cast<double *>(out), in, g);
    case Dtype::f32: return store_tile(reinterpret_cast<float *>(out), in, g);
    case Dtype::f16: return store_tile(reinterpret_cast<Half *>(out), in, g);
    case Dtype::bf16: return store_tile(reinterpret_cast<Bfloat *>(out), in, g);
  }
}

}  // namespace

OOC_CLONES void load(float *out, const char *in, Dtype t, const Grid &g) { load_any(out, in, t, g); }
OOC_CLONES void load(double *out, const char *in, Dtype t, const Grid &g) { load_any(out, in, t, g); }
OOC_CLONES void store(char *out, Dtype t, const float *in, const Grid &g) { store_any(out, t, in, g); }
OOC_CLONES void store(char *out, Dtype t, const double *in, const Grid &g) { store_any(out, t, in, g); }

}  // namespace ooc
