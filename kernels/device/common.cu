// What all kernels of the CUDA backend share: their arguments, element types and coordinates.
//
// The kernels are for everything that cuDNN does not compute, and for what it refuses. The files of this folder are one
// source, joined as ooc/backends/cuda/source.py says: compiled at run time, a file at a time, once per element type
// (OOC_TYPE: 0 f64, 1 f32, 2 f16, 3 bf16), with no header; compiled for the host as well, by the tests, with the few macros
// of tests/helpers/emulation.cpp.
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
  double real[12];
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

// Whether `to` is a multiple of a stride that lies in a block, as the window at that position: then `to` becomes its number.
DEVICE bool window(const Tensor& t, int axis, i64 stride, i64& to) {
  if (to < 0 || to % stride) return false;
  to /= stride;
  return inside(t, axis, to);
}

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
