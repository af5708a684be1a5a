// Direct convolution kernels, included once per instruction set inside an anonymous namespace.
// The including file defines VEC_BYTES (vector size), MR (output channels per register block),
// WMR (weight rows per register block) and OOC_FMA_F32 and OOC_FMA_F64 (a * b + c of vectors), and
// has included <cmath>, <cstring>, direct.hpp.
//
// Forward and data gradient are one operation here, the "gather":
//     out[n, k, j] = sum over c, i of in[n, c, j * mul + off + i * step] * w[k, c, tap(i)]
// on each of three axes; positions outside `in` are zeros. The data gradient with stride s is
// s^3 gathers (one per residue of the x index), each with its share of the filter taps.
//
// A gather copies a block of `in` with its borders into a per-thread tile, so that the inner
// loop needs no bounds checks, and multiplies it with packed weights. Two tile layouts:
//   halo:   each channel once, with its borders; a tap is an offset into the tile. Output rows
//           are computed as one long line, the borders between rows are computed in vain.
//   im2col: each (channel, tap) pair is one dense line of output positions, over the borders
//           of rows and images. More copying, no waste: better for small planes, many channels.
// Both feed the same micro kernel. Every output is summed in the order (channel block,
// channel, tap) whatever the tile and thread count are, so the bits never depend on them.
// Without memory for all this, and where it would not pay, the ordered loops serve.

using direct::Operands;
using direct::Pass;
using direct::Problem;
using direct::Workspace;

#if defined(__GNUC__)
#define OOC_INLINE static inline __attribute__((always_inline))
#else
#define OOC_INLINE static inline
#endif

template <class T>
struct Vec {
  typedef T type __attribute__((vector_size(VEC_BYTES), aligned(sizeof(T)), may_alias));
  static constexpr int lanes = VEC_BYTES / int(sizeof(T));
};

// a * b + c, rounded once if the instruction set can: always or never, whatever the compiler
// makes of other sums of products.
OOC_INLINE Vec<float>::type fused(Vec<float>::type a, Vec<float>::type b, Vec<float>::type c) { return OOC_FMA_F32(a, b, c); }
OOC_INLINE Vec<double>::type fused(Vec<double>::type a, Vec<double>::type b, Vec<double>::type c) { return OOC_FMA_F64(a, b, c); }

constexpr int NV = 3;   // vectors of output positions per register block
constexpr int WNV = 2;  // vectors of output channels per register block of the weight gradient

// Own versions of the std:: helpers: nothing here may instantiate a std template (see the
// including files).
OOC_INLINE i64 imin(i64 a, i64 b) { return a < b ? a : b; }
OOC_INLINE i64 imax(i64 a, i64 b) { return a > b ? a : b; }
OOC_INLINE i64 clamp(i64 v, i64 lo, i64 hi) { return imax(lo, imin(v, hi)); }
OOC_INLINE i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
OOC_INLINE i64 round_up(i64 a, i64 b) { return ceil_div(a, b) * b; }
OOC_INLINE i64 mod(i64 a, i64 b) { return (a % b + b) % b; }

static i64 gcd(i64 a, i64 b) { return b ? gcd(b, a % b) : a; }

// Bytes rounded up to whole cache lines: every part of the workspace starts on one.
OOC_INLINE i64 lines(i64 bytes) { return round_up(bytes, 64); }

// ---------------------------------------------------------------------------- geometry

// One axis of a gather.
struct Axis {
  i64 in, out;         // extents
  i64 mul, off, step;  // position in `in` of output j and tap i: j * mul + off + i * step
  i64 taps;            // may be 0: then nothing is gathered
  i64 tap0, tap_step;  // filter index of tap i: tap0 + i * tap_step
  i64 first, every;    // output j is position first + j * every of the real tensor
  // The tile splits `in` by residue modulo mul, so that a step of one output is a step of one
  // in the tile. Tap i lies in phase i % phases, advanced by (i / phases) * adv; a tile of n
  // outputs has n + ext positions in each phase.
  i64 phases, adv, ext;
};

static void split_phases(Axis &a) {
  const i64 period = a.mul / gcd(a.step, a.mul);
  a.phases = imax(1, imin(a.taps, period));
  a.adv = a.step * period / a.mul;
  a.ext = a.taps > 0 ? (a.taps - 1) / period * a.adv : 0;
}

static Axis forward_axis(const Problem &p, int d) {
  Axis a{p.x[d], p.y[d], p.stride[d], -p.pad[d], p.dilation[d], p.f[d], 0, 1, 0, 1, 0, 0, 0};
  split_phases(a);
  return a;
}

// Data gradient, taps with tap * dilation = m modulo the stride. These reach the x positions
// with (x + pad) = m modulo the stride. m does not depend on the padding, so neither do the
// packed weights.
static Axis backward_axis(const Problem &p, int d, i64 m) {
  const i64 s = p.stride[d], dil = p.dilation[d], every = s / gcd(dil, s);
  const i64 r = mod(m - p.pad[d], s);
  Axis a{};
  a.in = p.y[d], a.out = r < p.x[d] ? ceil_div(p.x[d] - r, s) : 0;
  a.mul = 1, a.step = dil / gcd(dil, s);
  a.first = r, a.every = s;
  i64 t0 = 0;
  while (t0 < every && t0 * dil % s != m) ++t0;
  if (t0 < every && t0 < p.f[d]) {
    a.taps = (p.f[d] - 1 - t0) / every + 1;
    a.tap0 = t0 + (a.taps - 1) * every;  // last tap first: positions in `in` ascend
    a.tap_step = -every;
    a.off = (r + p.pad[d] - a.tap0 * dil) / s;
  }
  split_phases(a);
  return a;
}

// An axis with the extents and taps of the largest residue class: bounds them all.
static Axis largest_axis(const Problem &p, int d) {
  if (p.pass != Pass::dgrad) return forward_axis(p, d);
  const i64 s = p.stride[d], g = gcd(p.dilation[d], s);
  Axis a{p.y[d], ceil_div(p.x[d], s), 1, 0, p.dilation[d] / g, ceil_div(p.f[d], s / g), 0, 1, 0, s, 0, 0, 0};
  split_phases(a);
  return a;
}

OOC_INLINE i64 volume(const i64 *e) { return e[0] * e[1] * e[2]; }
OOC_INLINE i64 taps_of(const Axis *a) { return a[0].taps * a[1].taps * a[2].taps; }
OOC_INLINE i64 phases_of(const Axis *a) { return a[0].phases * a[1].phases * a[2].phases; }
OOC_INLINE i64 outputs_of(const Axis *a) { return a[0].out * a[1].out * a[2].out; }

struct Index3 {
  i64 v[3];
};

// Row-major index of a box with the extents of b (b[0] unbounded).
OOC_INLINE Index3 unflatten(i64 i, i64 b1, i64 b2) { return {{i / (b1 * b2), i / b2 % b1, i % b2}}; }

// Positions w of [0, n) with 0 <= start + w * mul < extent.
struct Range {
  i64 lo, hi;
};

OOC_INLINE Range inside(i64 start, i64 mul, i64 extent, i64 n) {
  Range r;
  r.lo = start >= 0 ? 0 : imin(n, ceil_div(-start, mul));
  r.hi = start >= extent ? 0 : imin(n, (extent - 1 - start) / mul + 1);
  if (r.hi < r.lo) r.hi = r.lo;
  return r;
}

// ---------------------------------------------------------------------------- results

template <class T>
struct Epilogue {
  const T *bias;
  Act act;
  T coef;
  bool accumulate;
};

template <class T>
OOC_INLINE T activate(T v, Act act, T coef) {
  switch (act) {
    case Act::relu: return v < 0 ? T(0) : v;
    case Act::clipped_relu: return v < 0 ? T(0) : v > coef ? coef : v;
    case Act::elu: return v > 0 ? v : coef * T(std::expm1(v));
    case Act::leaky_relu: return v < 0 ? coef * v : v;
    case Act::sigmoid: return T(1) / (T(1) + T(std::exp(-v)));
    case Act::tanh: return T(std::tanh(v));
    default: return v;
  }
}

template <class T>
static void store_row_slow(const T *sum, T *out, i64 n, i64 stride, T bias, const Epilogue<T> &e) {
  for (i64 i = 0; i < n; ++i) {
    const T old = e.accumulate ? out[i * stride] : T(0);
    out[i * stride] = activate<T>(old + sum[i] + bias, e.act, e.coef);
  }
}

// out[i] = act(old + sum[i] + bias) for a row of one output channel.
template <class T>
OOC_INLINE void store_row(const T *sum, T *out, i64 n, i64 stride, T bias, const Epilogue<T> &e) {
  if (e.act > Act::relu || (e.act == Act::relu && e.accumulate)) return store_row_slow(sum, out, n, stride, bias, e);
  if (stride == 1) {  // the compiler makes vector loops of these
    if (e.accumulate)
      for (i64 i = 0; i < n; ++i) out[i] += sum[i] + bias;
    else if (e.act == Act::relu)
      for (i64 i = 0; i < n; ++i) out[i] = sum[i] + bias < 0 ? T(0) : sum[i] + bias;
    else
      for (i64 i = 0; i < n; ++i) out[i] = sum[i] + bias;
    return;
  }
  if (e.accumulate)
    for (i64 i = 0; i < n; ++i) out[i * stride] += sum[i] + bias;
  else if (e.act == Act::relu)
    for (i64 i = 0; i < n; ++i) out[i * stride] = sum[i] + bias < 0 ? T(0) : sum[i] + bias;
  else
    for (i64 i = 0; i < n; ++i) out[i * stride] = sum[i] + bias;
}

// out[i] = act(sum[i] + bias) for sums that began with the old values. No bias is not a bias of
// zero: -0 stays -0.
template <class T>
static void store_sum(const T *sum, T *out, i64 n, i64 stride, i64 channel, const Epilogue<T> &e) {
  if (e.bias) return store_row(sum, out, n, stride, e.bias[channel], e);
  if (e.act == Act::identity)
    for (i64 i = 0; i < n; ++i) out[i * stride] = sum[i];
  else
    for (i64 i = 0; i < n; ++i) out[i * stride] = activate<T>(sum[i], e.act, e.coef);
}

// ---------------------------------------------------------------------------- a gather task

template <class T>
struct Gather {
  i64 batch, groups, cin, cout;  // channels per group
  Axis ax[3];
  const T *in;
  T *out;           // position (0, 0, 0) of this residue class
  i64 is[5], os[5];  // os: strides between outputs of this class
  const T *w;
  i64 wgroup, wk, wc, wtap[3];  // strides: group, output channel, input channel, taps
  Epilogue<T> e;
};

template <class T>
static Gather<T> forward_task(const Problem &p, const Operands &o) {
  Gather<T> t{};
  t.batch = p.n, t.groups = p.groups, t.cin = p.c / p.groups, t.cout = p.k / p.groups;
  t.in = static_cast<const T *>(o.x), t.out = static_cast<T *>(o.y), t.w = static_cast<const T *>(o.w);
  t.wgroup = t.cout * o.ws[0], t.wk = o.ws[0], t.wc = o.ws[1];
  for (int i = 0; i < 5; ++i) t.is[i] = o.xs[i], t.os[i] = o.ys[i];
  for (int d = 0; d < 3; ++d) t.ax[d] = forward_axis(p, d), t.wtap[d] = o.ws[d + 2];
  t.e = {static_cast<const T *>(o.bias), o.act, T(o.coef), o.accumulate};
  return t;
}

template <class T>
static Gather<T> backward_task(const Problem &p, const Operands &o, const Index3 &residue) {
  Gather<T> t{};
  t.batch = p.n, t.groups = p.groups, t.cin = p.k / p.groups, t.cout = p.c / p.groups;
  t.in = static_cast<const T *>(o.y), t.out = static_cast<T *>(o.x), t.w = static_cast<const T *>(o.w);
  t.wgroup = t.cin * o.ws[0], t.wk = o.ws[1], t.wc = o.ws[0];
  for (int i = 0; i < 5; ++i) t.is[i] = o.ys[i], t.os[i] = o.xs[i];
  for (int d = 0; d < 3; ++d) {
    t.ax[d] = backward_axis(p, d, residue.v[d]);
    t.wtap[d] = o.ws[d + 2];
    t.out += t.ax[d].first * o.xs[d + 2];
    t.os[d + 2] = o.xs[d + 2] * t.ax[d].every;
  }
  t.e = {static_cast<const T *>(o.bias), o.act, T(o.coef), o.accumulate};
  return t;
}

// ---------------------------------------------------------------------------- thresholds

constexpr i64 TINY_WORK = 32768;       // multiply-adds below which tiles and packing do not pay
constexpr i64 PACK_WORK = 400000;      // weights from which threads share the packing

constexpr double PLAIN = 2, LANEWISE = 4;  // slowness of the plain loops, and of loops over channels of their own

