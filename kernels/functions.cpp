// Functions of one value: codes and meaning as in ooc/ops/function.py. NaN passes through all but zero.
//
// Tensors are (n, k, d, h, w) with strides in elements, of any sign, and element-aligned. f64 is computed in f64, the other
// dtypes in f32.
#include <array>
#include <cmath>
#include <stdexcept>

#include "calls.hpp"
#include "tiles.hpp"

namespace ooc {
namespace {

enum class Of : int {
  clip, hard_sigmoid, hard_swish, silu, gelu, gelu_tanh, erf, reciprocal, softplus, above,
  clip_slope, hard_sigmoid_slope, hard_swish_slope, silu_slope, gelu_slope, gelu_tanh_slope, erf_slope, softplus_slope,
  abs, sign, floor, ceil, round, zero, sqrt, rsqrt, softsign, soft_shrink, hard_shrink, exp, log, pow, celu,
  sin, cos, tan, asin, acos, atan, sinh, cosh, asinh, acosh, atanh,
  reciprocal_slope, sqrt_slope, rsqrt_slope, softsign_slope, hard_shrink_slope, pow_slope, celu_slope, cos_slope, tan_slope,
  asin_slope, acos_slope, atan_slope, asinh_slope, acosh_slope, atanh_slope,
  last = atanh_slope
};

struct Applied {
  char *y;
  const char *x;
  Dtype type;
  Of of;
  double a, b;
};

template <typename C>
OOC_INLINE C between(C x, C lo, C hi) {
  const C least = x < lo ? lo : x;
  return least > hi ? hi : least;
}

template <typename C>
OOC_INLINE C slow(Of of, C a, C x) {  // those that libm computes, one by one
  switch (of) {
    case Of::log: return std::log(x);
    case Of::sin: return std::sin(x);
    case Of::cos: return std::cos(x);
    case Of::tan: return std::tan(x);
    case Of::asin: return std::asin(x);
    case Of::acos: return std::acos(x);
    case Of::atan: return std::atan(x);
    case Of::sinh: return std::sinh(x);
    case Of::cosh: return std::cosh(x);
    case Of::asinh: return std::asinh(x);
    case Of::acosh: return std::acosh(x);
    case Of::atanh: return std::atanh(x);
    case Of::pow_slope: return a * std::pow(x, a - C(1));
    case Of::cos_slope: return -std::sin(x);
    case Of::tan_slope: return C(1) / (std::cos(x) * std::cos(x));
    case Of::asin_slope: return C(1) / std::sqrt(C(1) - x * x);
    case Of::acos_slope: return C(-1) / std::sqrt(C(1) - x * x);
    case Of::asinh_slope: return C(1) / std::sqrt(C(1) + x * x);
    case Of::acosh_slope: return C(1) / std::sqrt(x * x - C(1));
    default: return std::pow(x, a);
  }
}

template <typename C>
OOC_INLINE void slow_row(C *y, const C *x, i64 n, Of of, C a) {
  for (i64 i = 0; i < n; ++i) y[i] = slow(of, a, x[i]);
}

template <typename C>
OOC_INLINE double below(C x) {  // the share of a normal distribution
  return 0.5 + 0.5 * error_function(x * C(0.70710678118654752440));
}

template <typename C>
OOC_INLINE C gelu_bend(C x) {
  return hyperbolic_tangent(C(0.79788456080286535588) * (x + C(0.044715) * x * x * x));
}

template <typename C>
OOC_INLINE C gelu_tanh_slope(C x) {
  const C t = gelu_bend(x), inner = C(0.79788456080286535588) * (C(1) + C(0.134145) * x * x);
  return C(0.5) * (C(1) + t) + C(0.5) * x * (C(1) - t * t) * inner;
}

template <typename C>
OOC_INLINE void apply_row(C *y, const C *x, i64 n, Of of, C a, C b) {
  switch (of) {
    case Of::clip:
      for (i64 i = 0; i < n; ++i) y[i] = between(x[i], a, b);
      return;
    case Of::hard_sigmoid:
      for (i64 i = 0; i < n; ++i) {
        const C ax = a * x[i];
        y[i] = between(ax + b, C(0), C(1));
      }
      return;
    case Of::hard_swish:
      for (i64 i = 0; i < n; ++i) y[i] = x[i] * between(x[i] / C(6) + C(0.5), C(0), C(1));
      return;
    case Of::silu:
      for (i64 i = 0; i < n; ++i) y[i] = x[i] * sigmoid(x[i]);
      return;
    case Of::reciprocal:
      for (i64 i = 0; i < n; ++i) y[i] = C(1) / x[i];
      return;
    case Of::above:
      for (i64 i = 0; i < n; ++i) y[i] = x[i] > a ? C(1) : x[i] == x[i] ? C(0) : x[i];
      return;
    case Of::clip_slope:
      for (i64 i = 0; i < n; ++i) y[i] = x[i] <= a || x[i] >= b ? C(0) : C(1);
      return;
    case Of::hard_sigmoid_slope:
      for (i64 i = 0; i < n; ++i) {
        const C ax = a * x[i];
        y[i] = ax + b <= C(0) || ax + b >= C(1) ? C(0) : a;
      }
      return;
    case Of::hard_swish_slope:
      for (i64 i = 0; i < n; ++i) y[i] = x[i] < C(-3) ? C(0) : x[i] > C(3) ? C(1) : x[i] / C(3) + C(0.5);
      return;
    case Of::silu_slope:
      for (i64 i = 0; i < n; ++i) {
        const C s = sigmoid(x[i]);
        y[i] = s + x[i] * (s - s * s);
      }
      return;
    case Of::softplus_slope:
      for (i64 i = 0; i < n; ++i) y[i] = sigmoid(x[i]);
      return;
    case Of::abs:
      for (i64 i = 0; i < n; ++i) y[i] = std::fabs(x[i]);
      return;
    case Of::sign:
      for (i64 i = 0; i < n; ++i) y[i] = x[i] > C(0) ? C(1) : x[i] < C(0) ? C(-1) : x[i];
      return;
    case Of::floor:
      for (i64 i = 0; i < n; ++i) y[i] = std::floor(x[i]);
      return;
    case Of::ceil:
      for (i64 i = 0; i < n; ++i) y[i] = std::ceil(x[i]);
      return;
    case Of::round:
      for (i64 i = 0; i < n; ++i) y[i] = std::nearbyint(x[i]);
      return;
    case Of::zero:
      for (i64 i = 0; i < n; ++i) y[i] = C(0);
      return;
    case Of::sqrt:
      for (i64 i = 0; i < n; ++i) y[i] = std::sqrt(x[i]);
      return;
    case Of::rsqrt:
      for (i64 i = 0; i < n; ++i) y[i] = C(1) / std::sqrt(x[i]);
      return;
    case Of::softsign:
      for (i64 i = 0; i < n; ++i) y[i] = x[i] / (C(1) + std::fabs(x[i]));
      return;
    case Of::soft_shrink:
      for (i64 i = 0; i < n; ++i) y[i] = x[i] > a ? x[i] - a : x[i] < -a ? x[i] + a : C(0) * x[i];
      return;
    case Of::hard_shrink:
      for (i64 i = 0; i < n; ++i) y[i] = x[i] >= -a && x[i] <= a ? C(0) : x[i];
      return;
    case Of::reciprocal_slope:
      for (i64 i = 0; i < n; ++i) y[i] = C(-1) / (x[i] * x[i]);
      return;
    case Of::sqrt_slope:
      for (i64 i = 0; i < n; ++i) y[i] = C(0.5) / std::sqrt(x[i]);
      return;
    case Of::rsqrt_slope:
      for (i64 i = 0; i < n; ++i) y[i] = C(-0.5) / (x[i] * std::sqrt(x[i]));
      return;
    case Of::softsign_slope:
      for (i64 i = 0; i < n; ++i) {
        const C under = C(1) + std::fabs(x[i]);
        y[i] = C(1) / (under * under);
      }
      return;
    case Of::hard_shrink_slope:
      for (i64 i = 0; i < n; ++i) y[i] = x[i] >= -a && x[i] <= a ? C(0) : C(1);
      return;
    case Of::atan_slope:
      for (i64 i = 0; i < n; ++i) y[i] = C(1) / (C(1) + x[i] * x[i]);
      return;
    case Of::atanh_slope:
      for (i64 i = 0; i < n; ++i) y[i] = C(1) / (C(1) - x[i] * x[i]);
      return;
    case Of::exp:
      for (i64 i = 0; i < n; ++i) y[i] = static_cast<C>(exponential(x[i]));
      return;
    case Of::celu:
      for (i64 i = 0; i < n; ++i) {
        const C low = static_cast<C>(a * exponential_less_one(x[i] / a));
        y[i] = choose(x[i] > C(0), x[i], low);
      }
      return;
    case Of::celu_slope:
      for (i64 i = 0; i < n; ++i) {
        const C low = static_cast<C>(exponential(x[i] / a));
        y[i] = choose(x[i] > C(0), C(1), low);
      }
      return;
    case Of::gelu:
      for (i64 i = 0; i < n; ++i) y[i] = static_cast<C>(x[i] * below(x[i]));
      return;
    case Of::gelu_slope:
      for (i64 i = 0; i < n; ++i) {
        const C density = static_cast<C>(0.39894228040143267794 * exponential(C(-0.5) * x[i] * x[i]));
        y[i] = static_cast<C>(below(x[i]) + x[i] * density);
      }
      return;
    case Of::gelu_tanh:
      for (i64 i = 0; i < n; ++i) y[i] = C(0.5) * x[i] * (C(1) + gelu_bend(x[i]));
      return;
    case Of::gelu_tanh_slope:
      for (i64 i = 0; i < n; ++i) y[i] = gelu_tanh_slope(x[i]);
      return;
    case Of::erf:
      for (i64 i = 0; i < n; ++i) y[i] = static_cast<C>(error_function(x[i]));
      return;
    case Of::erf_slope:
      for (i64 i = 0; i < n; ++i) y[i] = static_cast<C>(1.12837916709551257390 * exponential(-x[i] * x[i]));
      return;
    case Of::softplus:
      for (i64 i = 0; i < n; ++i) {
        const C high = choose(x[i] < C(0), C(0), x[i]);
        y[i] = static_cast<C>(high + softplus_rest(x[i]));
      }
      return;
    case Of::pow:
      if (a != C(3)) return slow_row(y, x, n, of, a);
      for (i64 i = 0; i < n; ++i) y[i] = x[i] * x[i] * x[i];
      return;
    case Of::pow_slope:
      if (a != C(3)) return slow_row(y, x, n, of, a);
      for (i64 i = 0; i < n; ++i) y[i] = C(3) * x[i] * x[i];
      return;
    default: slow_row(y, x, n, of, a);
  }
}

template <typename C>
OOC_INLINE void apply_any(const Applied &job, const Tile<2> &t) {
  alignas(64) C from_x[kTile], to_y[kTile];
  const i64 item = item_size(job.type);
  const View<const C> x = view_in<C>(job.x + t.at[1] * item, job.type, t.grid(1), from_x);
  const View<C> y = view_out<C>(job.y + t.at[0] * item, job.type, t.grid(0), to_y);
  for (i64 r = 0; r < t.rows; ++r)
    apply_row(y.row(r), x.row(r), t.cols, job.of, static_cast<C>(job.a), static_cast<C>(job.b));
  store_view(job.y + t.at[0] * item, job.type, t.grid(0), y);
}

OOC_UNFUSED OOC_CLONES void apply_f32(const Applied &job, const Tile<2> &t) { apply_any<float>(job, t); }
OOC_UNFUSED OOC_CLONES void apply_f64(const Applied &job, const Tile<2> &t) { apply_any<double>(job, t); }

enum class Pair : int { divide, power, maximum, minimum, greater, not_less, equal, where, unless, last = unless };

struct Paired {
  char *y;
  const char *x, *z;
  Dtype type;
  Pair of;
};

template <typename C>
OOC_INLINE C extreme(C x, C z, bool first) {  // NaN of either passes through
  return x != x ? x : z != z ? z : first ? x : z;
}

template <typename C>
OOC_INLINE void pair_row(C *y, const C *x, const C *z, i64 n, Pair of) {
  switch (of) {
    case Pair::divide:
      for (i64 i = 0; i < n; ++i) y[i] = x[i] / z[i];
      return;
    case Pair::maximum:
      for (i64 i = 0; i < n; ++i) y[i] = extreme(x[i], z[i], x[i] > z[i]);
      return;
    case Pair::minimum:
      for (i64 i = 0; i < n; ++i) y[i] = extreme(x[i], z[i], x[i] < z[i]);
      return;
    case Pair::greater:
      for (i64 i = 0; i < n; ++i) y[i] = x[i] > z[i] ? C(1) : C(0);
      return;
    case Pair::not_less:
      for (i64 i = 0; i < n; ++i) y[i] = x[i] >= z[i] ? C(1) : C(0);
      return;
    case Pair::equal:
      for (i64 i = 0; i < n; ++i) y[i] = x[i] == z[i] ? C(1) : C(0);
      return;
    case Pair::where:
      for (i64 i = 0; i < n; ++i) y[i] = z[i] != C(0) ? x[i] : C(0);
      return;
    case Pair::unless:
      for (i64 i = 0; i < n; ++i) y[i] = z[i] != C(0) ? C(0) : x[i];
      return;
    default:
      for (i64 i = 0; i < n; ++i) y[i] = std::pow(x[i], z[i]);
  }
}

template <typename C>
OOC_INLINE void pair_any(const Paired &job, const Tile<3> &t) {
  alignas(64) C from_x[kTile], from_z[kTile], to_y[kTile];
  const i64 item = item_size(job.type);
  const View<const C> x = view_in<C>(job.x + t.at[1] * item, job.type, t.grid(1), from_x);
  const View<const C> z = view_in<C>(job.z + t.at[2] * item, job.type, t.grid(2), from_z);
  const View<C> y = view_out<C>(job.y + t.at[0] * item, job.type, t.grid(0), to_y);
  for (i64 r = 0; r < t.rows; ++r) pair_row(y.row(r), x.row(r), z.row(r), t.cols, job.of);
  store_view(job.y + t.at[0] * item, job.type, t.grid(0), y);
}

OOC_UNFUSED OOC_CLONES void pair_f32(const Paired &job, const Tile<3> &t) { pair_any<float>(job, t); }
OOC_UNFUSED OOC_CLONES void pair_f64(const Paired &job, const Tile<3> &t) { pair_any<double>(job, t); }

}  // namespace

void function(int of, int dtype, uintptr_t y, const Five &y_strides, uintptr_t x, const Five &x_strides, const Five &shape,
              double a, double b, int threads) {
  if (of < 0 || of > static_cast<int>(Of::last)) throw std::invalid_argument("unknown function code");
  const Applied job{reinterpret_cast<char *>(y), reinterpret_cast<const char *>(x), dtype_of(dtype),
                    static_cast<Of>(of), a, b};
  const i64 count = volume(shape);
  if (count == 0) return;
  threads = team_of(2 * count / kMicrosecond, threads);
  const auto nest = make_nest<2>(shape, {y_strides, x_strides}, 2);
  for_tiles(nest, kTile, kTile, threads,
            [&](const Tile<2> &t) { job.type == Dtype::f64 ? apply_f64(job, t) : apply_f32(job, t); });
}

void binary(int of, int dtype, uintptr_t y, const Five &y_strides, uintptr_t x, const Five &x_strides, uintptr_t z,
            const Five &z_strides, const Five &shape, int threads) {
  if (of < 0 || of > static_cast<int>(Pair::last)) throw std::invalid_argument("unknown code of a function of two");
  const Paired job{reinterpret_cast<char *>(y), reinterpret_cast<const char *>(x), reinterpret_cast<const char *>(z),
                   dtype_of(dtype), static_cast<Pair>(of)};
  const i64 count = volume(shape);
  if (count == 0) return;
  threads = team_of(2 * count / kMicrosecond, threads);
  const auto nest = make_nest<3>(shape, {y_strides, x_strides, z_strides}, 3);
  for_tiles(nest, kTile, kTile, threads,
            [&](const Tile<3> &t) { job.type == Dtype::f64 ? pair_f64(job, t) : pair_f32(job, t); });
}

}  // namespace ooc
