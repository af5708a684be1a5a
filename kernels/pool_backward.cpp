// Gradients of pooling.
//
// Tensors are (n, k, d, h, w) with strides in elements, of any sign, and element-aligned. f64 is
// computed in f64, the other dtypes in f32. Every output element is computed by one
// thread in a fixed order, so that results do not depend on the number of threads.
//
// Small planes are computed together, as one line (pool_planes.hpp). Else a line of outputs, along w or along k, finds its maxima
// (or divides its gradients) and adds them to the inputs, one window position after another. For one input, the windows it is in come
// in row-major order of the outputs: along a line, from the last position to the first.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "calls.hpp"
#include "pool_lines.hpp"
#include "pool_planes.hpp"
#include "team.hpp"

namespace ooc {
namespace {

// Windows that have these parts inside the tensor, the first of them that of output (d, h, w).
struct Windows {
  i64 d, h, w;
  Span id, ih, iw;
};

// One n and some k: where dx is added up (dx itself or a plane of the workspace), x and dy.
struct Part {
  char *sum;
  Dtype type;                      // of sum
  i64 sum_k, sum_d, sum_h, sum_w;  // strides of sum
  const char *x, *dy;
  i64 count;  // of k
};

template <typename C>
struct PoolBackward {
  Pool kind;
  Dtype type;
  char *dx;
  const char *x, *dy;
  Five dx_strides, x_strides, dy_strides, dx_shape, dy_shape;
  GradientAxis d, h, w;
  char *workspace;         // one f32 plane a thread, or null
  std::vector<Span> taps;  // of each window column the outputs that have it inside the tensor
  std::vector<Span> hits;  // and those that have it in dx

  // Zeroes of every dtype are zero bytes.
  void zero(const Part &p) const {
    const i64 item = item_size(p.type);
    const i64 nw = dx_shape[4];
    for (i64 a = 0; a < dx_shape[2]; ++a)
      for (i64 b = 0; b < dx_shape[3]; ++b) {
        char *row = p.sum + (a * p.sum_d + b * p.sum_h) * item;
        if (p.count == 1 && p.sum_w == 1) {
          std::memset(row, 0, nw * item);
        } else {
          for (i64 c = 0; c < nw; ++c) {
            char *line = row + c * p.sum_w * item;
            if (p.sum_k == 1 || p.count == 1)
              std::memset(line, 0, p.count * item);
            else
              for (i64 k = 0; k < p.count; ++k) std::memset(line + k * p.sum_k * item, 0, item);
          }
        }
      }
  }

  const char *x_at(const Part &p, i64 pd, i64 ph, i64 pw) const {  // positions in the whole tensor
    return p.x + ((pd - d.x_lo) * x_strides[2] + (ph - h.x_lo) * x_strides[3] + (pw - w.x_lo) * x_strides[4]) *
                     item_size(type);
  }
  char *sum_at(const Part &p, i64 pd, i64 ph, i64 pw) const {
    return p.sum + ((pd - d.dx_lo) * p.sum_d + (ph - h.dx_lo) * p.sum_h + (pw - w.dx_lo) * p.sum_w) * item_size(p.type);
  }
  const char *dy_at(const Part &p, i64 od, i64 oh, i64 ow) const {
    return p.dy + (od * dy_strides[2] + oh * dy_strides[3] + ow * dy_strides[4]) * item_size(type);
  }

  Code<C> code(i64 i, i64 j, i64 l) const { return static_cast<Code<C>>((i * h.window + j) * w.window + l); }

  // The maxima of the `taps.n` outputs that these windows belong to.
  void find(C *best, Code<C> *where, const Part &p, const Windows &at, const Taps &taps) const {
    if (taps.n <= 0) return;
    std::fill(best, best + taps.n, -std::numeric_limits<C>::infinity());
    std::fill(where, where + taps.n, code(at.id.begin, at.ih.begin, at.iw.begin));
    for (i64 i = at.id.begin; i < at.id.end; ++i)
      for (i64 j = at.ih.begin; j < at.ih.end; ++j)
        argmax(best, where, code(i, j, 0), x_at(p, d.origin(at.d) + i, h.origin(at.h) + j, w.origin(at.w)), type, taps);
  }