// How many threads share some multiply-adds. slowness: times what one takes in register blocks.
template <class T>
OOC_INLINE int team_for(double work, int threads, double slowness = 1) {
  return team_of(work * slowness / (2200 * Vec<T>::lanes), threads);
}

// ---------------------------------------------------------------------------- squares

template <class T>
struct Lane;
template <>
struct Lane<float> {
  typedef int32_t type;
};
template <>
struct Lane<double> {
  typedef int64_t type;
};
template <class T>
struct LaneVec {
  typedef typename Lane<T>::type type __attribute__((vector_size(VEC_BYTES)));
};

// v = its transpose, a square of L vectors.
template <class T>
OOC_INLINE void transpose_square(typename Vec<T>::type *v) {
  constexpr int L = Vec<T>::lanes;
#if defined(__GNUC__) && !defined(__clang__)
  typedef typename Vec<T>::type V;
  typedef typename LaneVec<T>::type M;
#pragma GCC unroll 4
  for (int s = 1; s < L; s *= 2) {  // swap bit s of row number and lane number
    M low{}, high{};
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) {
      low[i] = i & s ? L + i - s : i;
      high[i] = i & s ? L + i : i + s;
    }
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i)
      if (!(i & s)) {
        const V a = v[i], b = v[i + s];
        v[i] = __builtin_shuffle(a, b, low);
        v[i + s] = __builtin_shuffle(a, b, high);
      }
  }
#else
  for (int i = 0; i < L; ++i)
    for (int j = 0; j < i; ++j) {
      const T t = v[i][j];
      v[i][j] = v[j][i];
      v[j][i] = t;
    }
#endif
}

// ---------------------------------------------------------------------------- row copies

// dst[i] = src[i * stride]. Rows are short (often 14 or 28), so no call to memcpy.
template <class T>
OOC_INLINE void copy_row(T *dst, const T *src, i64 n, i64 stride) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  if (stride != 1) {
    for (i64 i = 0; i < n; ++i) dst[i] = src[i * stride];
  } else if (n >= L) {  // the last vector overlaps the one before
    for (i64 i = 0; i + L < n; i += L) *(V *)(dst + i) = *(const V *)(src + i);
    *(V *)(dst + n - L) = *(const V *)(src + n - L);
  } else {
    for (i64 i = 0; i < n; ++i) dst[i] = src[i];
  }
}

template <class T>
OOC_INLINE void zero_row(T *dst, i64 n) {
  for (i64 i = 0; i < n; ++i) dst[i] = 0;
}

// dst[i * dst_step + j] = src[i + j * stride]: channels innermost to rows, in squares.
template <class T>
static void copy_turned(T *dst, i64 dst_step, const T *src, i64 channels, i64 n, i64 stride) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  const i64 whole = channels / L * L, squares = n / L * L;
  for (i64 c = 0; c < whole; c += L)
    for (i64 j = 0; j < squares; j += L) {
      V v[L];
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) v[i] = *(const V *)(src + c + (j + i) * stride);
      transpose_square<T>(v);
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) *(V *)(dst + (c + i) * dst_step + j) = v[i];
    }
  for (i64 c = 0; c < channels; ++c)
    for (i64 j = c < whole ? squares : 0; j < n; ++j) dst[c * dst_step + j] = src[c + j * stride];
}

// The same row of several channels: [0, lo) and [hi, n) zero, the rest copied.
template <class T>
static void copy_channels(T *dst, i64 dst_step, const T *src, i64 src_step, i64 channels, i64 n, Range r, i64 stride) {
  if (src_step == 1 && stride != 1 && channels > 1) {
    for (i64 c = 0; c < channels; ++c) zero_row(dst + c * dst_step, r.lo), zero_row(dst + c * dst_step + r.hi, n - r.hi);
    return copy_turned(dst + r.lo, dst_step, src, channels, r.hi - r.lo, stride);
  }
  for (i64 c = 0; c < channels; ++c, dst += dst_step) {
    zero_row(dst, r.lo);
    if (r.hi > r.lo) copy_row(dst + r.lo, src + c * src_step, r.hi - r.lo, stride);
    zero_row(dst + r.hi, n - r.hi);
  }
}

// act(old + sum + bias) for several channels, innermost in the result: the squares of whole vectors
// that the usual epilogues allow. Says how many channels and positions it has done. `zero`: no
// bias counts as a bias of zero.
template <class T>
static Range store_turned(const T *sum, i64 line, T *out, i64 n, i64 stride, i64 channels, const T *bias, const Epilogue<T> &e, bool zero) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  if (e.act > Act::relu || (e.act == Act::relu && e.accumulate) || n < L || channels < L) return {0, 0};
  const Range done{channels / L * L, n / L * L};
  for (i64 c = 0; c < done.lo; c += L)
    for (i64 j = 0; j < done.hi; j += L) {
      V v[L];
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) v[i] = *(const V *)(sum + (c + i) * line + j);
      transpose_square<T>(v);
      const V b = bias ? *(const V *)(bias + c) : V{};
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) {
        V *to = (V *)(out + (j + i) * stride + c);
        V s = bias || zero ? v[i] + b : v[i];
        if (e.act == Act::relu) s = s < 0 ? V{} : s;
        *to = e.accumulate ? *to + s : s;
      }
    }
  return done;
}

// ---------------------------------------------------------------------------- tiles

// Extents of a halo tile, and the element distances inside it.
struct Tile {
  i64 t[3];      // outputs per axis
  i64 p[3];      // positions per axis and phase: outputs + halo
  i64 plane;     // elements of one phase
  i64 channel;   // elements of one channel
};

static Tile make_tile(const Axis *a, i64 td, i64 th, i64 tw) {
  Tile t;
  t.t[0] = td, t.t[1] = th, t.t[2] = tw;
  for (int d = 0; d < 3; ++d) t.p[d] = t.t[d] + a[d].ext;
  t.plane = volume(t.p);
  t.channel = t.plane * phases_of(a);
  return t;
}

// Offset of a tap inside one channel of the tile.
static i64 tap_offset(const Axis *a, const Tile &t, const Index3 &tap) {
  i64 phase = 0, pos = 0;
  for (int d = 0; d < 3; ++d) {
    phase = phase * a[d].phases + tap.v[d] % a[d].phases;
    pos = pos * t.p[d] + tap.v[d] / a[d].phases * a[d].adv;
  }
  return phase * t.plane + pos;
}

// Offsets of all (channel, tap) pairs of a block, in the order of the packed weights.
static void fill_offsets(int *off, const Axis *a, const Tile &t, i64 channels) {
  const i64 taps = taps_of(a);
  for (i64 i = 0; i < taps; ++i) {
    const i64 o = tap_offset(a, t, unflatten(i, a[1].taps, a[2].taps));
    for (i64 c = 0; c < channels; ++c) off[c * taps + i] = int(o + c * t.channel);
  }
}

// Copies the inputs of outputs [j, j + size) of one image, `in` at the first channel.
template <class T>
static void fill_tile(T *X, const Axis *a, const Tile &t, const T *in, const i64 *is, i64 channels, const i64 *j, const i64 *size) {
  i64 phase = 0;
  for (i64 f0 = 0; f0 < a[0].phases; ++f0)
    for (i64 f1 = 0; f1 < a[1].phases; ++f1)
      for (i64 f2 = 0; f2 < a[2].phases; ++f2, ++phase) {
        const i64 b0 = j[0] * a[0].mul + a[0].off + f0 * a[0].step, b1 = j[1] * a[1].mul + a[1].off + f1 * a[1].step;
        const i64 b2 = j[2] * a[2].mul + a[2].off + f2 * a[2].step, width = size[2] + a[2].ext;
        const Range columns = inside(b2, a[2].mul, a[2].in, width);
        for (i64 d = 0; d < size[0] + a[0].ext; ++d)
          for (i64 h = 0; h < size[1] + a[1].ext; ++h) {
            const i64 d_in = b0 + d * a[0].mul, h_in = b1 + h * a[1].mul;
            const bool outside = d_in < 0 || d_in >= a[0].in || h_in < 0 || h_in >= a[1].in;
            const Range r = outside || columns.lo == columns.hi ? Range{0, 0} : columns;
            const T *src = r.lo == r.hi ? in : in + d_in * is[2] + h_in * is[3] + (b2 + r.lo * a[2].mul) * is[4];
            T *dst = X + phase * t.plane + (d * t.p[1] + h) * t.p[2];
            copy_channels(dst, t.channel, src, is[1], channels, width, r, a[2].mul * is[4]);
          }
      }
}

// Walks the output rows that a dense run of positions of an (n, o, p, q) box touches:
// visit(n, j0, j1, first column, columns, distance from the start of the run).
template <class F>
OOC_INLINE void for_rows(const Axis *a, i64 begin, i64 count, F visit) {
  i64 q = begin % a[2].out, row = begin / a[2].out;
  i64 j1 = row % a[1].out, j0 = row / a[1].out % a[0].out, n = row / (a[1].out * a[0].out);
  for (i64 done = 0; done < count;) {
    const i64 len = imin(count - done, a[2].out - q);
    visit(n, j0, j1, q, len, done);
    done += len, q = 0;
    if (++j1 == a[1].out) {
      j1 = 0;
      if (++j0 == a[0].out) j0 = 0, ++n;
    }
  }
}

// im2col tile: line (channel, tap) holds the inputs of `count` output positions, zeros up to `pitch`.
template <class T>
static void fill_im2col(T *X, i64 pitch, const Axis *a, const T *in, const i64 *is, i64 channels, i64 begin, i64 count) {
  const i64 taps = taps_of(a);
  for (i64 i = 0; i < taps; ++i) {
    const Index3 tap = unflatten(i, a[1].taps, a[2].taps);
    i64 b[3];
    for (int d = 0; d < 3; ++d) b[d] = a[d].off + tap.v[d] * a[d].step;
    for_rows(a, begin, count, [&](i64 n, i64 j0, i64 j1, i64 q, i64 len, i64 done) {
      const i64 d_in = j0 * a[0].mul + b[0], h_in = j1 * a[1].mul + b[1], w_in = q * a[2].mul + b[2];
      const bool outside = d_in < 0 || d_in >= a[0].in || h_in < 0 || h_in >= a[1].in;
      Range r = outside ? Range{0, 0} : inside(w_in, a[2].mul, a[2].in, len);
      if (r.lo == r.hi) r = Range{0, 0};
      const T *src = r.lo == r.hi ? in : in + n * is[0] + d_in * is[2] + h_in * is[3] + (w_in + r.lo * a[2].mul) * is[4];
      copy_channels(X + i * pitch + done, taps * pitch, src, is[1], channels, len, r, a[2].mul * is[4]);
    });
    for (i64 c = 0; c < channels; ++c) zero_row(X + (c * taps + i) * pitch + count, pitch - count);
  }
}

// ---------------------------------------------------------------------------- ordered loops
//
// What runs without a workspace. The order of summation is a promise here (direct.hpp): the
// bits of a result depend on its own inputs alone, and cutting the summed axis into consecutive
// accumulating calls changes none of them.
//
// Forward and data gradient: one chain of multiply-adds per output, over channels, then taps,
// from the old value on. Weight gradient: one chain per weight and output row, over the row,
// added to the weight before the next row. Absent inputs take no part, not even as zeros: those
// would turn -0 into 0 and an infinite factor into NaN.
//
// Both are the same small product, sums[row][lane] += a[row][step] * x[step][lane]: lanes are
// output positions or (channel, tap) pairs, steps are (channel, tap) pairs or the positions of an
// output row. x is gathered on the stack (25 KiB with AVX-512), with a mask of the lanes present in each
// step. Vectors run across independent chains only, and every chain is made of `fused`, in whole
// vectors, masked ones and single lanes alike.

constexpr i64 STEPS = 64;       // steps gathered at a time
constexpr i64 SUM_ROWS = 64;    // rows of sums on the stack
constexpr int OR = 4, ONV = 3;  // rows and vectors per register block

template <class T>
struct Stage {
  static constexpr int L = Vec<T>::lanes, LANES = ONV * L;
  alignas(64) T x[STEPS * LANES], sums[SUM_ROWS * LANES];
  uint64_t present[STEPS];  // bit: lane
  i64 at[STEPS];            // where step s of a row of `a` lies
};

OOC_INLINE uint64_t low_bits(i64 n) { return n >= 64 ? ~uint64_t(0) : (uint64_t(1) << n) - 1; }

