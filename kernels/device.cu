// Kernels of the CUDA backend for everything that cuDNN does not compute, and for what it refuses. Compiled at run time,
// once per element type (OOC_TYPE: 0 f64, 1 f32, 2 f16, 3 bf16), with no header; compiled for the host as well, by the
// tests, with the few macros of tests/emulation.cpp.
//
// Every kernel takes one Args by value. A tensor is a block: a region of a tensor of the op, seen as (n, channel, d, h, w),
// with the coordinates of its first element in the whole tensor. Kernels compute with coordinates of whole tensors only, so
// a tile, its halo and its padding need no arithmetic of their own: outside a block lies padding. An axis along which the
// whole tensor has extent 1 has stride 0: any coordinate reads the same element.
//
// One thread computes one result, from its own terms in their own order: no shared memory, no barrier, no atomics.

typedef long long i64;
typedef unsigned long long u64;

struct Tensor {
  void* data;  // null where an op lacks this operand
  i64 stride[5], lo[5], extent[5];
};

struct Args {
  Tensor t[8];
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
#endif

// ---- element types: E is stored, C is computed with

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
#ifdef __CUDACC_RTC__
#define BITS_OF_FLOAT(f) __float_as_uint(f)
#define FLOAT_OF_BITS(u) __uint_as_float(u)
#else
DEVICE unsigned int bits_of_float(float f) { union { float f; unsigned int u; } v; v.f = f; return v.u; }
DEVICE float float_of_bits(unsigned int u) { union { float f; unsigned int u; } v; v.u = u; return v.f; }
#define BITS_OF_FLOAT(f) bits_of_float(f)
#define FLOAT_OF_BITS(u) float_of_bits(u)
#endif
#if OOC_TYPE == 2
// Exact both ways; rounds to nearest even. Integer arithmetic, so that host and device give the same bits.
DEVICE C widen(E v) {
  const unsigned int sign = (v.bits & 0x8000u) << 16, mantissa = v.bits & 0x3ffu, exponent = (v.bits >> 10) & 31u;
  if (exponent == 31) return FLOAT_OF_BITS(sign | 0x7f800000u | (mantissa << 13));
  if (exponent) return FLOAT_OF_BITS(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float small = (float)mantissa * 5.9604644775390625e-8f;  // 2^-24
  return sign ? -small : small;
}
DEVICE E narrow(C f) {
  const unsigned int u = BITS_OF_FLOAT(f), sign = (u >> 16) & 0x8000u, x = u & 0x7fffffffu;
  E out;
  if (x >= 0x7f800000u) out.bits = sign | (x > 0x7f800000u ? 0x7e00u : 0x7c00u);
  else if (x >= 0x477ff000u) out.bits = sign | 0x7c00u;
  else if (x >= 0x38800000u) out.bits = sign | ((x - 0x38000000u + 0xfffu + ((x >> 13) & 1)) >> 13);
  else {
    const float scaled = FLOAT_OF_BITS(x) + 0.5f;  // the addition rounds to multiples of 2^-24
    out.bits = sign | (BITS_OF_FLOAT(scaled) - 0x3f000000u);
  }
  return out;
}
#else
DEVICE C widen(E v) { return FLOAT_OF_BITS((unsigned int)v.bits << 16); }
DEVICE E narrow(C f) {
  const unsigned int u = BITS_OF_FLOAT(f);
  E out;
  out.bits = (u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u | ((u >> 16) & 0x8000u) : (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
  return out;
}
#endif
#endif

// ---- coordinates

struct At { i64 x[5]; };

// The coordinates of the i-th element of a block, the last axis fastest.
DEVICE At element(const Tensor& t, i64 i) {
  At at;
  for (int axis = 4; axis >= 0; --axis) {
    at.x[axis] = t.lo[axis] + i % t.extent[axis];
    i /= t.extent[axis];
  }
  return at;
}

DEVICE i64 elements(const Tensor& t) { return t.extent[0] * t.extent[1] * t.extent[2] * t.extent[3] * t.extent[4]; }

DEVICE i64 offset(const Tensor& t, i64 n, i64 k, i64 d, i64 h, i64 w) {
  return (n - t.lo[0]) * t.stride[0] + (k - t.lo[1]) * t.stride[1] + (d - t.lo[2]) * t.stride[2] + (h - t.lo[3]) * t.stride[3] +
         (w - t.lo[4]) * t.stride[4];
}

DEVICE i64 offset(const Tensor& t, const At& at) { return offset(t, at.x[0], at.x[1], at.x[2], at.x[3], at.x[4]); }

DEVICE bool inside(const Tensor& t, int axis, i64 x) { return x >= t.lo[axis] && x < t.lo[axis] + t.extent[axis]; }

template <class V> DEVICE V& value(const Tensor& t, i64 at) { return ((V*)t.data)[at]; }

DEVICE C load(const Tensor& t, i64 at) { return widen(value<E>(t, at)); }
DEVICE void store(const Tensor& t, i64 at, C v) { value<E>(t, at) = narrow(v); }

#define EACH(i, count) for (i64 i = THREAD; i < (count); i += THREADS)

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

// ---- convolution: t = x w y b acc; whole = stride(3) dilation(3) pad(3) channels of x per group, of y per group, act;
// real = coef. Sums go over channels, then taps, one after the other, from the partial sum on.

struct Convolution {
  const i64 *stride, *dilation, *pad;
  i64 c, k, act;
};

DEVICE Convolution convolution(const Args& a) {
  return Convolution{a.whole, a.whole + 3, a.whole + 6, a.whole[9], a.whole[10], a.whole[11]};
}

// Where a sum starts and where it goes; acc is y itself where y has the computed type.
DEVICE C start(const Args& a, i64 at) { return a.first || !a.t[4].data ? (C)0 : value<C>(a.t[4], at); }

KERNEL(conv_fprop) {
  const Tensor &x = a.t[0], &w = a.t[1], &y = a.t[2], &b = a.t[3], &acc = a.t[4];
  const Convolution v = convolution(a);
  EACH(i, elements(y)) {
    const At at = element(y, i);
    const i64 k = at.x[1], group = k / v.k;
    C sum = start(a, acc.data ? offset(acc, at) : 0);
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
    if (!a.last) value<C>(acc, offset(acc, at)) = sum;
    else store(y, offset(y, at), activate(v.act, a.real[0], b.data ? sum + value<C>(b, offset(b, 0, k, 0, 0, 0)) : sum));
  }
}
