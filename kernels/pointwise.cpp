// Bias, activation and dtype conversion in one pass; max and average pooling.
//
// Tensors are (n, k, d, h, w) with strides in elements, of any sign, and element-aligned. f64 is
// computed in f64, the other dtypes in f32. Every output element is computed by one
// thread in a fixed order, so that results do not depend on the number of threads.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "common.hpp"

// The compiler vectorises the marked loops once per instruction set; the loader picks one. What they
// call must be inlined to take part. (Sanitizers cannot run before the loader has chosen.)
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OOC_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define OOC_CLONES
#endif
#if defined(__GNUC__)
#define OOC_INLINE inline __attribute__((always_inline))
#else
#define OOC_INLINE inline
#endif

namespace py = pybind11;

namespace ooc {
namespace {

// ---------------------------------------------------------------------------------------------
// Number formats, without branches, so that loops over them vectorise on any processor.
// ---------------------------------------------------------------------------------------------

struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

template <typename To, typename From>
OOC_INLINE To bit_cast(From x) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To y;
  std::memcpy(&y, &x, sizeof(y));
  return y;
}

// A choice the compiler cannot turn into a branch around floating-point code, which would keep it
// from vectorising.
OOC_INLINE uint32_t choose(bool which, uint32_t yes, uint32_t no) {
  const uint32_t mask = 0u - static_cast<uint32_t>(which);
  return (yes & mask) | (no & ~mask);
}

OOC_INLINE float choose(bool which, float yes, float no) {
  return bit_cast<float>(choose(which, bit_cast<uint32_t>(yes), bit_cast<uint32_t>(no)));
}

OOC_INLINE double widen(double x) { return x; }
OOC_INLINE float widen(float x) { return x; }
OOC_INLINE float widen(Bfloat x) { return bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

OOC_INLINE float widen(Half x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t shifted = static_cast<uint32_t>(x.bits & 0x7fffu) << 13;
  const uint32_t rebias = (127u - 15u) << 23;
  // Subnormals: place the fraction below 2^-14, then take the implied 2^-14 away.
  const uint32_t first = 113u << 23;
  const uint32_t small = bit_cast<uint32_t>(bit_cast<float>(shifted + first) - bit_cast<float>(first));
  const uint32_t normal = shifted + rebias + (shifted >= (31u << 23) ? rebias : 0u);
  return bit_cast<float>(sign | choose(shifted < (1u << 23), small, normal));
}

// Rounds to nearest even.
OOC_INLINE Bfloat to_bfloat(float x) {
  const uint32_t u = bit_cast<uint32_t>(x);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t nan = (u >> 16) | 0x40u;  // quiet: a cut payload must not turn it into inf
  return Bfloat{static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}

// Rounds to nearest even.
OOC_INLINE Half to_half(float x) {
  const uint32_t u = bit_cast<uint32_t>(x);
  const uint32_t sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
  // Below 2^-14: adding 0.5 makes the addition round at the place of the last subnormal bit.
  const uint32_t half = 126u << 23;
  const uint32_t small = bit_cast<uint32_t>(bit_cast<float>(mag) + bit_cast<float>(half)) - half;
  const uint32_t normal = (mag - (112u << 23) + 0xfffu + ((mag >> 13) & 1u)) >> 13;
  const uint32_t nan = 0x7e00u | ((mag >> 13) & 0x3ffu);
  uint32_t y = choose(mag < (113u << 23), small, normal);
  y = choose(mag >= (143u << 23), 0x7c00u, y);
  y = choose(mag > (255u << 23), nan, y);
  return Half{static_cast<uint16_t>(sign | y)};
}

// Rounds f64 to f32 such that rounding once more, to a shorter format, gives what rounding the f64
// at once would give: an inexact result gets an odd last bit.
OOC_INLINE float to_odd(double x) {
  const float f = static_cast<float>(x);
  const uint32_t u = bit_cast<uint32_t>(f);
  const double back = static_cast<double>(f);
  const bool inexact = (back < x) | (back > x);
  const uint32_t other = std::fabs(back) > std::fabs(x) ? u - 1u : u + 1u;
  return bit_cast<float>(inexact & !(u & 1u) ? other : u);
}

OOC_INLINE void narrow(double x, double &y) { y = x; }
OOC_INLINE void narrow(double x, float &y) { y = static_cast<float>(x); }
OOC_INLINE void narrow(double x, Half &y) { y = to_half(to_odd(x)); }
OOC_INLINE void narrow(double x, Bfloat &y) { y = to_bfloat(to_odd(x)); }
OOC_INLINE void narrow(float x, double &y) { y = x; }
OOC_INLINE void narrow(float x, float &y) { y = x; }
OOC_INLINE void narrow(float x, Half &y) { y = to_half(x); }
OOC_INLINE void narrow(float x, Bfloat &y) { y = to_bfloat(x); }

i64 item_size(Dtype t) { return t == Dtype::f64 ? 8 : t == Dtype::f32 ? 4 : 2; }

// ---------------------------------------------------------------------------------------------
// Pointwise: tiles of rows x cols elements pass through a buffer in the compute dtype
// ---------------------------------------------------------------------------------------------

constexpr i64 kTile = 1024;      // elements of a tile: a few KiB, so that it stays in the first cache
constexpr i64 kTileSide = 32;    // of a tile that is also a transpose
constexpr i64 kThreadedItems = 1 << 16;  // less work does not repay waking the threads

// One tile's place in a tensor.
struct Grid {
  i64 rows, row_stride, cols, col_stride;
};

template <typename C, typename T>
OOC_INLINE void load_tile(C *out, const T *in, const Grid &g) {
  if (g.col_stride == 1) {
    for (i64 r = 0; r < g.rows; ++r)
      for (i64 c = 0; c < g.cols; ++c) out[r * g.cols + c] = static_cast<C>(widen(in[r * g.row_stride + c]));
  } else if (std::abs(g.row_stride) < std::abs(g.col_stride) && g.rows > 1) {
    for (i64 c = 0; c < g.cols; ++c)  // in the order of memory
      for (i64 r = 0; r < g.rows; ++r)
        out[r * g.cols + c] = static_cast<C>(widen(in[r * g.row_stride + c * g.col_stride]));
  } else {
    for (i64 r = 0; r < g.rows; ++r)
      for (i64 c = 0; c < g.cols; ++c)
        out[r * g.cols + c] = static_cast<C>(widen(in[r * g.row_stride + c * g.col_stride]));
  }
}

template <typename C, typename T>
OOC_INLINE void store_tile(T *out, const C *in, const Grid &g) {
  for (i64 r = 0; r < g.rows; ++r) {
    if (g.col_stride == 1) {
      for (i64 c = 0; c < g.cols; ++c) narrow(in[r * g.cols + c], out[r * g.row_stride + c]);
    } else {
      for (i64 c = 0; c < g.cols; ++c) narrow(in[r * g.cols + c], out[r * g.row_stride + c * g.col_stride]);
    }
  }
}

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

// exp(x) = scale + part and exp(x) - 1 = (scale - 1) + part for x <= 0, in f64 but only as
// accurate as f32 needs (1e-9 relative, near zero too). Unlike libm's it vectorises.
struct Exp {
  double scale, part;

  OOC_INLINE explicit Exp(float argument) {
    const double x = choose(argument < -120.0f, -120.0f, argument);  // exp is zero in f32 from -104 on
    const double shift = 0x1.8p52;  // adding it rounds to an integer, kept in the low bits
    const double t = x * 1.4426950408889634 + shift;
    const double r = x - (t - shift) * 0.69314718055994531;
    scale = bit_cast<double>((bit_cast<uint64_t>(t) << 52) + bit_cast<uint64_t>(1.0));
    double p = 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    part = scale * (p * r);
  }

  OOC_INLINE double exp() const { return scale + part; }
  OOC_INLINE double expm1() const { return (scale - 1.0) + part; }
};

// Comparisons here are written such that NaN comes out as NaN.
OOC_INLINE double elu(double x, double coef) { return x > 0 ? x : coef * std::expm1(x); }

OOC_INLINE float elu(float x, float coef) {
  const float low = coef * static_cast<float>(Exp(choose(x > 0, 0.0f, x)).expm1());
  return choose(x > 0, x, low);
}

// Exponents are never positive: no overflow.
OOC_INLINE double sigmoid(double x) {
  const double e = std::exp(-std::fabs(x));
  return (x >= 0 ? 1.0 : e) / (1.0 + e);
}

OOC_INLINE float sigmoid(float x) {
  const double e = Exp(-std::fabs(x)).exp();
  return static_cast<float>((x >= 0 ? 1.0 : e) / (1.0 + e));
}

OOC_INLINE double hyperbolic_tangent(double x) { return std::tanh(x); }

OOC_INLINE float hyperbolic_tangent(float x) {
  const double m = Exp(-2.0f * std::fabs(x)).expm1();
  return std::copysign(static_cast<float>(m / (m + 2.0)), x);
}

template <typename C>
OOC_INLINE void activate(C *x, i64 n, Act act, C coef) {
  switch (act) {
    case Act::identity: return;
    case Act::relu:
      for (i64 i = 0; i < n; ++i) x[i] = x[i] <= C(0) ? C(0) : x[i];
      return;
    case Act::clipped_relu:
      for (i64 i = 0; i < n; ++i) {
        const C y = x[i] <= C(0) ? C(0) : x[i];
        x[i] = y > coef ? coef : y;
      }
      return;
    case Act::elu:
      for (i64 i = 0; i < n; ++i) x[i] = elu(x[i], coef);
      return;
    case Act::leaky_relu:
      for (i64 i = 0; i < n; ++i) x[i] *= x[i] > C(0) ? C(1) : coef;
      return;
    case Act::sigmoid:
      for (i64 i = 0; i < n; ++i) x[i] = sigmoid(x[i]);
      return;
    case Act::tanh:
      for (i64 i = 0; i < n; ++i) x[i] = hyperbolic_tangent(x[i]);
      return;
  }
}

template <typename C>
OOC_INLINE void load_any(C *out, const char *in, Dtype t, const Grid &g) {
  switch (t) {
    case Dtype::f64: return load_tile(out, reinterpret_cast<const double *>(in), g);
    case Dtype::f32: return load_tile(out, reinterpret_cast<const float *>(in), g);
    case Dtype::f16: return load_tile(out, reinterpret_cast<const Half *>(in), g);
    case Dtype::bf16: return load_tile(out, reinterpret_cast<const Bfloat *>(in), g);
  }
}

template <typename C>
OOC_INLINE void store_any(char *out, Dtype t, const C *in, const Grid &g) {
  switch (t) {
    case Dtype::f64: return store_tile(reinterpret_cast<double *>(out), in, g);
    case Dtype::f32: return store_tile(reinterpret_cast<float *>(out), in, g);
    case Dtype::f16: return store_tile(reinterpret_cast<Half *>(out), in, g);
    case Dtype::bf16: return store_tile(reinterpret_cast<Bfloat *>(out), in, g);
  }
}

template <typename C>
OOC_INLINE void compute_any(C *x, const C *bias, const Grid &g, Act act, C coef) {
  if (bias) add_bias(x, bias, g);
  activate(x, g.rows * g.cols, act, coef);
}

// target_clones does not go with templates, hence a function per compute dtype.
OOC_CLONES void load(float *out, const char *in, Dtype t, const Grid &g) { load_any(out, in, t, g); }
OOC_CLONES void load(double *out, const char *in, Dtype t, const Grid &g) { load_any(out, in, t, g); }
OOC_CLONES void store(char *out, Dtype t, const float *in, const Grid &g) { store_any(out, t, in, g); }
OOC_CLONES void store(char *out, Dtype t, const double *in, const Grid &g) { store_any(out, t, in, g); }
OOC_CLONES void compute(float *x, const float *bias, const Grid &g, Act act, float coef) {
  compute_any(x, bias, g, act, coef);
}
OOC_CLONES void compute(double *x, const double *bias, const Grid &g, Act act, double coef) {
  compute_any(x, bias, g, act, coef);
}

using Five = std::array<i64, 5>;

struct Axis {
  i64 n = 1, d = 0, s = 0, b = 0;  // extent, strides of dst, src and bias in elements
};

// The tensor as nested axes, dst's smallest stride innermost, with offsets of the first element.
struct Nest {
  i64 d = 0, s = 0, b = 0;
  int rank = 0;
  Axis ax[5];
  bool transposes = false;

  i64 extent(int from_inside) const { return from_inside < rank ? ax[rank - 1 - from_inside].n : 1; }
  Axis axis(int from_inside) const { return from_inside < rank ? ax[rank - 1 - from_inside] : Axis{}; }
};

bool continues(const Axis &outer, const Axis &inner) {
  return outer.d == inner.d * inner.n && outer.s == inner.s * inner.n && outer.b == inner.b * inner.n;
}

Nest make_nest(const Five &shape, const Five &ds, const Five &ss, bool bias) {
  Nest t;
  for (int i = 0; i < 5; ++i) {
    Axis x{shape[i], ds[i], ss[i], bias && i == 1};
    if (x.n == 1) continue;
    if (x.d < 0) {
      t.d += (x.n - 1) * x.d;
      t.s += (x.n - 1) * x.s;
      t.b += (x.n - 1) * x.b;
      x = Axis{x.n, -x.d, -x.s, -x.b};
    }
    t.ax[t.rank++] = x;
  }
  std::stable_sort(t.ax, t.ax + t.rank, [](const Axis &p, const Axis &q) { return p.d > q.d; });
  int out = 0;
  for (int i = 1; i < t.rank; ++i) {
    if (continues(t.ax[out], t.ax[i]))
      t.ax[out] = Axis{t.ax[out].n * t.ax[i].n, t.ax[i].d, t.ax[i].s, t.ax[i].b};
    else
      t.ax[++out] = t.ax[i];
  }
  t.rank = std::min(t.rank, out + 1);
  // If src moves least along another axis, that one is the tile's second axis.
  int near = t.rank - 1;
  for (int i = 0; i < t.rank; ++i)
    if (std::abs(t.ax[i].s) < std::abs(t.ax[near].s)) near = i;
  if (t.rank && near != t.rank - 1) {
    std::rotate(t.ax + near, t.ax + near + 1, t.ax + t.rank - 1);
    t.transposes = true;
  }
  return t;
}

struct Pointwise {
  char *dst;
  const char *src;
  Dtype dst_type, src_type;
  Act act;
  double coef;
};

// One tile; d, s, b are its offsets.
template <typename C>
void run_tile(const Pointwise &job, const C *bias, const Axis &row, const Axis &col, i64 rows, i64 cols, i64 d, i64 s,
              i64 b) {
  alignas(64) C tile[kTile];
  load(tile, job.src + s * item_size(job.src_type), job.src_type, Grid{rows, row.s, cols, col.s});
  compute(tile, bias ? bias + b : nullptr, Grid{rows, row.b, cols, col.b}, job.act, static_cast<C>(job.coef));
  store(job.dst + d * item_size(job.dst_type), job.dst_type, tile, Grid{rows, row.d, cols, col.d});
}

template <typename C>
void run_pointwise(const Pointwise &job, const Nest &t, const C *bias, int threads) {
  const Axis col = t.axis(0), row = t.axis(1);
  const i64 tile_cols = std::min(col.n, t.transposes ? kTileSide : kTile);
  const i64 tile_rows = std::min(row.n, kTile / tile_cols);
  const i64 across = (col.n + tile_cols - 1) / tile_cols, down = (row.n + tile_rows - 1) / tile_rows;
  i64 tiles = across * down;
  for (int i = 2; i < t.rank; ++i) tiles *= t.extent(i);
  (void)threads;
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
#endif
  for (i64 u = 0; u < tiles; ++u) {
    const i64 c = u % across * tile_cols, r = u / across % down * tile_rows;
    i64 rest = u / across / down;
    i64 d = t.d + r * row.d + c * col.d, s = t.s + r * row.s + c * col.s, b = t.b + r * row.b + c * col.b;
    for (int i = 2; i < t.rank; ++i) {
      const Axis &x = t.ax[t.rank - 1 - i];
      const i64 at = rest % x.n;
      rest /= x.n;
      d += at * x.d;
      s += at * x.s;
      b += at * x.b;
    }
    run_tile(job, bias, row, col, std::min(tile_rows, row.n - r), std::min(tile_cols, col.n - c), d, s, b);
  }
}

Dtype dtype_of(int code) {
  if (code < 0 || code > 3) throw std::invalid_argument("unknown dtype code");
  return static_cast<Dtype>(code);
}

// Elements, or 0 if there are none.
i64 volume(const Five &shape) {
  i64 count = 1;
  for (i64 n : shape) {
    if (n < 0) throw std::invalid_argument("negative extent");
    count *= n;
  }
  return count;
}

void pointwise(uintptr_t dst, int dst_dtype, const Five &dst_strides, uintptr_t src, int src_dtype,
               const Five &src_strides, const Five &shape, uintptr_t bias, int act, double coef, int threads) {
  if (act < 0 || act > static_cast<int>(Act::tanh)) throw std::invalid_argument("unknown activation code");
  const Pointwise job{reinterpret_cast<char *>(dst), reinterpret_cast<const char *>(src), dtype_of(dst_dtype),
                      dtype_of(src_dtype), static_cast<Act>(act), coef};
  const i64 count = volume(shape);
  if (count == 0) return;
  if (count < kThreadedItems || threads < 1) threads = 1;
  py::gil_scoped_release release;
  const Nest nest = make_nest(shape, dst_strides, src_strides, bias != 0);
  if (job.dst_type == Dtype::f64 || job.src_type == Dtype::f64)
    run_pointwise(job, nest, reinterpret_cast<const double *>(bias), threads);
  else
    run_pointwise(job, nest, reinterpret_cast<const float *>(bias), threads);
}

// ---------------------------------------------------------------------------------------------
// Pooling: a line of outputs, along w or along k, accumulates one window row after another
// ---------------------------------------------------------------------------------------------

enum class Pool : int { max = 0, average = 1, average_inside = 2 };

constexpr i64 kLine = 512;  // outputs of a line: the accumulators stay in the first cache

// One row of a window for n outputs: output o takes x[o * step + l * tap] for l < taps, in order of l.
struct Taps {
  i64 n, step, taps, tap;
};

// NaN, once met, stays.
template <bool kMax, typename C>
OOC_INLINE C join(C acc, C x) {
  if (kMax) return (x > acc) | (x != x) ? x : acc;
  return acc + x;
}

// Constant window and stride: the accumulator is touched once for the whole window row.
template <bool kMax, int kTaps, int kStep, typename C, typename T>
OOC_INLINE void join_fixed(C *acc, const T *x, i64 n) {
  for (i64 o = 0; o < n; ++o) {
    C a = acc[o];
    for (int l = 0; l < kTaps; ++l) a = join<kMax>(a, static_cast<C>(widen(x[o * kStep + l])));
    acc[o] = a;
  }
}

template <bool kMax, typename C, typename T>
OOC_INLINE void join_row(C *acc, const T *x, const Taps &t) {
  if (t.tap == 1 && t.taps == 2 && t.step == 2) return join_fixed<kMax, 2, 2>(acc, x, t.n);
  if (t.tap == 1 && t.taps == 3 && t.step == 1) return join_fixed<kMax, 3, 1>(acc, x, t.n);
  if (t.tap == 1 && t.taps == 3 && t.step == 2) return join_fixed<kMax, 3, 2>(acc, x, t.n);
  for (i64 l = 0; l < t.taps; ++l) {
    const T *from = x + l * t.tap;
    if (t.step == 1)
      for (i64 o = 0; o < t.n; ++o) acc[o] = join<kMax>(acc[o], static_cast<C>(widen(from[o])));
    else
      for (i64 o = 0; o < t.n; ++o) acc[o] = join<kMax>(acc[o], static_cast<C>(widen(from[o * t.step])));
  }
}

template <typename C, typename T>
OOC_INLINE void join_kind(C *acc, const T *x, bool max, const Taps &t) {
  max ? join_row<true>(acc, x, t) : join_row<false>(acc, x, t);
}

OOC_CLONES void accumulate(float *acc, const char *x, Dtype type, bool max, const Taps &t) {
  if (type == Dtype::f32) return join_kind(acc, reinterpret_cast<const float *>(x), max, t);
  if (type == Dtype::f16) return join_kind(acc, reinterpret_cast<const Half *>(x), max, t);
  join_kind(acc, reinterpret_cast<const Bfloat *>(x), max, t);
}

OOC_CLONES void accumulate(double *acc, const char *x, Dtype, bool max, const Taps &t) {
  join_kind(acc, reinterpret_cast<const double *>(x), max, t);
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

  // Outputs [first, last) whose windows lie wholly inside.
  std::pair<i64, i64> interior() const {
    const i64 room = in - window + pad;
    const i64 last = room < 0 ? 0 : std::min(out, room / stride + 1);
    const i64 first = pad <= 0 ? 0 : std::min(out, (pad + stride - 1) / stride);
    return {std::min(first, last), last};
  }
};

template <typename C>
struct PoolJob {
  Pool kind;
  Dtype type;
  const char *x;
  char *y;
  Five xs, ys, y_shape;  // strides of x and y, shape of y
  PoolAxis d, h, w;

  C start() const { return kind == Pool::max ? -std::numeric_limits<C>::infinity() : C(0); }
  const char *at(i64 offset) const { return x + offset * item_size(type); }

  // Row-major over the window; `base` is the place of window position (0, 0, 0).
  void gather(C *acc, i64 base, const Inside &id, const Inside &ih, const Inside &iw, Taps t) const {
    t.taps = iw.count();
    if (t.taps <= 0) return;
    for (i64 i = id.begin; i < id.end; ++i)
      for (i64 j = ih.begin; j < ih.end; ++j)
        accumulate(acc, at(base + i * xs[2] + j * xs[3] + iw.begin * xs[4]), type, kind == Pool::max, t);
  }

  void divide(C *acc, i64 n, i64 inside) const {
    if (kind == Pool::max) return;
    const i64 count = kind == Pool::average ? d.window * h.window * w.window : inside;
    if (count == 0) return;  // the sums are zero
    const C divisor = static_cast<C>(count);
    for (i64 o = 0; o < n; ++o) acc[o] /= divisor;
  }

  // Outputs [from, to) of a w line whose windows share the valid part iw.
  void segment(C *acc, i64 base, i64 from, i64 to, const Inside &id, const Inside &ih, const Inside &iw) const {
    if (from >= to) return;
    gather(acc, base + iw.origin * xs[4], id, ih, iw, Taps{to - from, w.stride * xs[4], 0, xs[4]});
    divide(acc, to - from, id.count() * ih.count() * iw.count());
  }

  // Lines along w: line u is one (n, k, d, h) of y.
  void line_w(i64 u) const {
    const i64 oh = u % y_shape[3], od = u / y_shape[3] % y_shape[2], nk = u / y_shape[3] / y_shape[2];
    const i64 k = nk % y_shape[1], n = nk / y_shape[1];
    const Inside id = d.at(od), ih = h.at(oh);
    const i64 base = n * xs[0] + k * xs[1] + id.origin * xs[2] + ih.origin * xs[3];
    const i64 to = n * ys[0] + k * ys[1] + od * ys[2] + oh * ys[3];
    const auto inner = w.interior();
    alignas(64) C acc[kLine];
    for (i64 o = 0; o < w.out; o += kLine) {
      const i64 end = std::min(w.out, o + kLine);
      std::fill(acc, acc + (end - o), start());
      const i64 first = std::clamp(inner.first, o, end), last = std::clamp(inner.second, first, end);
      for (i64 p = o; p < first; ++p) segment(acc + (p - o), base, p, p + 1, id, ih, w.at(p));
      segment(acc + (first - o), base, first, last, id, ih, w.at(first));
      for (i64 p = last; p < end; ++p) segment(acc + (p - o), base, p, p + 1, id, ih, w.at(p));
      store(y + (to + o * ys[4]) * item_size(type), type, acc, Grid{1, 0, end - o, ys[4]});
    }
  }

  // Lines along k, for channels-last blocks: line u is one (n, d, h) of y, all its w in turn.
  void line_k(i64 u) const {
    const i64 oh = u % y_shape[3], od = u / y_shape[3] % y_shape[2], n = u / y_shape[3] / y_shape[2];
    const Inside id = d.at(od), ih = h.at(oh);
    const i64 base = n * xs[0] + id.origin * xs[2] + ih.origin * xs[3];
    const i64 to = n * ys[0] + od * ys[2] + oh * ys[3];
    alignas(64) C acc[kLine];
    for (i64 o = 0; o < w.out; ++o) {
      const Inside iw = w.at(o);
      for (i64 k = 0; k < y_shape[1]; k += kLine) {
        const i64 count = std::min(kLine, y_shape[1] - k);
        std::fill(acc, acc + count, start());
        gather(acc, base + k * xs[1] + iw.origin * xs[4], id, ih, iw, Taps{count, xs[1], 0, xs[4]});
        divide(acc, count, id.count() * ih.count() * iw.count());
        store(y + (to + k * ys[1] + o * ys[4]) * item_size(type), type, acc, Grid{1, 0, count, ys[1]});
      }
    }
  }

  void run(int threads) const {
    const bool along_k = y_shape[1] > 1 && std::abs(xs[1]) < std::abs(xs[4]);
    const i64 lines = y_shape[0] * y_shape[2] * y_shape[3] * (along_k ? 1 : y_shape[1]);
    (void)threads;
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
#endif
    for (i64 u = 0; u < lines; ++u) along_k ? line_k(u) : line_w(u);
  }
};

using Three = std::array<i64, 3>;

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
  if (count < kThreadedItems / 4 || threads < 1) threads = 1;
  const auto axis = [&](int i) { return PoolAxis{x_shape[i + 2], y_shape[i + 2], window[i], stride[i], pad_lo[i]}; };
  const auto run = [&](auto zero) {
    PoolJob<decltype(zero)>{static_cast<Pool>(kind), type,    reinterpret_cast<const char *>(x),
                            reinterpret_cast<char *>(y), x_strides, y_strides, y_shape, axis(0), axis(1), axis(2)}
        .run(threads);
  };
  py::gil_scoped_release release;
  type == Dtype::f64 ? run(0.0) : run(0.0f);
}

}  // namespace

void bind_pointwise(py::module_ &m) {
  m.def("pointwise", &pointwise, py::arg("dst"), py::arg("dst_dtype"), py::arg("dst_strides"), py::arg("src"),
        py::arg("src_dtype"), py::arg("src_strides"), py::arg("shape"), py::arg("bias"), py::arg("act"),
        py::arg("coef"), py::arg("threads") = 1,
        "dst = convert(act(src + bias[k])); dst may be src. bias (0: none) has the compute dtype.");
  m.def("pool_fprop", &pool_fprop, py::arg("kind"), py::arg("dtype"), py::arg("x"), py::arg("x_shape"),
        py::arg("x_strides"), py::arg("y"), py::arg("y_shape"), py::arg("y_strides"), py::arg("window"),
        py::arg("stride"), py::arg("pad_lo"), py::arg("threads") = 1,
        "Max (0), average counting padding (1) or not (2); x position = out * stride - pad_lo + i.");
}

}  // namespace ooc