// sums[R][V_ vectors] = (fresh ? 0 : sums) + a * x over `steps`, x[step] of V_ vectors.
template <class T, int R, int V_>
static void ordered_micro(i64 steps, const T *a, i64 row, const Stage<T> &st, T *sums, bool fresh) {
  typedef typename Vec<T>::type V;
  typedef typename Lane<T>::type I;
  constexpr int L = Vec<T>::lanes;
  typename LaneVec<T>::type lane;
  for (int i = 0; i < L; ++i) lane[i] = I(1) << i;
  const uint64_t all = low_bits(V_ * L);
  V s[R][V_];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < V_; ++j) s[i][j] = fresh ? V{} : *(const V *)(sums + (i * V_ + j) * L);
  const T *x = st.x;
  for (i64 p = 0; p < steps; ++p, x += V_ * L) {
    const T *ap = a + st.at[p];
    const uint64_t present = st.present[p];
    if (present == all) {
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) {
        const V f = ap[i * row] - V{};  // broadcast
#pragma GCC unroll 4
        for (int j = 0; j < V_; ++j) s[i][j] = fused(f, *(const V *)(x + j * L), s[i][j]);
      }
    } else if (present) {
#pragma GCC unroll 4
      for (int j = 0; j < V_; ++j) {
        const auto used = (lane & I(present >> (j * L))) != 0;
        const V b = *(const V *)(x + j * L);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) s[i][j] = used ? fused(ap[i * row] - V{}, b, s[i][j]) : s[i][j];
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < V_; ++j) *(V *)(sums + (i * V_ + j) * L) = s[i][j];
}

template <class T, int V_>
static void ordered_rows(i64 rows, i64 steps, const T *a, i64 row, Stage<T> &st, bool fresh) {
  T *sums = st.sums;
  i64 r = 0;
  for (; r + OR <= rows; r += OR) ordered_micro<T, OR, V_>(steps, a + r * row, row, st, sums + r * V_ * Vec<T>::lanes, fresh);
  a += r * row, sums += r * V_ * Vec<T>::lanes;
  if (rows - r == 3) ordered_micro<T, 3, V_>(steps, a, row, st, sums, fresh);
  if (rows - r == 2) ordered_micro<T, 2, V_>(steps, a, row, st, sums, fresh);
  if (rows - r == 1) ordered_micro<T, 1, V_>(steps, a, row, st, sums, fresh);
}

// All rows of sums; rows of `a` lie `row` apart.
template <class T>
static void ordered_product(i64 rows, i64 vecs, i64 steps, const T *a, i64 row, Stage<T> &st, bool fresh) {
  if (vecs == 1) return ordered_rows<T, 1>(rows, steps, a, row, st, fresh);
  if (vecs == 2) return ordered_rows<T, 2>(rows, steps, a, row, st, fresh);
  ordered_rows<T, 3>(rows, steps, a, row, st, fresh);
}

// ---- depthwise, channels innermost: vectors of channels, straight from and to the operands

template <class T>
OOC_INLINE typename Vec<T>::type load_lanes(const T *p, i64 lanes) {
  typename Vec<T>::type v{};
  if (lanes == Vec<T>::lanes) return *(const typename Vec<T>::type *)p;
  for (i64 i = 0; i < lanes; ++i) v[i] = p[i];
  return v;
}

template <class T>
OOC_INLINE void store_lanes(T *p, typename Vec<T>::type v, i64 lanes) {
  if (lanes == Vec<T>::lanes) *(typename Vec<T>::type *)p = v;
  else
    for (i64 i = 0; i < lanes; ++i) p[i] = v[i];
}

// A term of an output row: where its input of column 0 is, which columns have one, its weights.
template <class T>
struct Term {
  const T *in, *w;
  Range q;
};

constexpr int LQ = 4;         // columns per register block
constexpr i64 LANE_ROWS = 8;  // output rows of a job, for which weights are collected once

// Columns of one output row, a chain for each channel over the terms.
template <class T, bool whole>
static void lane_row(const Term<T> *term, i64 terms, i64 hop, T *out, i64 os, i64 n, i64 some_lanes, bool fresh) {
  typedef typename Vec<T>::type V;
  const i64 lanes = whole ? Vec<T>::lanes : some_lanes;
  for (i64 q = 0; q < n; q += LQ) {
    const i64 some = imin(LQ, n - q);
    V s[LQ];
#pragma GCC unroll 4
    for (int u = 0; u < LQ; ++u) s[u] = fresh || u >= some ? V{} : load_lanes(out + (q + u) * os, lanes);
    for (const Term<T> *i = term; i < term + terms; ++i) {
      const V w = *(const V *)i->w;
      const T *in = i->in + q * hop;
      if (whole && q >= i->q.lo && q + LQ <= i->q.hi) {
#pragma GCC unroll 4
        for (int u = 0; u < LQ; ++u) s[u] = fused(*(const V *)(in + u * hop), w, s[u]);
      } else {
#pragma GCC unroll 4
        for (int u = 0; u < LQ; ++u)
          if (q + u >= i->q.lo && q + u < i->q.hi) s[u] = fused(load_lanes(in + u * hop, lanes), w, s[u]);
      }
    }
#pragma GCC unroll 4
    for (int u = 0; u < LQ; ++u)
      if (u < some) store_lanes(out + (q + u) * os, s[u], lanes);
  }
}

// Output rows [row0, row1) of the channels [ch, ch + lanes).
template <class T>
static void lane_job(const Gather<T> &t, i64 ch, i64 lanes, i64 row0, i64 row1) {
  constexpr int L = Vec<T>::lanes;
  const Axis *a = t.ax;
  const i64 taps = taps_of(a), hop = a[2].mul * t.is[4];
  alignas(64) T w[STEPS * L];
  Term<T> term[STEPS];
  i64 at[STEPS][3];  // input position of a tap for output (0, 0, 0)
  Range columns[STEPS];
  for (i64 p0 = 0; p0 == 0 || p0 < taps; p0 += STEPS) {
    const i64 p1 = imin(taps, p0 + STEPS);
    for (i64 p = p0; p < p1; ++p) {
      const Index3 tap = unflatten(p, a[1].taps, a[2].taps);
      const T *from = t.w + ch * t.wgroup;
      for (int d = 0; d < 3; ++d) {
        from += (a[d].tap0 + tap.v[d] * a[d].tap_step) * t.wtap[d];
        at[p - p0][d] = a[d].off + tap.v[d] * a[d].step;
      }
      columns[p - p0] = inside(at[p - p0][2], a[2].mul, a[2].in, a[2].out);
      for (i64 i = 0; i < L; ++i) w[(p - p0) * L + i] = i < lanes ? from[i * t.wgroup] : T(0);
    }
    for (i64 row = row0; row < row1; ++row) {
      const i64 j1 = row % a[1].out, j0 = row / a[1].out % a[0].out, n = row / (a[1].out * a[0].out);
      i64 terms = 0;
      for (i64 p = p0; p < p1; ++p) {
        const i64 *b = at[p - p0], d = j0 * a[0].mul + b[0], h = j1 * a[1].mul + b[1];
        const Range q = columns[p - p0];
        if (d < 0 || d >= a[0].in || h < 0 || h >= a[1].in || q.lo == q.hi) continue;
        term[terms++] = {t.in + n * t.is[0] + ch + d * t.is[2] + h * t.is[3] + b[2] * t.is[4], w + (p - p0) * L, q};
      }
      T *out = t.out + n * t.os[0] + ch + j0 * t.os[2] + j1 * t.os[3];
      (lanes == L ? lane_row<T, true> : lane_row<T, false>)(term, terms, hop, out, t.os[4], a[2].out, lanes, p0 == 0 && !t.e.accumulate);
      if (p1 < taps || (!t.e.bias && t.e.act == Act::identity)) continue;
      for (i64 q = 0; q < a[2].out; ++q)
        for (i64 i = 0; i < lanes; ++i) {
          T &v = out[q * t.os[4] + i];
          v = activate<T>(t.e.bias ? v + t.e.bias[ch + i] : v, t.e.act, t.e.coef);
        }
    }
  }
}

template <class T>
OOC_INLINE bool takes_lanes(const Gather<T> &t) {
  return t.cin == 1 && t.cout == 1 && t.groups > 1 && t.is[1] == 1 && t.os[1] == 1;
}

template <class T>
static void lane_gather(const Gather<T> &t, int threads) {
  constexpr int L = Vec<T>::lanes;
  const i64 rows = t.batch * t.ax[0].out * t.ax[1].out, blocks = ceil_div(t.groups, L), jobs = blocks * ceil_div(rows, LANE_ROWS);
  const int team = team_for<T>(double(rows) * t.ax[2].out * t.groups * imax(1, taps_of(t.ax)), threads, LANEWISE);
  (void)team;
#ifdef _OPENMP
#pragma omp parallel for num_threads(team) schedule(dynamic, 1) if (team > 1)
#endif
  for (i64 i = 0; i < jobs; ++i) {
    const i64 ch = i % blocks * L, row = i / blocks * LANE_ROWS;
    lane_job(t, ch, imin(L, t.groups - ch), row, imin(rows, row + LANE_ROWS));
  }
}

constexpr int LANE_TAPS = 9;  // weights of each channel per register block

// sums[i] += in the order of columns: x of tap i times y, over `n` columns that all have.
template <class T, int M>
static void lane_dots(i64 taps, const T *const *x, i64 hop, const T *y, i64 ys, i64 n, i64 lanes, typename Vec<T>::type *sums) {
  typedef typename Vec<T>::type V;
  if (taps == M) {
    const T *row[M];
    V s[M];
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) row[i] = x[i], s[i] = sums[i];
    for (i64 q = 0; q < n; ++q, y += ys) {
      const V b = load_lanes(y, lanes);
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i) s[i] = fused(load_lanes(row[i] + q * hop, lanes), b, s[i]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) sums[i] = s[i];
  } else if constexpr (M > 1) {
    lane_dots<T, M - 1>(taps, x, hop, y, ys, n, lanes, sums);
  }
}

// The weights [p0, p1) of the channels [ch, ch + lanes).
template <class T>
static void lane_weights(const Problem &p, const Operands &o, i64 ch, i64 lanes, i64 p0, i64 p1) {
  typedef typename Vec<T>::type V;
  const i64 hop = p.stride[2] * o.xs[4];
  i64 at[LANE_TAPS][3];
  T *w[LANE_TAPS];
  Range columns[LANE_TAPS];
  V total[LANE_TAPS];
  for (i64 i = 0; i < p1 - p0; ++i) {
    const Index3 tap = unflatten(p0 + i, p.f[1], p.f[2]);
    w[i] = static_cast<T *>(o.w) + ch * o.ws[0];
    total[i] = V{};
    for (int d = 0; d < 3; ++d) at[i][d] = tap.v[d] * p.dilation[d] - p.pad[d], w[i] += tap.v[d] * o.ws[d + 2];
    columns[i] = inside(at[i][2], p.stride[2], p.x[2], p.y[2]);
    for (i64 l = 0; l < lanes && o.accumulate; ++l) total[i][l] = w[i][l * o.ws[0]];
  }
  for (i64 n = 0; n < p.n; ++n)
    for (i64 a = 0; a < p.y[0]; ++a)
      for (i64 b = 0; b < p.y[1]; ++b) {
        const T *y = static_cast<const T *>(o.y) + n * o.ys[0] + ch + a * o.ys[2] + b * o.ys[3];
        const T *x[LANE_TAPS];
        V sums[LANE_TAPS], *to[LANE_TAPS];
        Range q[LANE_TAPS], all{0, p.y[2]};
        i64 m = 0;
        for (i64 i = 0; i < p1 - p0; ++i) {
          const i64 d = a * p.stride[0] + at[i][0], h = b * p.stride[1] + at[i][1];
          q[m] = columns[i];
          if (d < 0 || d >= p.x[0] || h < 0 || h >= p.x[1] || q[m].lo == q[m].hi) continue;
          all = {imax(all.lo, q[m].lo), imin(all.hi, q[m].hi)};
          x[m] = static_cast<const T *>(o.x) + n * o.xs[0] + ch + d * o.xs[2] + h * o.xs[3] + at[i][2] * o.xs[4];
          sums[m] = V{}, to[m++] = total + i;
        }
        all.hi = imax(all.lo, all.hi);
        const auto alone = [&](i64 from, i64 end) {
          for (i64 i = 0; i < m; ++i)
            for (i64 c = imax(from, q[i].lo); c < imin(end, q[i].hi); ++c)
              sums[i] = fused(load_lanes(x[i] + c * hop, lanes), load_lanes(y + c * o.ys[4], lanes), sums[i]);
        };
        alone(0, all.lo);
        if (m && all.lo < all.hi) {
          const T *shifted[LANE_TAPS];
          for (i64 i = 0; i < m; ++i) shifted[i] = x[i] + all.lo * hop;
          lane_dots<T, LANE_TAPS>(m, shifted, hop, y + all.lo * o.ys[4], o.ys[4], all.hi - all.lo, lanes, sums);
        }
        alone(all.hi, p.y[2]);
        for (i64 i = 0; i < m; ++i) *to[i] += sums[i];
      }
  for (i64 i = 0; i < p1 - p0; ++i)
    for (i64 l = 0; l < lanes; ++l) w[i][l * o.ws[0]] = total[i][l];
}

OOC_INLINE bool takes_lanes(const Problem &p, const Operands &o) {
  return p.groups > 1 && p.c == p.groups && p.k == p.groups && o.xs[1] == 1 && o.ys[1] == 1;
}

