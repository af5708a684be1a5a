// Kernels of the CUDA backend for everything that cuDNN does not compute, and for what it refuses. Compiled at run time,
// once per element type (OOC_TYPE: 0 f64, 1 f32, 2 f16, 3 bf16), with no header; compiled for the host as well, by the
// tests, with the few macros of tests/emulation.cpp.
//
// Every kernel takes one Args by value. A tensor is a block: a region of a tensor of the op, seen as (n, channel, d, h, w),
// with the coordinates of its first element in the whole tensor. Kernels compute with coordinates of whole tensors only, so
// a tile, its halo and its padding need no arithmetic of their own: outside a block lies padding. An axis along which the
// whole tensor has extent 1 has stride 0: any coordinate reads the same element.
//
// One thread computes one result, from its own terms in their own order: no shared memory, no barrier, no atomics. A sum goes
// on from the partial sum of the tiles before, term by term, so its bits do not depend on where it was split.

typedef long long i64;
typedef unsigned long long u64;

struct Tensor {
  void* data;  // null where an op lacks this operand
  i64 stride[5], lo[5], extent[5];
};

struct Args {
  Tensor t[8];  // t[6] is the partial sum of an op that has one, t[7] the scratch of a sum in parts
  double real[8];
  i64 whole[32];
  i64 first, last;  // where the tile stands in its reduction
};

#ifndef OOC_TYPE
#define OOC_TYPE 1
#endif
#ifndef DEVICE
#define DEVICE static __device__ __forceinline__
#define KERNEL(name) extern "C" __global__ void name(const Args a)
#define THREAD ((i64)blockIdx.x * blockDim.x + threadIdx.x)
#define THREADS ((i64)gridDim.x * blockDim.x)
#define VISIT(t, axis, x)          // the tests look whether a coordinate lies inside its block
#define TIMES(a, b) __dmul_rn(a, b)  // never contracted with an addition: must round as the host does
#endif
#define ACC a.t[6]
#define SCRATCH a.t[7]
#define PARTS a.whole[31]

// ---- element types: E is stored, C is computed with

DEVICE float float_of_bits(unsigned int u) { union { float f; unsigned int u; } v; v.u = u; return v.f; }

