// Gradients of activations: dx = dy * act'(x), by way of y = act(x).
//
// Tensors are (n, k, d, h, w) with strides in elements, of any sign, and element-aligned. f64 is
// computed in f64, the other dtypes in f32. Every output element is computed by one
// thread in a fixed order, so that results do not depend on the number of threads.
#include <array>

#include "calls.hpp"
#include "tiles.hpp"

namespace ooc {
namespace {

struct ActBackward {
  char *dx;
  const char *y, *dy;
  Dtype type;
  Act act;
  double coef;
};

template <typename C, typename F>
OOC_INLINE void each(C *dx, const C *y, const C *dy, i64 n, const F &f) {
  OOC_IVDEP
  for (i64 i = 0; i < n; ++i) dx[i] = f(y[i], dy[i]);
}

// Where nothing passes, what comes in does not matter (inf and NaN included). A unit that holds NaN is not shut.
template <typename C>
OOC_INLINE void act_backward_row(C *dx, const C *y, const C *dy, i64 n, Act act, C coef) {
  switch (act) {
    case Act::identity: return each(dx, y, dy, n, [](C, C g) OOC_LAMBDA { return g; });
    case Act::relu: return each(dx, y, dy, n, [](C v, C g) OOC_LAMBDA { return choose(v <= C(0), C(0), g); });
    case Act::clipped_relu:
      return each(dx, y, dy, n, [=](C v, C g) OOC_LAMBDA { return choose((v <= C(0)) | (v >= coef), C(0), g); });
    case Act::elu:
      return each(dx, y, dy, n, [=](C v, C g) OOC_LAMBDA { return g * choose(v <= C(0), v + coef, C(1)); });
    case Act::leaky_relu:
      return each(dx, y, dy, n, [=](C v, C g) OOC_LAMBDA { return g * choose(v > C(0), C(1), coef); });
    case Act::sigmoid: return each(dx, y, dy, n, [](C v, C g) OOC_LAMBDA { return g * (v * (C(1) - v)); });
    case Act::tanh:  // of 1 - v * v little is left where |v| is almost 1
      return each(dx, y, dy, n, [](C v, C g) OOC_LAMBDA { return g * ((C(1) - v) * (C(1) + v)); });
  }
}

template <typename C>
OOC_INLINE void act_backward_any(const ActBackward &job, const Tile<3> &t) {
  alignas(64) C from_y[kTile], from_dy[kTile], to_dx[kTile];
  const i64 item = item_size(job.type);
  const View<const C> y = view_in<C>(job.y + t.at[1] * item, job.type, t.grid(1), from_y);
  const View<const C> dy = view_in<C>(job.dy + t.at[2] * item, job.type, t.grid(2), from_dy);
  const View<C> dx = view_out<C>(job.dx + t.at[0] * item, job.type, t.grid(0), to_dx);
  for (i64 r = 0; r < t.rows; ++r)
    act_backward_row(dx.row(r), y.row(r), dy.row(r), t.cols, job.act, static_cast<C>(job.coef));
  store_view(job.dx + t.at[0] * item, job.type, t.grid(0), dx);
}

OOC_UNFUSED OOC_CLONES void act_backward_f32(const ActBackward &job, const Tile<3> &t) {
  act_backward_any<float>(job, t);
}
OOC_UNFUSED OOC_CLONES void act_backward_f64(const ActBackward &job, const Tile<3> &t) {
  act_backward_any<double>(job, t);
}

}  // namespace

void act_backward(int dtype, uintptr_t dx, const Five &dx_strides, uintptr_t y, const Five &y_strides, uintptr_t dy,
                  const Five &dy_strides, const Five &shape, int act, double coef, int threads) {
  const ActBackward job{reinterpret_cast<char *>(dx), reinterpret_cast<const char *>(y),
                        reinterpret_cast<const char *>(dy), dtype_of(dtype), act_of(act), coef};
  const i64 count = volume(shape);
  if (count == 0) return;
  threads = team_of(count / kMicrosecond, threads);
  const auto nest = make_nest<3>(shape, {dx_strides, y_strides, dy_strides}, 3);
  for_tiles(nest, kTile, kTile, threads,
            [&](const Tile<3> &t) { job.type == Dtype::f64 ? act_backward_f64(job, t) : act_backward_f32(job, t); });
}

}  // namespace ooc
