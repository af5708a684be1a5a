// Gradients of activations and of pooling.
//
// Tensors are (n, k, d, h, w) with strides in elements, of any sign, and element-aligned. f64 is
// computed in f64, the other dtypes in f32. Every output element is computed by one
// thread in a fixed order, so that results do not depend on the number of threads.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "tiles.hpp"

namespace py = pybind11;

namespace ooc {
namespace {

// ---------------------------------------------------------------------------------------------
// Activations: dx = dy * act'(x), by way of y = act(x)
// ---------------------------------------------------------------------------------------------

struct ActBackward {
  char *dx;
  const char *y, *dy;
  Dtype type;
  Act act;
  double coef;
};

template <typename C, typename F>
OOC_INLINE void each(C *dx, const C *y, const C *dy, i64 n, const F &f) {
  OOC_IVDEP
  for (i64 i = 0; i < n; ++i) dx[i] = f(y[i], dy[i]);
}

// Where nothing passes, what comes in does not matter (inf and NaN included).
template <typename C>
OOC_INLINE void act_backward_row(C *dx, const C *y, const C *dy, i64 n, Act act, C coef) {
  switch (act) {
    case Act::identity: return each(dx, y, dy, n, [](C, C g) OOC_LAMBDA { return g; });
    case Act::relu: return each(dx, y, dy, n, [](C v, C g) OOC_LAMBDA { return choose(v > C(0), g, C(0)); });
    case Act::clipped_relu:
      return each(dx, y, dy, n, [=](C v, C g) OOC_LAMBDA { return choose((v > C(0)) & (v < coef), g, C(0)); });
    case Act::elu:
      return each(dx, y, dy, n, [=](C v, C g) OOC_LAMBDA { return g * choose(v > C(0), C(1), v + coef); });
    case Act::leaky_relu:
      return each(dx, y, dy, n, [=](C v, C g) OOC_LAMBDA { return g * choose(v > C(0), C(1), coef); });
    case Act::sigmoid: return each(dx, y, dy, n, [](C v, C g) OOC_LAMBDA { return g * (v * (C(1) - v)); });
    case Act::tanh: return each(dx, y, dy, n, [](C v, C g) OOC_LAMBDA {
        const C square = v * v;
        return g * (C(1) - square);
      });
  }
}

template <typename C>
OOC_INLINE void act_backward_any(const ActBackward &job, const Tile<3> &t) {
  alignas(64) C from_y[kTile], from_dy[kTile], to_dx[kTile];
  const i64 item = item_size(job.type);
  const View<const C> y = view_in<C>(job.y + t.at[1] * item, job.type, t.grid(1), from_y);
  const View<const C> dy = view_in<C>(job.dy + t.at[2] * item, job.type, t.grid(2), from_dy);
  const View<C> dx = view_out<C>(job.dx + t.at[0] * item, job.type, t.grid(0), to_dx);
  for (i64 r = 0; r < t.rows; ++r)
    act_backward_row(dx.row(r), y.row(r), dy.row(r), t.cols, job.act, static_cast<C>(job.coef));
  store_view(job.dx + t.at[0] * item, job.type, t.grid(0), dx);
}

OOC_UNFUSED OOC_CLONES void act_backward_f32(const ActBackward &job, const Tile<3> &t) {
  act_backward_any<float>(job, t);
}
OOC_UNFUSED OOC_CLONES void act_backward_f64(const ActBackward &job, const Tile<3> &t) {
  act_backward_any<double>(job, t);
}

void act_backward(int dtype, uintptr_t dx, const Five &dx_strides, uintptr_t y, const Five &y_strides, uintptr_t dy,
                  const Five &dy_strides, const Five &shape, int act, double coef, int threads) {
  const ActBackward job{reinterpret_cast<char *>(dx), reinterpret_cast<const char *>(y),
                        reinterpret_cast<const char *>(dy), dtype_of(dtype), act_of(act), coef};
  const i64 count = volume(shape);
  if (count == 0) return;
  threads = team_of(count / kMicrosecond, threads);
  py::gil_scoped_release release;
  const auto nest = make_nest<3>(shape, {dx_strides, y_strides, dy_strides}, 3);
  for_tiles(nest, kTile, kTile, threads,
            [&](const Tile<3> &t) { job.type == Dtype::f64 ? act_backward_f64(job, t) : act_backward_f32(job, t); });
}

// ---------------------------------------------------------------------------------------------
// Pooling: a line of outputs, along w or along k, finds its maxima (or divides its gradients) and
// adds them to the inputs, one window position after another. For one input, the windows it is in
// come in row-major order of the outputs: along a line, from the last position to the first.
// ---------------------------------------------------------------------------------------------

enum class Pool : int { max = 0, average = 1, average_inside = 2 };

constexpr i64 kLine = 512;  // outputs of a line: what is kept for them stays in the first cache

// A window position's number, as wide as the values so that loops over both vectorise.
template <typename C>
using Code = std::conditional_t<sizeof(C) == 8, uint64_t, uint32_t>;

// Positions base + o * step + l * tap for outputs o < n and window columns l in [begin, end).
struct Taps {
  i64 n, step, begin, end, tap;
};

// The first maximum so far; NaN, once met, stays.
template <int kStep, typename C, typename T>
OOC_INLINE void argmax_tap(C *best, Code<C> *where, Code<C> code, const T *x, i64 n, i64 step) {
  if (kStep) step = kStep;
  OOC_IVDEP
  for (i64 o = 0; o < n; ++o) {
    const C v = static_cast<C>(widen(x[o * step]));
    const bool better = (v > best[o]) | ((v != v) & (best[o] == best[o]));
    best[o] = choose(better, v, best[o]);
    where[o] = choose(better, code, where[o]);
  }
}

template <typename C, typename T>
OOC_INLINE void argmax_row(C *best, Code<C> *where, Code<C> code, const T *x, const Taps &t) {
  for (i64 l = t.begin; l < t.end; ++l) {
    const T *from = x + l * t.tap;
    const auto c = static_cast<Code<C>>(code + l);
    if (t.step == 1)
      argmax_tap<1>(best, where, c, from, t.n, 1);
    else if (t.step == 2)
      argmax_tap<2>(best, where, c, from, t.n, 2);
    else
      argmax_tap<0>(best, where, c, from, t.n, t.step);
  }
}

OOC_CLONES void argmax(float *best, uint32_t *where, uint32_t code, const char *x, Dtype type, const Taps &t) {
  if (type == Dtype::f32) return argmax_row(best, where, code, reinterpret_cast<const float *>(x), t);
  if (type == Dtype::f16) return argmax_row(best, where, code, reinterpret_cast<const Half *>(x), t);
  argmax_row(best, where, code, reinterpret_cast<const Bfloat *>(x), t);
}

OOC_CLONES void argmax(double *best, uint64_t *where, uint64_t code, const char *x, Dtype, const Taps &t) {
  argmax_row(best, where, code, reinterpret_cast<const double *>(x), t);
}

template <int kStep, bool kMax, typename C, typename T>
OOC_INLINE void scatter_tap(T *dx, const C *g, const Code<C> *where, Code<C> code, i64 n, i64 step) {
  if (kStep) step = kStep;
  OOC_IVDEP
  for (i64 o = 0; o < n; ++o) {
    const C v = kMax ? choose(where[o] == code, g[o], C(0)) : g[o];
    narrow(static_cast<C>(widen(dx[o * step])) + v, dx[o * step]);
  }
}

template <bool kMax, typename C, typename T>
OOC_INLINE void scatter_any(T *dx, const C *g, const Code<C> *where, Code<C> code, i64 n, i64 step) {
  if (step == 1) return scatter_tap<1, kMax>(dx, g, where, code, n, 1);
  if (step == 2) return scatter_tap<2, kMax>(dx, g, where, code, n, 2);
  scatter_tap<0, kMax>(dx, g, where, code, n, step);
}

template <typename C, typename T>
OOC_INLINE void scatter_kind(T *dx, const C *g, const Code<C> *where, Code<C> code, i64 n, i64 step) {
  where ? scatter_any<true>(dx, g, where, code, n, step) : scatter_any<false>(dx, g, where, code, n, step);
}

// Adds g to the positions dx[o * step], where `where` (if there is one) is the code.
OOC_CLONES void scatter(char *dx, Dtype type, const float *g, const uint32_t *where, uint32_t code, i64 n, i64 step) {
  if (type == Dtype::f32) return scatter_kind(reinterpret_cast<float *>(dx), g, where, code, n, step);
  if (type == Dtype::f16) return scatter_kind(reinterpret_cast<Half *>(dx), g, where, code, n, step);
  scatter_kind(reinterpret_cast<Bfloat *>(dx), g, where, code, n, step);
}

OOC_CLONES void scatter(char *dx, Dtype, const double *g, const uint64_t *where, uint64_t code, i64 n, i64 step) {
  scatter_kind(reinterpret_cast<double *>(dx), g, where, code, n, step);
}

OOC_CLONES void load(float *out, const char *in, Dtype t, const Grid &g) { load_any(out, in, t, g); }
OOC_CLONES void load(double *out, const char *in, Dtype t, const Grid &g) { load_any(out, in, t, g); }
OOC_CLONES void store(char *out, Dtype t, const float *in, const Grid &g) { store_any(out, t, in, g); }

// The 2 x 2 windows of a line that do not overlap: every input is in one window, so that dx is
// written at once. Position (i, j) of window o is at row i, o * step + j * tap.
template <int kStep, typename C, typename T>
OOC_INLINE void max_2x2_any(T *const dx[2], const T *const x[2], const T *dy, i64 n, i64 tap) {
  if (kStep == 2) tap = 1;
  T *d0 = dx[0], *d1 = dx[1];
  const T *x0 = x[0], *x1 = x[1];
  OOC_IVDEP
  for (i64 o = 0; o < n; ++o) {
    const C a = static_cast<C>(widen(x0[o * kStep])), b = static_cast<C>(widen(x0[o * kStep + tap]));
    const C c = static_cast<C>(widen(x1[o * kStep])), d = static_cast<C>(widen(x1[o * kStep + tap]));
    const C g = static_cast<C>(widen(dy[o]));
    const bool right0 = (b > a) | ((b != b) & (a == a)), right1 = (d > c) | ((d != d) & (c == c));
    const C top = choose(right0, b, a), bottom = choose(right1, d, c);
    const bool down = (bottom > top) | ((bottom != bottom) & (top == top));
    const C g0 = choose(down, C(0), g), g1 = choose(down, g, C(0));
    narrow(choose(right0, C(0), g0), d0[o * kStep]);
    narrow(choose(right0, g0, C(0)), d0[o * kStep + tap]);
    narrow(choose(right1, C(0), g1), d1[o * kStep]);
    narrow(choose(right1, g1, C(0)), d1[o * kStep + tap]);
  }
}

template <typename C, typename T>
OOC_INLINE void max_2x2_type(char *const dx[2], const char *const x[2], const char *dy, i64 n, i64 step, i64 tap) {
  T *const to[2] = {reinterpret_cast<T *>(dx[0]), reinterpret_cast<T *>(dx[1])};
  const T *const from[2] = {reinterpret_cast<const T *>(x[0]), reinterpret_cast<const T *>(x[1])};
  if (step == 2)
    max_2x2_any<2, C>(to, from, reinterpret_cast<const T *>(dy), n, tap);
  else
    max_2x2_any<1, C>(to, from, reinterpret_cast<const T *>(dy), n, tap);
}

OOC_CLONES void max_2x2(Dtype type, char *const dx[2], const char *const x[2], const char *dy, i64 n, i64 step,
                        i64 tap) {
  switch (type) {
    case Dtype::f64: return max_2x2_type<double, double>(dx, x, dy, n, step, tap);
    case Dtype::f32: return max_2x2_type<float, float>(dx, x, dy, n, step, tap);
    case Dtype::f16: return max_2x2_type<float, Half>(dx, x, dy, n, step, tap);
    case Dtype::bf16: return max_2x2_type<float, Bfloat>(dx, x, dy, n, step, tap);
  }
}

i64 floor_div(i64 a, i64 b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
i64 ceil_div(i64 a, i64 b) { return -floor_div(-a, b); }

struct Span {
  i64 begin, end;
  i64 count() const { return end - begin; }
  bool has(i64 i) const { return begin <= i && i < end; }
};

// One spatial axis; outputs and window positions as indices into the dy block and the window.
struct PoolAxis {
  i64 extent, window, stride, pad, dx_lo, dx, x_lo, dy_lo, dy;

  i64 origin(i64 o) const { return (dy_lo + o) * stride - pad; }  // in the whole tensor

  // Window positions that lie inside the tensor.
  Span inside(i64 o) const {
    const i64 begin = std::clamp<i64>(-origin(o), 0, window);
    return {begin, std::max(begin, std::min(window, extent - origin(o)))};
  }

  // Outputs whose windows lie wholly inside the tensor.
  Span interior() const {
    const i64 begin = std::clamp<i64>(ceil_div(pad, stride) - dy_lo, 0, dy);
    return {begin, std::clamp(floor_div(extent - window + pad, stride) + 1 - dy_lo, begin, dy)};
  }

  // Outputs whose window position l lies in dx.
  Span hits(i64 l) const {
    const i64 begin = std::clamp<i64>(ceil_div(dx_lo + pad - l, stride) - dy_lo, 0, dy);
    return {begin, std::clamp<i64>(ceil_div(dx_lo + dx + pad - l, stride) - dy_lo, begin, dy)};
  }

  // Outputs whose windows may reach dx.
  Span reach() const {
    const i64 begin = hits(window - 1).begin;
    return {begin, std::max(begin, hits(0).end)};
  }

  bool overlaps() const { return stride < window; }

  // Windows lie side by side and wholly in dx.
  bool tiles() const {
    return window == stride && origin(0) >= dx_lo && origin(dy) <= dx_lo + dx && origin(0) >= 0 && origin(dy) <= extent;
  }
  bool tiles_all() const { return tiles() && origin(0) == dx_lo && origin(dy) == dx_lo + dx; }
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
  PoolAxis d, h, w;
  char *workspace;  // one f32 plane a thread, or null

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

  // The maxima of `taps.n` outputs whose windows share their inside parts, the first of them output o.
  void find(C *best, Code<C> *where, const Part &p, i64 od, i64 oh, i64 o, const Span &id, const Span &ih,
            const Span &iw, const Taps &taps) const {
    if (taps.n <= 0) return;
    std::fill(best, best + taps.n, -std::numeric_limits<C>::infinity());
    std::fill(where, where + taps.n, code(id.begin, ih.begin, iw.begin));
    for (i64 i = id.begin; i < id.end; ++i)
      for (i64 j = ih.begin; j < ih.end; ++j)
        argmax(best, where, code(i, j, 0), x_at(p, d.origin(od) + i, h.origin(oh) + j, w.origin(o)), type, taps);
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
    const Span in = w.interior(), rd = d.reach(), rh = h.reach(), rw = w.reach();
    for (i64 od = rd.begin; od < rd.end; ++od)
      for (i64 oh = rh.begin; oh < rh.end; ++oh) {
        const Span id = d.inside(od), ih = h.inside(oh);
        if (id.count() == 0 || ih.count() == 0) continue;
        for (i64 o = rw.begin; o < rw.end; o += kLine) {
          const i64 end = std::min(rw.end, o + kLine);
          load(g, dy_at(p, od, oh, o), type, Grid{1, 0, end - o, dy_strides[4]});
          const i64 first = std::clamp(in.begin, o, end), last = std::clamp(in.end, first, end);
          const auto part = [&](i64 a, i64 b) {  // outputs [a, b), alike in what is inside
            if (a >= b) return;
            const Span iw = w.inside(a);
            if (kind == Pool::max)
              find(best + (a - o), where + (a - o), p, od, oh, a, id, ih, iw,
                   Taps{b - a, w.stride * x_strides[4], iw.begin, iw.end, x_strides[4]});
            else
              divide(g + (a - o), b - a, divisor(id, ih, iw));
          };
          for (i64 a = o; a < first; ++a) part(a, a + 1);
          part(first, last);
          for (i64 a = last; a < end; ++a) part(a, a + 1);
          for (i64 i = id.begin; i < id.end; ++i)
            for (i64 j = ih.begin; j < ih.end; ++j) {
              const i64 pd = d.origin(od) + i, ph = h.origin(oh) + j;
              if (pd < d.dx_lo || pd >= d.dx_lo + d.dx || ph < h.dx_lo || ph >= h.dx_lo + h.dx) continue;
              for (i64 l = w.window - 1; l >= 0; --l) {
                const Span hit = w.hits(l);
                const i64 a = std::max(o, hit.begin), b = std::min(end, hit.end);
                if (a < b)
                  scatter(sum_at(p, pd, ph, w.origin(a) + l), p.type, g + (a - o),
                          kind == Pool::max ? where + (a - o) : nullptr, code(i, j, l), b - a, w.stride * p.sum_w);
              }
            }
        }
      }
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
            find(best, where, p, od, oh, o, id, ih, iw,
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
    i64 chunk = 1;
    if (along_k) {
      const i64 share = (nk + threads - 1) / threads;  // of a cache line's multiple
      chunk = std::min(kLine, dx_shape[0] >= threads ? nk : (share + 15) / 16 * 16);
    }
    const i64 chunks = (nk + chunk - 1) / chunk;
    const i64 plane = dx_shape[2] * dx_shape[3] * dx_shape[4];
    (void)threads;
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
#endif
    for (i64 u = 0; u < dx_shape[0] * chunks; ++u) {
      const i64 n = u / chunks, k = u % chunks * chunk;
      char *out = dx + (n * dx_strides[0] + k * dx_strides[1]) * item_size(type);
      Part p{out, type, dx_strides[1], dx_strides[2], dx_strides[3], dx_strides[4],
             x ? x + (n * x_strides[0] + k * x_strides[1]) * item_size(type) : nullptr,
             dy ? dy + (n * dy_strides[0] + k * dy_strides[1]) * item_size(type) : nullptr, std::min(chunk, nk - k)};
      if (workspace) {
#ifdef _OPENMP
        p.sum = workspace + omp_get_thread_num() * plane * 4;
#else
        p.sum = workspace;
#endif
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
    }
  }
};

// Half types with overlapping windows are added up in f32, to be rounded once.
bool needs_workspace(Dtype type, const Three &window, const Three &stride) {
  if (type == Dtype::f64 || type == Dtype::f32) return false;
  for (int i = 0; i < 3; ++i)
    if (stride[i] < window[i]) return true;
  return false;
}

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
    return PoolAxis{extent[i], window[i], stride[i], pad[i], dx_lo[i], dx_shape[i + 2], x_lo[i], dy_lo[i],
                    dy_shape[i + 2]};
  };
  const auto run = [&](auto zero) {
    PoolBackward<decltype(zero)>{static_cast<Pool>(kind), type,       reinterpret_cast<char *>(dx),
                                 reinterpret_cast<const char *>(x),   reinterpret_cast<const char *>(dy),
                                 dx_strides, x_strides,  dy_strides,  dx_shape, dy_shape,
                                 axis(0),    axis(1),    axis(2),     planes}
        .run(threads);
  };
  py::gil_scoped_release release;
  type == Dtype::f64 ? run(0.0) : run(0.0f);
}

}  // namespace

void bind_backward(py::module_ &m) {
  m.def("act_backward", &act_backward, py::arg("dtype"), py::arg("dx"), py::arg("dx_strides"), py::arg("y"),
        py::arg("y_strides"), py::arg("dy"), py::arg("dy_strides"), py::arg("shape"), py::arg("act"), py::arg("coef"),
        py::arg("threads") = 1, "dx = dy * act'(x) where y = act(x); dx may be y or dy.");
  m.def("pool_backward_workspace", &pool_backward_workspace, py::arg("dtype"), py::arg("dx_shape"), py::arg("window"),
        py::arg("stride"), py::arg("threads") = 1, "Bytes pool_backward needs to run on that many threads.");
  m.def("pool_backward", &pool_backward, py::arg("kind"), py::arg("dtype"), py::arg("dx"), py::arg("dx_strides"),
        py::arg("dx_lo"), py::arg("dx_shape"), py::arg("x"), py::arg("x_strides"), py::arg("x_lo"), py::arg("x_shape"),
        py::arg("dy"), py::arg("dy_strides"), py::arg("dy_lo"), py::arg("dy_shape"), py::arg("extent"),
        py::arg("window"), py::arg("stride"), py::arg("pad"), py::arg("workspace") = 0,
        py::arg("workspace_bytes") = 0, py::arg("threads") = 1,
        "dx = what the outputs of block dy give to the inputs of block dx: through the first maximum (0), averages "
        "counting padding (1) or not (2). Blocks are placed by their spatial origins (_lo) in the whole tensors; x "
        "must hold the windows of dy.");
}

}  // namespace ooc
