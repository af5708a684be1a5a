// Sums of rows, for one result or for neighbouring ones side by side: both in the same order.
#include "row_sums.hpp"

#include <algorithm>
#include <cstring>

#include "tiles.hpp"

namespace ooc {
namespace {

constexpr int kLanes = 16;  // partial sums of a row

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
  const C *x_end, *y_end;  // up to which all may be read, other rows too
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
    x_end = std::max(x.row(0), x.row(rows - 1)) + n;
    y_end = y.row(0) ? std::max(y.row(0), y.row(rows - 1)) + n : nullptr;
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
      if (i < n && px + i + kLanes <= x_end && (!t.y || py + i + kLanes <= y_end)) {
        for (int j = 0; j < kLanes; ++j) lane[j] += choose(j < n - i, value(px, py, i + j), 0.0);
      } else if (i < n) {
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

}  // namespace

void sum_rows(double *out, double *more, const Rows &t, bool along) {
  if (t.type == Dtype::f64)
    along ? sum_one_f64(out, more, t) : sum_many_f64(out, more, t);
  else
    along ? sum_one_f32(out, more, t) : sum_many_f32(out, more, t);
}

}  // namespace ooc
