// Sums over tensors, and batch normalisation.
//
// Tensors are (n, k, d, h, w) with strides in elements, of any sign, and element-aligned. Results of
// reductions are f64 and have strides of 0 on the axes that are summed.
//
// The order of all additions is fixed by the shape alone. A row, along w, is added up in kLanes
// interleaved partial sums, in f64, and rows are added to the result one after the other, in order of
// (n, d, h) and then k: consecutive calls for the parts of a tensor cut along n, d or h (in that
// order) give the bits of one call for the whole, for any strides and any number of threads.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "tiles.hpp"

namespace py = pybind11;

namespace ooc {
namespace {

// ---------------------------------------------------------------------------------------------
// Rows
// ---------------------------------------------------------------------------------------------

// What is added up: x; x * y; count, mean and squared distance from the mean of x; and of y times
// normalised x, and y.
enum class Sum { x, product, moments, backward };

constexpr int kLanes = 16;      // partial sums of a row
constexpr i64 kChunk = 64;      // neighbouring results that are computed together
constexpr i64 kBatch = 1024;    // sums of rows that wait in the first cache to be added to results
constexpr i64 kShared = 16384;  // the same where threads share the rows of one result

// Rows of x and y: `rows` of them, of n elements, for `count` neighbouring results.
struct Rows {
  Sum what;
  Dtype type;
  const char *x, *y;
  i64 n, x_step, y_step;
  i64 rows, x_next, y_next;
  i64 count, x_side, y_side;
  const double *mean, *rstd;  // of the results
};

OOC_CLONES void load(float *out, const char *in, Dtype t, const Grid &g) { load_any(out, in, t, g); }
OOC_CLONES void load(double *out, const char *in, Dtype t, const Grid &g) { load_any(out, in, t, g); }

// A part of x or y as f32 or f64, in place if it is that already: a buffer otherwise.
template <typename C>
OOC_INLINE View<const C> part(C *buffer, const char *base, Dtype t, i64 offset, const Grid &g) {
  if (!base) return {nullptr, 0};
  const char *in = base + offset * item_size(t);
  if (in_place(t, g, C())) return {reinterpret_cast<const C *>(in), g.row_stride};
  load(buffer, in, t, g);
  return {buffer, g.cols};
}

// The end of a row, to be added like all of it: element by element would take longer than the row.
template <typename C>
OOC_INLINE void copy_end(C *to, const C *from, i64 n) {
  for (i64 some = kLanes / 2; some > 0; some /= 2) {
    if (!(n & some)) continue;
    std::memcpy(to, from, some * sizeof(C));
    to += some;
    from += some;
  }
}

// One result. Sums of row r are put at out[r]; second values (M2, sums of y) at more[r].
template <typename C>
struct One {
  const Rows &t;
  bool near;
  i64 piece, group;  // elements of a row and rows that fit the buffers
  View<const C> x, y;
  alignas(64) C from_x[kTile], from_y[kTile];

  OOC_INLINE explicit One(const Rows &rows) : t(rows) {
    near = in_place(t.type, Grid{1, 0, 1, t.x_step}, C()) && (!t.y || t.y_step == 1);
    piece = near ? t.n : std::min(t.n, kTile);
    group = near ? t.rows : std::max<i64>(1, kTile / t.n);
  }

  OOC_INLINE void view(i64 r, i64 rows, i64 i) {
    const i64 n = std::min(piece, t.n - i);
    x = part(from_x, t.x, t.type, r * t.x_next + i * t.x_step, Grid{rows, t.x_next, n, t.x_step});
    y = part(from_y, t.y, t.type, r * t.y_next + i * t.y_step, Grid{rows, t.y_next, n, t.y_step});
  }

