// Resizing by tables of positions: along every axis a result is one source, or two mixed.
//
// Tensors are (n, k, d, h, w) with strides in elements, of any sign, and element-aligned. f64 is computed in f64, the other
// dtypes in f32. Axes are mixed from d to w, each result by itself, so the bits do not depend on the threads or on the tiling.
#include <algorithm>
#include <array>
#include <vector>

#include "calls.hpp"
#include "tiles.hpp"

namespace ooc {
namespace {

constexpr i64 kBand = 8;  // rows of a result that one thread makes one after the other: some are the same

// Where the results along an axis come from. mixed: some of them from two sources.
struct Sources {
  const i64 *first, *second;
  const double *share;
  bool mixed;

  bool same(i64 i, i64 j) const {
    return first[i] == first[j] && (!mixed || (second[i] == second[j] && share[i] == share[j]));
  }
};

// Columns of a result, and the columns that they are made of.
struct Piece {
  i64 lo, hi, from, to;
};

struct Resized {
  char *y;
  const char *x;
  Dtype type;
  Five y_strides, x_strides, shape;
  Sources d, h, w;
};

std::vector<Piece> pieces_of(const Sources &w, i64 count) {
  std::vector<Piece> found;
  for (i64 c = 0; c < count; ++c) {
    const i64 from = std::min(w.first[c], w.second[c]), to = std::max(w.first[c], w.second[c]) + 1;
    if (!found.empty()) {
      Piece &last = found.back();
      const i64 low = std::min(last.from, from), high = std::max(last.to, to);
      if (high - low <= kTile && c - last.lo < kTile) {
        last = {last.lo, c + 1, low, high};
        continue;
      }
    }
    found.push_back({c, c + 1, from, to});
  }
  return found;
}

template <typename C>
OOC_INLINE void mix_rows(C *near, const C *far, C share, i64 n) {
  OOC_IVDEP
  for (i64 c = 0; c < n; ++c) {
    const C part = share * (far[c] - near[c]);
    near[c] = near[c] + part;
  }
}

// The columns of a piece in one row of d, mixed along d.
template <typename C>
OOC_INLINE void along_d(C *out, C *other, const Resized &job, i64 at, i64 d, i64 h, const Piece &p) {
  const i64 item = item_size(job.type), n = p.to - p.from;
  const Grid g{1, 0, n, job.x_strides[4]};
  const i64 row = at + h * job.x_strides[3] + p.from * job.x_strides[4];
  load(out, job.x + (row + job.d.first[d] * job.x_strides[2]) * item, job.type, g);
  if (!job.d.mixed) return;
  load(other, job.x + (row + job.d.second[d] * job.x_strides[2]) * item, job.type, g);
  mix_rows(out, other, static_cast<C>(job.d.share[d]), n);
}

template <typename C>
OOC_INLINE void take_columns(C *out, const C *row, const Sources &w, const Piece &p) {
  const i64 n = p.hi - p.lo;
  const i64 *first = w.first + p.lo, *second = w.second + p.lo;
  const double *share = w.share + p.lo;
  if (!w.mixed) {
    OOC_IVDEP
    for (i64 c = 0; c < n; ++c) out[c] = row[first[c] - p.from];
    return;
  }
  OOC_IVDEP
  for (i64 c = 0; c < n; ++c) {
    const C near = row[first[c] - p.from], far = row[second[c] - p.from];
    const C part = static_cast<C>(share[c]) * (far - near);
    out[c] = near + part;
  }
}

template <typename C>
OOC_INLINE void band_any(const Resized &job, C, const Piece &p, i64 x_at, i64 y_at, i64 d, i64 h_lo, i64 h_hi) {
  alignas(64) C near[kTile], far[kTile], other[kTile], made[kTile];
  const Grid out{1, 0, p.hi - p.lo, job.y_strides[4]};
  for (i64 h = h_lo; h < h_hi; ++h) {
    if (h == h_lo || !job.h.same(h, h - 1)) {
      along_d(near, other, job, x_at, d, job.h.first[h], p);
      if (job.h.mixed) {
        along_d(far, other, job, x_at, d, job.h.second[h], p);
        mix_rows(near, far, static_cast<C>(job.h.share[h]), p.to - p.from);
      }
      take_columns(made, near, job.w, p);
    }
    store(job.y + (y_at + h * job.y_strides[3] + p.lo * job.y_strides[4]) * item_size(job.type), job.type, made, out);
  }
}

OOC_UNFUSED OOC_CLONES void band(const Resized &job, float c, const Piece &p, i64 x_at, i64 y_at, i64 d, i64 lo, i64 hi) {
  band_any(job, c, p, x_at, y_at, d, lo, hi);
}
OOC_UNFUSED OOC_CLONES void band(const Resized &job, double c, const Piece &p, i64 x_at, i64 y_at, i64 d, i64 lo, i64 hi) {
  band_any(job, c, p, x_at, y_at, d, lo, hi);
}

Sources sources_of(const Table &t, bool mixed) {
  return {reinterpret_cast<const i64 *>(t[0]), reinterpret_cast<const i64 *>(t[1]), reinterpret_cast<const double *>(t[2]),
          mixed};
}

}  // namespace

void resize(int dtype, uintptr_t y, const Five &y_strides, const Five &shape, uintptr_t x, const Five &x_strides,
            const std::array<Table, 3> &tables, const std::array<bool, 3> &mixed, int threads) {
  const Resized job{reinterpret_cast<char *>(y), reinterpret_cast<const char *>(x), dtype_of(dtype), y_strides, x_strides, shape,
                    sources_of(tables[0], mixed[0]), sources_of(tables[1], mixed[1]), sources_of(tables[2], mixed[2])};
  const i64 count = volume(shape);
  if (count == 0) return;
  threads = team_of(2 * count / kMicrosecond, threads);
  const std::vector<Piece> pieces = pieces_of(job.w, shape[4]);
  const i64 bands = (shape[3] + kBand - 1) / kBand, across = static_cast<i64>(pieces.size());
  const i64 total = shape[0] * shape[1] * shape[2] * bands * across;
  share(total, threads, [&](i64 u, int) {
    const Piece &p = pieces[u % across];
    const i64 b = u / across % bands, d = u / across / bands % shape[2], nk = u / across / bands / shape[2];
    const i64 n = nk / shape[1], k = nk % shape[1], lo = b * kBand, hi = std::min(shape[3], lo + kBand);
    const i64 x_at = n * x_strides[0] + k * x_strides[1];
    const i64 y_at = n * y_strides[0] + k * y_strides[1] + d * y_strides[2];
    if (job.type == Dtype::f64)
      band(job, 0.0, p, x_at, y_at, d, lo, hi);
    else
      band(job, 0.0f, p, x_at, y_at, d, lo, hi);
  });
}

}  // namespace ooc
