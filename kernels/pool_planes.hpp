// Pooling gradients of planes so small that what their windows see has room in a buffer (pool_blocks.hpp): some planes at a time.
#pragma once
#include <array>
#include <limits>

#include "pool_axes.hpp"
#include "pool_lines.hpp"
#include "pool_blocks.hpp"

namespace ooc {
namespace {

template <typename C>
struct PlaneGradients {
  static constexpr Dtype kSum = sizeof(C) == 8 ? Dtype::f64 : Dtype::f32;

  Pool kind;
  Dtype type;
  char *dx;
  const char *x, *dy;
  Five dx_strides, x_strides, dy_strides, dx_shape;
  std::array<GradientAxis, 3> axis;

  std::array<BlockAxis, 3> block{};
  std::array<Span, 3> reach{};      // outputs whose windows may reach dx
  std::array<i64, 3> origin{};      // the first position that their windows see, in the whole tensor
  i64 planes = 1, plane = 1, phase = 1;  // at a time; outputs of a plane, and of all of them, with those that nobody wants

  // Whether planes are so small; at most so many at a time.
  bool plan(i64 most) {
    i64 room = 1;
    for (int i = 0; i < 3; ++i) {
      const GradientAxis &a = axis[i];
      reach[i] = a.reach();
      block[i] = {reach[i].count(), a.window, reach[i].count() == 1 ? a.window : a.stride};
      if (block[i].outputs < 1 || block[i].room() > kRoom / room) return false;
      origin[i] = a.origin(reach[i].begin), room *= block[i].room(), plane *= block[i].pitch();
    }
    planes = std::clamp<i64>(kRoom / room, 1, most);
    phase = planes * plane;
    return true;
  }

  i64 place(const Five &strides, i64 u) const { return u / dx_shape[1] * strides[0] + u % dx_shape[1] * strides[1]; }
  i64 output(i64 d, i64 h) const { return (d * block[1].pitch() + h) * block[2].pitch(); }  // in a line: the first of a row

  // Where window position (i, j, l) of a block's first output is in the buffer.
  i64 line(i64 i, i64 j, i64 l) const {
    const i64 residue = (i % block[0].stride * block[1].phases() + j % block[1].stride) * block[2].phases() + l % block[2].stride;
    return residue * phase + output(i / block[0].stride, j / block[1].stride) + l / block[2].stride;
  }

  Code<C> code(i64 i, i64 j, i64 l) const { return static_cast<Code<C>>((i * axis[1].window + j) * axis[2].window + l); }

  // Calls f(position d, position h, window column l, the place in a plane's buffer) for rows of what is seen, each column's residue.
  template <typename F>
  OOC_INLINE void rows(const F &f) const {
    for (i64 l = 0; l < block[2].phases(); ++l)
      for (i64 a = 0; a < block[0].pitch(); ++a)
        for (i64 i = 0; i < block[0].phases(); ++i)
          for (i64 b = 0; b < block[1].pitch(); ++b)
            for (i64 j = 0; j < block[1].phases(); ++j)
              f(origin[0] + a * block[0].stride + i, origin[1] + b * block[1].stride + j, l, line(i, j, l) + output(a, b));
  }

  template <typename T>
  OOC_INLINE void see(C *seen, const T *in) const {
    const GradientAxis &d = axis[0], &h = axis[1], &w = axis[2];
    const auto real = [](const GradientAxis &a, i64 at) { return at >= std::max<i64>(0, a.x_lo) && at < std::min(a.extent, a.x_lo + a.x); };
    const i64 along = block[2].pitch(), step = block[2].stride;
    Interval inner{};
    i64 last = -1;
    rows([&](i64 pd, i64 ph, i64 l, i64 at) OOC_LAMBDA {
      if (l != last) inner = inside(origin[2] + l, step, along, std::max<i64>(0, w.x_lo), std::min(w.extent, w.x_lo + w.x)), last = l;
      const i64 some = real(d, pd) && real(h, ph) ? inner.count : 0, before = some ? inner.first : along;
      C *to = seen + at;
      std::fill(to, to + before, -std::numeric_limits<C>::infinity());
      const i64 first = origin[2] + l + before * step - w.x_lo;
      if (some)
        copy_in(to + before, in + (pd - d.x_lo) * x_strides[2] + (ph - h.x_lo) * x_strides[3] + first * x_strides[4], some,
                step * x_strides[4]);
      std::fill(to + before + some, to + along, -std::numeric_limits<C>::infinity());
    });
  }

  template <typename T>
  OOC_INLINE void put(T *out, const C *sum) const {
    const GradientAxis &d = axis[0], &h = axis[1], &w = axis[2];
    for (i64 a = 0; a < d.dx; ++a)  // some positions may be in no window
      for (i64 b = 0; b < h.dx; ++b)
        for (i64 c = 0; c < w.dx; ++c) out[a * dx_strides[2] + b * dx_strides[3] + c * dx_strides[4]] = T{};
    const i64 step = block[2].stride;
    Interval inner{};
    i64 last = -1;
    rows([&](i64 pd, i64 ph, i64 l, i64 at) OOC_LAMBDA {
      if (l != last) inner = inside(origin[2] + l, step, block[2].pitch(), w.dx_lo, w.dx_lo + w.dx), last = l;
      if (pd < d.dx_lo || pd >= d.dx_lo + d.dx || ph < h.dx_lo || ph >= h.dx_lo + h.dx) return;
      const i64 first = origin[2] + l + inner.first * step - w.dx_lo;
      copy_out(out + (pd - d.dx_lo) * dx_strides[2] + (ph - h.dx_lo) * dx_strides[3] + first * dx_strides[4], sum + at + inner.first,
               inner.count, step * dx_strides[4]);
    });
  }