  // The sum of value(x, y) over row r, the view's row `at`.
  template <typename F>
  OOC_INLINE double add(i64 r, i64 at, const F &value) {
    if (t.n == 1) return 0.0 + value(x.row(at), y.row(at), 0);
    double lane[kLanes] = {};
    for (i64 from = 0; from < t.n; from += piece) {
      if (piece < t.n) view(r, 1, from);
      const i64 n = std::min(piece, t.n - from);
      const C *px = x.row(at), *py = y.row(at);
      i64 i = 0;
      for (; i + kLanes <= n; i += kLanes)
        for (int j = 0; j < kLanes; ++j) lane[j] += value(px, py, i + j);
      if (i < n) {
        alignas(64) C end_x[kLanes] = {}, end_y[kLanes] = {};
        copy_end(end_x, px + i, n - i);
        if (t.y) copy_end(end_y, py + i, n - i);
        for (int j = 0; j < kLanes; ++j) lane[j] += choose(j < n - i, value(end_x, end_y, j), 0.0);
      }
    }
    double eight[8], four[4];  // halves to halves, in registers
    for (int j = 0; j < 8; ++j) eight[j] = lane[j] + lane[j + 8];
    for (int j = 0; j < 4; ++j) four[j] = eight[j] + eight[j + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
  }

  OOC_INLINE void row(double &out, double &more, i64 r, i64 at) {
    const auto at_x = [](const C *px, const C *, i64 i) OOC_LAMBDA { return static_cast<double>(px[i]); };
    const auto at_y = [](const C *, const C *py, i64 i) OOC_LAMBDA { return static_cast<double>(py[i]); };
    switch (t.what) {
      case Sum::x: out = add(r, at, at_x); return;
      case Sum::product:
        out = add(r, at, [](const C *px, const C *py, i64 i) OOC_LAMBDA {
          return static_cast<double>(px[i]) * static_cast<double>(py[i]);
        });
        return;
      case Sum::moments: {
        const double m = add(r, at, at_x) / static_cast<double>(t.n);
        out = m;
        more = add(r, at, [m](const C *px, const C *, i64 i) OOC_LAMBDA {
          const double far = static_cast<double>(px[i]) - m;
          return far * far;
        });
        return;
      }
      case Sum::backward: {
        const double mean = t.mean[0], rstd = t.rstd[0];
        out = add(r, at, [mean, rstd](const C *px, const C *py, i64 i) OOC_LAMBDA {
          return static_cast<double>(py[i]) * ((static_cast<double>(px[i]) - mean) * rstd);
        });
        more = add(r, at, at_y);
        return;
      }
    }
  }

  OOC_INLINE void run(double *out, double *more) {
    for (i64 r = 0; r < t.rows; r += group) {
      const i64 rows = std::min(group, t.rows - r);
      view(r, rows, 0);
      for (i64 at = 0; at < rows; ++at) row(out[r + at], more[r + at], r + at, at);
    }
  }
};

// `count` neighbouring results. Sums of row r for result v are put at out[r * count + v].
template <typename C>
struct Many {
  const Rows &t;
  alignas(64) C from_x[kLanes * kChunk], from_y[kLanes * kChunk];
  alignas(64) double lane[kLanes][kChunk];

  OOC_INLINE explicit Many(const Rows &rows) : t(rows) {}

  template <typename F>
  OOC_INLINE void add(double *out, i64 r, const F &value) {
    const i64 used = std::min<i64>(t.n, kLanes), count = t.count;
    for (i64 from = 0; from < t.n; from += kLanes) {
      const i64 n = std::min<i64>(kLanes, t.n - from);
      const View<const C> x = part(from_x, t.x, t.type, r * t.x_next + from * t.x_step,
                                   Grid{n, t.x_step, count, t.x_side});
      const View<const C> y = part(from_y, t.y, t.type, r * t.y_next + from * t.y_step,
                                   Grid{n, t.y_step, count, t.y_side});
      for (i64 j = 0; j < n; ++j) {
        const C *px = x.row(j), *py = y.row(j);
        double *to = lane[j];
        if (from == 0)
          for (i64 v = 0; v < count; ++v) to[v] = 0.0 + value(px, py, v);
        else
          for (i64 v = 0; v < count; ++v) to[v] += value(px, py, v);
      }
    }
    for (i64 half = kLanes / 2; half > 0; half /= 2)
      for (i64 j = 0; j < half && j + half < used; ++j)
        for (i64 v = 0; v < count; ++v) lane[j][v] += lane[j + half][v];
    for (i64 v = 0; v < count; ++v) out[v] = lane[0][v];
  }

