// Batch normalisation, element by element: from statistics to y, and from sums of gradients to dx.
//
// Tensors are (n, k, d, h, w) with strides in elements, of any sign, and element-aligned.
#include <algorithm>
#include <array>

#include "calls.hpp"
#include "tiles.hpp"

namespace ooc {
namespace {

constexpr i64 kNormTile = 4096, kNormSide = 512;  // where statistics along rows are converted once a tile

// Statistics, f64, in the compute dtype: of one row of a tile, or of all its rows if they are alike.
struct Statistics {
  const double *mean, *rstd, *scale, *bias, *dscale, *dbias;  // null: 1 or 0
  double count;
};

template <typename C>
struct Factors {
  alignas(64) C mean[kNormSide], rstd[kNormSide], a[kNormSide], b[kNormSide], c[kNormSide];
};

template <typename C>
OOC_INLINE void load_forward(Factors<C> &f, const Statistics &s, i64 from, i64 n, i64 step) {
  for (i64 i = 0; i < n; ++i) {
    f.mean[i] = static_cast<C>(s.mean[from + i * step]);
    f.rstd[i] = static_cast<C>(s.rstd[from + i * step]);
  }
  if (s.scale)
    for (i64 i = 0; i < n; ++i) f.a[i] = static_cast<C>(s.scale[from + i * step]);
  else
    for (i64 i = 0; i < n; ++i) f.a[i] = C(1);
  if (s.bias)
    for (i64 i = 0; i < n; ++i) f.b[i] = static_cast<C>(s.bias[from + i * step]);
  else
    for (i64 i = 0; i < n; ++i) f.b[i] = C(0);
}

template <typename C>
OOC_INLINE void load_backward(Factors<C> &f, const Statistics &s, i64 from, i64 n, i64 step) {
  for (i64 i = 0; i < n; ++i) {
    const i64 at = from + i * step;
    f.mean[i] = static_cast<C>(s.mean[at]);
    f.rstd[i] = static_cast<C>(s.rstd[at]);
    f.b[i] = static_cast<C>(s.dbias[at] / s.count);
    f.c[i] = static_cast<C>(s.dscale[at] / s.count);
  }
  if (s.scale)
    for (i64 i = 0; i < n; ++i) f.a[i] = static_cast<C>(s.scale[from + i * step] * s.rstd[from + i * step]);
  else
    for (i64 i = 0; i < n; ++i) f.a[i] = f.rstd[i];
}

struct Norm {
  char *y;
  const char *x, *dy;
  Dtype type;
  Statistics stat;
  Act act;
  double coef;
};

template <typename C>
OOC_INLINE C normed(C x, C mean, C rstd, C scale, C bias) {
  const C product = (x - mean) * rstd * scale;
  return product + bias;
}

template <typename C>
OOC_INLINE C unnormed(C x, C dy, C mean, C rstd, C a, C b, C c) {
  const C product = (x - mean) * rstd * c;
  const C common = b + product;
  return a * (dy - common);
}

template <typename C>
OOC_INLINE void norm_any(const Norm &job, const Tile<3> &t) {
  alignas(64) C from_x[kNormTile], to_y[kNormTile];
  Factors<C> f;
  const i64 item = item_size(job.type), step = t.col.s[2];
  const View<const C> x = view_in<C>(job.x + t.at[1] * item, job.type, t.grid(1), from_x);
  const View<C> y = view_out<C>(job.y + t.at[0] * item, job.type, t.grid(0), to_y);
  for (i64 r = 0; r < t.rows; ++r) {
    if (r == 0 || t.row.s[2]) load_forward(f, job.stat, t.at[2] + r * t.row.s[2], step ? t.cols : 1, step);
    const C *px = x.row(r);
    C *py = y.row(r);
    if (step) {
      OOC_IVDEP
      for (i64 c = 0; c < t.cols; ++c) py[c] = normed(px[c], f.mean[c], f.rstd[c], f.a[c], f.b[c]);
    } else {
      const C mean = f.mean[0], rstd = f.rstd[0], a = f.a[0], b = f.b[0];
      OOC_IVDEP
      for (i64 c = 0; c < t.cols; ++c) py[c] = normed(px[c], mean, rstd, a, b);
    }
    activate(py, t.cols, job.act, static_cast<C>(job.coef));
  }
  store_view(job.y + t.at[0] * item, job.type, t.grid(0), y);
}

template <typename C>
OOC_INLINE void unnorm_any(const Norm &job, const Tile<4> &t) {
  alignas(64) C from_x[kNormTile], from_dy[kNormTile], to_dx[kNormTile];
  Factors<C> f;
  const i64 item = item_size(job.type), step = t.col.s[3];
  const View<const C> x = view_in<C>(job.x + t.at[1] * item, job.type, t.grid(1), from_x);
  const View<const C> dy = view_in<C>(job.dy + t.at[2] * item, job.type, t.grid(2), from_dy);
  const View<C> dx = view_out<C>(job.y + t.at[0] * item, job.type, t.grid(0), to_dx);
  for (i64 r = 0; r < t.rows; ++r) {
    if (r == 0 || t.row.s[3]) load_backward(f, job.stat, t.at[3] + r * t.row.s[3], step ? t.cols : 1, step);
    const C *px = x.row(r), *pg = dy.row(r);
    C *py = dx.row(r);
    if (step) {
      OOC_IVDEP
      for (i64 c = 0; c < t.cols; ++c) py[c] = unnormed(px[c], pg[c], f.mean[c], f.rstd[c], f.a[c], f.b[c], f.c[c]);
    } else {
      const C mean = f.mean[0], rstd = f.rstd[0], a = f.a[0], b = f.b[0], e = f.c[0];
      OOC_IVDEP
      for (i64 c = 0; c < t.cols; ++c) py[c] = unnormed(px[c], pg[c], mean, rstd, a, b, e);
    }
  }
  store_view(job.y + t.at[0] * item, job.type, t.grid(0), dx);
}

OOC_UNFUSED OOC_CLONES void norm_f32(const Norm &job, const Tile<3> &t) { norm_any<float>(job, t); }
OOC_UNFUSED OOC_CLONES void norm_f64(const Norm &job, const Tile<3> &t) { norm_any<double>(job, t); }
OOC_UNFUSED OOC_CLONES void unnorm_f32(const Norm &job, const Tile<4> &t) { unnorm_any<float>(job, t); }
OOC_UNFUSED OOC_CLONES void unnorm_f64(const Norm &job, const Tile<4> &t) { unnorm_any<double>(job, t); }

const double *doubles(uintptr_t p) { return reinterpret_cast<const double *>(p); }

}  // namespace

void bn_apply(int dtype, uintptr_t y, const Five &y_strides, uintptr_t x, const Five &x_strides, const Five &shape,
              uintptr_t mean, uintptr_t rstd, uintptr_t scale, uintptr_t bias, const Five &stat_strides, int act,
              double coef, int threads) {
  const Norm job{reinterpret_cast<char *>(y), reinterpret_cast<const char *>(x), nullptr, dtype_of(dtype),
                 Statistics{doubles(mean), doubles(rstd), doubles(scale), doubles(bias), nullptr, nullptr, 1},
                 act_of(act), coef};
  const i64 count = volume(shape);
  if (count == 0) return;
  threads = team_of(count / kMicrosecond, threads);
  const auto nest = make_nest<3>(shape, {y_strides, x_strides, stat_strides}, 2);
  const bool along = nest.axis(0).s[2] != 0;
  for_tiles(nest, along ? kNormTile : kTile, along ? kNormSide : kTile, threads,
            [&](const Tile<3> &t) { job.type == Dtype::f64 ? norm_f64(job, t) : norm_f32(job, t); });
}

void bn_backward_apply(int dtype, uintptr_t dx, const Five &dx_strides, uintptr_t x, const Five &x_strides,
                       uintptr_t dy, const Five &dy_strides, const Five &shape, uintptr_t mean, uintptr_t rstd,
                       uintptr_t scale, uintptr_t dscale, uintptr_t dbias, const Five &stat_strides, double count,
                       int threads) {
  const Norm job{reinterpret_cast<char *>(dx), reinterpret_cast<const char *>(x), reinterpret_cast<const char *>(dy),
                 dtype_of(dtype),
                 Statistics{doubles(mean), doubles(rstd), doubles(scale), nullptr, doubles(dscale), doubles(dbias),
                            count},
                 Act::identity, 0};
  const i64 items = volume(shape);
  if (items == 0) return;
  threads = team_of(items / kMicrosecond, threads);
  const auto nest = make_nest<4>(shape, {dx_strides, x_strides, dy_strides, stat_strides}, 3);
  const bool along = nest.axis(0).s[3] != 0;
  for_tiles(nest, along ? kNormTile : kTile, along ? kNormSide : kTile, threads,
            [&](const Tile<4> &t) { job.type == Dtype::f64 ? unnorm_f64(job, t) : unnorm_f32(job, t); });
}

}  // namespace ooc
