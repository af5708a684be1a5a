// Max and average pooling.
//
// Tensors are (n, k, d, h, w) with strides in elements, of any sign, and element-aligned. f64 is computed in f64, the other dtypes in
// f32. Every output takes the positions of its window in row-major order, whatever the block and the number of threads.
//
// Where elements along w are nearest, blocks of outputs of neighbouring planes are computed as one line (pool_blocks.hpp): short rows
// cost no more than long ones. Where channels are nearest, a line is of channels.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <stdexcept>

#include "calls.hpp"
#include "pool_blocks.hpp"
#include "team.hpp"

namespace ooc {
namespace {

constexpr i64 kLine = 512;  // outputs of a row or of a line of channels: the accumulators stay in the first cache

// NaN, once met, stays.
template <bool kMax, typename C>
OOC_INLINE C join(C acc, C x) {
  if (kMax) return ((x > acc) | (x != x)) ? x : acc;
  return acc + x;
}

// Window positions [begin, end) of one axis that lie inside the x block.
struct Inside {
  i64 origin, begin, end;
  i64 count() const { return end - begin; }
};

struct PoolAxis {
  i64 in, out, window, stride, pad;

  Inside at(i64 o) const {
    const i64 origin = o * stride - pad;
    const i64 begin = std::min(window, std::max<i64>(0, -origin));
    return {origin, begin, std::max(begin, std::min(window, in - origin))};
  }
};

template <bool kMax, typename C, typename T>
OOC_INLINE void join_channels(C *acc, const T *x, i64 n, i64 step) {
  if (step == 1)
    for (i64 o = 0; o < n; ++o) acc[o] = join<kMax>(acc[o], static_cast<C>(widen(x[o])));
  else
    for (i64 o = 0; o < n; ++o) acc[o] = join<kMax>(acc[o], static_cast<C>(widen(x[o * step])));
}

// acc = acc joined with so many lines, one after the other.
template <bool kMax, int kLines, typename C>
OOC_INLINE void join_lines(C *__restrict__ acc, const C *__restrict__ buffer, const int *line, i64 n) {
  for (i64 o = 0; o < n; ++o) {
    C a = acc[o];
#pragma GCC unroll 4
    for (int l = 0; l < kLines; ++l) a = join<kMax>(a, buffer[line[l] + o]);
    acc[o] = a;
  }
}

template <bool kMax, typename C>
OOC_INLINE void join_any(C *acc, const C *buffer, const int *line, i64 lines, i64 n) {
  for (; lines >= 4; lines -= 4, line += 4) join_lines<kMax, 4>(acc, buffer, line, n);
  if (lines == 3) join_lines<kMax, 3>(acc, buffer, line, n);
  if (lines == 2) join_lines<kMax, 2>(acc, buffer, line, n);
  if (lines == 1) join_lines<kMax, 1>(acc, buffer, line, n);
}

OOC_CLONES void join_all(float *acc, const float *buffer, const int *line, i64 lines, i64 n, bool max) {
  max ? join_any<true>(acc, buffer, line, lines, n) : join_any<false>(acc, buffer, line, lines, n);
}

OOC_CLONES void join_all(double *acc, const double *buffer, const int *line, i64 lines, i64 n, bool max) {
  max ? join_any<true>(acc, buffer, line, lines, n) : join_any<false>(acc, buffer, line, lines, n);
}

template <typename C>
struct PoolJob {
  Pool kind;
  Dtype type;
  const char *x;
  char *y;
  Five xs, ys, y_shape;  // strides of x and y, shape of y
  PoolAxis d, h, w;

  BlockAxis tall{}, wide{};  // a block's rows and columns
  i64 planes = 1;            // and how many planes it has

  C start() const { return kind == Pool::max ? -std::numeric_limits<C>::infinity() : C(0); }
  C divisor(i64 inside) const {
    return static_cast<C>(kind == Pool::average ? d.window * h.window * w.window : std::max<i64>(1, inside));
  }

  // The largest block whose buffer has room: whole planes, some rows of one, a part of a row; where windows are large, some of their
  // columns at a time.
  void plan(i64 all_planes) {
    tall = {1, h.window, h.out == 1 ? h.window : h.stride}, wide = {std::min(w.out, kLine), w.window, w.out == 1 ? w.window : w.stride};
    const auto fits = [&] { return tall.room() * wide.room() <= kRoom; };
    while (wide.outputs > 64 && !fits()) wide.outputs = (wide.outputs + 1) / 2;
    if (!fits()) tall.window = 1;
    while (!fits() && wide.window > 1) wide.window = (wide.window + 1) / 2;
    tall.outputs = std::clamp<i64>(kRoom / wide.room() / tall.phases() - (tall.pitch() - 1), 1, h.out);
    if (tall.outputs == h.out && wide.outputs == w.out) planes = std::clamp<i64>(kRoom / (tall.room() * wide.room()), 1, all_planes);
  }

  i64 plane() const { return tall.pitch() * wide.pitch(); }
  i64 phase() const { return planes * plane(); }