  OOC_INLINE void row(double *out, double *more, i64 r) {
    const auto at_x = [](const C *px, const C *, i64 v) OOC_LAMBDA { return static_cast<double>(px[v]); };
    const auto at_y = [](const C *, const C *py, i64 v) OOC_LAMBDA { return static_cast<double>(py[v]); };
    switch (t.what) {
      case Sum::x: add(out, r, at_x); return;
      case Sum::product:
        add(out, r, [](const C *px, const C *py, i64 v) OOC_LAMBDA {
          return static_cast<double>(px[v]) * static_cast<double>(py[v]);
        });
        return;
      case Sum::moments: {
        add(out, r, at_x);
        const double n = static_cast<double>(t.n);
        for (i64 v = 0; v < t.count; ++v) out[v] /= n;
        add(more, r, [out](const C *px, const C *, i64 v) OOC_LAMBDA {
          const double far = static_cast<double>(px[v]) - out[v];
          return far * far;
        });
        return;
      }
      case Sum::backward: {
        const double *mean = t.mean, *rstd = t.rstd;
        add(out, r, [mean, rstd](const C *px, const C *py, i64 v) OOC_LAMBDA {
          return static_cast<double>(py[v]) * ((static_cast<double>(px[v]) - mean[v]) * rstd[v]);
        });
        add(more, r, at_y);
        return;
      }
    }
  }

  OOC_INLINE void run(double *out, double *more) {
    for (i64 r = 0; r < t.rows; ++r) row(out + r * t.count, more + r * t.count, r);
  }
};

OOC_UNFUSED OOC_CLONES void sum_one_f32(double *out, double *more, const Rows &t) { One<float>(t).run(out, more); }
OOC_UNFUSED OOC_CLONES void sum_one_f64(double *out, double *more, const Rows &t) { One<double>(t).run(out, more); }
OOC_UNFUSED OOC_CLONES void sum_many_f32(double *out, double *more, const Rows &t) { Many<float>(t).run(out, more); }
OOC_UNFUSED OOC_CLONES void sum_many_f64(double *out, double *more, const Rows &t) { Many<double>(t).run(out, more); }

void sum_rows(double *out, double *more, const Rows &t, bool along) {
  if (t.type == Dtype::f64)
    along ? sum_one_f64(out, more, t) : sum_many_f64(out, more, t);
  else
    along ? sum_one_f32(out, more, t) : sum_many_f32(out, more, t);
}

// ---------------------------------------------------------------------------------------------
// Reductions
// ---------------------------------------------------------------------------------------------

// Neighbouring results while rows are added to them.
struct Result {
  alignas(64) double a[3][kChunk];
};

// Adds rows of n elements; for moments by the formulas of Chan, Golub and LeVeque.
OOC_UNFUSED OOC_CLONES void absorb(Sum what, Result &s, const double *out, const double *more, i64 rows, i64 count,
                                   double n, double alpha) {
  for (i64 r = 0; r < rows; ++r, out += count, more += count) {
    switch (what) {
      case Sum::x:
      case Sum::product:
        for (i64 v = 0; v < count; ++v) s.a[0][v] += alpha * out[v];
        break;
      case Sum::moments:
        for (i64 v = 0; v < count; ++v) {
          const double before = s.a[0][v], after = before + n, far = out[v] - s.a[1][v], share = n / after;
          const double move = far * share, spread = (far * far) * (before * share);
          s.a[0][v] = after;
          s.a[1][v] += move;
          s.a[2][v] += more[v] + spread;
        }
        break;
      case Sum::backward:
        for (i64 v = 0; v < count; ++v) {
          s.a[0][v] += out[v];
          s.a[1][v] += more[v];
        }
        break;
    }
  }
}

struct ReduceAxis {
  i64 n = 1, x = 0, y = 0, acc = 0, stat = 0;  // extent and strides
};

struct Offsets {
  i64 x = 0, y = 0, acc = 0, stat = 0;

  void move(const ReduceAxis &a, i64 by) {
    x += by * a.x;
    y += by * a.y;
    acc += by * a.acc;
    stat += by * a.stat;
  }
};

struct Axes {
  int rank = 0;
  ReduceAxis ax[5];