template <class T>
static void lane_wgrad(const Problem &p, const Operands &o) {
  constexpr int L = Vec<T>::lanes;
  const i64 taps = volume(p.f), parts = ceil_div(taps, LANE_TAPS), jobs = ceil_div(p.c, L) * parts;
  const int team = team_for<T>(double(p.c) * taps * p.n * volume(p.y), p.threads, LANEWISE);
  (void)team;
#ifdef _OPENMP
#pragma omp parallel for num_threads(team) schedule(dynamic, 1) if (team > 1)
#endif
  for (i64 i = 0; i < jobs; ++i) {
    const i64 ch = i / parts * L, tap = i % parts * LANE_TAPS;
    lane_weights<T>(p, o, ch, imin(L, p.c - ch), tap, imin(taps, tap + LANE_TAPS));
  }
}

// ---- forward and data gradient

// Output positions [begin, begin + count) of a group: steps [p0, p1) of its (channel, tap) pairs.
template <class T>
static void stage_pairs(const Gather<T> &t, const T *in, const T *w, i64 p0, i64 p1, i64 begin, i64 count, i64 pitch, Stage<T> &st) {
  const Axis *a = t.ax;
  const i64 taps = taps_of(a);
  for (i64 p = p0; p < imin(p1, p0 + taps); ++p) {  // a tap of one channel, then the same of the others
    const Index3 tap = unflatten(p % taps, a[1].taps, a[2].taps);
    const i64 c = p / taps, channels = ceil_div(p1 - p, taps), step = p - p0;
    i64 b[3], at = c * t.wc;
    for (int d = 0; d < 3; ++d) b[d] = a[d].off + tap.v[d] * a[d].step, at += (a[d].tap0 + tap.v[d] * a[d].tap_step) * t.wtap[d];
    uint64_t present = low_bits(pitch) & ~low_bits(count);  // lanes in excess may hold anything
    T *x = st.x + step * pitch;
    for_rows(a, begin, count, [&](i64 n, i64 j0, i64 j1, i64 q, i64 len, i64 done) {
      const i64 d_in = j0 * a[0].mul + b[0], h_in = j1 * a[1].mul + b[1], w_in = q * a[2].mul + b[2];
      if (d_in < 0 || d_in >= a[0].in || h_in < 0 || h_in >= a[1].in) return;
      const Range r = inside(w_in, a[2].mul, a[2].in, len);
      if (r.lo == r.hi) return;
      present |= low_bits(r.hi - r.lo) << (done + r.lo);
      const T *src = in + n * t.is[0] + c * t.is[1] + d_in * t.is[2] + h_in * t.is[3] + (w_in + r.lo * a[2].mul) * t.is[4];
      copy_channels(x + done + r.lo, taps * pitch, src, t.is[1], channels, r.hi - r.lo, Range{0, r.hi - r.lo}, a[2].mul * t.is[4]);
    });
    if (!(present & low_bits(count))) present = 0;
    for (i64 i = 0; i < channels; ++i) st.present[step + i * taps] = present, st.at[step + i * taps] = at + i * t.wc;
  }
}

// Output channels [k, k + rows) of group g at positions [begin, begin + count).
template <class T>
static void ordered_job(const Gather<T> &t, i64 g, i64 k, i64 rows, i64 begin, i64 count, Stage<T> &st) {
  const i64 vecs = ceil_div(count, Vec<T>::lanes), pitch = vecs * Vec<T>::lanes, first = g * t.cout + k;
  const i64 taps = taps_of(t.ax), pairs = t.cin * taps;
  const T *in = t.in + g * t.cin * t.is[1], *w = t.w + g * t.wgroup + k * t.wk;
  for (i64 i = 0; i < rows * pitch; ++i) st.sums[i] = 0;
  if (t.e.accumulate)
    for_rows(t.ax, begin, count, [&](i64 n, i64 j0, i64 j1, i64 q, i64 len, i64 done) {
      const T *out = t.out + n * t.os[0] + first * t.os[1] + j0 * t.os[2] + j1 * t.os[3] + q * t.os[4];
      copy_channels(st.sums + done, pitch, out, t.os[1], rows, len, Range{0, len}, t.os[4]);
    });
  const i64 chunk = taps && taps < STEPS ? STEPS / taps * taps : STEPS;  // whole channels, if one fits
  for (i64 p = 0; p < pairs; p += chunk) {
    const i64 end = imin(pairs, p + chunk);
    stage_pairs(t, in, w, p, end, begin, count, pitch, st);
    ordered_product(rows, vecs, end - p, w, t.wk, st, false);
  }
  Epilogue<T> e = t.e;
  e.accumulate = false;  // the sums began with the old values
  for_rows(t.ax, begin, count, [&](i64 n, i64 j0, i64 j1, i64 q, i64 len, i64 done) {
    T *out = t.out + n * t.os[0] + first * t.os[1] + j0 * t.os[2] + j1 * t.os[3] + q * t.os[4];
    Range turned{0, 0};
    if (t.os[1] == 1) turned = store_turned(st.sums + done, pitch, out, len, t.os[4], rows, e.bias ? e.bias + first : nullptr, e, false);
    for (i64 i = 0; i < rows; ++i) {
      const i64 j = i < turned.lo ? turned.hi : 0;
      store_sum(st.sums + i * pitch + done + j, out + i * t.os[1] + j * t.os[4], len - j, t.os[4], first + i, e);
    }
  });
}

// Parts of at most `most`, smaller ones if there were fewer jobs than threads can share.
OOC_INLINE i64 part_of(i64 extent, i64 most, i64 others, int threads) {
  const i64 parts = imax(ceil_div(extent, most), imin(ceil_div(3 * threads, imax(1, others)), ceil_div(extent, 4 * OR)));
  return threads > 1 ? imin(most, round_up(ceil_div(extent, parts), OR)) : imin(most, extent);
}

template <class T>
static void ordered_gather(const Gather<T> &t, int threads) {
  if (takes_lanes(t)) return lane_gather(t, threads);
  const i64 all = t.batch * outputs_of(t.ax), run = imin(all, Stage<T>::LANES), runs = ceil_div(all, imax(1, run));
  const int team = team_for<T>(double(all) * t.groups * t.cout * t.cin * imax(1, taps_of(t.ax)), threads, PLAIN);
  const i64 part = part_of(t.cout, SUM_ROWS, runs * t.groups, team), parts = ceil_div(t.cout, part), jobs = runs * t.groups * parts;
#ifdef _OPENMP
#pragma omp parallel num_threads(team) if (team > 1)
#endif
  {
    Stage<T> st;
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 1)
#endif
    for (i64 i = 0; i < jobs; ++i) {
      const i64 k = i % parts * part, g = i / parts % t.groups, begin = i / (parts * t.groups) * run;
      ordered_job(t, g, k, imin(part, t.cout - k), begin, imin(run, all - begin), st);
    }
  }
}

template <class T>
static void ordered_dgrad(const Problem &p, const Operands &o) {
  // By x residue, not by tap residue: never more rounds than there are x positions.
  for (i64 r0 = 0; r0 < imin(p.stride[0], p.x[0]); ++r0)
    for (i64 r1 = 0; r1 < imin(p.stride[1], p.x[1]); ++r1)
      for (i64 r2 = 0; r2 < imin(p.stride[2], p.x[2]); ++r2) {
        const i64 r[3] = {r0, r1, r2};
        Index3 m;
        for (int d = 0; d < 3; ++d) m.v[d] = mod(r[d] + p.pad[d], p.stride[d]);
        ordered_gather(backward_task<T>(p, o, m), p.threads);
      }
}

// ---- weight gradient

// The (channel, tap) pairs of a job, one in each lane.
template <class T>
struct Pairs {
  i64 count;
  i64 x[Stage<T>::LANES], w[Stage<T>::LANES];           // element offsets in x and w
  i64 d[Stage<T>::LANES], h[Stage<T>::LANES];           // input row of output row 0
  i64 start[Stage<T>::LANES];                           // input column of output column 0
  Range q[Stage<T>::LANES];                             // output columns with an input
  bool on[Stage<T>::LANES];                             // has input in the current row
};

// Lane order follows the weights in memory, so that sums are added to whole vectors of them.
template <class T>
static void make_pairs(const Problem &p, const Operands &o, i64 begin, i64 count, Pairs<T> &l) {
  const i64 cin = p.c / p.groups, taps = volume(p.f);
  const bool inner = o.ws[1] < o.ws[4] || taps == 1;  // channels innermost
  l.count = count;
  for (i64 i = 0; i < count; ++i) {
    const i64 c = inner ? (begin + i) % cin : (begin + i) / taps;
    const Index3 t = unflatten(inner ? (begin + i) / cin : (begin + i) % taps, p.f[1], p.f[2]);
    const i64 at[3] = {t.v[0] * p.dilation[0] - p.pad[0], t.v[1] * p.dilation[1] - p.pad[1], t.v[2] * p.dilation[2] - p.pad[2]};
    l.w[i] = c * o.ws[1] + t.v[0] * o.ws[2] + t.v[1] * o.ws[3] + t.v[2] * o.ws[4];
    l.x[i] = c * o.xs[1] + at[0] * o.xs[2] + at[1] * o.xs[3] + at[2] * o.xs[4];
    l.d[i] = at[0], l.h[i] = at[1], l.start[i] = at[2];
    l.q[i] = inside(at[2], p.stride[2], p.x[2], p.y[2]);
  }
}

// Columns [q0, q0 + n) of an output row: x of the lanes, `row` the address of offset 0 at q0.
template <class T>
static void stage_columns(const Pairs<T> &l, const T *row, i64 hop, i64 q0, i64 n, i64 pitch, Stage<T> &st) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  Range full{q0, q0 + n};  // columns that all lanes have
  bool all = true;
  for (i64 i = 0; i < l.count; ++i) {
    all = all && l.on[i];
    full.lo = imax(full.lo, l.q[i].lo), full.hi = imin(full.hi, l.q[i].hi);
  }
  if (!all || full.lo >= full.hi) full = {q0, q0};
  const uint64_t excess = low_bits(pitch) & ~low_bits(l.count);
  for (i64 s = 0; s < n; ++s) {
    const i64 q = q0 + s;
    uint64_t present = low_bits(pitch);
    if (q < full.lo || q >= full.hi) {
      present = 0;
      for (i64 i = 0; i < l.count; ++i) present |= uint64_t(l.on[i] && q >= l.q[i].lo && q < l.q[i].hi) << i;
      if (present) present |= excess;
    }
    st.present[s] = present;
  }
  for (i64 v = 0; v < l.count; v += L) {
    const i64 lanes = imin(L, l.count - v), lo = full.lo - q0, hi = full.hi - q0;
    T *x = st.x + v;
    bool beside = lanes == L;  // lanes beside one another in x
    for (i64 i = 1; i < lanes; ++i) beside = beside && l.x[v + i] == l.x[v] + i;
    i64 s = lo;
    if (beside) {
      for (; s < hi; ++s) *(V *)(x + s * pitch) = *(const V *)(row + l.x[v] + s * hop);
    } else if (hop == 1 && lanes == L) {
      for (; s + L <= hi; s += L) {
        V r[L];
#pragma GCC unroll 16
        for (int i = 0; i < L; ++i) r[i] = *(const V *)(row + l.x[v + i] + s);
        transpose_square<T>(r);
#pragma GCC unroll 16
        for (int i = 0; i < L; ++i) *(V *)(x + (s + i) * pitch) = r[i];
      }
    }
    for (i64 i = 0; i < lanes; ++i) {
      if (!l.on[v + i]) continue;
      const T *src = row + l.x[v + i];
      const i64 first = imax(0, l.q[v + i].lo - q0), last = imin(n, l.q[v + i].hi - q0);
      for (i64 u = first; u < imin(lo, last); ++u) x[u * pitch + i] = src[u * hop];
      for (i64 u = imax(s, first); u < last; ++u) x[u * pitch + i] = src[u * hop];
    }
  }
}

// Adds the sums of an output row to the weights of `rows` output channels, w at the first.
template <class T>
static void add_row(const Pairs<T> &l, bool dense, i64 rows, i64 pitch, const T *sums, T *w, i64 ws) {
  for (i64 i = 0; i < rows; ++i, sums += pitch, w += ws)
    if (dense) {
      T *to = w + l.w[0];
      for (i64 v = 0; v < l.count; ++v) to[v] += sums[v];
    } else {
      for (i64 v = 0; v < l.count; ++v)
        if (l.on[v]) w[l.w[v]] += sums[v];
    }
}