  // The divisor of outputs whose windows have these inside parts.
  C divisor(const Span &id, const Span &ih, const Span &iw) const {
    return static_cast<C>(kind == Pool::average ? d.window * h.window * w.window
                                                : std::max<i64>(1, id.count() * ih.count() * iw.count()));
  }

  static void divide(C *g, i64 n, C by) {
    for (i64 o = 0; o < n; ++o) g[o] /= by;
  }

  // One k at a time, lines along w.
  void lines_w(const Part &p) const {
    alignas(64) C g[kLine], best[kLine];
    alignas(64) Code<C> where[kLine];
    const Span rd = d.reach(), rh = h.reach(), rw = w.reach();
    const bool max = kind == Pool::max;
    for (i64 od = rd.begin; od < rd.end; ++od)
      for (i64 oh = rh.begin; oh < rh.end; ++oh) {
        const Span id = d.inside(od), ih = h.inside(oh);
        if (id.count() == 0 || ih.count() == 0) continue;
        for (i64 o = rw.begin; o < rw.end; o += kLine) {
          const i64 n = std::min(kLine, rw.end - o);
          load(g, dy_at(p, od, oh, o), type, Grid{1, 0, n, dy_strides[4]});
          if (max)
            find_line(best, where, p, Windows{od, oh, o, id, ih, {}}, n);
          else
            average_line(g, Windows{od, oh, o, id, ih, {}}, n);
          for (i64 i = id.begin; i < id.end; ++i)
            for (i64 j = ih.begin; j < ih.end; ++j) {
              const i64 pd = d.origin(od) + i, ph = h.origin(oh) + j;
              if (pd < d.dx_lo || pd >= d.dx_lo + d.dx || ph < h.dx_lo || ph >= h.dx_lo + h.dx) continue;
              scatter_line(sum_at(p, pd, ph, w.dx_lo), p.type, g, max ? where : nullptr, code(i, j, 0),
                           Line{o, n, w.stride, w.origin(o) - w.dx_lo, p.sum_w, w.window, hits.data()});
            }
        }
      }
  }

  // The maxima of n outputs along w, the first of them at.w.
  void find_line(C *best, Code<C> *where, const Part &p, const Windows &at, i64 n) const {
    std::fill(best, best + n, -std::numeric_limits<C>::infinity());
    const Span in = w.interior();
    for (i64 o = 0; o < n; ++o)  // what a window of nothing but -inf says: its first position inside
      where[o] = code(at.id.begin, at.ih.begin, in.has(at.w + o) ? 0 : w.inside(at.w + o).begin);
    for (i64 i = at.id.begin; i < at.id.end; ++i)
      for (i64 j = at.ih.begin; j < at.ih.end; ++j)
        argmax_line(best, where, code(i, j, 0), x_at(p, d.origin(at.d) + i, h.origin(at.h) + j, w.x_lo), type,
                    Line{at.w, n, w.stride, w.origin(at.w) - w.x_lo, x_strides[4], w.window, taps.data()});
  }

  // Gradients of n averages along w, the first of them at.w.
  void average_line(C *g, const Windows &at, i64 n) const {
    const Span in = w.interior();
    const i64 first = std::clamp<i64>(in.begin - at.w, 0, n), last = std::clamp<i64>(in.end - at.w, first, n);
    const auto part = [&](i64 a, i64 b) {  // outputs [a, b), alike in what is inside
      if (a < b) divide(g + a, b - a, divisor(at.id, at.ih, w.inside(at.w + a)));
    };
    for (i64 a = 0; a < first; ++a) part(a, a + 1);
    part(first, last);
    for (i64 a = last; a < n; ++a) part(a, a + 1);
  }

