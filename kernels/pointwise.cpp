// Bias, activation and dtype conversion in one pass; sums of tensors; max and average pooling.
//
// Tensors are (n, k, d, h, w) with strides in elements, of any sign, and element-aligned. f64 is
// computed in f64, the other dtypes in f32. Every output element is computed by one
// thread in a fixed order, so that results do not depend on the number of threads.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
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

namespace {

// ---------------------------------------------------------------------------------------------
// Pooling: a line of outputs, along w or along k, accumulates one window row after another
// ---------------------------------------------------------------------------------------------

enum class Pool : int { max = 0, average = 1, average_inside = 2 };

constexpr i64 kLine = 512;  // outputs of a line: the accumulators stay in the first cache

// One row of a window for n outputs: output o takes x[o * step + l * tap] for l < taps, in order of l.
struct Taps {
  i64 n, step, taps, tap;
};

// NaN, once met, stays.
template <bool kMax, typename C>
OOC_INLINE C join(C acc, C x) {
  if (kMax) return ((x > acc) | (x != x)) ? x : acc;
  return acc + x;
}

// Constant window and stride: the accumulator is touched once for the whole window row.
template <bool kMax, int kTaps, int kStep, typename C, typename T>
OOC_INLINE void join_fixed(C *acc, const T *x, i64 n) {
  for (i64 o = 0; o < n; ++o) {
    C a = acc[o];
    for (int l = 0; l < kTaps; ++l) a = join<kMax>(a, static_cast<C>(widen(x[o * kStep + l])));
    acc[o] = a;
  }
}

template <bool kMax, typename C, typename T>
OOC_INLINE void join_row(C *acc, const T *x, const Taps &t) {
  if (t.tap == 1 && t.taps == 2 && t.step == 2) return join_fixed<kMax, 2, 2>(acc, x, t.n);
  if (t.tap == 1 && t.taps == 3 && t.step == 1) return join_fixed<kMax, 3, 1>(acc, x, t.n);
  if (t.tap == 1 && t.taps == 3 && t.step == 2) return join_fixed<kMax, 3, 2>(acc, x, t.n);
  for (i64 l = 0; l < t.taps; ++l) {
    const T *from = x + l * t.tap;
    if (t.step == 1)
      for (i64 o = 0; o < t.n; ++o) acc[o] = join<kMax>(acc[o], static_cast<C>(widen(from[o])));
    else
      for (i64 o = 0; o < t.n; ++o) acc[o] = join<kMax>(acc[o], static_cast<C>(widen(from[o * t.step])));
  }
}

template <typename C, typename T>
OOC_INLINE void join_kind(C *acc, const T *x, bool max, const Taps &t) {
  max ? join_row<true>(acc, x, t) : join_row<false>(acc, x, t);
}

OOC_CLONES void accumulate(float *acc, const char *x, Dtype type, bool max, const Taps &t) {
  if (type == Dtype::f32) return join_kind(acc, reinterpret_cast<const float *>(x), max, t);
  if (type == Dtype::f16) return join_kind(acc, reinterpret_cast<const Half *>(x), max, t);
  join_kind(acc, reinterpret_cast<const Bfloat *>(x), max, t);
}

OOC_CLONES void accumulate(double *acc, const char *x, Dtype, bool max, const Taps &t) {
  join_kind(acc, reinterpret_cast<const double *>(x), max, t);
}

// Window positions [begin, end) of one axis that lie inside the x block.
struct Inside {
  i64 origin, begin, end;
  i64 count() const { return end - begin; }
};

struct PoolAxis {
  i64 in, out, window, stride, pad;

  Inside at(i64 o) const {
    const i64 origin = o * stride - pad;
    const i64 begin = std::min(window, std::max<i64>(0, -origin));
    return {origin, begin, std::max(begin, std::min(window, in - origin))};
  }

  // Outputs [first, last) whose windows lie wholly inside.
  std::pair<i64, i64> interior() const {
    const i64 room = in - window + pad;
    const i64 last = room < 0 ? 0 : std::min(out, room / stride + 1);
    const i64 first = pad <= 0 ? 0 : std::min(out, (pad + stride - 1) / stride);
    return {std::min(first, last), last};
  }
};

template <typename C>
struct PoolJob {
  Pool kind;
  Dtype type;
  const char *x;
  char *y;
  Five xs, ys, y_shape;  // strides of x and y, shape of y
  PoolAxis d, h, w;

  C start() const { return kind == Pool::max ? -std::numeric_limits<C>::infinity() : C(0); }
  const char *at(i64 offset) const { return x + offset * item_size(type); }

  // Row-major over the window; `base` is the place of window position (0, 0, 0).
  void gather(C *acc, i64 base, const Inside &id, const Inside &ih, const Inside &iw, Taps t) const {
    t.taps = iw.count();
    if (t.taps <= 0) return;
    for (i64 i = id.begin; i < id.end; ++i)
      for (i64 j = ih.begin; j < ih.end; ++j)
        accumulate(acc, at(base + i * xs[2] + j * xs[3] + iw.begin * xs[4]), type, kind == Pool::max, t);
  }

  void divide(C *acc, i64 n, i64 inside) const {
    if (kind == Pool::max) return;
    const i64 count = kind == Pool::average ? d.window * h.window * w.window : inside;
    if (count == 0) return;  // the sums are zero
    const C divisor = static_cast<C>(count);
    for (i64 o = 0; o < n; ++o) acc[o] /= divisor;
  }