  // Where x of plane u begins: u counts (n, k).
  i64 from(i64 u) const { return u / y_shape[1] * xs[0] + u % y_shape[1] * xs[1]; }
  i64 to(i64 u) const { return u / y_shape[1] * ys[0] + u % y_shape[1] * ys[1]; }

  // What the window rows `js` and columns `ls` of some outputs of a plane see: `in` is position (0, 0) of the plane.
  template <typename T>
  OOC_INLINE void fill(C *buffer, const T *in, const Interval &rows, const Interval &columns, const Interval &js, const Interval &ls) const {
    const i64 seen = rows.count + (js.count - 1) / tall.stride, along = columns.count + (ls.count - 1) / wide.stride;
    for (i64 l = 0; l < std::min(ls.count, wide.stride); ++l) {
      const i64 first = columns.first * wide.stride + ls.first + l - w.pad;
      const Interval real = inside(first, wide.stride, along, 0, w.in);
      for (i64 q = 0; q < seen; ++q)
        for (i64 j = 0; j < std::min(js.count, tall.stride); ++j) {
          const i64 at = (rows.first + q) * tall.stride + js.first + j - h.pad;
          C *to = buffer + (j * wide.phases() + l) * phase() + q * wide.pitch();
          const i64 some = at >= 0 && at < h.in ? real.count : 0, before = some ? real.first : along;
          std::fill(to, to + before, start());
          if (some) copy_in(to + before, in + at * xs[3] + (first + before * wide.stride) * xs[4], some, wide.stride * xs[4]);
          std::fill(to + before + some, to + along, start());
        }
    }
  }

  // Lines of the buffer that the window positions are, in row-major order.
  i64 lines(int *line, const Interval &js, const Interval &ls) const {
    i64 count = 0;
    for (i64 j = 0; j < js.count; ++j)
      for (i64 l = 0; l < ls.count; ++l) {
        const i64 residue = j % tall.stride * wide.phases() + l % wide.stride;
        line[count++] = static_cast<int>(residue * phase() + j / tall.stride * wide.pitch() + l / wide.stride);
      }
    return count;
  }

  template <typename T>
  OOC_INLINE void put(const C *acc, i64 u, i64 od, const Interval &rows, const Interval &columns) const {
    const i64 inside = d.at(od).count();
    for (i64 r = 0; r < rows.count; ++r, acc += wide.pitch()) {
      const i64 oh = rows.first + r, high = inside * h.at(oh).count();
      T *out = reinterpret_cast<T *>(y) + to(u) + od * ys[2] + oh * ys[3] + columns.first * ys[4];
      if (kind == Pool::max)
        for (i64 o = 0; o < columns.count; ++o) narrow(acc[o], out[o * ys[4]]);
      else if (kind == Pool::average)
        for (i64 o = 0; o < columns.count; ++o) narrow(acc[o] / divisor(0), out[o * ys[4]]);
      else
        for (i64 o = 0; o < columns.count; ++o) narrow(acc[o] / divisor(high * w.at(columns.first + o).count()), out[o * ys[4]]);
    }
  }

  struct Blocks {
    i64 columns, rows, planes;
  };

  Blocks blocks() const {
    const i64 all = y_shape[0] * y_shape[1];
    return {(w.out + wide.outputs - 1) / wide.outputs, (h.out + tall.outputs - 1) / tall.outputs, (all + planes - 1) / planes};
  }

  struct Buffers {
    alignas(64) C acc[kRoom], seen[kRoom];
    int line[kRoom];
  };

  template <typename T>
  OOC_INLINE void block(Buffers &b, i64 u) const {
    const Blocks all = blocks();
    const i64 c = u % all.columns * wide.outputs, r = u / all.columns % all.rows * tall.outputs;
    const i64 rest = u / all.columns / all.rows, od = rest % y_shape[2], p = rest / y_shape[2] * planes;
    const i64 some = std::min(planes, y_shape[0] * y_shape[1] - p);
    const Interval rows{r, std::min(tall.outputs, h.out - r)}, columns{c, std::min(wide.outputs, w.out - c)};
    const i64 n = (some - 1) * plane() + (rows.count - 1) * wide.pitch() + columns.count;
    std::fill(b.acc, b.acc + n, start());
    const Inside id = d.at(od);
    for (i64 i = id.begin; i < id.end; ++i)
      for (i64 j = 0; j < h.window; j += tall.window)
        for (i64 l = 0; l < w.window; l += wide.window) {
          const Interval js{j, std::min(tall.window, h.window - j)}, ls{l, std::min(wide.window, w.window - l)};
          for (i64 g = 0; g < some; ++g)
            fill(b.seen + g * plane(), reinterpret_cast<const T *>(x) + from(p + g) + (id.origin + i) * xs[2], rows, columns, js, ls);
          join_all(b.acc, b.seen, b.line, lines(b.line, js, ls), n, kind == Pool::max);
        }
    for (i64 g = 0; g < some; ++g) put<T>(b.acc + g * plane(), p + g, od, rows, columns);
  }

