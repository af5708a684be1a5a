// The loops of pooling gradients over lines of outputs: maxima and where they are, gradients added to inputs.
#pragma once
#include <type_traits>

#include "pool_axes.hpp"
#include "tiles.hpp"

namespace ooc {
namespace {

constexpr i64 kLine = 512;  // outputs of a line: what is kept for them stays in the first cache

// n outputs from `first` on, along a row of inputs: column l of the window of output first + o is at (start + o * stride + l) *
// tap. Outputs outside `columns[l]` have no column l.
struct Line {
  i64 first, n, stride, start, tap, window;
  const Span *columns;

  Span outputs(i64 l) const {
    const i64 begin = std::max<i64>(columns[l].begin - first, 0);
    return {begin, std::max(begin, std::min(columns[l].end - first, n))};
  }
  i64 at(i64 o, i64 l) const { return (start + o * stride + l) * tap; }
};

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

template <typename C, typename T>
OOC_INLINE void argmax_columns(C *best, Code<C> *where, Code<C> code, const T *x, const Line &line) {
  for (i64 l = 0; l < line.window; ++l) {
    const Span own = line.outputs(l);
    argmax_row(best + own.begin, where + own.begin, static_cast<Code<C>>(code + l), x + line.at(own.begin, l),
               Taps{own.count(), line.stride * line.tap, 0, 1, 0});
  }
}

OOC_CLONES void argmax_line(float *best, uint32_t *where, uint32_t code, const char *x, Dtype type, const Line &line) {
  if (type == Dtype::f32) return argmax_columns(best, where, code, reinterpret_cast<const float *>(x), line);
  if (type == Dtype::f16) return argmax_columns(best, where, code, reinterpret_cast<const Half *>(x), line);
  argmax_columns(best, where, code, reinterpret_cast<const Bfloat *>(x), line);
}

OOC_CLONES void argmax_line(double *best, uint64_t *where, uint64_t code, const char *x, Dtype, const Line &line) {
  argmax_columns(best, where, code, reinterpret_cast<const double *>(x), line);
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

// From the last column to the first: windows come in row-major order of their outputs.
template <typename C, typename T>
OOC_INLINE void scatter_columns(T *dx, const C *g, const Code<C> *where, Code<C> code, const Line &line) {
  for (i64 l = line.window - 1; l >= 0; --l) {
    const Span own = line.outputs(l);
    scatter_kind(dx + line.at(own.begin, l), g + own.begin, where ? where + own.begin : nullptr,
                 static_cast<Code<C>>(code + l), own.count(), line.stride * line.tap);
  }
}

OOC_CLONES void scatter_line(char *dx, Dtype type, const float *g, const uint32_t *where, uint32_t code, const Line &line) {
  if (type == Dtype::f32) return scatter_columns(reinterpret_cast<float *>(dx), g, where, code, line);
  if (type == Dtype::f16) return scatter_columns(reinterpret_cast<Half *>(dx), g, where, code, line);
  scatter_columns(reinterpret_cast<Bfloat *>(dx), g, where, code, line);
}

OOC_CLONES void scatter_line(char *dx, Dtype, const double *g, const uint64_t *where, uint64_t code, const Line &line) {
  scatter_columns(reinterpret_cast<double *>(dx), g, where, code, line);
}

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

}  // namespace
}  // namespace ooc