#if OOC_TYPE == 0
typedef double E;
typedef double C;
DEVICE C widen(E v) { return v; }
DEVICE E narrow(C v) { return v; }
#elif OOC_TYPE == 1
typedef float E;
typedef float C;
DEVICE C widen(E v) { return v; }
DEVICE E narrow(C v) { return v; }
#else
struct E { unsigned short bits; };
typedef float C;
DEVICE unsigned int bits_of_float(float f) { union { float f; unsigned int u; } v; v.f = f; return v.u; }
#if OOC_TYPE == 2
// Exact both ways; rounds to nearest even. Integer arithmetic, so that host and device give the same bits.
DEVICE C widen(E v) {
  const unsigned int sign = (v.bits & 0x8000u) << 16, mantissa = v.bits & 0x3ffu, exponent = (v.bits >> 10) & 31u;
  if (exponent == 31) return float_of_bits(sign | 0x7f800000u | (mantissa << 13));
  if (exponent) return float_of_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float small = (float)mantissa * 5.9604644775390625e-8f;  // 2^-24
  return sign ? -small : small;
}
DEVICE E narrow(C f) {
  const unsigned int u = bits_of_float(f), sign = (u >> 16) & 0x8000u, x = u & 0x7fffffffu;
  E out;
  if (x >= 0x7f800000u) out.bits = sign | (x > 0x7f800000u ? 0x7e00u : 0x7c00u);
  else if (x >= 0x477ff000u) out.bits = sign | 0x7c00u;
  else if (x >= 0x38800000u) out.bits = sign | ((x - 0x38000000u + 0xfffu + ((x >> 13) & 1)) >> 13);
  else {
    const float scaled = float_of_bits(x) + 0.5f;  // the addition rounds to multiples of 2^-24
    out.bits = sign | (bits_of_float(scaled) - 0x3f000000u);
  }
  return out;
}
#else
DEVICE C widen(E v) { return float_of_bits((unsigned int)v.bits << 16); }
DEVICE E narrow(C f) {
  const unsigned int u = bits_of_float(f);
  E out;
  out.bits = (u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u | ((u >> 16) & 0x8000u) : (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
  return out;
}
#endif
#endif

// ---- coordinates

struct At { i64 x[5]; };

// The coordinates of the i-th element of a block. Neighbours in i are neighbours in memory: the last axis is the fastest, or
// the channels where they lie together.
DEVICE At element(const Tensor& t, i64 i) {
  const bool together = t.stride[1] == 1;
  At at;
  if (together) {
    at.x[1] = t.lo[1] + i % t.extent[1];
    i /= t.extent[1];
  }
  for (int axis = 4; axis >= 0; --axis) {
    if (axis == 1 && together) continue;
    at.x[axis] = t.lo[axis] + i % t.extent[axis];
    i /= t.extent[axis];
  }
  return at;
}

DEVICE i64 elements(const Tensor& t) { return t.extent[0] * t.extent[1] * t.extent[2] * t.extent[3] * t.extent[4]; }

DEVICE i64 offset(const Tensor& t, i64 n, i64 k, i64 d, i64 h, i64 w) {
  VISIT(t, 0, n) VISIT(t, 1, k) VISIT(t, 2, d) VISIT(t, 3, h) VISIT(t, 4, w)
  return (n - t.lo[0]) * t.stride[0] + (k - t.lo[1]) * t.stride[1] + (d - t.lo[2]) * t.stride[2] + (h - t.lo[3]) * t.stride[3] +
         (w - t.lo[4]) * t.stride[4];
}

DEVICE i64 offset(const Tensor& t, const At& at) { return offset(t, at.x[0], at.x[1], at.x[2], at.x[3], at.x[4]); }

// One of several rows of values that stand along an axis of their own.
DEVICE i64 row(const Tensor& t, int axis, i64 which, At at) {
  at.x[axis] = which;
  return offset(t, at);
}

DEVICE bool inside(const Tensor& t, int axis, i64 x) { return x >= t.lo[axis] && x < t.lo[axis] + t.extent[axis]; }

template <class V> DEVICE V& value(const Tensor& t, i64 at) { return ((V*)t.data)[at]; }

DEVICE C load(const Tensor& t, i64 at) { return widen(value<E>(t, at)); }
DEVICE C load(const Tensor& t, const At& at) { return load(t, offset(t, at)); }
DEVICE double& exact(const Tensor& t, const At& at) { return value<double>(t, offset(t, at)); }  // of an f64 operand
DEVICE C& wide(const Tensor& t, const At& at) { return value<C>(t, offset(t, at)); }            // of one of the computed type
DEVICE C bias(const Tensor& b, const At& at) { return value<C>(b, offset(b, 0, at.x[1], 0, 0, 0)); }
DEVICE void store(const Tensor& t, const At& at, C v) { value<E>(t, offset(t, at)) = narrow(v); }

// The coordinates of every element of a block that falls to this thread.
#define EACH(at, t) \
  At at;            \
  for (i64 i = THREAD, count = elements(t); i < count && (at = element(t, i), true); i += THREADS)

// ---- activations: codes and meaning as in ooc/ops/activation.py

DEVICE C activate(i64 act, C coef, C z) {
  switch (act) {
    case 1: return z < 0 ? (C)0 : z;                                         // relu
    case 2: z = z < 0 ? (C)0 : z; return z > coef ? coef : z;                // clipped_relu
    case 3: return z > 0 ? z : coef * (C)expm1((double)z);                   // elu
    case 4: return z > 0 ? z : coef * z;                                     // leaky_relu
    case 5: { C e = exp(z < 0 ? z : -z); return z >= 0 ? 1 / (1 + e) : e / (1 + e); }  // sigmoid
    case 6: return tanh(z);
    default: return z;
  }
}

// From the output y and its gradient dy. Where a unit is shut nothing passes, NaN and infinity included.
DEVICE C pull_back(i64 act, C coef, C y, C dy) {
  switch (act) {
    case 1: return y > 0 ? dy : (C)0;
    case 2: return y > 0 && y < coef ? dy : (C)0;
    case 3: return y > 0 ? dy : dy * (y + coef);
    case 4: return y > 0 ? dy : coef * dy;
    case 5: return dy * (y * (1 - y));
    case 6: return dy * (1 - y * y);
    default: return dy;
  }
}

// ---- sums of many terms: S is a sum, with as many values v of type V as rows of its partial sum. Its terms are those of a
// block along the axes whose bit in `summed` is 1, at the coordinate `pin` along the others. Each kernel comes twice: NAME
// takes the terms one after the other; where that leaves too few threads, NAME_parts first takes every PARTS-th of them in
// a thread of its own, and NAME joins the parts in their order.

// Some terms, in row-major order: every step-th from a start.
struct Walk { At at, by; i64 hi[5], extent[5], left; };

DEVICE Walk walk(const Tensor& t, i64 summed, const At& pin, i64 start, i64 step) {
  Walk w;
  i64 count = 1;
  for (int axis = 0; axis < 5; ++axis) {
    const bool sums = summed >> axis & 1;
    w.extent[axis] = sums ? t.extent[axis] : 1;
    w.at.x[axis] = sums ? t.lo[axis] : pin.x[axis];
    w.hi[axis] = w.at.x[axis] + w.extent[axis];
    count *= w.extent[axis];
  }
  w.left = start < count ? (count - start + step - 1) / step : 0;
  for (int axis = 4; axis >= 0 && w.left; --axis) {  // numbers of terms as digits, one per axis: steps need no division
    w.at.x[axis] += start % w.extent[axis];
    w.by.x[axis] = step % w.extent[axis];
    start /= w.extent[axis];
    step /= w.extent[axis];
  }
  return w;
}

DEVICE void advance(Walk& w) {
  i64 carry = 0;
  for (int axis = 4; axis >= 0; --axis) {
    w.at.x[axis] += w.by.x[axis] + carry;
    carry = w.at.x[axis] >= w.hi[axis];
    if (carry) w.at.x[axis] -= w.extent[axis];
  }
  --w.left;
}

template <class S> DEVICE void take_parts(const Args& a, const Tensor& terms, const Tensor& made) {
  const i64 results = elements(made), parts = PARTS;
  const bool together = terms.stride[1] == 1;  // neighbouring threads read neighbouring terms
  for (i64 i = THREAD; i < results * parts; i += THREADS) {
    const i64 result = together ? i % results : i / parts, part = together ? i / results : i % parts;
    const At at = element(made, result);
    S sum = begin(a, at, (S*)0);
    for (Walk w = walk(terms, sum.summed, sum.pin, part, parts); w.left; advance(w)) add(a, at, w.at, sum);
    for (int r = 0; r < S::rows; ++r) ((typename S::V*)SCRATCH.data)[(result * parts + part) * S::rows + r] = sum.v[r];
  }
}

template <class S> DEVICE void join(const typename S::V* part, S& sum) {
  for (int r = 0; r < S::rows; ++r) sum.v[r] += part[r];
}

template <class S> DEVICE typename S::V& partial(const Args& a, const At& at, int r) {
  return value<typename S::V>(ACC, S::rows > 1 ? row(ACC, 0, r, at) : offset(ACC, at));
}

template <class S> DEVICE void take(const Args& a, const Tensor& terms, const Tensor& made) {
  EACH(at, made) {
    S sum = begin(a, at, (S*)0);
    if (!a.first && ACC.data)
      for (int r = 0; r < S::rows; ++r) sum.v[r] = partial<S>(a, at, r);
    if (PARTS > 1) {
      const typename S::V* parts = (typename S::V*)SCRATCH.data + i * PARTS * S::rows;
      for (i64 part = 0; part < PARTS; ++part) join(parts + part * S::rows, sum);
    } else {
      for (Walk w = walk(terms, sum.summed, sum.pin, 0, 1); w.left; advance(w)) add(a, at, w.at, sum);
    }
    if (a.last) finish(a, at, sum);
    else
      for (int r = 0; r < S::rows; ++r) partial<S>(a, at, r) = sum.v[r];
  }
}

#define SUM(name, S, terms, made)                              \
  KERNEL(name##_parts) { take_parts<S>(a, a.t[terms], a.t[made]); } \
  KERNEL(name) { take<S>(a, a.t[terms], a.t[made]); }

// ---- convolution: t = x w y b (dgrad: dy w dx b; wgrad: x dy dw); whole = stride(3) dilation(3) pad(3) channels of x per
// group, of y per group, act; real = coef. Sums go over channels, then taps; of wgrad over n, then positions.

struct Convolution {
  const i64 *stride, *dilation, *pad;
  i64 c, k, act;
};

DEVICE Convolution convolution(const Args& a) {
  return Convolution{a.whole, a.whole + 3, a.whole + 6, a.whole[9], a.whole[10], a.whole[11]};
}

// Where a sum starts and where it goes; the partial sum is the result itself where that has the computed type.
DEVICE C start(const Args& a, const At& at) { return a.first || !ACC.data ? (C)0 : wide(ACC, at); }

DEVICE void end(const Args& a, const At& at, C sum) {
  const Tensor& b = a.t[3];
  if (!a.last) wide(ACC, at) = sum;
  else store(a.t[2], at, activate(a.whole[11], a.real[0], b.data ? sum + bias(b, at) : sum));
}

KERNEL(conv_fprop) {
  const Tensor &x = a.t[0], &w = a.t[1], &y = a.t[2];
  const Convolution v = convolution(a);
  EACH(at, y) {
    const i64 k = at.x[1], group = k / v.k;
    C sum = start(a, at);
    for (i64 c = w.lo[1]; c < w.lo[1] + w.extent[1]; ++c)
      for (i64 t = 0; t < w.extent[2]; ++t) {
        const i64 d = at.x[2] * v.stride[0] + t * v.dilation[0] - v.pad[0];
        if (!inside(x, 2, d)) continue;
        for (i64 r = 0; r < w.extent[3]; ++r) {
          const i64 h = at.x[3] * v.stride[1] + r * v.dilation[1] - v.pad[1];
          if (!inside(x, 3, h)) continue;
          for (i64 s = 0; s < w.extent[4]; ++s) {
            const i64 u = at.x[4] * v.stride[2] + s * v.dilation[2] - v.pad[2];
            if (inside(x, 4, u)) sum += load(x, offset(x, at.x[0], group * v.c + c, d, h, u)) * load(w, offset(w, k, c, t, r, s));
          }
        }
      }
    end(a, at, sum);
  }
}

// Whether `to` is a multiple of a stride that lies in a block, as the window at that position: then `to` becomes its number.
DEVICE bool window(const Tensor& t, int axis, i64 stride, i64& to) {
  if (to < 0 || to % stride) return false;
  to /= stride;
  return inside(t, axis, to);
}

KERNEL(conv_dgrad) {
  const Tensor &dy = a.t[0], &w = a.t[1], &dx = a.t[2];
  const Convolution v = convolution(a);
  EACH(at, dx) {
    const i64 group = at.x[1] / v.c, c = at.x[1] % v.c;
    // A block of several groups has the filters of all of them.
    const i64 lo = w.lo[0] > group * v.k ? w.lo[0] : group * v.k, end_w = w.lo[0] + w.extent[0], end_g = (group + 1) * v.k;
    C sum = start(a, at);
    for (i64 k = lo; k < (end_w < end_g ? end_w : end_g); ++k)
      for (i64 t = 0; t < w.extent[2]; ++t) {
        i64 d = at.x[2] + v.pad[0] - t * v.dilation[0];
        if (!window(dy, 2, v.stride[0], d)) continue;
        for (i64 r = 0; r < w.extent[3]; ++r) {
          i64 h = at.x[3] + v.pad[1] - r * v.dilation[1];
          if (!window(dy, 3, v.stride[1], h)) continue;
          for (i64 s = 0; s < w.extent[4]; ++s) {
            i64 u = at.x[4] + v.pad[2] - s * v.dilation[2];
            if (window(dy, 4, v.stride[2], u)) sum += load(dy, offset(dy, at.x[0], k, d, h, u)) * load(w, offset(w, k, c, t, r, s));
          }
        }
      }
    end(a, at, sum);
  }
}

struct FilterGradient { typedef C V; enum { rows = 1 }; At pin; i64 summed; V v[1]; };

DEVICE FilterGradient begin(const Args&, const At& at, FilterGradient*) {
  return FilterGradient{{{0, at.x[0], 0, 0, 0}}, 1 | 4 | 8 | 16, {0}};  // over n and positions
}
DEVICE void add(const Args& a, const At& at, const At& y, FilterGradient& sum) {
  const Tensor &x = a.t[0], &dy = a.t[1];
  const Convolution v = convolution(a);
  At from;
  from.x[0] = y.x[0];
  from.x[1] = at.x[0] / v.k * v.c + at.x[1];
  for (int s = 0; s < 3; ++s) {
    from.x[s + 2] = y.x[s + 2] * v.stride[s] + at.x[s + 2] * v.dilation[s] - v.pad[s];
    if (!inside(x, s + 2, from.x[s + 2])) return;
  }
  sum.v[0] += load(x, from) * load(dy, y);
}
DEVICE void finish(const Args& a, const At& at, const FilterGradient& sum) { store(a.t[2], at, sum.v[0]); }

SUM(conv_wgrad, FilterGradient, 1, 2)

// ---- pooling: t = x y; whole = window(3) stride(3) pad(3) extent of x(3) how (0 max, 1 average, 2 average of what counts)

// The window that starts at given positions of x, its places numbered in row-major order: the sum of what lies inside, and the
// place of its first maximum, NaN being the largest.
struct Window { C sum, best; i64 first, count; };

DEVICE Window look(const Args& a, const Tensor& x, i64 n, i64 k, i64 d, i64 h, i64 w) {
  Window found = {0, 0, -1, 0};
  for (i64 t = 0; t < a.whole[0]; ++t) {
    if (!inside(x, 2, d + t)) continue;
    for (i64 r = 0; r < a.whole[1]; ++r) {
      if (!inside(x, 3, h + r)) continue;
      for (i64 s = 0; s < a.whole[2]; ++s) {
        if (!inside(x, 4, w + s)) continue;
        const C v = load(x, offset(x, n, k, d + t, h + r, w + s));
        if (found.first < 0 || v > found.best || (v != v && found.best == found.best)) {
          found.best = v;
          found.first = (t * a.whole[1] + r) * a.whole[2] + s;
        }
        found.sum += v;
        ++found.count;
      }
    }
  }
  return found;
}

KERNEL(pool) {
  const Tensor &x = a.t[0], &y = a.t[1];
  const i64 *stride = a.whole + 3, *pad = a.whole + 6, how = a.whole[12], all = a.whole[0] * a.whole[1] * a.whole[2];
  EACH(at, y) {
    const Window v = look(a, x, at.x[0], at.x[1], at.x[2] * stride[0] - pad[0], at.x[3] * stride[1] - pad[1],
                          at.x[4] * stride[2] - pad[2]);
    store(y, at, how == 0 ? v.best : v.sum / (C)(how == 1 ? all : v.count > 1 ? v.count : 1));
  }
}

// How many positions of x a window that starts at `from` counts along an axis.
DEVICE i64 counted(const Args& a, int s, i64 from) {
  const i64 lo = from > 0 ? from : 0, hi = from + a.whole[s] < a.whole[9 + s] ? from + a.whole[s] : a.whole[9 + s];
  return hi - lo > 1 ? hi - lo : 1;
}

// t = x dy dx, without x for averages: of every window that has this position, the gradient or its share.
KERNEL(pool_backward) {
  const Tensor &x = a.t[0], &dy = a.t[1], &dx = a.t[2];
  const i64 *stride = a.whole + 3, *pad = a.whole + 6, how = a.whole[12], all = a.whole[0] * a.whole[1] * a.whole[2];
  EACH(at, dx) {
    C sum = 0;
    for (i64 t = 0; t < a.whole[0]; ++t) {
      i64 d = at.x[2] + pad[0] - t;
      if (!window(dy, 2, stride[0], d)) continue;
      for (i64 r = 0; r < a.whole[1]; ++r) {
        i64 h = at.x[3] + pad[1] - r;
        if (!window(dy, 3, stride[1], h)) continue;
        for (i64 s = 0; s < a.whole[2]; ++s) {
          i64 u = at.x[4] + pad[2] - s;
          if (!window(dy, 4, stride[2], u)) continue;
          const C v = load(dy, offset(dy, at.x[0], at.x[1], d, h, u));
          const i64 from[3] = {d * stride[0] - pad[0], h * stride[1] - pad[1], u * stride[2] - pad[2]};
          if (how == 1) sum += v / (C)all;
          else if (how == 2) sum += v / (C)(counted(a, 0, from[0]) * counted(a, 1, from[1]) * counted(a, 2, from[2]));
          else if (look(a, x, at.x[0], at.x[1], from[0], from[1], from[2]).first == (t * a.whole[1] + r) * a.whole[2] + s) sum += v;
        }
      }
    }
    store(dx, at, sum);
  }
}

// ---- element by element

// t = x z b y; whole = act, whether z counts; real = coef alpha beta.
KERNEL(pointwise) {
  const Tensor &x = a.t[0], &z = a.t[1], &b = a.t[2], &y = a.t[3];
  EACH(at, y) {
    C v = load(x, at) * (C)a.real[1];
    if (a.whole[1]) v += load(z, at) * (C)a.real[2];
    if (b.data) v += bias(b, at);
    store(y, at, activate(a.whole[0], a.real[0], v));
  }
}

// t = y dy dx; whole = act; real = coef.
KERNEL(activation_backward) {
  EACH(at, a.t[2]) store(a.t[2], at, pull_back(a.whole[0], a.real[0], load(a.t[0], at), load(a.t[1], at)));
}

// The 32-bit random word of an index: as random_words in ooc/ops/dropout.py.
DEVICE unsigned int philox(u64 index, u64 seed) {
  unsigned int word[4] = {(unsigned int)(index >> 2), (unsigned int)(index >> 34), 0, 0};
  unsigned int key[2] = {(unsigned int)seed, (unsigned int)(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const u64 left = (u64)0xD2511F53u * word[0], right = (u64)0xCD9E8D57u * word[2];
    word[0] = (unsigned int)(right >> 32) ^ word[1] ^ key[0];
    word[1] = (unsigned int)right;
    word[2] = (unsigned int)(left >> 32) ^ word[3] ^ key[1];
    word[3] = (unsigned int)left;
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return word[index & 3];
}

// t = x y; whole = extents of channels and positions(3), seed, the words from which on an element is kept; real = scale.
KERNEL(dropout) {
  EACH(at, a.t[1]) {
    u64 index = at.x[0];
    for (int axis = 1; axis < 5; ++axis) index = index * a.whole[axis - 1] + at.x[axis];
    const bool kept = philox(index, (u64)a.whole[4]) >= (u64)a.whole[5];
    store(a.t[1], at, kept ? load(a.t[0], at) * (C)a.real[0] : (C)0);
  }
}

// ---- sums over a batch, in f64. whole = bits of the summed axes.

struct Sum { typedef double V; enum { rows = 1 }; At pin; i64 summed; V v[1]; };

// reduce: t = x y; whole = summed axes, whether y has the computed type; real = alpha.
DEVICE Sum begin(const Args& a, const At& at, Sum*) { return Sum{at, a.whole[0], {0}}; }
DEVICE void add(const Args& a, const At&, const At& x, Sum& sum) { sum.v[0] += a.real[0] * load(a.t[0], x); }
DEVICE void finish(const Args& a, const At& at, const Sum& sum) {
  if (a.whole[1]) wide(a.t[1], at) = (C)sum.v[0];
  else store(a.t[1], at, (C)sum.v[0]);
}

SUM(reduce, Sum, 0, 1)

// bn_moments: t = x mean var; real = values behind each. v = count, mean, sum of squared deviations (Welford; Chan et al.).
struct Moments { typedef double V; enum { rows = 3 }; At pin; i64 summed; V v[3]; };

DEVICE Moments begin(const Args& a, const At& at, Moments*) { return Moments{at, a.whole[0], {0, 0, 0}}; }
DEVICE void add(const Args& a, const At&, const At& x, Moments& sum) {
  const double term = load(a.t[0], x), shift = term - sum.v[1];
  sum.v[0] += 1;
  sum.v[1] += shift / sum.v[0];
  sum.v[2] += shift * (term - sum.v[1]);
}
DEVICE void join(const double* part, Moments& sum) {
  if (part[0] == 0) return;
  const double total = sum.v[0] + part[0], shift = part[1] - sum.v[1];
  sum.v[1] += shift * part[0] / total;
  sum.v[2] += part[2] + shift * shift * sum.v[0] * part[0] / total;
  sum.v[0] = total;
}
DEVICE void finish(const Args& a, const At& at, const Moments& sum) {
  exact(a.t[1], at) = sum.v[1];
  exact(a.t[2], at) = sum.v[2] / a.real[0];
}

SUM(bn_moments, Moments, 0, 1)

// bn_sums: t = x dy mean var dscale db; real = eps. v = dscale, db.
struct NormSums { typedef double V; enum { rows = 2 }; At pin; i64 summed; V v[2], mean, rstd; };

DEVICE NormSums begin(const Args& a, const At& at, NormSums*) {
  return NormSums{at, a.whole[0], {0, 0}, exact(a.t[2], at), 1 / sqrt(exact(a.t[3], at) + a.real[0])};
}
DEVICE void add(const Args& a, const At&, const At& x, NormSums& sum) {
  const double dy = load(a.t[1], x);
  sum.v[0] += dy * ((load(a.t[0], x) - sum.mean) * sum.rstd);
  sum.v[1] += dy;
}
DEVICE void finish(const Args& a, const At& at, const NormSums& sum) {
  exact(a.t[4], at) = sum.v[0];
  exact(a.t[5], at) = sum.v[1];
}

SUM(bn_sums, NormSums, 0, 4)

// t = x mean var scale b y; whole = act; real = coef eps.
KERNEL(bn_apply) {
  const Tensor& y = a.t[5];
  EACH(at, y) {
    const C factor = (C)(exact(a.t[3], at) / sqrt(exact(a.t[2], at) + a.real[1]));
    const C z = (load(a.t[0], at) - (C)exact(a.t[1], at)) * factor + (C)exact(a.t[4], at);
    store(y, at, activate(a.whole[0], a.real[0], z));
  }
}

// t = x dy mean var scale dscale db dx; real = eps, values behind each statistic.
KERNEL(bn_pull) {
  EACH(at, a.t[7]) {
    const double rstd = 1 / sqrt(exact(a.t[3], at) + a.real[0]), unit = (load(a.t[0], at) - exact(a.t[2], at)) * rstd;
    const double spread = (exact(a.t[6], at) + unit * exact(a.t[5], at)) / a.real[1];
    store(a.t[7], at, (C)(exact(a.t[4], at) * rstd * (load(a.t[1], at) - spread)));
  }
}

// ---- softmax over channels and its loss, in f64: a thread goes along the channels of a position

#define CHANNELS(t, at) for (at.x[1] = t.lo[1]; at.x[1] < t.lo[1] + t.extent[1]; ++at.x[1])

DEVICE double start_exact(const Args& a, const At& at) { return a.first || !ACC.data ? 0.0 : exact(ACC, at); }

// t = x lse; the partial sum has the largest value so far, and the sum of exponentials relative to it.
KERNEL(softmax_sum) {
  const Tensor &x = a.t[0], &lse = a.t[1];
  const double lowest = -(double)float_of_bits(0x7f800000u);
  EACH(made, lse) {
    At at = made;
    const bool begun = !a.first && ACC.data;
    double top = begun ? value<double>(ACC, row(ACC, 1, 0, at)) : lowest, sum = begun ? value<double>(ACC, row(ACC, 1, 1, at)) : 0;
    CHANNELS(x, at) {
      const double v = load(x, at);
      if (v > top) {
        sum = (sum > 0 ? sum * exp(top - v) : sum) + (1 + (v - v));  // +inf has no sum: NaN
        top = v;
      } else if (v != lowest) {
        sum += exp(v - top);
      }
    }
    if (a.last) {
      exact(lse, made) = top + log(sum);
    } else {
      value<double>(ACC, row(ACC, 1, 0, made)) = top;
      value<double>(ACC, row(ACC, 1, 1, made)) = sum;
    }
  }
}

// t = x lse y; whole = whether the logarithm is wanted, here and below.
KERNEL(softmax) {
  EACH(at, a.t[2]) {
    const double z = load(a.t[0], at) - exact(a.t[1], at);
    store(a.t[2], at, (C)(a.whole[0] ? z : exp(z)));
  }
}

// t = dy y s: s = sum of y * dy, or of dy alone where there is no y.
KERNEL(softmax_dot) {
  const Tensor &dy = a.t[0], &y = a.t[1], &s = a.t[2];
  EACH(made, s) {
    At at = made;
    double sum = start_exact(a, made);
    CHANNELS(dy, at) sum += y.data ? (double)load(dy, at) * load(y, at) : (double)load(dy, at);
    const Tensor& to = a.last ? s : ACC;
    exact(to, made) = sum;
  }
}

// t = y dy s dx
KERNEL(softmax_pull) {
  EACH(at, a.t[3]) {
    const double y = load(a.t[0], at), dy = load(a.t[1], at), s = exact(a.t[2], at);
    store(a.t[3], at, (C)(a.whole[0] ? dy - exp(y) * s : y * (dy - s)));
  }
}

// t = x labels lse loss; a negative label leaves its position out.
KERNEL(cross_entropy) {
  const Tensor &x = a.t[0], &labels = a.t[1], &loss = a.t[3];
  EACH(made, loss) {
    At at = made;
    double sum = start_exact(a, made);
    at.x[1] = value<i64>(labels, offset(labels, made));
    if (inside(x, 1, at.x[1])) sum += exact(a.t[2], made) - load(x, at);
    if (a.last) wide(loss, made) = (C)sum;
    else exact(ACC, made) = sum;
  }
}

// t = x labels lse dloss dx
KERNEL(cross_entropy_backward) {
  const Tensor &dloss = a.t[3], &dx = a.t[4];
  EACH(at, dx) {
    const i64 label = value<i64>(a.t[1], offset(a.t[1], at));
    const double share = exp(load(a.t[0], at) - exact(a.t[2], at)) - (label == at.x[1] ? 1 : 0);
    store(dx, at, label < 0 ? (C)0 : (C)(share * wide(dloss, at)));
  }
}

// ---- local response normalisation, in f64: whole = size before; real = alpha beta base

// What the channel at `at` is divided by, before the power: from the squares of the channels around it, those that exist.
DEVICE double lrn_scale(const Args& a, const Tensor& x, At at) {
  const i64 from = at.x[1] - a.whole[1];
  double sum = 0;
  for (at.x[1] = from; at.x[1] < from + a.whole[0]; ++at.x[1])
    if (inside(x, 1, at.x[1])) {
      const double v = load(x, at);
      sum += v * v;
    }
  return a.real[2] + a.real[0] / (double)a.whole[0] * sum;
}

// t = x y
KERNEL(lrn) {
  EACH(at, a.t[1]) store(a.t[1], at, (C)(load(a.t[0], at) * pow(lrn_scale(a, a.t[0], at), -a.real[1])));
}

// t = x dy dx: channel j counts channel i when i lies in j's window.
KERNEL(lrn_backward) {
  const Tensor &x = a.t[0], &dy = a.t[1], &dx = a.t[2];
  EACH(made, dx) {
    At at = made;
    const double alpha = a.real[0], beta = a.real[1];
    double sum = 0;
    for (at.x[1] = made.x[1] + a.whole[1] - a.whole[0] + 1; at.x[1] <= made.x[1] + a.whole[1]; ++at.x[1])
      if (inside(dy, 1, at.x[1])) sum += (double)load(dy, at) * load(x, at) * pow(lrn_scale(a, x, at), -beta - 1);
    const double own = load(dy, made) * pow(lrn_scale(a, x, made), -beta);
    store(dx, made, (C)(own - 2 * alpha * beta / (double)a.whole[0] * load(x, made) * sum));
  }
}

// ---- resizing: whole = extent(3) size(3) how (0 nearest, 1 linear, 2 aligned). As ooc/ops/resample.py: one axis after the
// other, and the very same positions, from which the regions of tiles were computed.

struct Sample { i64 first, second; double share; };

DEVICE Sample sample(const Args& a, int s, i64 i) {
  const i64 extent = a.whole[s], out = a.whole[3 + s], how = a.whole[6];
  if (how == 0) return Sample{i * extent / out, i * extent / out, 0};
  double at;
  if (how == 2) at = TIMES((double)i, (double)(extent - 1) / (double)(out > 1 ? out - 1 : 1));
  else at = TIMES((double)i + 0.5, (double)extent / (double)out) - 0.5;
  if (at < 0) at = 0;
  const i64 floor = (i64)at, first = floor < extent - 1 ? floor : extent - 1;
  return Sample{first, first + 1 < extent - 1 ? first + 1 : extent - 1, at - (double)first};
}

DEVICE C mix(C near, C far, C share) { return share == 0 ? near : near + share * (far - near); }

// t = x y
KERNEL(upsample) {
  const Tensor &x = a.t[0], &y = a.t[1];
  EACH(at, y) {
    const Sample d = sample(a, 0, at.x[2]), h = sample(a, 1, at.x[3]), w = sample(a, 2, at.x[4]);
    C line[4];  // along d, at the four corners of the other axes
    for (int corner = 0; corner < 4; ++corner) {
      const i64 row = corner & 1 ? h.second : h.first, column = corner & 2 ? w.second : w.first;
      line[corner] = mix(load(x, offset(x, at.x[0], at.x[1], d.first, row, column)),
                         load(x, offset(x, at.x[0], at.x[1], d.second, row, column)), (C)d.share);
    }
    store(y, at, mix(mix(line[0], line[1], (C)h.share), mix(line[2], line[3], (C)h.share), (C)w.share));
  }
}

// The first result in a block that is made of a position or of one after it; results rise with positions.
DEVICE i64 made_from(const Args& a, const Tensor& dy, int s, i64 position) {
  i64 lo = dy.lo[s + 2], hi = lo + dy.extent[s + 2];
  while (lo < hi) {
    const i64 middle = lo + (hi - lo) / 2;
    if (sample(a, s, middle).second < position) lo = middle + 1;
    else hi = middle;
  }
  return lo;
}

DEVICE C weight(const Sample& from, i64 position) {
  return (C)((from.first == position ? 1 - from.share : 0) + (from.second == position ? from.share : 0));
}

// t = dy dx: every position gathers from the results made of it, in ascending order.
KERNEL(upsample_backward) {
  const Tensor &dy = a.t[0], &dx = a.t[1];
  EACH(at, dx) {
    i64 from[3], to[3];
    for (int s = 0; s < 3; ++s) {
      from[s] = to[s] = made_from(a, dy, s, at.x[s + 2]);
      while (inside(dy, s + 2, to[s]) && sample(a, s, to[s]).first <= at.x[s + 2]) ++to[s];
    }
    C sum = 0;
    for (i64 w = from[2]; w < to[2]; ++w) {
      C plane = 0;
      for (i64 h = from[1]; h < to[1]; ++h) {
        C line = 0;
        for (i64 d = from[0]; d < to[0]; ++d)
          line += load(dy, offset(dy, at.x[0], at.x[1], d, h, w)) * weight(sample(a, 0, d), at.x[2]);
        plane += line * weight(sample(a, 1, h), at.x[3]);
      }
      sum += plane * weight(sample(a, 2, w), at.x[4]);
    }
    store(dx, at, sum);
  }
}

// ---- moving blocks: t = target source

template <class V> DEVICE void move(const Args& a) {
  EACH(at, a.t[0]) value<V>(a.t[0], offset(a.t[0], at)) = value<V>(a.t[1], offset(a.t[1], at));
}

// whole = bytes of an element.
KERNEL(copy_block) {
  if (a.whole[0] == 8) move<u64>(a);
  else if (a.whole[0] == 4) move<unsigned int>(a);
  else if (a.whole[0] == 2) move<unsigned short>(a);
  else move<unsigned char>(a);
}

// From E to C, and back.
KERNEL(widen_block) {
  EACH(at, a.t[0]) wide(a.t[0], at) = load(a.t[1], at);
}

KERNEL(narrow_block) {
  EACH(at, a.t[0]) store(a.t[0], at, wide(a.t[1], at));
}

// Both of C; whole = whether the source is added to what is there.
KERNEL(blend_block) {
  EACH(at, a.t[0]) {
    C& to = wide(a.t[0], at);
    const C from = wide(a.t[1], at);
    to = a.whole[0] ? from + to : from;
  }
}