  // Calls f(the place in a plane's line, output d, output h) for its rows of outputs.
  template <typename F>
  OOC_INLINE void outputs(const F &f) const {
    for (i64 a = 0; a < block[0].outputs; ++a)
      for (i64 b = 0; b < block[1].outputs; ++b) f(output(a, b), reach[0].begin + a, reach[1].begin + b);
  }

  // Gradients of the outputs, divided for averages; 0 between them.
  template <typename T>
  OOC_INLINE void gradients(C *g, const T *in) const {
    std::fill(g, g + plane, C(0));
    outputs([&](i64 at, i64 od, i64 oh) OOC_LAMBDA {
      copy_in(g + at, in + od * dy_strides[2] + oh * dy_strides[3] + reach[2].begin * dy_strides[4], block[2].outputs, dy_strides[4]);
      if (kind == Pool::max) return;
      const i64 deep = axis[0].inside(od).count() * axis[1].inside(oh).count();
      for (i64 o = 0; o < block[2].outputs; ++o)
        g[at + o] /= static_cast<C>(kind == Pool::average ? axis[0].window * axis[1].window * axis[2].window
                                                          : std::max<i64>(1, deep * axis[2].inside(reach[2].begin + o).count()));
    });
  }

  // What windows of nothing but -inf say: their first positions inside.
  void first_positions(Code<C> *where) const {
    std::fill(where, where + plane, Code<C>(0));
    outputs([&](i64 at, i64 od, i64 oh) OOC_LAMBDA {
      for (i64 o = 0; o < block[2].outputs; ++o)
        where[at + o] = code(axis[0].inside(od).begin, axis[1].inside(oh).begin, axis[2].inside(reach[2].begin + o).begin);
    });
  }

  struct Buffers {
    alignas(64) C seen[kRoom], best[kRoom], g[kRoom];
    alignas(64) Code<C> where[kRoom], firsts[kRoom];
  };

  // The first maxima of n windows.
  void find(Buffers &b, i64 some, i64 n) const {
    std::fill(b.best, b.best + n, -std::numeric_limits<C>::infinity());
    for (i64 p = 0; p < some; ++p) std::copy(b.firsts, b.firsts + plane, b.where + p * plane);
    for (i64 i = 0; i < axis[0].window; ++i)
      for (i64 j = 0; j < axis[1].window; ++j)
        for (i64 l = 0; l < axis[2].window; ++l)
          argmax(b.best, b.where, code(i, j, l), reinterpret_cast<const char *>(b.seen + line(i, j, l)), kSum, Taps{n, 1, 0, 1, 0});
  }

  // Windows reach an input in row-major order of their outputs: from the last window position to the first.
  void add(Buffers &b, i64 n) const {
    const Code<C> *where = kind == Pool::max ? b.where : nullptr;
    for (i64 i = axis[0].window - 1; i >= 0; --i)
      for (i64 j = axis[1].window - 1; j >= 0; --j)
        for (i64 l = axis[2].window - 1; l >= 0; --l)
          scatter(reinterpret_cast<char *>(b.seen + line(i, j, l)), kSum, b.g, where, code(i, j, l), n, 1);
  }

  template <typename T>
  OOC_INLINE void run(i64 lo, i64 hi) const {
    Buffers b;
    const i64 all = dx_shape[0] * dx_shape[1], residues = block[0].phases() * block[1].phases() * block[2].phases();
    std::fill(b.seen, b.seen + kRoom, C(0));  // between rows something is seen that is never looked at, but it is a number
    if (kind == Pool::max) first_positions(b.firsts);
    for (i64 u = lo * planes; u < std::min(all, hi * planes); u += planes) {
      const i64 some = std::min(planes, all - u);
      const i64 n = (some - 1) * plane + output(block[0].outputs - 1, block[1].outputs - 1) + block[2].outputs;
      for (i64 p = 0; p < some; ++p) gradients(b.g + p * plane, reinterpret_cast<const T *>(dy) + place(dy_strides, u + p));
      if (kind == Pool::max) {
        for (i64 p = 0; p < some; ++p) see(b.seen + p * plane, reinterpret_cast<const T *>(x) + place(x_strides, u + p));
        find(b, some, n);
      }
      std::fill(b.seen, b.seen + residues * phase, C(0));
      add(b, n);
      for (i64 p = 0; p < some; ++p) put(reinterpret_cast<T *>(dx) + place(dx_strides, u + p), b.seen + p * plane);
    }
  }
};

OOC_CLONES void run_planes(const PlaneGradients<float> &job, i64 lo, i64 hi) {
  switch (job.type) {
    case Dtype::f16: return job.run<Half>(lo, hi);
    case Dtype::bf16: return job.run<Bfloat>(lo, hi);
    default: return job.run<float>(lo, hi);
  }
}

OOC_CLONES void run_planes(const PlaneGradients<double> &job, i64 lo, i64 hi) { job.run<double>(lo, hi); }

}  // namespace
}  // namespace ooc