// Output channels [k, k + rows) of group g against the pairs [begin, begin + count).
template <class T>
static void ordered_weights(const Problem &p, const Operands &o, i64 g, i64 k, i64 rows, i64 begin, i64 count, Stage<T> &st, Pairs<T> &l) {
  const i64 cin = p.c / p.groups, first = g * (p.k / p.groups) + k, vecs = ceil_div(count, Vec<T>::lanes), pitch = vecs * Vec<T>::lanes;
  const i64 hop = p.stride[2] * o.xs[4];
  T *w = static_cast<T *>(o.w) + first * o.ws[0];
  make_pairs(p, o, begin, count, l);
  bool dense = true;
  i64 left = p.y[2], right = 0;  // columns that any lane has
  for (i64 v = 0; v < count; ++v) {
    dense = dense && l.w[v] == l.w[0] + v;
    if (l.q[v].lo < l.q[v].hi) left = imin(left, l.q[v].lo), right = imax(right, l.q[v].hi);
    if (!o.accumulate)
      for (i64 i = 0; i < rows; ++i) w[i * o.ws[0] + l.w[v]] = 0;
  }
  for (i64 s = 0; s < STEPS; ++s) st.at[s] = s * o.ys[4];
  for (i64 n = 0; n < p.n; ++n)
    for (i64 a = 0; a < p.y[0]; ++a)
      for (i64 b = 0; b < p.y[1]; ++b) {
        const i64 d = a * p.stride[0], h = b * p.stride[1];
        i64 on = 0;
        for (i64 v = 0; v < count; ++v) {
          l.on[v] = d + l.d[v] >= 0 && d + l.d[v] < p.x[0] && h + l.h[v] >= 0 && h + l.h[v] < p.x[1] && l.q[v].lo < l.q[v].hi;
          on += l.on[v];
        }
        if (!on) continue;
        const T *x = static_cast<const T *>(o.x) + n * o.xs[0] + g * cin * o.xs[1] + d * o.xs[2] + h * o.xs[3];
        const T *y = static_cast<const T *>(o.y) + n * o.ys[0] + first * o.ys[1] + a * o.ys[2] + b * o.ys[3];
        for (i64 q = left; q < right; q += STEPS) {
          const i64 steps = imin(STEPS, right - q);
          stage_columns(l, x + q * hop, hop, q, steps, pitch, st);
          ordered_product(rows, vecs, steps, y + q * o.ys[4], o.ys[1], st, q == left);
        }
        add_row(l, dense && on == count, rows, pitch, st.sums, w, o.ws[0]);
      }
}

template <class T>
static void ordered_wgrad(const Problem &p, const Operands &o) {
  if (takes_lanes(p, o)) return lane_wgrad<T>(p, o);
  const i64 pairs = p.c / p.groups * volume(p.f), cout = p.k / p.groups;
  const int team = team_for<T>(double(p.k) * pairs * p.n * volume(p.y), p.threads, PLAIN);
  const i64 panels = ceil_div(pairs, Stage<T>::LANES), part = part_of(cout, SUM_ROWS, panels * p.groups, team);
  const i64 parts = ceil_div(cout, part), jobs = p.groups * panels * parts;
#ifdef _OPENMP
#pragma omp parallel num_threads(team) if (team > 1)
#endif
  {
    Stage<T> st;
    Pairs<T> l;
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 1)
#endif
    for (i64 i = 0; i < jobs; ++i) {
      const i64 k = i % parts * part, begin = i / parts % panels * Stage<T>::LANES;
      ordered_weights(p, o, i / (parts * panels), k, imin(part, cout - k), begin, imin(Stage<T>::LANES, pairs - begin), st, l);
    }
  }
}

// ---------------------------------------------------------------------------- micro kernel

// c[R rows][V vectors] (+)= sum over p of weights[p][R] * x[off[p] + ...].
template <class T, int R, int V_>
static void micro(i64 depth, const T *__restrict w, const T *__restrict x, const int *__restrict off, T *__restrict c, i64 ldc, bool add) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  V s[R][V_];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < V_; ++j) s[i][j] = V{};
  for (i64 p = 0; p < depth; ++p, w += R) {
    const T *xp = x + off[p];
    V b[V_];
#pragma GCC unroll 4
    for (int j = 0; j < V_; ++j) b[j] = *(const V *)(xp + j * L);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const V a = w[i] - V{};  // broadcast
#pragma GCC unroll 4
      for (int j = 0; j < V_; ++j) s[i][j] += a * b[j];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < V_; ++j) {
      V *q = (V *)(c + i * ldc + j * L);
      *q = add ? *q + s[i][j] : s[i][j];
    }
}

template <class T>
using Micro = void (*)(i64, const T *, const T *, const int *, T *, i64, bool);

template <class T, int R>
static Micro<T> micro_of_rows(i64 rows, i64 vecs) {
  if (rows == R) return vecs == 1 ? micro<T, R, 1> : vecs == 2 ? micro<T, R, 2> : micro<T, R, 3>;
  if constexpr (R > 1) return micro_of_rows<T, R - 1>(rows, vecs);
  return nullptr;
}

// Three vectors at a time; four are better taken as two and two than as three and one.
OOC_INLINE i64 next_vecs(i64 left) { return left == 4 ? 2 : imin(left, NV); }

constexpr i64 WEIGHT_BYTES = 256 << 10;  // weights to keep in the second-level cache

// One line of `vecs` vectors for `rows` output channels. Weight panels of MR channels lie
// `panel` elements apart per channel row: the last, narrower one needs no padding.
template <class T>
static void multiply(i64 rows, i64 vecs, i64 depth, const T *w, i64 panel, const T *x, const int *off, T *c, i64 ldc, bool add) {
  constexpr int L = Vec<T>::lanes;
  const i64 chunk = imax(1, WEIGHT_BYTES / (MR * depth * i64(sizeof(T)))) * MR;
  for (i64 m0 = 0; m0 < rows; m0 += chunk)
    for (i64 v = 0, nv; v < vecs; v += nv) {
      nv = next_vecs(vecs - v);
      const Micro<T> full = micro_of_rows<T, MR>(MR, nv);
      const i64 end = imin(rows, m0 + chunk);
      i64 m = m0;
      for (; m + MR <= end; m += MR) full(depth, w + m * panel, x + v * L, off, c + m * ldc + v * L, ldc, add);
      if (m < end) micro_of_rows<T, MR>(end - m, nv)(depth, w + m * panel, x + v * L, off, c + m * ldc + v * L, ldc, add);
    }
}

// ---------------------------------------------------------------------------- packed weights

// Channels per reduction block. Depends on nothing but the taps: the order of summation, and
// with it every bit of the result, is the same for all tiles.
OOC_INLINE i64 channel_block(i64 cin, i64 taps) { return clamp(288 / imax(1, taps), 1, cin); }

// Layout: [group][panel of MR output channels][channel][tap][output channel in the panel].
template <class T>
static void pack_weights(const Gather<T> &t, T *packed, int threads) {
  const i64 taps = taps_of(t.ax), depth = t.cin * taps, panels = ceil_div(t.cout, MR);
  (void)threads;
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) schedule(static) if (t.groups * t.cout * depth > PACK_WORK)
#endif
  for (i64 job = 0; job < t.groups * panels; ++job) {
    const i64 g = job / panels, k = job % panels * MR, rows = imin(MR, t.cout - k);
    T *dst = packed + (g * t.cout + k) * depth;
    const T *src = t.w + g * t.wgroup + k * t.wk;
    for (i64 c = 0; c < t.cin; ++c)
      for (i64 i = 0; i < taps; ++i, dst += rows) {
        const Index3 tap = unflatten(i, t.ax[1].taps, t.ax[2].taps);
        const T *s = src + c * t.wc;
        for (int d = 0; d < 3; ++d) s += (t.ax[d].tap0 + tap.v[d] * t.ax[d].tap_step) * t.wtap[d];
        for (i64 r = 0; r < rows; ++r) dst[r] = s[r * t.wk];
      }
  }
}

// ---------------------------------------------------------------------------- gather plans

struct Plan {
  bool im2col;
  Tile tile;         // halo
  i64 run;           // im2col: positions per tile
  i64 kpart;         // output channels per job
  i64 vecs, slices;  // a tile is `slices` lines of `vecs` vectors
  i64 tiles[3];      // tiles per axis (im2col: tiles[2] alone)
  i64 x_elems;       // tile, with room for the reads past its end
  double cost;       // cycles, for choosing
  bool found;
};

template <class T>
OOC_INLINE i64 halo_slack(const Axis *a) { return Vec<T>::lanes + a[2].ext; }

// Bytes of the tile and the sums of one thread.
template <class T>
OOC_INLINE i64 thread_bytes(const Plan &p) {
  return lines(p.x_elems * sizeof(T)) + lines(p.kpart * p.slices * p.vecs * VEC_BYTES);
}

// Fits the output channels into the memory left, splits them for the threads, and estimates.
template <class T>
static void consider(Plan &best, Plan p, i64 bytes, i64 batch, i64 groups, i64 cin, i64 cout, const Axis *a, int threads) {
  if (p.x_elems >= (i64(1) << 30)) return;  // offsets are ints
  const i64 line = p.slices * p.vecs * VEC_BYTES, left = bytes - lines(p.x_elems * sizeof(T));
  p.kpart = left / line >= cout ? cout : left / line / MR * MR;  // parts begin on whole panels
  if (left < 0 || p.kpart < 1) return;
  const i64 tiles = p.im2col ? p.tiles[2] : batch * volume(p.tiles);
  const i64 wanted = ceil_div(3 * threads, imax(1, tiles * groups));  // parts, for balance
  const i64 parts0 = threads > 1 ? imin(wanted, ceil_div(cout, 4 * MR)) : 1;
  const i64 parts = imax(ceil_div(cout, p.kpart), parts0);
  p.kpart = imin(p.kpart, round_up(ceil_div(cout, parts), MR));
  const i64 kparts = ceil_div(cout, p.kpart), jobs = tiles * groups * kparts;
  const double depth = double(cin) * taps_of(a), vectors = double(p.slices) * p.vecs;
  // Measured roughly: a fused multiply-add per cycle, a copied vector in 4 cycles and more.
  const double fill = p.im2col ? depth * (p.vecs * 4.0 + p.run / double(a[2].out) * 8 + 4)
                               : double(cin) * phases_of(a) * p.tile.p[0] * p.tile.p[1] * (p.tile.p[2] * 4.0 / Vec<T>::lanes + 8);
  const double blocks = double(ceil_div(cin, channel_block(cin, taps_of(a))));
  const double work = cout * vectors * (depth + 3 * blocks + 6) / kparts + fill;
  p.cost = double(ceil_div(jobs, threads)) * work;
  p.found = true;
  if (!best.found || p.cost < best.cost) best = p;
}

template <class T>
static void consider_halo(Plan &best, i64 td, i64 th, i64 tw, i64 bytes, i64 batch, i64 groups, i64 cin, i64 cout, const Axis *a, int threads) {
  Plan p{};
  p.tile = make_tile(a, td, th, tw);
  p.slices = td;
  p.vecs = ceil_div((th - 1) * p.tile.p[2] + tw, Vec<T>::lanes);
  p.x_elems = channel_block(cin, taps_of(a)) * p.tile.channel + halo_slack<T>(a);
  for (int d = 0; d < 3; ++d) p.tiles[d] = ceil_div(a[d].out, p.tile.t[d]);
  consider<T>(best, p, bytes, batch, groups, cin, cout, a, threads);
}

// Even tiles: as many as `tile` would give, but no nearly empty one at the end.
OOC_INLINE i64 even(i64 extent, i64 tile) { return ceil_div(extent, ceil_div(extent, imin(extent, tile))); }

template <class T>
static Plan make_plan(const Gather<T> &t, i64 bytes, int threads) {
  constexpr int L = Vec<T>::lanes;
  const Axis *a = t.ax;
  const i64 block = channel_block(t.cin, taps_of(a));
  Plan best{};
  for (i64 tw = a[2].out > 1024 ? 1024 : a[2].out;;) {
    for (i64 td = 1;; td *= 2) {
      const i64 ed = even(a[0].out, td);
      for (i64 th = 1;; th *= 2) {
        consider_halo<T>(best, ed, even(a[1].out, th), tw, bytes, t.batch, t.groups, t.cin, t.cout, a, threads);
        if (th >= a[1].out || th >= 64) break;
      }
      if (td >= a[0].out || td >= 16) break;
    }
    if (tw <= L) break;
    tw = tw > 2 * L ? round_up(ceil_div(tw, 2), L) : L;
  }
  const i64 all = t.batch * outputs_of(a);
  for (i64 vecs = 1; vecs <= 12 * NV; vecs = vecs < NV ? vecs + 1 : vecs < 2 * NV ? 2 * NV : vecs + 2 * NV) {
    Plan p{};
    p.im2col = true;
    p.run = imin(all, vecs * L);
    p.vecs = ceil_div(p.run, L), p.slices = 1;
    p.x_elems = block * taps_of(a) * p.vecs * L;
    p.tiles[0] = p.tiles[1] = 1, p.tiles[2] = ceil_div(all, p.run);
    consider<T>(best, p, bytes, t.batch, t.groups, t.cin, t.cout, a, threads);
    if (p.run == all) break;
  }
  return best;
}

// ---------------------------------------------------------------------------- running a gather

template <class T>
struct Job {
  i64 group, k0, rows;  // output channels [k0, k0 + rows) of the group
  i64 image, j[3], size[3];
  i64 begin, count;     // im2col
};

