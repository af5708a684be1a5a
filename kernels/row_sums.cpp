// Sums of rows, of one result after the other or of neighbouring ones side by side: all in the same order.
#include "row_sums.hpp"

#include <algorithm>
#include <cstring>

#include "tiles.hpp"

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are handed over between functions that are inlined alone
#endif

namespace ooc {
namespace {

constexpr int kLanes = 16;  // partial sums of a row

typedef double Four __attribute__((vector_size(32)));
typedef int64_t FourBits __attribute__((vector_size(32)));

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

// Results one after the other. Sums of row r for result v are put at out[r * count + v]; second values (M2, sums of y) at `more`.
template <typename C>
struct Long {
  const Rows &t;
  i64 result = 0;
  bool near;
  i64 piece, group;  // elements of a row and rows that fit the buffers
  View<const C> x, y;
  const C *x_end, *y_end;  // up to which all may be read, other rows too
  alignas(64) C from_x[kTile], from_y[kTile];

  OOC_INLINE explicit Long(const Rows &rows) : t(rows) {
    near = in_place(t.type, Grid{1, 0, 1, t.x_step}, C()) && (!t.y || t.y_step == 1);
    piece = near ? t.n : std::min(t.n, kTile);
    group = near ? t.rows : std::max<i64>(1, kTile / t.n);
  }

  OOC_INLINE void view(i64 r, i64 rows, i64 i) {
    const i64 n = std::min(piece, t.n - i);
    x = part(from_x, t.x, t.type, result * t.x_side + r * t.x_next + i * t.x_step, Grid{rows, t.x_next, n, t.x_step});
    y = part(from_y, t.y, t.type, result * t.y_side + r * t.y_next + i * t.y_step, Grid{rows, t.y_next, n, t.y_step});
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
        const double mean = t.mean[result], rstd = t.rstd[result];
        out = add(r, at, [mean, rstd](const C *px, const C *py, i64 i) OOC_LAMBDA {
          return static_cast<double>(py[i]) * ((static_cast<double>(px[i]) - mean) * rstd);
        });
        more = add(r, at, at_y);
        return;
      }
    }
  }

  OOC_INLINE void run(double *out, double *more) {
    for (result = 0; result < t.count; ++result)
      for (i64 r = 0; r < t.rows; r += group) {
        const i64 rows = std::min(group, t.rows - r);
        view(r, rows, 0);
        for (i64 at = 0; at < rows; ++at) {
          const i64 to = (r + at) * t.count + result;
          row(out[to], more[to], r + at, at);
        }
      }
  }
};

// Rows of few elements that lie side by side, four at a time: halving the lanes of each would take longer than the row. Results one
// after the other; sums of row r for result v are put at out[r * count + v].
template <typename C>
struct Few {
  // Rows of some results in the compute dtype.
  struct Block {
    const C *p, *end;  // up to `end`, all may be read
    i64 side, next;
  };

  const Rows &t;
  bool near;         // read where they are
  i64 eights;        // of a row, the last of which may have fewer numbers
  FourBits ends[2];  // which of the last ones
  alignas(64) C from_x[kTile + 8], from_y[kTile + 8], copies[2][4][kFew];

  OOC_INLINE explicit Few(const Rows &rows) : t(rows), eights((rows.n + 7) / 8) {
    near = in_place(t.type, Grid{1, 0, 1, t.x_step}, C()) && (!t.y || t.y_step == 1);
    for (int j = 0; j < 8; ++j) ends[j / 4][j % 4] = 8 * (eights - 1) + j < t.n ? -1 : 0;
  }

  OOC_INLINE static void read(Four *v, const C *p) {
    double eight[8];
    for (int j = 0; j < 8; ++j) eight[j] = static_cast<double>(p[j]);
    std::memcpy(v, eight, sizeof(eight));
  }

  // The lanes of value(x, y) over a row, added up to four.
  template <typename F>
  OOC_INLINE void row(Four &sum, const C *px, const C *py, const F &value) const {
    Four lane[4] = {}, x[2], y[2];
    const auto add = [&](int to, i64 i) OOC_LAMBDA {
      read(x, px + i), read(y, py + i);
      for (int h = 0; h < 2; ++h) lane[to + h] += value(x[h], y[h]);
    };
    const auto add_end = [&](int to, i64 i) OOC_LAMBDA {
      read(x, px + i), read(y, py + i);
      for (int h = 0; h < 2; ++h) lane[to + h] += reinterpret_cast<Four>(reinterpret_cast<FourBits>(value(x[h], y[h])) & ends[h]);
    };
    i64 left = eights;
    for (; left > 2; left -= 2, px += 16, py += 16) add(0, 0), add(2, 8);
    if (left == 2) {
      add(0, 0), add_end(2, 8);
    } else {
      add_end(0, 0);
    }
    sum = (lane[0] + lane[2]) + (lane[1] + lane[3]);
  }

  // The sums of value(j, x, y) over rows px[j], py[j].
  template <typename F>
  OOC_INLINE void four(Four &sum, const C *const *px, const C *const *py, const F &value) const {
    Four v[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) row(v[j], px[j], py[j], [&](const Four &a, const Four &b) OOC_LAMBDA { return value(j, a, b); });
    const Four a = Four{v[0][0], v[0][1], v[1][0], v[1][1]} + Four{v[0][2], v[0][3], v[1][2], v[1][3]};
    const Four b = Four{v[2][0], v[2][1], v[3][0], v[3][1]} + Four{v[2][2], v[2][3], v[3][2], v[3][3]};
    sum = Four{a[0], a[2], b[0], b[2]} + Four{a[1], a[3], b[1], b[3]};
  }

