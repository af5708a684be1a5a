// Strided copies, memory to memory. Side A of a walk is the destination.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../calls.hpp"
#include "../team.hpp"
#include "walk.hpp"

namespace ooc::staging {
namespace {

constexpr i64 kThreadedBytes = 4 << 20;  // smaller copies do not repay waking the threads

// Views need not be aligned, hence memcpy; a constant length becomes one load and one store.
template <int kItem>
void copy_line(char *dst, i64 ds, const char *src, i64 ss, i64 n) {
  for (i64 i = 0; i < n; ++i) std::memcpy(dst + i * ds, src + i * ss, kItem);
}

void copy_line_any(char *dst, i64 ds, const char *src, i64 ss, i64 n, i64 item) {
  for (i64 i = 0; i < n; ++i) std::memcpy(dst + i * ds, src + i * ss, static_cast<size_t>(item));
}

void copy_line(char *dst, const char *src, const Axis &x, i64 n, i64 item) {
  switch (item) {
    case 1: return copy_line<1>(dst, x.a, src, x.b, n);
    case 2: return copy_line<2>(dst, x.a, src, x.b, n);
    case 4: return copy_line<4>(dst, x.a, src, x.b, n);
    case 8: return copy_line<8>(dst, x.a, src, x.b, n);
    case 16: return copy_line<16>(dst, x.a, src, x.b, n);
    default: return copy_line_any(dst, x.a, src, x.b, n, item);
  }
}

// Tile of a transpose: read along src's near axis j, written along dst's near axis i, so that each
// cache line of either side is touched once. The tile in between keeps power-of-two strides
// from throwing lines out before they are used up.
template <typename T>
struct Tile {
  static constexpr i64 kSide = std::max<i64>(8, 64 / static_cast<i64>(sizeof(T)));

  static void load(T (*tile)[kSide], const char *src, i64 i_stride, i64 j_stride, i64 ni, i64 nj) {
    if (j_stride == sizeof(T) && nj == kSide) {
      for (i64 i = 0; i < ni; ++i) std::memcpy(tile[i], src + i * i_stride, sizeof(T) * kSide);
      return;
    }
    for (i64 i = 0; i < ni; ++i)
      for (i64 j = 0; j < nj; ++j) std::memcpy(&tile[i][j], src + i * i_stride + j * j_stride, sizeof(T));
  }

  static void store(const T (*tile)[kSide], char *dst, i64 i_stride, i64 j_stride, i64 ni, i64 nj) {
    if (i_stride == sizeof(T) && ni == kSide) {
      for (i64 j = 0; j < nj; ++j) {
        T line[kSide];
        for (i64 i = 0; i < kSide; ++i) line[i] = tile[i][j];
        std::memcpy(dst + j * j_stride, line, sizeof(line));
      }
      return;
    }
    for (i64 j = 0; j < nj; ++j)
      for (i64 i = 0; i < ni; ++i) std::memcpy(dst + j * j_stride + i * i_stride, &tile[i][j], sizeof(T));
  }