template <class T>
static Job<T> make_job(const Gather<T> &t, const Plan &p, i64 index) {
  Job<T> job{};
  const i64 kparts = ceil_div(t.cout, p.kpart);
  job.k0 = index % kparts * p.kpart, index /= kparts;
  job.rows = imin(p.kpart, t.cout - job.k0);
  if (p.im2col) {
    job.begin = index % p.tiles[2] * p.run;
    job.count = imin(p.run, t.batch * outputs_of(t.ax) - job.begin);
    job.group = index / p.tiles[2];
    return job;
  }
  for (int d = 2; d >= 0; --d) {
    job.j[d] = index % p.tiles[d] * p.tile.t[d], index /= p.tiles[d];
    job.size[d] = imin(p.tile.t[d], t.ax[d].out - job.j[d]);
  }
  job.group = index % t.groups, job.image = index / t.groups;
  return job;
}

template <class T>
static void store_job(const Gather<T> &t, const Plan &p, const Job<T> &job, const T *sums) {
  const i64 pitch = p.vecs * Vec<T>::lanes, line = p.slices * pitch;
  const i64 first = job.group * t.cout + job.k0;
  const auto rows = [&](i64 n, i64 j0, i64 j1, i64 q, i64 len, const T *sum) {
    T *out = t.out + n * t.os[0] + first * t.os[1] + j0 * t.os[2] + j1 * t.os[3] + q * t.os[4];
    Range done{0, 0};
    if (t.os[1] == 1) done = store_turned(sum, line, out, len, t.os[4], job.rows, t.e.bias ? t.e.bias + first : nullptr, t.e, true);
    for (i64 k = 0; k < job.rows; ++k) {
      const i64 j = k < done.lo ? done.hi : 0;
      store_row(sum + k * line + j, out + k * t.os[1] + j * t.os[4], len - j, t.os[4], t.e.bias ? t.e.bias[first + k] : T(0), t.e);
    }
  };
  if (p.im2col) {
    for_rows(t.ax, job.begin, job.count, [&](i64 n, i64 j0, i64 j1, i64 q, i64 len, i64 done) { rows(n, j0, j1, q, len, sums + done); });
    return;
  }
  for (i64 d = 0; d < job.size[0]; ++d)
    for (i64 h = 0; h < job.size[1]; ++h)
      rows(job.image, job.j[0] + d, job.j[1] + h, job.j[2], job.size[2], sums + d * pitch + h * p.tile.p[2]);
}

template <class T>
static void run_job(const Gather<T> &t, const Plan &p, const Job<T> &job, const T *packed, const int *off, T *X, T *sums) {
  constexpr int L = Vec<T>::lanes;
  const i64 taps = taps_of(t.ax), depth = t.cin * taps, block = channel_block(t.cin, taps);
  const i64 pitch = p.vecs * L, line = p.slices * pitch;
  const i64 used = p.im2col ? job.count : (job.size[1] - 1) * p.tile.p[2] + job.size[2];
  const i64 vecs = ceil_div(used, L), slices = p.im2col ? 1 : job.size[0];
  const T *in = t.in + job.group * t.cin * t.is[1];
  const T *w = packed + (job.group * t.cout + job.k0) * depth;
  for (i64 c = 0; c < t.cin; c += block) {
    const i64 channels = imin(block, t.cin - c);
    if (p.im2col)
      fill_im2col(X, pitch, t.ax, in + c * t.is[1], t.is, channels, job.begin, job.count);
    else
      fill_tile(X, t.ax, p.tile, in + job.image * t.is[0] + c * t.is[1], t.is, channels, job.j, job.size);
    for (i64 d = 0; d < slices; ++d) {
      const T *x = X + d * p.tile.p[1] * p.tile.p[2];
      // Panels are `depth` long per row; inside one, a channel starts at c * taps * (its rows).
      const i64 full = job.rows / MR * MR;
      if (full) multiply(full, vecs, channels * taps, w + c * taps * MR, depth, x, off, sums + d * pitch, line, c > 0);
      if (full < job.rows)
        multiply(job.rows - full, vecs, channels * taps, w + full * depth + c * taps * (job.rows - full), depth, x, off,
                 sums + full * line + d * pitch, line, c > 0);
    }
  }
  store_job(t, p, job, sums);
}

template <class T>
static void run_gather(const Gather<T> &t, const Plan &p, const T *packed, char *scratch, i64 offset_bytes, int threads) {
  const i64 taps = taps_of(t.ax), block = channel_block(t.cin, taps);
  int *off = reinterpret_cast<int *>(scratch);
  if (p.im2col)
    for (i64 i = 0; i < block * taps; ++i) off[i] = int(i * p.vecs * Vec<T>::lanes);
  else
    fill_offsets(off, t.ax, p.tile, block);
  const i64 tiles = p.im2col ? p.tiles[2] : t.batch * volume(p.tiles);
  const i64 jobs = tiles * t.groups * ceil_div(t.cout, p.kpart), each = thread_bytes<T>(p);
  const int team = int(imin(threads, jobs));
  (void)team;
#ifdef _OPENMP
#pragma omp parallel num_threads(team) if (team > 1)
#endif
  {
#ifdef _OPENMP
    const i64 me = omp_get_thread_num();
#else
    const i64 me = 0;
#endif
    char *mine = scratch + offset_bytes + me * each;
    T *X = reinterpret_cast<T *>(mine), *sums = reinterpret_cast<T *>(mine + lines(p.x_elems * sizeof(T)));
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 1)
#endif
    for (i64 i = 0; i < jobs; ++i) run_job(t, p, make_job(t, p, i), packed, off, X, sums);
  }
}

// ---------------------------------------------------------------------------- gather workspace

constexpr i64 MAX_THREAD_BYTES = 640 << 10, MIN_THREAD_BYTES = 24 << 10;
constexpr i64 MAX_RESIDUES = 4096;  // data gradients with larger strides take the plain loops

static i64 dtype_size(const Problem &p) { return p.dtype == Dtype::f32 ? 4 : 8; }

static double total_work(const Problem &p) {
  return double(p.n) * volume(p.y) * p.k * double(p.c / p.groups) * volume(p.f);
}

static i64 problem_bytes(const Problem &p) {
  return dtype_size(p) * (p.n * (p.c * volume(p.x) + p.k * volume(p.y)) + p.k * (p.c / p.groups) * volume(p.f));
}

// Taps of the smallest residue class that has any.
static i64 fewest_taps(const Problem &p) {
  if (p.pass != Pass::dgrad) return volume(p.f);
  i64 taps = 1;
  for (int d = 0; d < 3; ++d) {
    const i64 every = p.stride[d] / gcd(p.dilation[d], p.stride[d]);
    taps *= (p.f[d] - imin(every, p.f[d])) / every + 1;
  }
  return taps;
}

struct GatherNeed {
  i64 packed, offsets, thread;  // bytes
};

// Everything here grows with each extent and with the batch, so that what is enough for a
// block is enough for a smaller one: min(all in one tile, max(a fixed size, smallest tile)).
template <class T>
static GatherNeed gather_need(const Problem &p) {
  constexpr i64 L = Vec<T>::lanes, S = sizeof(T);
  Axis a[3];
  for (int d = 0; d < 3; ++d) a[d] = largest_axis(p, d);
  const i64 cin = (p.pass == Pass::fprop ? p.c : p.k) / p.groups, cout = (p.pass == Pass::fprop ? p.k : p.c) / p.groups;
  // A residue class with fewer taps has longer channel blocks: no more pairs, but wider tiles.
  const i64 taps = taps_of(a), few = fewest_taps(p);
  const i64 block = channel_block(cin, few), pairs = imin(cin * taps, imax(288, taps));
  const i64 lane = imin(a[2].out, L), positions = round_up(p.n * outputs_of(a), L), rows = imin(cout, MR);
  const auto halo = [&](i64 d, i64 h, i64 w, i64 k) {
    const Tile t = make_tile(a, d, h, w);
    return lines((block * t.channel + halo_slack<T>(a)) * S) + lines(k * d * round_up(h * t.p[2], L) * S);
  };
  const auto im2col = [&](i64 n, i64 k) { return lines(pairs * n * S) + lines(k * n * S); };
  const i64 whole = imax(halo(a[0].out, a[1].out, a[2].out, cout), im2col(positions, cout));
  const i64 least = imin(halo(1, 1, lane, rows), im2col(L, rows));
  const i64 usual = clamp(lines(problem_bytes(p) / (2 * p.threads)), MIN_THREAD_BYTES, MAX_THREAD_BYTES);
  return {lines(p.k * (p.c / p.groups) * volume(p.f) * S), lines(pairs * sizeof(int)), imin(whole, imax(usual, least))};
}

// One task for fprop, one per tap residue for dgrad; the packed weights follow one another, residue
// by residue.
template <class T, class F>
static void for_tasks(const Problem &p, const Operands &o, F visit) {
  if (p.pass == Pass::fprop) return visit(forward_task<T>(p, o));
  for (i64 m0 = 0; m0 < p.stride[0]; ++m0)
    for (i64 m1 = 0; m1 < p.stride[1]; ++m1)
      for (i64 m2 = 0; m2 < p.stride[2]; ++m2) visit(backward_task<T>(p, o, Index3{{m0, m1, m2}}));
}

static bool too_many_residues(const Problem &p) {
  return p.pass == Pass::dgrad && double(p.stride[0]) * p.stride[1] * p.stride[2] > MAX_RESIDUES;
}

// Small enough for the plain loops, whatever memory there is.
static bool tiny(const Problem &p) {
  const i64 outputs = p.n * volume(p.pass == Pass::dgrad ? p.x : p.y);
  return total_work(p) < TINY_WORK || outputs < 8;
}

template <class T>
static void conv_gather(const Problem &p, const Operands &o) {
  if (too_many_residues(p)) return ordered_dgrad<T>(p, o);
  const GatherNeed need = gather_need<T>(p);
  char *base = static_cast<char *>(o.workspace);
  // Weights are packed whenever they fit, even if these extents then take the plain loops: a
  // later call with packed = true may be for larger ones.
  const bool pack = o.workspace_bytes >= need.packed && o.workspace_bytes > 0;
  T *packed = reinterpret_cast<T *>(base);
  const i64 left = o.workspace_bytes - need.packed - need.offsets;
  const i64 bytes = imin(need.thread, left / p.threads / 64 * 64);
  i64 done = 0;
  for_tasks<T>(p, o, [&](const Gather<T> &t) {
    const i64 taps = taps_of(t.ax), count = t.groups * t.cout * t.cin * taps;
    if (pack && !o.packed && count) pack_weights(t, packed + done, p.threads);
    if (t.batch * outputs_of(t.ax) > 0) {
      Plan plan{};
      const int team = team_for<T>(double(count) * t.batch * outputs_of(t.ax), p.threads);
      if (pack && taps && bytes > 0 && !takes_lanes(t)) plan = make_plan(t, bytes, team);
      if (plan.found)
        run_gather(t, plan, packed + done, base + need.packed, need.offsets, team);
      else
        ordered_gather(t, p.threads);
    }
    done += count;
  });
}

// ---------------------------------------------------------------------------- weight gradient
//
// A job is a range of input channels times a range of output channels of one group. It visits
// the output positions tile by tile: dy is transposed into panels [position][output channel],
// x goes into halo tiles of a few channels, and each register block multiplies WMR (channel,
// tap) rows of x with WNV vectors of output channels, over all positions of the tile. Sums of
// all weights stay in the workspace. Jobs share the weights out, never the positions, and
// tiles depend on the shapes and the workspace of a thread alone: the bits do not depend on the
// thread count. Jobs copy some data twice, but need no barriers; sharing the panels between
// threads was a disaster as soon as other processes wanted the cores.
//
// With few output channels per group (depthwise) vectors of channels would be empty; then
// vectors run along the rows ("dots") and each weight is a dot product.

constexpr i64 MAX_DY_BYTES = 512 << 10, MIN_DY_BYTES = 16 << 10;
constexpr i64 MAX_XTILE_BYTES = 96 << 10, MIN_XTILE_BYTES = 8 << 10;
constexpr i64 MAX_POSITIONS = 512, MAX_PAIRS = 4096;
constexpr i64 MAX_HALO_BYTES = 1 << 20;  // filters that reach farther take the plain loops

template <class T>
struct WgradPlan {
  bool dots;
  Axis ax[3];
  i64 cin, cout, groups, taps, lanes;  // lanes: output channels rounded up to vectors
  Tile tile;
  i64 tiles[3];
  i64 block;       // input channels per unit
  i64 csplit, ksplit;  // jobs per group along input blocks and output panels
  i64 x_bytes, dy_bytes;  // of one thread
  i64 sums_bytes, offset_bytes, total;
};

