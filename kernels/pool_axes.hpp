// Spatial axes of pooling gradients: which outputs and window positions lie where.
#pragma once
#include <algorithm>

#include "common.hpp"

namespace ooc {
namespace {

struct Span {
  i64 begin, end;
  i64 count() const { return end - begin; }
  bool has(i64 i) const { return begin <= i && i < end; }
};

inline i64 floor_div(i64 a, i64 b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
inline i64 ceil_div(i64 a, i64 b) { return -floor_div(-a, b); }

// One spatial axis; outputs and window positions as indices into the dy block and the window.
struct GradientAxis {
  i64 extent, window, stride, pad, dx_lo, dx, x_lo, x, dy_lo, dy;

  i64 origin(i64 o) const { return (dy_lo + o) * stride - pad; }  // in the whole tensor

  // Window positions that lie inside the tensor.
  Span inside(i64 o) const {
    const i64 begin = std::clamp<i64>(-origin(o), 0, window);
    return {begin, std::max(begin, std::min(window, extent - origin(o)))};
  }

  // Outputs whose windows lie wholly inside the tensor.
  Span interior() const {
    const i64 begin = std::clamp<i64>(ceil_div(pad, stride) - dy_lo, 0, dy);
    return {begin, std::clamp(floor_div(extent - window + pad, stride) + 1 - dy_lo, begin, dy)};
  }

  // Outputs whose window position l lies in the tensor.
  Span taps(i64 l) const {
    const i64 begin = std::clamp<i64>(ceil_div(pad - l, stride) - dy_lo, 0, dy);
    return {begin, std::clamp<i64>(ceil_div(extent + pad - l, stride) - dy_lo, begin, dy)};
  }

  // Outputs whose window position l lies in dx.
  Span hits(i64 l) const {
    const i64 begin = std::clamp<i64>(ceil_div(dx_lo + pad - l, stride) - dy_lo, 0, dy);
    return {begin, std::clamp<i64>(ceil_div(dx_lo + dx + pad - l, stride) - dy_lo, begin, dy)};
  }

  // Outputs whose windows may reach dx.
  Span reach() const {
    const i64 begin = hits(window - 1).begin;
    return {begin, std::max(begin, hits(0).end)};
  }

  bool overlaps() const { return stride < window; }

  // Windows lie side by side and wholly in dx.
  bool tiles() const {
    return window == stride && origin(0) >= dx_lo && origin(dy) <= dx_lo + dx && origin(0) >= 0 && origin(dy) <= extent;
  }
  bool tiles_all() const { return tiles() && origin(0) == dx_lo && origin(dy) == dx_lo + dx; }
};

}  // namespace
}  // namespace ooc
