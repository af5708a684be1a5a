// Number formats, activations and argument checks shared by the kernel files.
//
// Everything here is inlined into loops that the compiler vectorises, hence no branches.
#pragma once
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "common.hpp"

// The compiler vectorises the marked loops once per instruction set; the loader picks one. What they
// call must be inlined to take part. It does not go with templates, hence a function per compute dtype.
// (Sanitizers cannot run before the loader has chosen. Clang 22 leaves constructors out that only such functions call, unless
// it is told -Xclang -mno-constructor-aliases: who does that defines OOC_CLANG_CLONES.)
#if defined(__x86_64__) && defined(__GNUC__) && (!defined(__clang__) || defined(OOC_CLANG_CLONES)) && defined(__GLIBC__) && \
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

#if defined(__GNUC__)
#define OOC_LAMBDA __attribute__((always_inline))
#else
#define OOC_LAMBDA
#endif

// Products are rounded before they are added: the same bits with and without instructions that fuse
// the two. (Clang fuses within an expression only: there, the sums stand in statements of their own.)
#if defined(__GNUC__) && !defined(__clang__)
#define OOC_UNFUSED __attribute__((optimize("fp-contract=off")))
#else
#define OOC_UNFUSED
#endif

// Iterations do not depend on each other; without it, operands that are the same memory run the loop
// the compiler keeps for overlap, one element at a time.
#if defined(__GNUC__) && !defined(__clang__)
#define OOC_IVDEP _Pragma("GCC ivdep")
#else
#define OOC_IVDEP
#endif

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

OOC_INLINE uint64_t choose(bool which, uint64_t yes, uint64_t no) {
  const uint64_t mask = 0u - static_cast<uint64_t>(which);
  return (yes & mask) | (no & ~mask);
}

OOC_INLINE double choose(bool which, double yes, double no) {
  return bit_cast<double>(choose(which, bit_cast<uint64_t>(yes), bit_cast<uint64_t>(no)));
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
  return bit_cast<float>((inexact & !(u & 1u)) ? other : u);
}

OOC_INLINE void narrow(double x, double &y) { y = x; }
OOC_INLINE void narrow(double x, float &y) { y = static_cast<float>(x); }
OOC_INLINE void narrow(double x, Half &y) { y = to_half(to_odd(x)); }
OOC_INLINE void narrow(double x, Bfloat &y) { y = to_bfloat(to_odd(x)); }
OOC_INLINE void narrow(float x, double &y) { y = x; }
OOC_INLINE void narrow(float x, float &y) { y = x; }
OOC_INLINE void narrow(float x, Half &y) { y = to_half(x); }
OOC_INLINE void narrow(float x, Bfloat &y) { y = to_bfloat(x); }

inline i64 item_size(Dtype t) {
  if (t == Dtype::f64) return 8;
  return t == Dtype::f32 ? 4 : 2;
}

// ---------------------------------------------------------------------------------------------
// Activations
// ---------------------------------------------------------------------------------------------

// Coefficients from the constant one on.
OOC_INLINE double polynomial(double, double last) { return last; }

template <typename... Rest>
OOC_INLINE double polynomial(double x, double first, Rest... rest) {
  return polynomial(x, rest...) * x + first;
}

// exp(x) = scale + part and exp(x) - 1 = (scale - 1) + part, in f64 but only as accurate as f32
// needs (1e-9 relative, near zero too). Unlike libm's it vectorises, as do the others for f32 below.
struct Exp {
  double scale, part;

  OOC_INLINE explicit Exp(float argument) {
    const float high = choose(argument > 120.0f, 120.0f, argument);  // infinite in f32 from 89 on,
    const double x = choose(high < -120.0f, -120.0f, high);          // zero from -104 on
    const double shift = 0x1.8p52;  // adding it rounds to an integer, kept in the low bits
    const double t = x * 1.4426950408889634 + shift;
    const double r = x - (t - shift) * 0.69314718055994531;
    scale = bit_cast<double>((bit_cast<uint64_t>(t) << 52) + bit_cast<uint64_t>(1.0));
    part = scale * (polynomial(r, 1.0, 0.5, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320) * r);
  }