  // Outputs [from, to) of a w line whose windows share the valid part iw.
  void segment(C *acc, i64 base, i64 from, i64 to, const Inside &id, const Inside &ih, const Inside &iw) const {
    if (from >= to) return;
    gather(acc, base + iw.origin * xs[4], id, ih, iw, Taps{to - from, w.stride * xs[4], 0, xs[4]});
    divide(acc, to - from, id.count() * ih.count() * iw.count());
  }

  // Lines along w: line u is one (n, k, d, h) of y.
  void line_w(i64 u) const {
    const i64 oh = u % y_shape[3], od = u / y_shape[3] % y_shape[2], nk = u / y_shape[3] / y_shape[2];
    const i64 k = nk % y_shape[1], n = nk / y_shape[1];
    const Inside id = d.at(od), ih = h.at(oh);
    const i64 base = n * xs[0] + k * xs[1] + id.origin * xs[2] + ih.origin * xs[3];
    const i64 to = n * ys[0] + k * ys[1] + od * ys[2] + oh * ys[3];
    const auto inner = w.interior();
    alignas(64) C acc[kLine];
    for (i64 o = 0; o < w.out; o += kLine) {
      const i64 end = std::min(w.out, o + kLine);
      std::fill(acc, acc + (end - o), start());
      const i64 first = std::clamp(inner.first, o, end), last = std::clamp(inner.second, first, end);
      for (i64 p = o; p < first; ++p) segment(acc + (p - o), base, p, p + 1, id, ih, w.at(p));
      segment(acc + (first - o), base, first, last, id, ih, w.at(first));
      for (i64 p = last; p < end; ++p) segment(acc + (p - o), base, p, p + 1, id, ih, w.at(p));
      store(y + (to + o * ys[4]) * item_size(type), type, acc, Grid{1, 0, end - o, ys[4]});
    }
  }

  // Lines along k, for channels-last blocks: line u is one (n, d, h) of y, all its w in turn.
  void line_k(i64 u) const {
    const i64 oh = u % y_shape[3], od = u / y_shape[3] % y_shape[2], n = u / y_shape[3] / y_shape[2];
    const Inside id = d.at(od), ih = h.at(oh);
    const i64 base = n * xs[0] + id.origin * xs[2] + ih.origin * xs[3];
    const i64 to = n * ys[0] + od * ys[2] + oh * ys[3];
    alignas(64) C acc[kLine];
    for (i64 o = 0; o < w.out; ++o) {
      const Inside iw = w.at(o);
      for (i64 k = 0; k < y_shape[1]; k += kLine) {
        const i64 count = std::min(kLine, y_shape[1] - k);
        std::fill(acc, acc + count, start());
        gather(acc, base + k * xs[1] + iw.origin * xs[4], id, ih, iw, Taps{count, xs[1], 0, xs[4]});
        divide(acc, count, id.count() * ih.count() * iw.count());
        store(y + (to + k * ys[1] + o * ys[4]) * item_size(type), type, acc, Grid{1, 0, count, ys[1]});
      }
    }
  }

  void run(int threads) const {
    const bool along_k = y_shape[1] > 1 && std::abs(xs[1]) < std::abs(xs[4]);
    const i64 lines = y_shape[0] * y_shape[2] * y_shape[3] * (along_k ? 1 : y_shape[1]);
    share_runs(lines, threads, [&](i64 lo, i64 hi, int) {
      for (i64 u = lo; u < hi; ++u) along_k ? line_k(u) : line_w(u);
    });
  }
};

}  // namespace

void pool_fprop(int kind, int dtype, uintptr_t x, const Five &x_shape, const Five &x_strides, uintptr_t y,
                const Five &y_shape, const Five &y_strides, const Three &window, const Three &stride,
                const Three &pad_lo, int threads) {
  if (kind < 0 || kind > 2) throw std::invalid_argument("unknown pooling kind");
  if (x_shape[0] != y_shape[0] || x_shape[1] != y_shape[1]) throw std::invalid_argument("x and y differ in n or k");
  for (int i = 0; i < 3; ++i)
    if (window[i] < 1 || stride[i] < 1) throw std::invalid_argument("window and stride must be positive");
  const Dtype type = dtype_of(dtype);
  volume(x_shape);
  const i64 count = volume(y_shape);
  if (count == 0) return;
  threads = team_of(4.0 * count / kMicrosecond, threads);
  const auto axis = [&](int i) { return PoolAxis{x_shape[i + 2], y_shape[i + 2], window[i], stride[i], pad_lo[i]}; };
  const auto run = [&](auto zero) {
    PoolJob<decltype(zero)>{static_cast<Pool>(kind), type,    reinterpret_cast<const char *>(x),
                            reinterpret_cast<char *>(y), x_strides, y_strides, y_shape, axis(0), axis(1), axis(2)}
        .run(threads);
  };
  type == Dtype::f64 ? run(0.0) : run(0.0f);
}

void activate_in_place(float *at, const Five &shape, const Five &strides, Act act, float coef) {
  char *const to = reinterpret_cast<char *>(at);
  const Pointwise job{to, to, Dtype::f32, Dtype::f32, act, coef};
  run_pointwise(job, make_nest<3>(shape, {strides, strides, Five{}}, 2), static_cast<const float *>(nullptr), 1);
}

}  // namespace ooc