  // What is wanted of the four rows.
  OOC_INLINE void values(Four &out, Four &more, i64 result, const C *const *px, const C *const *py) const {
    const auto at_x = [](int, const Four &v, const Four &) OOC_LAMBDA { return v; };
    const auto at_y = [](int, const Four &, const Four &v) OOC_LAMBDA { return v; };
    switch (t.what) {
      case Sum::x: return four(out, px, py, at_x);
      case Sum::product: return four(out, px, py, [](int, const Four &v, const Four &w) OOC_LAMBDA { return v * w; });
      case Sum::moments: {
        four(out, px, py, at_x);
        const Four m = out / static_cast<double>(t.n);
        out = m;
        return four(more, px, py, [m](int j, const Four &v, const Four &) OOC_LAMBDA {
          const Four far = v - m[j];
          return far * far;
        });
      }
      case Sum::backward: {
        const double mean = t.mean[result], rstd = t.rstd[result];
        four(out, px, py, [mean, rstd](int, const Four &v, const Four &w) OOC_LAMBDA { return w * ((v - mean) * rstd); });
        return four(more, px, py, at_y);
      }
    }
  }

  // Rows [r, r + rows) of results [v, v + some). The steps: between elements, results, rows.
  OOC_INLINE Block block(C *buffer, const char *base, const i64 *step, i64 v, i64 some, i64 r, i64 rows) const {
    const char *in = base + (v * step[1] + r * step[2]) * item_size(t.type);
    if (near) {
      const i64 most = std::max<i64>(0, (t.count - 1) * step[1]) + std::max<i64>(0, (t.rows - 1) * step[2]) + t.n;
      return {reinterpret_cast<const C *>(in), reinterpret_cast<const C *>(base) + most, step[1], step[2]};
    }
    load(buffer, in, t.type, some > 1 ? Grid{some, step[1], rows * t.n, step[0]} : Grid{rows, step[2], t.n, step[0]});
    return {buffer, buffer + kTile + 8, rows * t.n, t.n};
  }

  // A row of a block, in a buffer where what lies behind it may not be read.
  OOC_INLINE const C *whole(const Block &b, i64 result, i64 row, C *buffer) const {
    const C *p = b.p + result * b.side + row * b.next;
    if (p + 8 * eights <= b.end) return p;
    std::memcpy(buffer, p, t.n * sizeof(C));
    return buffer;
  }

  OOC_INLINE void run(double *out, double *more) {
    const i64 x_step[] = {t.x_step, t.x_side, t.x_next}, y_step[] = {t.y_step, t.y_side, t.y_next}, count = t.count;
    const bool follow = t.x_next == t.n * t.x_step && (!t.y || t.y_next == t.n * t.y_step);
    const i64 rows = near ? t.rows : std::min(t.rows, kTile / t.n);  // at a time, of so many results:
    const i64 some = near ? count : follow && rows == t.rows ? std::min(count, kTile / (t.n * rows)) : 1;
    for (i64 v = 0; v < count; v += some)
      for (i64 r = 0; r < t.rows; r += rows) {
        const i64 results = std::min(some, count - v), last = std::min(rows, t.rows - r) - 1;
        const Block x = block(from_x, t.x, x_step, v, results, r, last + 1);
        const Block y = t.y ? block(from_y, t.y, y_step, v, results, r, last + 1) : x;
        for (i64 u = 0; u < results; ++u)
          for (i64 at = 0; at <= last; at += 4) {
            const C *px[4], *py[4];
            for (int j = 0; j < 4; ++j) {
              px[j] = whole(x, u, std::min(at + j, last), copies[0][j]);
              py[j] = t.y ? whole(y, u, std::min(at + j, last), copies[1][j]) : px[j];
            }
            Four sums, second{};
            values(sums, second, v + u, px, py);
            for (int j = 0; j < 4 && at + j <= last; ++j) {
              out[(r + at + j) * count + v + u] = sums[j];
              more[(r + at + j) * count + v + u] = second[j];
            }
          }
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

OOC_UNFUSED OOC_CLONES void sum_long_f32(double *out, double *more, const Rows &t) { Long<float>(t).run(out, more); }
OOC_UNFUSED OOC_CLONES void sum_long_f64(double *out, double *more, const Rows &t) { Long<double>(t).run(out, more); }
OOC_UNFUSED OOC_CLONES void sum_few_f32(double *out, double *more, const Rows &t) { Few<float>(t).run(out, more); }
OOC_UNFUSED OOC_CLONES void sum_few_f64(double *out, double *more, const Rows &t) { Few<double>(t).run(out, more); }
OOC_UNFUSED OOC_CLONES void sum_many_f32(double *out, double *more, const Rows &t) { Many<float>(t).run(out, more); }
OOC_UNFUSED OOC_CLONES void sum_many_f64(double *out, double *more, const Rows &t) { Many<double>(t).run(out, more); }

}  // namespace

void sum_rows(double *out, double *more, const Rows &t, bool along) {
  const bool few = t.n > 1 && t.n <= kFew, f64 = t.type == Dtype::f64;
  if (!along)
    f64 ? sum_many_f64(out, more, t) : sum_many_f32(out, more, t);
  else if (few)
    f64 ? sum_few_f64(out, more, t) : sum_few_f32(out, more, t);
  else
    f64 ? sum_long_f64(out, more, t) : sum_long_f32(out, more, t);
}

}  // namespace ooc