// x[R rows][position] times dy[position][V vectors], summed into acc[R][V].
template <class T, int R, int V_>
static void wgrad_micro(const i64 *size, const i64 *pitch, const T *x, const int *off, const T *dy, T *acc, bool add) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes, U = VEC_BYTES == 64 ? 2 : 1;  // positions per round: spares pointer loads
  V s[R][V_];
  const T *row[R];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    row[i] = x + off[i];
#pragma GCC unroll 4
    for (int j = 0; j < V_; ++j) s[i][j] = V{};
  }
  for (i64 d = 0; d < size[0]; ++d)
    for (i64 h = 0; h < size[1]; ++h) {
      i64 w = d * pitch[0] + h * pitch[1];
      const i64 end = w + size[2];
      for (; w + U <= end; w += U, dy += U * V_ * L) {
        V b[U][V_];
#pragma GCC unroll 2
        for (int u = 0; u < U; ++u)
#pragma GCC unroll 4
          for (int j = 0; j < V_; ++j) b[u][j] = *(const V *)(dy + (u * V_ + j) * L);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
          for (int u = 0; u < U; ++u) {
            const V a = row[i][w + u] - V{};
#pragma GCC unroll 4
            for (int j = 0; j < V_; ++j) s[i][j] += a * b[u][j];
          }
      }
      for (; w < end; ++w, dy += V_ * L)
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) {
          const V a = row[i][w] - V{};
#pragma GCC unroll 4
          for (int j = 0; j < V_; ++j) s[i][j] += a * *(const V *)(dy + j * L);
        }
    }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < V_; ++j) {
      V *q = (V *)(acc + (i * V_ + j) * L);
      *q = add ? *q + s[i][j] : s[i][j];
    }
}

template <class T>
using WgradMicro = void (*)(const i64 *, const i64 *, const T *, const int *, const T *, T *, bool);

template <class T, int R>
static WgradMicro<T> wgrad_micro_of(i64 rows, i64 vecs) {
  if (rows == R) return vecs == 1 ? wgrad_micro<T, R, 1> : wgrad_micro<T, R, 2>;
  if constexpr (R > 1) return wgrad_micro_of<T, R - 1>(rows, vecs);
  return nullptr;
}

// dst[position * pitch + channel] = src[channel * sc + position * sw], zeros beyond `channels`.
template <class T>
static void transpose_row(T *dst, i64 pitch, const T *src, i64 sc, i64 sw, i64 channels, i64 n) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  i64 w = 0;
  if (sw == 1 && channels == L)
    for (; w + L <= n; w += L) {
      V v[L];
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) v[i] = *(const V *)(src + i * sc + w);
      transpose_square<T>(v);
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) *(V *)(dst + (w + i) * pitch) = v[i];
    }
  for (; w < n; ++w) {
    T *d = dst + w * pitch;
    const T *s = src + w * sw;
    if (sc == 1 && channels == L) {
      *(V *)d = *(const V *)s;
      continue;
    }
    for (i64 c = 0; c < channels; ++c) d[c] = s[c * sc];
    for (i64 c = channels; c < L; ++c) d[c] = 0;
  }
}

// R dot products of rows of dy (padded to vectors) with shifted rows of x, added to acc.
template <class T, int R>
static void dots_micro(const i64 *size, const i64 *pitch, const T *x, const int *off, const T *dy, i64 dy_pitch, T *acc, bool add) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  typename LaneVec<T>::type lane;
  for (int i = 0; i < L; ++i) lane[i] = i;
  V s[R];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) s[i] = V{};
  const i64 whole = size[2] / L * L, rest = size[2] - whole;
  const auto used = lane < typename Lane<T>::type(rest);
  for (i64 d = 0; d < size[0]; ++d)
    for (i64 h = 0; h < size[1]; ++h, dy += dy_pitch) {
      const T *row = x + d * pitch[0] + h * pitch[1];
      for (i64 w = 0; w < whole; w += L) {
        const V b = *(const V *)(dy + w);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) s[i] += b * *(const V *)(row + off[i] + w);
      }
      if (!rest) continue;
      const V b = *(const V *)(dy + whole);
      // What lies right of the row may be anything, an infinity too: mask it out.
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) s[i] += b * (used ? *(const V *)(row + off[i] + whole) : V{});
    }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    T sum = 0;
    for (int l = 0; l < L; ++l) sum += s[i][l];
    acc[i] = add ? acc[i] + sum : sum;
  }
}

constexpr int DOTS = VEC_BYTES == 64 ? 9 : 6;

template <class T, int R>
static void dots_rows(i64 rows, const i64 *size, const i64 *pitch, const T *x, const int *off, const T *dy, i64 dy_pitch, T *acc, bool add) {
  if (rows == R) return dots_micro<T, R>(size, pitch, x, off, dy, dy_pitch, acc, add);
  if constexpr (R > 1) dots_rows<T, R - 1>(rows, size, pitch, x, off, dy, dy_pitch, acc, add);
}

// ---------------------------------------------------------------------------- weight gradient plans

// Tile of at most `positions` outputs, a channel of which fits into `bytes` if any can.
template <class T>
static Tile wgrad_tile(const Axis *a, i64 positions, i64 bytes) {
  constexpr i64 L = Vec<T>::lanes;
  i64 t[3] = {1, 1, a[2].out};
  if (t[2] > positions) t[2] = imin(positions, round_up(even(a[2].out, positions), L));
  const i64 rows = imax(1, positions / t[2]);
  if (a[0].ext > 0)  // near cubes have the least halo
    while (4 * t[0] * t[0] <= rows && 2 * t[0] <= a[0].out) t[0] *= 2;
  t[1] = even(a[1].out, imax(1, rows / t[0]));
  t[0] = even(a[0].out, imax(1, rows / t[1]));
  for (;;) {
    const Tile tile = make_tile(a, t[0], t[1], t[2]);
    if (tile.channel * i64(sizeof(T)) <= bytes) return tile;
    if (t[0] > 1) t[0] = (t[0] + 1) / 2;
    else if (t[1] > 1) t[1] = (t[1] + 1) / 2;
    else if (t[2] > L) t[2] = imax(L, round_up(t[2] / 2, L));
    else return tile;
  }
}

// Splits channels into jobs so that the slowest thread ends soonest.
template <class T>
static void split_jobs(WgradPlan<T> &w, int threads) {
  constexpr i64 L = Vec<T>::lanes;
  const i64 blocks = ceil_div(w.cin, w.block), panels = w.dots ? 1 : ceil_div(w.lanes, WNV * L);
  double best = 0;
  for (i64 cs = 1; cs <= imin(blocks, 4 * threads); ++cs)
    for (i64 round = 0; round <= 2; ++round) {  // jobs for each thread: one group's, one, two
      const i64 ks = clamp(ceil_div(round * threads, w.groups * cs), 1, panels);
      const double c = double(ceil_div(blocks, cs)) * w.block, k = double(ceil_div(panels, ks)) * WNV * L;
      const i64 jobs = w.groups * cs * ks;
      // Cycles per position: multiply-adds, and about one per element copied or transposed.
      double cost = double(ceil_div(jobs, threads)) * (c * w.taps * k / L + c + k);
      if (threads > 1 && jobs < 2 * threads) cost *= 1.05;  // nothing to even out a slow thread
      if (best == 0 || cost < best) best = cost, w.csplit = cs, w.ksplit = ks;
    }
}

// Buffers as functions that grow with the extents (see gather_need). `shrink` > 1 for less
// memory than wanted.
template <class T>
static WgradPlan<T> wgrad_plan(const Problem &p, i64 shrink) {
  constexpr i64 L = Vec<T>::lanes, S = sizeof(T);
  WgradPlan<T> w{};
  for (int d = 0; d < 3; ++d) w.ax[d] = forward_axis(p, d);
  const Axis *a = w.ax;
  w.groups = p.groups, w.cin = p.c / p.groups, w.cout = p.k / p.groups, w.taps = taps_of(a);
  w.dots = w.cout <= L / 4;
  w.lanes = w.dots ? w.cout : round_up(w.cout, L);
  const i64 dy_room = clamp(problem_bytes(p) / 4, MIN_DY_BYTES, MAX_DY_BYTES) / shrink;
  const i64 width = w.dots ? L : w.lanes;
  const i64 positions = clamp(dy_room / (width * S) / L * L, w.dots ? L : 4 * L, MAX_POSITIONS);
  const i64 least = make_tile(a, 1, 1, imin(L, a[2].out)).channel, whole = w.cin * make_tile(a, a[0].out, a[1].out, a[2].out).channel;
  const i64 usual = clamp(problem_bytes(p) / 8, MIN_XTILE_BYTES, MAX_XTILE_BYTES) / shrink;
  const i64 room = imin(whole * S, imax(usual, least * S));
  w.tile = wgrad_tile<T>(a, positions, room);
  w.block = clamp(imin(room / (w.tile.channel * S), MAX_PAIRS / w.taps), 1, w.cin);
  // Blocks for all threads, of whole register blocks where possible. No effect on the bits.
  const i64 even_rows = WMR / gcd(w.taps, WMR);
  w.block = imin(w.block, imax(imin(even_rows, w.cin), w.groups * w.cin / (2 * p.threads)));
  if (w.block > even_rows) w.block -= w.block % even_rows;
  for (int d = 0; d < 3; ++d) w.tiles[d] = ceil_div(a[d].out, w.tile.t[d]);
  w.x_bytes = lines(room + L * S);
  // A row of dy is padded to whole vectors in the dots, a tile of one-column rows the most.
  const i64 outputs = imin(positions, outputs_of(a));
  w.dy_bytes = lines(width * outputs * S);
  w.sums_bytes = lines(w.groups * w.lanes * w.cin * w.taps * S);
  w.offset_bytes = lines(imin(w.cin * w.taps, imax(MAX_PAIRS, w.taps)) * i64(sizeof(int)));
  w.total = w.sums_bytes + w.offset_bytes + p.threads * (w.x_bytes + w.dy_bytes);
  return w;
}

// A box of output positions of one image.
struct Box {
  i64 image, j[3], size[3];
};

template <class T>
static Box wgrad_box(const WgradPlan<T> &w, i64 index) {
  Box b;
  for (int d = 2; d >= 0; --d) {
    b.j[d] = index % w.tiles[d] * w.tile.t[d], index /= w.tiles[d];
    b.size[d] = imin(w.tile.t[d], w.ax[d].out - b.j[d]);
  }
  b.image = index;
  return b;
}

// Panels hold WNV vectors of output channels; the last one may hold fewer.
template <class T>
OOC_INLINE i64 panel_width(const WgradPlan<T> &w, i64 panel) {
  return imin(WNV * Vec<T>::lanes, w.lanes - panel * WNV * Vec<T>::lanes);
}

// The range of channels of a job.
struct WgradJob {
  i64 group, c0, c1, panel0, panel1;
};

template <class T>
static WgradJob wgrad_job(const WgradPlan<T> &w, i64 index) {
  const i64 blocks = ceil_div(w.cin, w.block), panels = ceil_div(w.lanes, WNV * Vec<T>::lanes);
  const i64 ks = index % w.ksplit, cs = index / w.ksplit % w.csplit;
  WgradJob j;
  j.group = index / (w.ksplit * w.csplit);
  j.c0 = blocks * cs / w.csplit * w.block, j.c1 = imin(w.cin, blocks * (cs + 1) / w.csplit * w.block);
  j.panel0 = panels * ks / w.ksplit, j.panel1 = panels * (ks + 1) / w.ksplit;
  return j;
}

// dy of the box and the channels of the job, panel after panel.
template <class T>
static void transpose_dy(const WgradPlan<T> &w, const Operands &o, const Box &b, const WgradJob &job, T *dy) {
  constexpr i64 L = Vec<T>::lanes;
  for (i64 panel = job.panel0; panel < job.panel1; ++panel) {
    const i64 pitch = panel_width(w, panel);
    for (i64 row = 0; row < b.size[0] * b.size[1]; ++row, dy += b.size[2] * pitch)
      for (i64 v = 0; v < pitch; v += L) {
        const i64 k = panel * WNV * L + v;
        const T *src = static_cast<const T *>(o.y) + b.image * o.ys[0] + (job.group * w.cout + k) * o.ys[1] +
                       (b.j[0] + row / b.size[1]) * o.ys[2] + (b.j[1] + row % b.size[1]) * o.ys[3] + b.j[2] * o.ys[4];
        transpose_row(dy + v, pitch, src, o.ys[1], o.ys[4], imin(L, w.cout - k), b.size[2]);
      }
  }
}

