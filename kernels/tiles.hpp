// Elementwise operations: tensors as nests of axes, cut into tiles of rows x cols elements that
// pass through buffers in the compute dtype.
#pragma once
#include <algorithm>

#include "numbers.hpp"
#include "team.hpp"

namespace ooc {

// One tile's place in a tensor.
struct Grid {
  i64 rows, row_stride, cols, col_stride;
};

// A tile's elements in the compute dtype, row by row, and back. Compiled once, for all that works on tiles.
void load(float *out, const char *in, Dtype t, const Grid &g);
void load(double *out, const char *in, Dtype t, const Grid &g);
void store(char *out, Dtype t, const float *in, const Grid &g);
void store(char *out, Dtype t, const double *in, const Grid &g);

namespace {

constexpr i64 kTile = 1024;    // elements of a tile: a few KiB, so that it stays in the first cache
constexpr i64 kTileSide = 32;  // of a tile that is also a transpose

template <typename C>
OOC_INLINE void add_bias(C *x, const C *bias, const Grid &g) {
  for (i64 r = 0; r < g.rows; ++r) {
    const C *b = bias + r * g.row_stride;
    C *row = x + r * g.cols;
    if (g.col_stride == 1) {
      for (i64 c = 0; c < g.cols; ++c) row[c] += b[c];
    } else if (g.col_stride) {  // k runs backwards
      for (i64 c = 0; c < g.cols; ++c) row[c] += b[c * g.col_stride];
    } else {
      const C value = *b;
      for (i64 c = 0; c < g.cols; ++c) row[c] += value;
    }
  }
}

// A tile's rows in the compute dtype, with neighbouring columns next to each other.
template <typename C>
struct View {
  C *p;
  i64 row_stride;
  OOC_INLINE C *row(i64 r) const { return p + r * row_stride; }
};

// In place where the tensor already is like that, in the buffer otherwise.
OOC_INLINE bool in_place(Dtype t, const Grid &g, float) { return t == Dtype::f32 && g.col_stride == 1; }
OOC_INLINE bool in_place(Dtype t, const Grid &g, double) { return t == Dtype::f64 && g.col_stride == 1; }

template <typename C>
OOC_INLINE View<const C> view_in(const char *in, Dtype t, const Grid &g, C *buffer) {
  if (in_place(t, g, C())) return {reinterpret_cast<const C *>(in), g.row_stride};
  load(buffer, in, t, g);
  return {buffer, g.cols};
}

template <typename C>
OOC_INLINE View<C> view_out(char *out, Dtype t, const Grid &g, C *buffer) {
  if (in_place(t, g, C())) return {reinterpret_cast<C *>(out), g.row_stride};
  return {buffer, g.cols};
}

template <typename C>
OOC_INLINE void store_view(char *out, Dtype t, const Grid &g, const View<C> &v) {
  if (!in_place(t, g, C())) store(out, t, v.p, g);
}

// An extent and the strides of N tensors, the result first.
template <int N>
struct Axis {
  i64 n = 1;
  std::array<i64, N> s{};
};

// N tensors of one shape as nested axes, the result's smallest stride innermost, with the offsets
// of the first element.
template <int N>
struct Nest {
  std::array<i64, N> start{};
  int rank = 0;
  Axis<N> ax[5];
  bool transposes = false;

  Axis<N> axis(int from_inside) const { return from_inside < rank ? ax[rank - 1 - from_inside] : Axis<N>{}; }
};

template <int N>
bool continues(const Axis<N> &outer, const Axis<N> &inner) {
  for (int t = 0; t < N; ++t)
    if (outer.s[t] != inner.s[t] * inner.n) return false;
  return true;
}

// Tensors from `small` on (a bias, statistics) have no say in the order of the axes.
template <int N>
Nest<N> make_nest(const Five &shape, const std::array<Five, N> &strides, int small) {
  Nest<N> t;
  for (int i = 0; i < 5; ++i) {
    Axis<N> x;
    x.n = shape[i];
    if (x.n == 1) continue;
    const bool backwards = strides[0][i] < 0;
    for (int j = 0; j < N; ++j) {
      x.s[j] = backwards ? -strides[j][i] : strides[j][i];
      if (backwards) t.start[j] += (x.n - 1) * strides[j][i];
    }
    t.ax[t.rank++] = x;
  }
  std::stable_sort(t.ax, t.ax + t.rank, [](const Axis<N> &p, const Axis<N> &q) { return p.s[0] > q.s[0]; });
  int out = 0;
  for (int i = 1; i < t.rank; ++i) {
    if (continues(t.ax[out], t.ax[i])) {
      t.ax[i].n *= t.ax[out].n;
      t.ax[out] = t.ax[i];
    } else {
      t.ax[++out] = t.ax[i];
    }
  }
  t.rank = std::min(t.rank, out + 1);
  // If an input moves least along another axis, that one is the tile's second axis. (Where it does
  // not move at all, there is no order to follow.)
  for (int j = 1; j < small && !t.transposes; ++j) {
    int near = t.rank - 1;
    for (int i = 0; i < t.rank; ++i)
      if (t.ax[i].s[j] && (!t.ax[near].s[j] || std::abs(t.ax[i].s[j]) < std::abs(t.ax[near].s[j]))) near = i;
    if (t.rank && near != t.rank - 1 && t.ax[t.rank - 1].s[j]) {
      std::rotate(t.ax + near, t.ax + near + 1, t.ax + t.rank - 1);
      t.transposes = true;
    }
  }
  return t;
}

template <int N>
struct Tile {
  i64 rows, cols;
  Axis<N> row, col;
  std::array<i64, N> at;  // offsets of the first element

  Grid grid(int j) const { return {rows, row.s[j], cols, col.s[j]}; }
};

// Calls f(tile) for all tiles of the nest, of at most `size` elements and `side` columns, in parallel.
template <int N, typename F>
void for_tiles(const Nest<N> &t, i64 size, i64 side, int threads, const F &f) {
  const Axis<N> col = t.axis(0), row = t.axis(1);
  const i64 tile_cols = std::min(col.n, t.transposes ? kTileSide : side);
  const i64 tile_rows = std::min(row.n, size / tile_cols);
  const i64 across = (col.n + tile_cols - 1) / tile_cols, down = (row.n + tile_rows - 1) / tile_rows;
  i64 tiles = across * down;
  for (int i = 2; i < t.rank; ++i) tiles *= t.axis(i).n;
  const auto one = [&](i64 u) {
    const i64 c = u % across * tile_cols, r = u / across % down * tile_rows;
    i64 rest = u / across / down;
    Tile<N> tile{std::min(tile_rows, row.n - r), std::min(tile_cols, col.n - c), row, col, t.start};
    for (int j = 0; j < N; ++j) tile.at[j] += r * row.s[j] + c * col.s[j];
    for (int i = 2; i < t.rank; ++i) {
      const Axis<N> &x = t.ax[t.rank - 1 - i];
      const i64 at = rest % x.n;
      rest /= x.n;
      for (int j = 0; j < N; ++j) tile.at[j] += at * x.s[j];
    }
    f(tile);
  };
  share_runs(tiles, threads, [&](i64 lo, i64 hi, int) {
    for (i64 u = lo; u < hi; ++u) one(u);
  });
}

}  // namespace
}  // namespace ooc