  // Lines along k, for channels-last blocks.
  void lines_k(const Part &p) const {
    alignas(64) C g[kLine], best[kLine];
    alignas(64) Code<C> where[kLine];
    const Span rd = d.reach(), rh = h.reach(), rw = w.reach();
    for (i64 od = rd.begin; od < rd.end; ++od)
      for (i64 oh = rh.begin; oh < rh.end; ++oh)
        for (i64 o = rw.begin; o < rw.end; ++o) {
          const Span id = d.inside(od), ih = h.inside(oh), iw = w.inside(o);
          if (id.count() == 0 || ih.count() == 0 || iw.count() == 0) continue;
          load(g, dy_at(p, od, oh, o), type, Grid{1, 0, p.count, dy_strides[1]});
          if (kind == Pool::max)
            find(best, where, p, Windows{od, oh, o, id, ih, iw},
                 Taps{p.count, x_strides[1], iw.begin, iw.end, x_strides[4]});
          else
            divide(g, p.count, divisor(id, ih, iw));
          for (i64 i = id.begin; i < id.end; ++i)
            for (i64 j = ih.begin; j < ih.end; ++j)
              for (i64 l = iw.begin; l < iw.end; ++l) {
                const i64 pd = d.origin(od) + i, ph = h.origin(oh) + j, pw = w.origin(o) + l;
                if (pd < d.dx_lo || pd >= d.dx_lo + d.dx || ph < h.dx_lo || ph >= h.dx_lo + h.dx ||
                    pw < w.dx_lo || pw >= w.dx_lo + w.dx)
                  continue;
                scatter(sum_at(p, pd, ph, pw), p.type, g, kind == Pool::max ? where : nullptr, code(i, j, l), p.count,
                        p.sum_k);
              }
        }
  }

  bool is_2x2(bool along_k) const {
    const int line = along_k ? 1 : 4;
    return kind == Pool::max && d.window == 1 && d.tiles() && h.window == 2 && h.tiles() && w.window == 2 &&
           w.tiles() && (along_k || w.stride == 2) && dx_strides[line] == 1 && x_strides[line] == 1 &&
           dy_strides[line] == 1 && (!along_k || dx_strides[4] == x_strides[4]);
  }

  void lines_2x2(const Part &p, bool along_k) const {
    for (i64 od = 0; od < d.dy; ++od)
      for (i64 oh = 0; oh < h.dy; ++oh) {
        const i64 pd = d.origin(od), ph = h.origin(oh);
        for (i64 o = 0; o < w.dy; o += along_k ? 1 : w.dy) {
          const i64 pw = w.origin(o);
          char *const to[2] = {sum_at(p, pd, ph, pw), sum_at(p, pd, ph + 1, pw)};
          const char *const from[2] = {x_at(p, pd, ph, pw), x_at(p, pd, ph + 1, pw)};
          max_2x2(type, to, from, dy_at(p, od, oh, o), along_k ? p.count : w.dy, along_k ? 1 : 2,
                  along_k ? x_strides[4] : 1);
        }
      }
  }