  void push(const ReduceAxis &a) { ax[rank++] = a; }
  i64 volume() const {
    i64 v = 1;
    for (int i = 0; i < rank; ++i) v *= ax[i].n;
    return v;
  }
  Offsets at(i64 u) const {  // u: row-major
    Offsets o;
    for (int i = rank - 1; i >= 0; --i) {
      o.move(ax[i], u % ax[i].n);
      u /= ax[i].n;
    }
    return o;
  }
};

struct Reduce {
  Sum what;
  Dtype type;
  const char *x, *y;
  double *acc;
  i64 acc_row;  // between the values of one result
  const double *mean, *rstd;
  double alpha;
  bool accumulate;

  Axes kept, summed;  // but for the two below
  ReduceAxis row;     // what is summed first: w, or nothing
  ReduceAxis side;    // neighbouring results, or nothing
  bool along = true;  // the row is nearer than the side: one result at a time

  int values() const { return what == Sum::moments ? 3 : what == Sum::backward ? 2 : 1; }

  void plan(const Five &shape, const Five &xs, const Five &ys, const Five &as, const Five &ss) {
    const auto axis = [&](int i) { return ReduceAxis{shape[i], xs[i], ys[i], as[i], ss[i]}; };
    if (shape[4] != 1 && as[4] == 0) row = axis(4);
    int near = -1;
    for (int i = 0; i < 5; ++i)
      if (shape[i] != 1 && as[i] != 0 && xs[i] != 0 && (near < 0 || std::abs(xs[i]) < std::abs(xs[near]))) near = i;
    if (near >= 0 && (row.n == 1 || std::abs(xs[near]) < std::abs(row.x))) {
      along = false;
      side = axis(near);
    }
    for (int i = 0; i < 5; ++i)
      if (shape[i] != 1 && as[i] != 0 && (along || i != near)) kept.push(axis(i));
    for (int i : {0, 2, 3, 1})
      if (shape[i] != 1 && as[i] == 0) summed.push(axis(i));
  }

  // The sums of rows [begin, end) for results at `from`.
  void rows(double *out, double *more, const Offsets &from, i64 count, const double *m, const double *s, i64 begin,
            i64 end) const {
    const ReduceAxis inner = summed.rank ? summed.ax[summed.rank - 1] : ReduceAxis{};
    const i64 item = item_size(type);
    for (i64 r = begin; r < end;) {
      const i64 n = std::min(end - r, inner.n - r % inner.n);
      const Offsets o = summed.at(r);
      const Rows t{what,    type,     x + (from.x + o.x) * item, y ? y + (from.y + o.y) * item : nullptr,
                   row.n,   row.x,    row.y,                     n,
                   inner.x, inner.y,  count,                     side.x,
                   side.y,  m,        s};
      sum_rows(out, more, t, along);
      out += n * count;
      more += n * count;
      r += n;
    }
  }

  void start(Result &s, const Offsets &from, i64 count) const {
    for (int i = 0; i < values(); ++i)
      for (i64 v = 0; v < count; ++v) s.a[i][v] = accumulate ? acc[from.acc + i * acc_row + v * side.acc] : 0.0;
  }

  void finish(const Result &s, const Offsets &from, i64 count) const {
    for (int i = 0; i < values(); ++i)
      for (i64 v = 0; v < count; ++v) acc[from.acc + i * acc_row + v * side.acc] = s.a[i][v];
  }

  // All rows of one chunk of results, in batches of at most `batch` sums; `team` threads share a batch.
  void chunk(i64 unit, i64 chunks, double *out, double *more, i64 batch, int team) const {
    const i64 first = unit % chunks * kChunk, count = std::min(kChunk, side.n - first);
    const i64 total = row.n ? summed.volume() : 0;
    Offsets from = kept.at(unit / chunks);
    from.move(side, first);
    alignas(64) double m[kChunk], s[kChunk];
    if (mean)
      for (i64 v = 0; v < count; ++v) {
        m[v] = mean[from.stat + v * side.stat];
        s[v] = rstd[from.stat + v * side.stat];
      }
    const double *means = mean ? m : nullptr, *rstds = mean ? s : nullptr;
    Result result;
    start(result, from, count);
    const i64 step = batch / count, some = std::max<i64>(1, kBatch / 4 / count);
    for (i64 r = 0; r < total; r += step) {
      const i64 n = std::min(step, total - r);
      if (team == 1) {
        rows(out, more, from, count, means, rstds, r, r + n);
      } else {
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(team)
#endif
        for (i64 i = 0; i < n; i += some)
          rows(out + i * count, more + i * count, from, count, means, rstds, r + i, r + std::min(n, i + some));
      }
      absorb(what, result, out, more, n, count, static_cast<double>(row.n), alpha);
    }
    finish(result, from, count);
  }