// One box: the input channels [c, c + block) against the panels of the job.
template <class T>
static void wgrad_block(const WgradPlan<T> &w, const Operands &o, const Box &b, const WgradJob &job, i64 c, const int *off, T *X, const T *dy, T *sums, bool add) {
  constexpr i64 L = Vec<T>::lanes;
  const i64 channels = imin(w.block, job.c1 - c), rows = channels * w.taps, all_rows = w.cin * w.taps;
  const T *x = static_cast<const T *>(o.x) + b.image * o.xs[0] + (job.group * w.cin + c) * o.xs[1];
  fill_tile(X, w.ax, w.tile, x, o.xs, channels, b.j, b.size);
  const i64 pitch[2] = {w.tile.p[1] * w.tile.p[2], w.tile.p[2]}, positions = volume(b.size);
  for (i64 panel = job.panel0; panel < job.panel1; ++panel) {
    const i64 width = panel_width(w, panel);
    T *acc = sums + (job.group * w.lanes + panel * WNV * L) * all_rows + c * w.taps * width;
    for (i64 r = 0; r < rows; r += WMR)
      wgrad_micro_of<T, WMR>(imin(WMR, rows - r), width / L)(b.size, pitch, X, off + r, dy, acc + r * width, add);
    dy += positions * width;
  }
}

// Writes w = old + sums for output channels [k, k + channels) of group g and input channel c;
// sums of (channel k + i, row) at sum[row * row_step + i * k_step].
template <class T>
static void store_weights(const Problem &p, const Operands &o, const WgradPlan<T> &w, i64 g, i64 k, i64 channels, i64 c, const T *sum, i64 row_step, i64 k_step) {
  for (i64 i = 0; i < channels; ++i) {
    T *q = static_cast<T *>(o.w) + (g * w.cout + k + i) * o.ws[0] + c * o.ws[1];
    const T *s = sum + c * w.taps * row_step + i * k_step;
    for (i64 t0 = 0; t0 < p.f[0]; ++t0)
      for (i64 t1 = 0; t1 < p.f[1]; ++t1)
        for (i64 t2 = 0; t2 < p.f[2]; ++t2, s += row_step) {
          T &to = q[t0 * o.ws[2] + t1 * o.ws[3] + t2 * o.ws[4]];
          to = o.accumulate ? to + *s : *s;
        }
  }
}

template <class T>
static void run_wgrad_job(const Problem &p, const Operands &o, const WgradPlan<T> &w, const WgradJob &job, const int *off, T *X, T *dy, T *sums) {
  constexpr i64 L = Vec<T>::lanes;
  const i64 boxes = p.n * volume(w.tiles);
  for (i64 box = 0; box < boxes; ++box) {
    const Box b = wgrad_box(w, box);
    transpose_dy(w, o, b, job, dy);
    for (i64 c = job.c0; c < job.c1; c += w.block) wgrad_block(w, o, b, job, c, off, X, dy, sums, box > 0);
  }
  for (i64 panel = job.panel0; panel < job.panel1; ++panel)
    for (i64 c = job.c0; c < job.c1; ++c) {  // the sums of a panel and a channel fit the first-level cache
      const i64 k = panel * WNV * L, width = panel_width(w, panel);
      const T *sum = sums + (job.group * w.lanes + k) * w.cin * w.taps;
      store_weights(p, o, w, job.group, k, imin(width, w.cout - k), c, sum, width, 1);
    }
}

// All output channels of one group against a block of its input channels, one box.
template <class T>
static void dots_unit(const WgradPlan<T> &w, const Operands &o, const Box &b, i64 g, i64 c, const int *off, T *X, T *dy, T *sums, bool add) {
  const i64 channels = imin(w.block, w.cin - c), rows = channels * w.taps, all_rows = w.cin * w.taps;
  fill_tile(X, w.ax, w.tile, static_cast<const T *>(o.x) + b.image * o.xs[0] + (g * w.cin + c) * o.xs[1], o.xs, channels, b.j, b.size);
  const i64 pitch[2] = {w.tile.p[1] * w.tile.p[2], w.tile.p[2]}, dy_pitch = round_up(b.size[2], Vec<T>::lanes);
  for (i64 k = 0; k < w.cout; ++k) {
    const T *src = static_cast<const T *>(o.y) + b.image * o.ys[0] + (g * w.cout + k) * o.ys[1];
    for (i64 row = 0; row < b.size[0] * b.size[1]; ++row)
      copy_channels(dy + row * dy_pitch, 0, src + (b.j[0] + row / b.size[1]) * o.ys[2] + (b.j[1] + row % b.size[1]) * o.ys[3] + b.j[2] * o.ys[4],
                    0, 1, dy_pitch, Range{0, b.size[2]}, o.ys[4]);
    T *acc = sums + (g * w.cout + k) * all_rows + c * w.taps;
    for (i64 r = 0; r < rows; r += DOTS)
      dots_rows<T, DOTS>(imin(DOTS, rows - r), b.size, pitch, X, off + r, dy, dy_pitch, acc + r, add);
  }
}

// The dots of one block of input channels of one group.
template <class T>
static void run_dots_job(const Problem &p, const Operands &o, const WgradPlan<T> &w, i64 g, i64 c0, const int *off, T *X, T *dy, T *sums) {
  const i64 boxes = p.n * volume(w.tiles), step = w.cin * w.taps;
  for (i64 box = 0; box < boxes; ++box) dots_unit(w, o, wgrad_box(w, box), g, c0, off, X, dy, sums, box > 0);
  for (i64 c = c0; c < imin(w.cin, c0 + w.block); ++c) store_weights(p, o, w, g, 0, w.cout, c, sums + g * w.cout * step, 1, step);
}

template <class T>
static void run_wgrad(const Problem &p, const Operands &o, WgradPlan<T> w) {
  const int threads = team_for<T>(total_work(p), p.threads);
  split_jobs(w, threads);
  char *at = static_cast<char *>(o.workspace);
  T *sums = reinterpret_cast<T *>(at);
  int *off = reinterpret_cast<int *>(at + w.sums_bytes);
  at += w.sums_bytes + w.offset_bytes;
  fill_offsets(off, w.ax, w.tile, w.block);
  const i64 blocks = ceil_div(w.cin, w.block), jobs = w.groups * (w.dots ? blocks : w.csplit * w.ksplit);
  const int team = int(imin(threads, jobs));
  (void)team;
#ifdef _OPENMP
#pragma omp parallel num_threads(team) if (team > 1)
#endif
  {
#ifdef _OPENMP
    char *mine = at + omp_get_thread_num() * (w.x_bytes + w.dy_bytes);
#else
    char *mine = at;
#endif
    T *X = reinterpret_cast<T *>(mine), *dy = reinterpret_cast<T *>(mine + w.x_bytes);
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 1)
#endif
    for (i64 i = 0; i < jobs; ++i) {
      if (w.dots)
        run_dots_job(p, o, w, i / blocks, i % blocks * w.block, off, X, dy, sums);
      else
        run_wgrad_job(p, o, w, wgrad_job(w, i), off, X, dy, sums);
    }
  }
}

// Decided by the filter alone.
static bool halo_too_large(const Problem &p) {
  Axis a[3];
  for (int d = 0; d < 3; ++d) a[d] = forward_axis(p, d);
  double bytes = double(dtype_size(p)) * phases_of(a);
  for (int d = 0; d < 3; ++d) bytes *= 1 + a[d].ext;
  return bytes > MAX_HALO_BYTES;
}

// Wanted at most: with parts of the weights in this much, larger ones gain nothing measurable.
constexpr i64 WGRAD_THREAD_BYTES = 512 << 10;
constexpr i64 MAX_SHRINK = 32;  // of the buffers of the smallest parts

// The largest buffers that fit; total = 0 if none do.
template <class T>
static WgradPlan<T> fitting_plan(const Problem &p, i64 bytes, i64 most = 8) {
  for (i64 shrink = 1; shrink <= most; shrink *= 2) {
    const WgradPlan<T> w = wgrad_plan<T>(p, shrink);
    if (w.total <= bytes) return w;
  }
  return WgradPlan<T>{};
}

// Two problems with half of the weights each: groups, or the larger of input and output channels,
// while there are whole register blocks to share out. False if there is nothing to halve.
template <class T>
static bool halve(const Problem &p, const Operands &o, Problem *part, Operands *operands) {
  const i64 panel = WNV * Vec<T>::lanes, least = WMR / gcd(volume(p.f), WMR), cin = p.c / p.groups, cout = p.k / p.groups;
  i64 c = p.c, k = p.k;  // of the first part
  part[0] = part[1] = p, operands[0] = operands[1] = o;
  if (p.groups > 1) {
    part[0].groups = ceil_div(p.groups, 2), part[1].groups = p.groups - part[0].groups;
    c = part[0].groups * cin, k = part[0].groups * cout;
  } else if (cout > panel && (cout >= cin || cin <= least)) {
    k = round_up(ceil_div(cout, 2), panel);
  } else if (cin > least) {
    c = round_up(ceil_div(cin, 2), least);
  } else {
    return false;
  }
  part[0].c = c, part[0].k = k;
  Operands &second = operands[1];
  if (c < p.c) part[1].c = p.c - c, second.x = static_cast<T *>(o.x) + c * o.xs[1];
  if (k < p.k) part[1].k = p.k - k, second.y = static_cast<T *>(o.y) + k * o.ys[1];
  second.w = static_cast<T *>(o.w) + (k < p.k ? k * o.ws[0] : c * o.ws[1]);
  return true;
}

// Whether all weights, or parts of them one after the other, fit.
template <class T>
static bool some_parts_fit(const Problem &p, i64 bytes) {
  if (fitting_plan<T>(p, bytes).total) return true;
  Problem part[2];
  Operands none[2];
  return halve<T>(p, Operands{}, part, none) ? some_parts_fit<T>(part[0], bytes) : fitting_plan<T>(p, bytes, MAX_SHRINK).total > 0;
}

// Threads take the parts as they come. No barriers: where other processes want the cores, each
// may cost a time slice.
struct Turn {
  i64 part, mine;  // the next part met, the one to compute
  i64 *next;       // the first that nobody has taken
  void take() {
#ifdef _OPENMP
#pragma omp atomic capture
#endif
    mine = (*next)++;
  }
};

template <class T>
static void wgrad_parts(const Problem &p, const Operands &o, Turn &turn) {
  WgradPlan<T> w = fitting_plan<T>(p, o.workspace_bytes);
  Problem part[2];
  Operands operands[2];
  if (!w.total && halve<T>(p, o, part, operands)) {
    for (int i = 0; i < 2; ++i) wgrad_parts<T>(part[i], operands[i], turn);
    return;
  }
  if (turn.part++ != turn.mine) return;
  if (!w.total) w = fitting_plan<T>(p, o.workspace_bytes, MAX_SHRINK);
  if (w.total)
    run_wgrad(p, o, w);
  else
    ordered_wgrad<T>(p, o);
  turn.take();
}

// All at once if each thread's share of the workspace would do for a thread alone, else in parts of
// a thread each: either way the tiles, and with them the bits, depend on that share alone.
template <class T>
static void conv_wgrad(const Problem &p, const Operands &o) {
  const i64 share = o.workspace_bytes / p.threads / 64 * 64;
  Problem alone = p;
  alone.threads = 1;
  if (p.n * volume(p.y) == 0 || halo_too_large(p) || takes_lanes(p, o) || !some_parts_fit<T>(alone, share)) return ordered_wgrad<T>(p, o);
  for (i64 shrink = 1; shrink <= 8; shrink *= 2)
    if (wgrad_plan<T>(alone, shrink).total <= share) return run_wgrad(p, o, wgrad_plan<T>(p, shrink));
  i64 next = 0;
  const int team = team_for<T>(total_work(p), p.threads);
  (void)team;
#ifdef _OPENMP
#pragma omp parallel num_threads(team) if (team > 1)
#endif
  {
    Operands mine = o;
    mine.workspace_bytes = share;
#ifdef _OPENMP
    mine.workspace = static_cast<char *>(o.workspace) + omp_get_thread_num() * share;
#endif
    Turn turn{0, 0, &next};
    turn.take();
    wgrad_parts<T>(alone, mine, turn);
  }
}

// ---------------------------------------------------------------------------- entry points

template <class T>
static Workspace workspace_of(const Problem &p) {
  if (tiny(p) || too_many_residues(p)) return {0, 0};
  if (p.pass == Pass::wgrad) {
    if (halo_too_large(p)) return {0, 0};
    Problem alone = p;
    alone.threads = 1;
    const i64 whole = wgrad_plan<T>(alone, 1).total;
    return {0, p.threads * (some_parts_fit<T>(alone, WGRAD_THREAD_BYTES) ? imin(whole, WGRAD_THREAD_BYTES) : whole)};
  }
  const GatherNeed need = gather_need<T>(p);
  return {need.packed, need.offsets + p.threads * need.thread};
}

static Workspace workspace(const Problem &p) {
  return p.dtype == Dtype::f32 ? workspace_of<float>(p) : workspace_of<double>(p);
}

template <class T>
static void run_as(const Problem &p, const Operands &o) {
  if (p.pass == Pass::wgrad)
    conv_wgrad<T>(p, o);
  else
    conv_gather<T>(p, o);
}

static void run(const Problem &p, const Operands &o) {
  if (p.dtype == Dtype::f32)
    run_as<float>(p, o);
  else
    run_as<double>(p, o);
}

#undef OOC_FMA_F32
#undef OOC_FMA_F64
#undef OOC_INLINE