  void run(int threads) const {
    const i64 nk = dx_shape[1];
    const bool along_k =
        !workspace && nk > 1 && std::abs(dx_strides[1]) < std::abs(dx_strides[4]) && dx_strides[1] != 0;
    const bool simple = !workspace && is_2x2(along_k);
    const bool covered = simple && d.tiles_all() && h.tiles_all() && w.tiles_all();
    PlaneGradients<C> planes{kind, type, dx, x, dy, dx_strides, x_strides, dy_strides, dx_shape, {d, h, w}};
    const i64 all = dx_shape[0] * nk;
    if (!along_k && !simple && planes.plan((all + 4 * threads - 1) / (4 * threads))) {
      const i64 units = (all + planes.planes - 1) / planes.planes;
      return share_runs(units, threads, [&](i64 lo, i64 hi, int) { run_planes(planes, lo, hi); });
    }
    i64 chunk = 1;
    if (along_k) {
      const i64 each = (nk + threads - 1) / threads;  // of a cache line's multiple
      chunk = std::min(kLine, dx_shape[0] >= threads ? nk : (each + 15) / 16 * 16);
    }
    const i64 chunks = (nk + chunk - 1) / chunk;
    const i64 plane = dx_shape[2] * dx_shape[3] * dx_shape[4];
    share(dx_shape[0] * chunks, threads, [&](i64 u, int member) {
      const i64 n = u / chunks, k = u % chunks * chunk;
      char *out = dx + (n * dx_strides[0] + k * dx_strides[1]) * item_size(type);
      Part p{out, type, dx_strides[1], dx_strides[2], dx_strides[3], dx_strides[4],
             x ? x + (n * x_strides[0] + k * x_strides[1]) * item_size(type) : nullptr,
             dy ? dy + (n * dy_strides[0] + k * dy_strides[1]) * item_size(type) : nullptr, std::min(chunk, nk - k)};
      if (workspace) {
        p.sum = workspace + member * plane * 4;
        p.type = Dtype::f32;
        p.sum_k = plane;
        p.sum_d = dx_shape[3] * dx_shape[4];
        p.sum_h = dx_shape[4];
        p.sum_w = 1;
      }
      if (!covered) zero(p);
      if (simple)
        lines_2x2(p, along_k);
      else if (along_k)
        lines_k(p);
      else
        lines_w(p);
      if (workspace)
        for (i64 a = 0; a < dx_shape[2]; ++a)
          store(out + a * dx_strides[2] * item_size(type), type,
                reinterpret_cast<const float *>(p.sum) + a * p.sum_d,
                Grid{dx_shape[3], dx_strides[3], dx_shape[4], dx_strides[4]});
    });
  }
};

// Half types with overlapping windows are added up in f32, to be rounded once.
bool needs_workspace(Dtype type, const Three &window, const Three &stride) {
  if (type == Dtype::f64 || type == Dtype::f32) return false;
  for (int i = 0; i < 3; ++i)
    if (stride[i] < window[i]) return true;
  return false;
}

}  // namespace

i64 pool_backward_workspace(int dtype, const Five &dx_shape, const Three &window, const Three &stride, int threads) {
  volume(dx_shape);
  if (!needs_workspace(dtype_of(dtype), window, stride)) return 0;
  return std::max(1, threads) * 4 * dx_shape[2] * dx_shape[3] * dx_shape[4];
}

void pool_backward(int kind, int dtype, uintptr_t dx, const Five &dx_strides, const Three &dx_lo, const Five &dx_shape,
                   uintptr_t x, const Five &x_strides, const Three &x_lo, const Five &x_shape, uintptr_t dy,
                   const Five &dy_strides, const Three &dy_lo, const Five &dy_shape, const Three &extent,
                   const Three &window, const Three &stride, const Three &pad, uintptr_t workspace,
                   i64 workspace_bytes, int threads) {
  if (kind < 0 || kind > 2) throw std::invalid_argument("unknown pooling kind");
  const Dtype type = dtype_of(dtype);
  const i64 count = volume(dx_shape);
  volume(dy_shape);
  if (dx_shape[0] != dy_shape[0] || dx_shape[1] != dy_shape[1])
    throw std::invalid_argument("dx and dy differ in n or k");
  if (kind == 0) {
    volume(x_shape);
    if (!x) throw std::invalid_argument("max pooling needs x");
    if (dx_shape[0] != x_shape[0] || dx_shape[1] != x_shape[1])
      throw std::invalid_argument("dx and x differ in n or k");
  }
  for (int i = 0; i < 3; ++i) {
    if (window[i] < 1 || stride[i] < 1) throw std::invalid_argument("window and stride must be positive");
    if (dx_lo[i] < 0 || dx_lo[i] + dx_shape[i + 2] > extent[i])
      throw std::invalid_argument("dx reaches out of the tensor");
  }
  if (count == 0) return;
  threads = team_of(count / kMicrosecond, threads);
  char *planes = nullptr;
  if (needs_workspace(type, window, stride)) {
    const i64 plane = 4 * dx_shape[2] * dx_shape[3] * dx_shape[4];
    if (!workspace || workspace_bytes < plane) throw std::invalid_argument("the workspace holds no plane");
    threads = static_cast<int>(std::min<i64>(threads, workspace_bytes / plane));
    planes = reinterpret_cast<char *>(workspace);
  }
  const auto axis = [&](int i) {
    return GradientAxis{extent[i], window[i], stride[i], pad[i], dx_lo[i], dx_shape[i + 2], x_lo[i], x ? x_shape[i + 2] : 0,
                    dy_lo[i], dy_shape[i + 2]};
  };
  const GradientAxis w = axis(2);
  std::vector<Span> taps, hits;
  for (i64 l = 0; l < w.window; ++l) {
    taps.push_back(w.taps(l));
    hits.push_back(w.hits(l));
  }
  const auto run = [&](auto zero) {
    PoolBackward<decltype(zero)>{static_cast<Pool>(kind), type,       reinterpret_cast<char *>(dx),
                                 reinterpret_cast<const char *>(x),   reinterpret_cast<const char *>(dy),
                                 dx_strides, x_strides,  dy_strides,  dx_shape, dy_shape,
                                 axis(0),    axis(1),    w,           planes,
                                 taps,       hits}
        .run(threads);
  };
  type == Dtype::f64 ? run(0.0) : run(0.0f);
}

}  // namespace ooc
