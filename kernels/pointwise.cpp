// Bias, activation and dtype conversion in one pass; sums of tensors.
//
// Tensors are (n, k, d, h, w) with strides in elements, of any sign, and element-aligned. f64 is
// computed in f64, the other dtypes in f32. Every output element is computed by one
// thread in a fixed order, so that results do not depend on the number of threads.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <stdexcept>

#include "calls.hpp"
#include "activate.hpp"
#include "tiles.hpp"

namespace ooc {
namespace {

// ---------------------------------------------------------------------------------------------
// Pointwise
// ---------------------------------------------------------------------------------------------

template <typename C>
OOC_INLINE void compute_any(C *x, const C *bias, const Grid &g, Act act, C coef) {
  if (bias) add_bias(x, bias, g);
  activate(x, g.rows * g.cols, act, coef);
}

OOC_CLONES void compute(float *x, const float *bias, const Grid &g, Act act, float coef) {
  compute_any(x, bias, g, act, coef);
}
OOC_CLONES void compute(double *x, const double *bias, const Grid &g, Act act, double coef) {
  compute_any(x, bias, g, act, coef);
}

struct Pointwise {
  char *dst;
  const char *src;
  Dtype dst_type, src_type;
  Act act;
  double coef;
};

template <typename C>
void run_pointwise(const Pointwise &job, const Nest<3> &nest, const C *bias, int threads) {
  for_tiles(nest, kTile, kTile, threads, [&](const Tile<3> &t) {
    alignas(64) C tile[kTile];
    load(tile, job.src + t.at[1] * item_size(job.src_type), job.src_type, t.grid(1));
    compute(tile, bias ? bias + t.at[2] : nullptr, t.grid(2), job.act, static_cast<C>(job.coef));
    store(job.dst + t.at[0] * item_size(job.dst_type), job.dst_type, tile, t.grid(0));
  });
}

}  // namespace

void pointwise(uintptr_t dst, int dst_dtype, const Five &dst_strides, uintptr_t src, int src_dtype,
               const Five &src_strides, const Five &shape, uintptr_t bias, int act, double coef, int threads) {
  const Pointwise job{reinterpret_cast<char *>(dst), reinterpret_cast<const char *>(src), dtype_of(dst_dtype),
                      dtype_of(src_dtype), act_of(act), coef};
  const i64 count = volume(shape);
  if (count == 0) return;
  threads = team_of(count / kMicrosecond, threads);
  const Nest<3> nest = make_nest<3>(shape, {dst_strides, src_strides, Five{0, bias != 0, 0, 0, 0}}, 2);
  if (job.dst_type == Dtype::f64 || job.src_type == Dtype::f64)
    run_pointwise(job, nest, reinterpret_cast<const double *>(bias), threads);
  else
    run_pointwise(job, nest, reinterpret_cast<const float *>(bias), threads);
}

namespace {

// ---------------------------------------------------------------------------------------------
// Blend: y = act(alpha * x + beta * z + bias), or act(x * z + bias)
// ---------------------------------------------------------------------------------------------

struct Blend {
  char *y;
  const char *x, *z;
  Dtype type;
  double alpha, beta;
  Act act;
  double coef;
  bool product;
};

// y may be x or z: every element is read before it is written, also where y is computed in place.
template <typename C>
OOC_INLINE void blend_any(const Blend &job, const C *bias, const Tile<4> &t) {
  alignas(64) C from_x[kTile], from_z[kTile], to_y[kTile];
  const i64 item = item_size(job.type);
  const View<const C> x = view_in<C>(job.x + t.at[1] * item, job.type, t.grid(1), from_x);
  const View<C> y = view_out<C>(job.y + t.at[0] * item, job.type, t.grid(0), to_y);
  const C alpha = static_cast<C>(job.alpha), beta = static_cast<C>(job.beta), coef = static_cast<C>(job.coef);
  View<const C> z{nullptr, 0};
  if (job.z) z = view_in<C>(job.z + t.at[2] * item, job.type, t.grid(2), from_z);
  for (i64 r = 0; r < t.rows; ++r) {
    const C *px = x.row(r), *pz = z.row(r);
    C *py = y.row(r);
    if (!job.z) {
      OOC_IVDEP
      for (i64 c = 0; c < t.cols; ++c) py[c] = alpha * px[c];
    } else if (job.product) {
      OOC_IVDEP
      for (i64 c = 0; c < t.cols; ++c) py[c] = px[c] * pz[c];
    } else {
      OOC_IVDEP
      for (i64 c = 0; c < t.cols; ++c) {
        const C ax = alpha * px[c], bz = beta * pz[c];
        py[c] = ax + bz;
      }
    }
    if (bias) add_bias(py, bias + t.at[3] + r * t.row.s[3], Grid{1, 0, t.cols, t.col.s[3]});
    activate(py, t.cols, job.act, coef);
  }
  store_view(job.y + t.at[0] * item, job.type, t.grid(0), y);
}

OOC_UNFUSED OOC_CLONES void blend_tile(const Blend &job, const float *bias, const Tile<4> &t) {
  blend_any(job, bias, t);
}
OOC_UNFUSED OOC_CLONES void blend_tile(const Blend &job, const double *bias, const Tile<4> &t) {
  blend_any(job, bias, t);
}

void run_blend(const Blend &job, const Five &y_strides, const Five &x_strides, const Five &z_strides, const Five &shape,
               uintptr_t bias, int threads) {
  const i64 count = volume(shape);
  if (count == 0) return;
  threads = team_of(count / kMicrosecond, threads);
  const Five bias_strides{0, bias != 0, 0, 0, 0};
  const auto nest = make_nest<4>(shape, {y_strides, x_strides, job.z ? z_strides : x_strides, bias_strides}, 3);
  for_tiles(nest, kTile, kTile, threads, [&](const Tile<4> &t) {
    if (job.type == Dtype::f64)
      blend_tile(job, reinterpret_cast<const double *>(bias), t);
    else
      blend_tile(job, reinterpret_cast<const float *>(bias), t);
  });
}

}  // namespace

void blend(int dtype, uintptr_t y, const Five &y_strides, uintptr_t x, const Five &x_strides, uintptr_t z,
           const Five &z_strides, const Five &shape, uintptr_t bias, double alpha, double beta, int act, double coef,
           int threads) {
  if (beta == 0) z = 0;
  const Blend job{reinterpret_cast<char *>(y), reinterpret_cast<const char *>(x), reinterpret_cast<const char *>(z),
                  dtype_of(dtype), alpha, beta, act_of(act), coef, false};
  run_blend(job, y_strides, x_strides, z_strides, shape, bias, threads);
}

void multiply(int dtype, uintptr_t y, const Five &y_strides, uintptr_t x, const Five &x_strides, uintptr_t z,
              const Five &z_strides, const Five &shape, uintptr_t bias, int act, double coef, int threads) {
  const Blend job{reinterpret_cast<char *>(y), reinterpret_cast<const char *>(x), reinterpret_cast<const char *>(z),
                  dtype_of(dtype), 1, 1, act_of(act), coef, true};
  run_blend(job, y_strides, x_strides, z_strides, shape, bias, threads);
}

void activate_in_place(float *at, const Five &shape, const Five &strides, Act act, float coef) {
  char *const to = reinterpret_cast<char *>(at);
  const Pointwise job{to, to, Dtype::f32, Dtype::f32, act, coef};
  run_pointwise(job, make_nest<3>(shape, {strides, strides, Five{}}, 2), static_cast<const float *>(nullptr), 1);
}

}  // namespace ooc