  // All i of one strip of at most kSide j.
  static void strip(char *dst, const char *src, const Axis &I, const Axis &J, i64 ni, i64 nj) {
    T tile[kSide][kSide];
    for (i64 i = 0; i < ni; i += kSide) {
      const i64 count = std::min(kSide, ni - i);
      load(tile, src + i * I.b, I.b, J.b, count, nj);
      store(tile, dst + i * I.a, I.a, J.a, count, nj);
    }
  }
};

struct Wide {
  char bytes[16];
};

i64 tile_side(i64 item) { return std::max<i64>(8, 64 / item); }

void transpose_strip(char *dst, const char *src, const Axis &I, const Axis &J, i64 ni, i64 nj, i64 item) {
  switch (item) {
    case 1: return Tile<uint8_t>::strip(dst, src, I, J, ni, nj);
    case 2: return Tile<uint16_t>::strip(dst, src, I, J, ni, nj);
    case 4: return Tile<uint32_t>::strip(dst, src, I, J, ni, nj);
    case 8: return Tile<uint64_t>::strip(dst, src, I, J, ni, nj);
    default: return Tile<Wide>::strip(dst, src, I, J, ni, nj);
  }
}

// How many pieces each of `count` units is cut in, so that all threads have work.
i64 pieces_for(i64 count, i64 length, int threads) {
  if (threads <= 1 || count >= 4 * threads) return 1;
  return std::max<i64>(1, std::min<i64>(length, ceil_div(4 * threads, count)));
}

// The axis along which src moves least, when that is another axis than dst's innermost and
// blocking over the two saves cache lines; else -1.
int transposed_axis(const Walk &w) {
  if (w.rank < 2 || w.item > 16 || (w.item & (w.item - 1))) return -1;
  int best = w.rank - 1;
  for (int i = 0; i < w.rank; ++i)
    if (std::abs(w.ax[i].b) < std::abs(w.ax[best].b)) best = i;
  return best != w.rank - 1 && std::abs(w.ax[best].b) < 64 ? best : -1;
}

void copy_transposed(Walk w, int j_axis, int threads) {
  const Axis I = w.ax[w.rank - 1], J = w.ax[j_axis];
  w.rank -= 2;
  for (int i = j_axis; i < w.rank; ++i) w.ax[i] = w.ax[i + 1];
  const i64 side = tile_side(w.item), strips = ceil_div(J.n, side), lines = w.steps() * strips;
  const i64 pieces = pieces_for(lines, ceil_div(I.n, side), threads);
  share_runs(lines * pieces, threads, [&](i64 lo, i64 hi, int) {
    Cursor at(w, w.rank);
    for (i64 u = lo; u < hi; ++u) {
      const i64 piece = u % pieces, j = u / pieces % strips * side;
      at.seek(u / pieces / strips);
      const i64 i0 = I.n * piece / pieces, i1 = I.n * (piece + 1) / pieces;
      transpose_strip(address(at.a + i0 * I.a + j * J.a), address(at.b + i0 * I.b + j * J.b), I, J, i1 - i0,
                      std::min(side, J.n - j), w.item);
    }
  });
}

void copy_lines(const Walk &w, int threads) {
  const Axis line = w.rank ? w.ax[w.rank - 1] : Axis{1, 0, 0};
  const int outer = std::max(0, w.rank - 1);
  const i64 lines = w.rank ? w.steps() / line.n : 1;
  const i64 pieces = pieces_for(lines, line.n, threads);
  share_runs(lines * pieces, threads, [&](i64 lo, i64 hi, int) {
    Cursor at(w, outer);
    at.seek(lo / pieces);
    if (pieces == 1) {  // the common case, without divisions
      for (i64 u = lo; u < hi; ++u, at.next()) copy_line(address(at.a), address(at.b), line, line.n, w.item);
      return;
    }
    for (i64 u = lo; u < hi; ++u) {
      at.seek(u / pieces);
      const i64 i0 = line.n * (u % pieces) / pieces, i1 = line.n * (u % pieces + 1) / pieces;
      copy_line(address(at.a + i0 * line.a), address(at.b + i0 * line.b), line, i1 - i0, w.item);
    }
  });
}

// Few but long items leave threads idle: their bytes become one more axis, the rest a second copy.
void copy_long_items(Walk w, int threads) {
  const i64 piece = page_ceil(ceil_div(w.item, threads)), whole = w.item / piece;
  Walk tail = w;
  tail.a += whole * piece;
  tail.b += whole * piece;
  tail.item = w.item - whole * piece;
  w.ax[w.rank++] = Axis{whole, piece, piece};
  w.item = piece;
  copy_lines(w, threads);
  if (tail.item > 0) copy_lines(tail, 1);
}

}  // namespace

void copy_walk(Walk w, int threads) {
  if (!normalise(w)) return;
  const i64 steps = w.steps();
  if (steps * w.item <= kThreadedBytes) threads = 1;
  const int j_axis = transposed_axis(w);
  if (j_axis >= 0)
    copy_transposed(w, j_axis, threads);
  else if (threads > 1 && steps < 4 * threads && w.item > kStraightMin && w.rank < kMaxAxes)
    copy_long_items(w, threads);
  else
    copy_lines(w, threads);
}

void copy_strided(uintptr_t dst, const std::vector<i64> &dst_strides, uintptr_t src,
                  const std::vector<i64> &src_strides, const std::vector<i64> &shape, i64 itemsize, int threads) {
  const Walk w = make_walk(static_cast<i64>(dst), dst_strides, static_cast<i64>(src), src_strides, shape, itemsize);
  copy_walk(w, std::max(1, threads));
}

}  // namespace ooc::staging