  template <typename T>
  OOC_INLINE void run_blocks(i64 lo, i64 hi) const {
    Buffers b;
    std::fill(b.seen, b.seen + kRoom, C(0));  // what outputs between rows would see is never looked at, but it is a number
    for (i64 u = lo; u < hi; ++u) block<T>(b, u);
  }

  // Lines along k, for channels-last blocks: line u is one (n, d, h) of y, all its w in turn.
  template <bool kMax, typename T>
  OOC_INLINE void line_k(i64 u) const {
    const i64 oh = u % y_shape[3], od = u / y_shape[3] % y_shape[2], n = u / y_shape[3] / y_shape[2];
    const Inside id = d.at(od), ih = h.at(oh);
    const T *base = reinterpret_cast<const T *>(x) + n * xs[0] + id.origin * xs[2] + ih.origin * xs[3];
    T *out = reinterpret_cast<T *>(y) + n * ys[0] + od * ys[2] + oh * ys[3];
    alignas(64) C acc[kLine];
    for (i64 o = 0; o < w.out; ++o) {
      const Inside iw = w.at(o);
      for (i64 k = 0; k < y_shape[1]; k += kLine) {
        const i64 count = std::min(kLine, y_shape[1] - k);
        std::fill(acc, acc + count, start());
        for (i64 i = id.begin; i < id.end; ++i)
          for (i64 j = ih.begin; j < ih.end; ++j)
            for (i64 l = iw.begin; l < iw.end; ++l)
              join_channels<kMax>(acc, base + i * xs[2] + j * xs[3] + (iw.origin + l) * xs[4] + k * xs[1], count, xs[1]);
        const C by = kMax ? C(1) : divisor(id.count() * ih.count() * iw.count());
        for (i64 v = 0; v < count; ++v) narrow(kMax ? acc[v] : acc[v] / by, out[(k + v) * ys[1] + o * ys[4]]);
      }
    }
  }

  template <typename T>
  OOC_INLINE void run_lines(i64 lo, i64 hi) const {
    for (i64 u = lo; u < hi; ++u) kind == Pool::max ? line_k<true, T>(u) : line_k<false, T>(u);
  }

  template <typename T>
  OOC_INLINE void run(i64 lo, i64 hi, bool along_k) const {
    along_k ? run_lines<T>(lo, hi) : run_blocks<T>(lo, hi);
  }
};

OOC_CLONES void run_some(const PoolJob<float> &job, i64 lo, i64 hi, bool along_k) {
  switch (job.type) {
    case Dtype::f16: return job.run<Half>(lo, hi, along_k);
    case Dtype::bf16: return job.run<Bfloat>(lo, hi, along_k);
    default: return job.run<float>(lo, hi, along_k);
  }
}

OOC_CLONES void run_some(const PoolJob<double> &job, i64 lo, i64 hi, bool along_k) { job.run<double>(lo, hi, along_k); }

template <typename C>
void run_pool(PoolJob<C> &job, int threads) {
  const Five &shape = job.y_shape;
  const bool along_k = shape[1] > 1 && std::abs(job.xs[1]) < std::abs(job.xs[4]);
  i64 units = shape[0] * shape[2] * shape[3];
  if (!along_k) {
    job.plan((shape[0] * shape[1] + 4 * threads - 1) / (4 * threads));
    units = shape[2] * job.blocks().columns * job.blocks().rows * job.blocks().planes;
  }
  share_runs(units, threads, [&](i64 lo, i64 hi, int) { run_some(job, lo, hi, along_k); });
}

}  // namespace

void pool_fprop(int kind, int dtype, uintptr_t x, const Five &x_shape, const Five &x_strides, uintptr_t y,
                const Five &y_shape, const Five &y_strides, const Three &window, const Three &stride,
                const Three &pad_lo, int threads) {
  if (kind < 0 || kind > 2) throw std::invalid_argument("unknown pooling kind");
  if (x_shape[0] != y_shape[0] || x_shape[1] != y_shape[1]) throw std::invalid_argument("x and y differ in n or k");
  for (int i = 0; i < 3; ++i)
    if (window[i] < 1 || stride[i] < 1) throw std::invalid_argument("window and stride must be positive");
  const Dtype type = dtype_of(dtype);
  volume(x_shape);
  const i64 count = volume(y_shape);
  if (count == 0) return;
  threads = team_of(4.0 * count / kMicrosecond, threads);
  const auto axis = [&](int i) { return PoolAxis{x_shape[i + 2], y_shape[i + 2], window[i], stride[i], pad_lo[i]}; };
  const auto run = [&](auto zero) {
    PoolJob<decltype(zero)> job{static_cast<Pool>(kind), type, reinterpret_cast<const char *>(x), reinterpret_cast<char *>(y),
                                x_strides, y_strides, y_shape, axis(0), axis(1), axis(2)};
    run_pool(job, threads);
  };
  type == Dtype::f64 ? run(0.0) : run(0.0f);
}

}  // namespace ooc
