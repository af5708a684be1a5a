// What all kernels of the CUDA backend share: their arguments, element types and coordinates.
//
// The kernels are for everything that cuDNN does not compute, and for what it refuses. The files of this folder are one
// source, joined as ooc/backends/cuda/source.py says: compiled at run time, a file at a time, once per element type
// (OOC_TYPE: 0 f64, 1 f32, 2 f16, 3 bf16) and size of coordinates (OOC_INDEX: 32 or 64 bits), with no header, multiplications and
// additions not contracted; compiled for the host as well, by the tests, with the few macros of tests/helpers/emulation.cpp.
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
  unsigned by[5], shift[5];  // how to divide by the extents: see Divisor
};

struct Args {
  Tensor t[12];  // t[6] is the partial sum of an op that has one, t[7] the scratch of a sum in parts
  double real[12];
  i64 whole[32];
  unsigned dense[16];  // what dense forms know of their tensors: see dense.cu
  i64 first, last;     // where the tile stands in its reduction
};

#ifndef OOC_TYPE
#define OOC_TYPE 1
#endif
#ifndef DEVICE
#define DEVICE static __device__ __forceinline__
#define KERNEL(name) extern "C" __global__ void name(const Args a)
#define THREAD (blockIdx.x * blockDim.x + threadIdx.x)
#define THREADS (gridDim.x * blockDim.x)
#define VISIT(t, axis, x)          // the tests look whether a coordinate lies inside its block
#define TIMES(a, b) __dmul_rn(a, b)  // never contracted with an addition: must round as the host does
#endif
#define ACC a.t[6]
#define SCRATCH a.t[7]
#define PARTS a.whole[31]
#define GROUP a.whole[30]

// Coordinates and offsets, and how many elements: 32 bits where all blocks and coordinates of a launch are below 2^30, since
// 64 bits take several instructions each.
#ifndef OOC_INDEX
#define OOC_INDEX 64
#endif
#if OOC_INDEX == 32
typedef int Index;
typedef unsigned Count;
#else
typedef i64 Index;
typedef u64 Count;
#endif

// Division of a number below 2^31 by one that the host knows, by a multiplication. Source: Granlund and Montgomery, "Division by
// invariant integers using multiplication", PLDI 1994.
DEVICE unsigned divided(unsigned n, unsigned by, unsigned shift) { return (unsigned)(((u64)n * by) >> shift); }

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
// Exact one way, rounded to nearest even the other. Where the device has instructions for it they give the same bits as the integer
// arithmetic, but for those of NaN.
#if defined(__CUDA_ARCH__) && (OOC_TYPE == 2 || __CUDA_ARCH__ >= 800)
#define NARROWS  // the device does
#else
DEVICE unsigned int bits_of_float(float f) { union { float f; unsigned int u; } v; v.f = f; return v.u; }
#endif
#if OOC_TYPE == 2 && defined(NARROWS)
DEVICE C widen(E v) { C f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v.bits)); return f; }
DEVICE E narrow(C f) { E out; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(f)); return out; }
#elif OOC_TYPE == 2
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
#ifdef NARROWS
DEVICE E narrow(C f) { E out; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(f)); return out; }
#else
DEVICE E narrow(C f) {
  const unsigned int u = bits_of_float(f);
  E out;
  out.bits = (u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u | ((u >> 16) & 0x8000u) : (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
  return out;
}
#endif
#endif
#endif

// ---- coordinates

struct At { Index x[5]; };

// The number of elements along an axis, and how they are counted off from a number of elements: the rest stays.
DEVICE Index taken_off(const Tensor& t, int axis, Count& i) {
#if OOC_INDEX == 32
  const Count rest = divided(i, t.by[axis], t.shift[axis]);
#else
  const Count rest = i / (Count)t.extent[axis];
#endif
  const Index digit = (Index)(i - rest * (Count)t.extent[axis]);
  i = rest;
  return (Index)t.lo[axis] + digit;
}

// The coordinates of the i-th element of a block. Neighbours in i are neighbours in memory: the last axis is the fastest, or
// the channels where they lie together.
DEVICE At element(const Tensor& t, Count i) {
  const bool together = t.stride[1] == 1;
  At at;
  if (together) at.x[1] = taken_off(t, 1, i);
  for (int axis = 4; axis >= 2; --axis) at.x[axis] = taken_off(t, axis, i);
  if (!together) at.x[1] = taken_off(t, 1, i);
  at.x[0] = (Index)t.lo[0] + (Index)i;
  return at;
}

DEVICE Index number(const Args& a, int i) { return (Index)a.whole[i]; }  // one of whole, as a coordinate

DEVICE Count elements(const Tensor& t) {
  return (Count)t.extent[0] * (Count)t.extent[1] * (Count)t.extent[2] * (Count)t.extent[3] * (Count)t.extent[4];
}

DEVICE Index along(const Tensor& t, int axis, Index x) { return (x - (Index)t.lo[axis]) * (Index)t.stride[axis]; }

DEVICE Index offset(const Tensor& t, Index n, Index k, Index d, Index h, Index w) {
  VISIT(t, 0, n) VISIT(t, 1, k) VISIT(t, 2, d) VISIT(t, 3, h) VISIT(t, 4, w)
  return along(t, 0, n) + along(t, 1, k) + along(t, 2, d) + along(t, 3, h) + along(t, 4, w);
}

DEVICE Index offset(const Tensor& t, const At& at) { return offset(t, at.x[0], at.x[1], at.x[2], at.x[3], at.x[4]); }

// One of several rows of values that stand along an axis of their own.
DEVICE Index row(const Tensor& t, int axis, Index which, At at) {
  at.x[axis] = which;
  return offset(t, at);
}

DEVICE Index begins(const Tensor& t, int axis) { return (Index)t.lo[axis]; }
DEVICE Index ends(const Tensor& t, int axis) { return (Index)t.lo[axis] + (Index)t.extent[axis]; }
DEVICE bool inside(const Tensor& t, int axis, Index x) { return x >= begins(t, axis) && x < ends(t, axis); }

// Whether `to` is a multiple of a stride that lies in a block, as the window at that position: then `to` becomes its number.
DEVICE bool window(const Tensor& t, int axis, Index stride, Index& to) {
  if (to < 0 || to % stride) return false;
  to /= stride;
  return inside(t, axis, to);
}

template <class V> DEVICE V& value(const Tensor& t, Index at) { return ((V*)t.data)[at]; }

DEVICE C load(const Tensor& t, Index at) { return widen(value<E>(t, at)); }
DEVICE C load(const Tensor& t, const At& at) { return load(t, offset(t, at)); }
DEVICE double& exact(const Tensor& t, const At& at) { return value<double>(t, offset(t, at)); }  // of an f64 operand
DEVICE C& wide(const Tensor& t, const At& at) { return value<C>(t, offset(t, at)); }            // of one of the computed type
DEVICE C bias(const Tensor& b, const At& at) { return value<C>(b, offset(b, 0, at.x[1], 0, 0, 0)); }
DEVICE void store(const Tensor& t, const At& at, C v) { value<E>(t, offset(t, at)) = narrow(v); }
DEVICE double& one(const Tensor& t, Index i) { return value<double>(t, offset(t, 0, i, 0, 0, 0)); }  // of a few f64 numbers

// The coordinates of every element of a block that falls to this thread.
#define EACH(at, t) \
  At at;            \
  for (Count i = (Count)THREAD, count = elements(t); i < count && (at = element(t, i), true); i += (Count)THREADS)