  OOC_INLINE double exp() const { return scale + part; }
  OOC_INLINE double expm1() const { return (scale - 1.0) + part; }
};

// Comparisons here are written such that NaN comes out as NaN, and -0 as -0.
OOC_INLINE double elu(double x, double coef) { return x < 0 ? coef * std::expm1(x) : x; }

OOC_INLINE float elu(float x, float coef) {
  const float low = coef * static_cast<float>(Exp(choose(x < 0, x, 0.0f)).expm1());
  return choose(x < 0, low, x);
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

// erf, for f32 within 3e-9 of it: x P(x^2) / Q(x^2) up to 4, from where on it is 1 in f32.
OOC_INLINE double error_function(double x) { return std::erf(x); }

OOC_INLINE double error_function(float x) {
  const float size = std::fabs(x);
  const double z = choose(size > 4.0f, 4.0f, size), t = z * z;
  const double p = polynomial(t, 1.1283791699574448, 0.18505351494022404, 0.054369392422242924, 0.003853090832799887,
                              0.0003826560427885962, 4.768405018267005e-06, -1.3618908231423516e-08);
  const double q = polynomial(t, 1.0, 0.4973328389733123, 0.11396060979055317, 0.015479382527254082, 0.001312413145690749,
                              6.390792802818335e-05);
  const double y = choose(size > 4.0f, 1.0, z * p / q);
  return choose(x < 0.0f, -y, y);
}

// log(1 + exp(-|x|)), of f32 by the series of 2 atanh(m / (2 + m)), m = exp(-|x|).
OOC_INLINE double softplus_rest(double x) { return std::log1p(std::exp(-std::fabs(x))); }

OOC_INLINE double softplus_rest(float x) {
  const double m = Exp(-std::fabs(x)).exp(), s = m / (2.0 + m), t = s * s;
  return s * polynomial(t, 2.0, 2.0 / 3, 2.0 / 5, 2.0 / 7, 2.0 / 9, 2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19);
}

OOC_INLINE double exponential(double x) { return std::exp(x); }
OOC_INLINE double exponential(float x) { return Exp(x).exp(); }

OOC_INLINE double exponential_less_one(double x) { return std::expm1(x); }
OOC_INLINE double exponential_less_one(float x) { return Exp(x).expm1(); }

template <typename C>
OOC_INLINE void activate(C *x, i64 n, Act act, C coef) {
  switch (act) {
    case Act::identity: return;
    case Act::relu:
      for (i64 i = 0; i < n; ++i) x[i] = x[i] < C(0) ? C(0) : x[i];
      return;
    case Act::clipped_relu:
      for (i64 i = 0; i < n; ++i) {
        const C y = x[i] < C(0) ? C(0) : x[i];
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

// ---------------------------------------------------------------------------------------------
// Arguments
// ---------------------------------------------------------------------------------------------

constexpr double kMicrosecond = 5000;  // items that a loop over memory takes so long for

using Five = std::array<i64, 5>;
using Three = std::array<i64, 3>;

inline Dtype dtype_of(int code) {
  if (code < 0 || code > 3) throw std::invalid_argument("unknown dtype code");
  return static_cast<Dtype>(code);
}

inline Act act_of(int code) {
  if (code < 0 || code > static_cast<int>(Act::tanh)) throw std::invalid_argument("unknown activation code");
  return static_cast<Act>(code);
}

// Elements, or 0 if there are none.
inline i64 volume(const Five &shape) {
  i64 count = 1;
  for (i64 n : shape) {
    if (n < 0) throw std::invalid_argument("negative extent");
    count *= n;
  }
  return count;
}

}  // namespace
}  // namespace ooc
