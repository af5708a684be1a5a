// A pair of strided views of the same shape, walked together: memory to memory, file to memory, memory to file.
//
// All strides here are in bytes and may have any sign.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "../common.hpp"

namespace ooc::staging {

constexpr int kMaxAxes = 8;
constexpr i64 kPage = 4096;              // alignment that O_DIRECT asks for
constexpr i64 kStraightMin = 128 << 10;  // long runs: they need no bounce buffer, threads share them

inline i64 page_floor(i64 x) { return x & ~(kPage - 1); }
inline i64 page_ceil(i64 x) { return page_floor(x + kPage - 1); }
inline i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

struct Axis {
  i64 n, a, b;  // extent, stride on side A, stride on side B
};

// `item` bytes are contiguous on both sides at every index. Positions are integers because
// side A is either an address or a file offset.
struct Walk {
  i64 a = 0, b = 0;
  i64 item = 1;
  int rank = 0;
  Axis ax[kMaxAxes];

  i64 steps() const {
    i64 count = 1;
    for (int i = 0; i < rank; ++i) count *= ax[i].n;
    return count;
  }
};

inline char *address(i64 p) { return reinterpret_cast<char *>(static_cast<uintptr_t>(p)); }

// The last axes are taken into the item while both sides are contiguous there.
inline void absorb(Walk &w) {
  while (w.rank > 0) {
    const Axis &x = w.ax[w.rank - 1];
    if (x.n != 1 && (x.a != w.item || x.b != w.item)) return;
    w.item *= x.n;
    --w.rank;
  }
}

// Side A ends with positive strides, the smallest innermost, and as few axes as possible.
// False when there is nothing to move.
inline bool normalise(Walk &w) {
  int kept = 0;
  for (int i = 0; i < w.rank; ++i) {
    Axis x = w.ax[i];
    if (x.n <= 0) return false;
    if (x.n == 1) continue;
    if (x.a < 0) {
      w.a += (x.n - 1) * x.a;
      w.b += (x.n - 1) * x.b;
      x.a = -x.a;
      x.b = -x.b;
    }
    w.ax[kept++] = x;
  }
  w.rank = kept;
  std::stable_sort(w.ax, w.ax + kept, [](const Axis &p, const Axis &q) {
    return p.a != q.a ? p.a > q.a : std::abs(p.b) > std::abs(q.b);
  });
  absorb(w);
  int out = 0;  // merge neighbours that continue one another on both sides
  for (int i = 1; i < w.rank; ++i) {
    Axis &outer = w.ax[out];
    const Axis &inner = w.ax[i];
    if (outer.a == inner.a * inner.n && outer.b == inner.b * inner.n)
      outer = Axis{outer.n * inner.n, inner.a, inner.b};
    else
      w.ax[++out] = inner;
  }
  w.rank = std::min(w.rank, out + 1);
  return w.item > 0;
}

inline Walk make_walk(i64 a, const std::vector<i64> &as, i64 b, const std::vector<i64> &bs,
               const std::vector<i64> &shape, i64 item) {
  if (shape.size() > kMaxAxes || as.size() != shape.size() || bs.size() != shape.size())
    throw std::invalid_argument("shape and strides must have one length, at most 8");
  if (item <= 0) throw std::invalid_argument("itemsize must be positive");
  Walk w;
  w.a = a;
  w.b = b;
  w.item = item;
  w.rank = static_cast<int>(shape.size());
  for (int i = 0; i < w.rank; ++i) {
    if (shape[i] < 0) throw std::invalid_argument("negative extent");
    w.ax[i] = Axis{shape[i], as[i], bs[i]};
  }
  return w;
}

// Odometer over the first `rank` axes of a walk.
struct Cursor {
  const Axis *ax;
  int rank;
  i64 index[kMaxAxes] = {};
  i64 a, b;

  Cursor(const Walk &w, int outer_rank) : ax(w.ax), rank(outer_rank), a(w.a), b(w.b) {}

  void seek(i64 flat) {
    for (int i = rank - 1; i >= 0; --i) {
      const i64 at = flat % ax[i].n;
      flat /= ax[i].n;
      a += (at - index[i]) * ax[i].a;
      b += (at - index[i]) * ax[i].b;
      index[i] = at;
    }
  }

  bool next() {
    for (int i = rank - 1; i >= 0; --i) {
      a += ax[i].a;
      b += ax[i].b;
      if (++index[i] < ax[i].n) return true;
      a -= ax[i].n * ax[i].a;
      b -= ax[i].n * ax[i].b;
      index[i] = 0;
    }
    return false;
  }
};

// Moves what a walk describes in memory, side B to side A.
void copy_walk(Walk w, int threads);

}  // namespace ooc::staging
