// Functions of one value: codes and meaning as in ooc/ops/function.py. NaN passes through.
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
  last = softplus_slope
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
OOC_INLINE C slow(Of of, C x) {  // those that libm computes, one by one
  switch (of) {
    case Of::gelu: return C(0.5) * x * (C(1) + std::erf(x * C(0.70710678118654752440)));
    case Of::gelu_tanh: return C(0.5) * x * (C(1) + std::tanh(C(0.79788456080286535588) * (x + C(0.044715) * x * x * x)));
    case Of::erf: return std::erf(x);
    case Of::gelu_slope:
      return C(0.5) * (C(1) + std::erf(x * C(0.70710678118654752440))) +
             x * std::exp(C(-0.5) * x * x) * C(0.39894228040143267794);
    case Of::gelu_tanh_slope: {
      const C t = std::tanh(C(0.79788456080286535588) * (x + C(0.044715) * x * x * x));
      const C inner = C(0.79788456080286535588) * (C(1) + C(0.134145) * x * x);
      return C(0.5) * (C(1) + t) + C(0.5) * x * (C(1) - t * t) * inner;
    }
    case Of::erf_slope: return C(1.12837916709551257390) * std::exp(-x * x);
    default: return (x > C(0) ? x : C(0) * x) + std::log1p(std::exp(-std::fabs(x)));  // softplus
  }
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
      for (i64 i = 0; i < n; ++i) y[i] = x[i] > a ? C(1) : C(0) * x[i];
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
    default:
      for (i64 i = 0; i < n; ++i) y[i] = slow(of, x[i]);
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

}  // namespace ooc