  void run(int threads) const {
    const i64 chunks = (side.n + kChunk - 1) / kChunk, units = kept.volume() * chunks;
    if (threads > 1 && units < 4 * threads) {  // too few to share evenly
      alignas(64) double out[kShared], more[kShared];
      for (i64 u = 0; u < units; ++u) chunk(u, chunks, out, more, kShared, threads);
      return;
    }
#ifdef _OPENMP
#pragma omp parallel num_threads(threads) if (threads > 1)
#endif
    {
      alignas(64) double out[kBatch], more[kBatch];
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
      for (i64 u = 0; u < units; ++u) chunk(u, chunks, out, more, kBatch, 1);
    }
  }
};

void reduce(Sum what, int dtype, uintptr_t acc, i64 row_stride, const Five &acc_strides, uintptr_t x,
            const Five &x_strides, uintptr_t y, const Five &y_strides, const Five &shape, uintptr_t mean,
            uintptr_t rstd, const Five &stat_strides, double alpha, bool accumulate, int threads) {
  Reduce job{what,
             dtype_of(dtype),
             reinterpret_cast<const char *>(x),
             reinterpret_cast<const char *>(y),
             reinterpret_cast<double *>(acc),
             row_stride,
             reinterpret_cast<const double *>(mean),
             reinterpret_cast<const double *>(rstd),
             alpha,
             accumulate,
             {}, {}, {}, {}};
  threads = team_of(volume(shape) / kMicrosecond, threads);
  py::gil_scoped_release release;
  job.plan(shape, x_strides, y_strides, acc_strides, stat_strides);
  job.run(threads);
}

void reduce_sum(int dtype, uintptr_t acc, const Five &acc_strides, uintptr_t x, const Five &x_strides,
                const Five &shape, double alpha, bool accumulate, int threads) {
  reduce(Sum::x, dtype, acc, 0, acc_strides, x, x_strides, 0, Five{}, shape, 0, 0, Five{}, alpha, accumulate, threads);
}

void reduce_product(int dtype, uintptr_t acc, const Five &acc_strides, uintptr_t x, const Five &x_strides, uintptr_t y,
                    const Five &y_strides, const Five &shape, double alpha, bool accumulate, int threads) {
  reduce(Sum::product, dtype, acc, 0, acc_strides, x, x_strides, y, y_strides, shape, 0, 0, Five{}, alpha, accumulate,
         threads);
}

void bn_moments(int dtype, uintptr_t acc, i64 row_stride, const Five &acc_strides, uintptr_t x, const Five &x_strides,
                const Five &shape, bool accumulate, int threads) {
  reduce(Sum::moments, dtype, acc, row_stride, acc_strides, x, x_strides, 0, Five{}, shape, 0, 0, Five{}, 1, accumulate,
         threads);
}

void bn_backward_sums(int dtype, uintptr_t acc, i64 row_stride, const Five &acc_strides, uintptr_t x,
                      const Five &x_strides, uintptr_t dy, const Five &dy_strides, const Five &shape, uintptr_t mean,
                      uintptr_t rstd, const Five &stat_strides, bool accumulate, int threads) {
  reduce(Sum::backward, dtype, acc, row_stride, acc_strides, x, x_strides, dy, dy_strides, shape, mean, rstd,
         stat_strides, 1, accumulate, threads);
}

// ---------------------------------------------------------------------------------------------
// Batch normalisation, elementwise
// ---------------------------------------------------------------------------------------------

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

void bn_apply(int dtype, uintptr_t y, const Five &y_strides, uintptr_t x, const Five &x_strides, const Five &shape,
              uintptr_t mean, uintptr_t rstd, uintptr_t scale, uintptr_t bias, const Five &stat_strides, int act,
              double coef, int threads) {
  const Norm job{reinterpret_cast<char *>(y), reinterpret_cast<const char *>(x), nullptr, dtype_of(dtype),
                 Statistics{doubles(mean), doubles(rstd), doubles(scale), doubles(bias), nullptr, nullptr, 1},
                 act_of(act), coef};
  const i64 count = volume(shape);
  if (count == 0) return;
  threads = team_of(count / kMicrosecond, threads);
  py::gil_scoped_release release;
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
  py::gil_scoped_release release;
  const auto nest = make_nest<4>(shape, {dx_strides, x_strides, dy_strides, stat_strides}, 3);
  const bool along = nest.axis(0).s[3] != 0;
  for_tiles(nest, along ? kNormTile : kTile, along ? kNormSide : kTile, threads,
            [&](const Tile<4> &t) { job.type == Dtype::f64 ? unnorm_f64(job, t) : unnorm_f32(job, t); });
}

}  // namespace

void bind_reduce(py::module_ &m) {
  m.def("reduce_sum", &reduce_sum, py::arg("dtype"), py::arg("acc"), py::arg("acc_strides"), py::arg("x"),
        py::arg("x_strides"), py::arg("shape"), py::arg("alpha"), py::arg("accumulate"), py::arg("threads") = 1,
        "acc (f64) = [acc +] alpha * sum of x over the axes on which acc has stride 0.");
  m.def("reduce_product", &reduce_product, py::arg("dtype"), py::arg("acc"), py::arg("acc_strides"), py::arg("x"),
        py::arg("x_strides"), py::arg("y"), py::arg("y_strides"), py::arg("shape"), py::arg("alpha"),
        py::arg("accumulate"), py::arg("threads") = 1,
        "acc (f64) = [acc +] alpha * sum of x * y over the axes on which acc has stride 0.");
  m.def("bn_moments", &bn_moments, py::arg("dtype"), py::arg("acc"), py::arg("row_stride"), py::arg("acc_strides"),
        py::arg("x"), py::arg("x_strides"), py::arg("shape"), py::arg("accumulate"), py::arg("threads") = 1,
        "Count, mean and sum of squared distances from the mean, row_stride apart in acc (f64), [joined with acc's,] "
        "over the axes on which acc has stride 0.");
  m.def("bn_backward_sums", &bn_backward_sums, py::arg("dtype"), py::arg("acc"), py::arg("row_stride"),
        py::arg("acc_strides"), py::arg("x"), py::arg("x_strides"), py::arg("dy"), py::arg("dy_strides"),
        py::arg("shape"), py::arg("mean"), py::arg("rstd"), py::arg("stat_strides"), py::arg("accumulate"),
        py::arg("threads") = 1,
        "acc (f64) = [acc +] the sums of dy * (x - mean) * rstd and, row_stride further, of dy.");
  m.def("bn_apply", &bn_apply, py::arg("dtype"), py::arg("y"), py::arg("y_strides"), py::arg("x"),
        py::arg("x_strides"), py::arg("shape"), py::arg("mean"), py::arg("rstd"), py::arg("scale"), py::arg("bias"),
        py::arg("stat_strides"), py::arg("act"), py::arg("coef"), py::arg("threads") = 1,
        "y = act((x - mean) * rstd * scale + bias); the statistics are f64, scale and bias may be 0 (none).");
  m.def("bn_backward_apply", &bn_backward_apply, py::arg("dtype"), py::arg("dx"), py::arg("dx_strides"), py::arg("x"),
        py::arg("x_strides"), py::arg("dy"), py::arg("dy_strides"), py::arg("shape"), py::arg("mean"),
        py::arg("rstd"), py::arg("scale"), py::arg("dscale"), py::arg("dbias"), py::arg("stat_strides"),
        py::arg("count"), py::arg("threads") = 1,
        "dx = scale * rstd * (dy - (dbias + xhat * dscale) / count) with xhat = (x - mean) * rstd; scale may be 0 "
        "(none).");
}

}  // namespace ooc
