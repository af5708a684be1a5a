// A convolution's arguments as Python gives them.
#pragma once
#include <stdexcept>
#include <string>

#include "../calls.hpp"
#include "direct.hpp"

namespace ooc {
namespace direct {

inline void require(bool ok, const char *message) {
  if (!ok) throw std::invalid_argument(std::string("direct_conv: ") + message);
}

inline Pass parse_pass(const std::string &name) {
  if (name == "fprop") return Pass::fprop;
  if (name == "dgrad") return Pass::dgrad;
  require(name == "wgrad", "pass must be fprop, dgrad or wgrad");
  return Pass::wgrad;
}

inline Problem make_problem(const std::string &pass, int dtype, const Ints &x, const Ints &w, const Ints &y,
                            const Ints &stride, const Ints &dilation, const Ints &pad, i64 groups, int threads) {
  require(x.size() == 5 && w.size() == 5 && y.size() == 5, "shapes need 5 entries");
  require(stride.size() == 3 && dilation.size() == 3 && pad.size() == 3,
          "stride, dilation and pad_lo need 3 entries");
  require(dtype == int(Dtype::f32) || dtype == int(Dtype::f64), "dtype must be f32 or f64");
  require(threads >= 1, "threads must be positive");
  Problem p{};
  p.pass = parse_pass(pass);
  p.dtype = Dtype(dtype);
  p.n = x[0], p.c = x[1], p.k = w[0], p.groups = groups;
  p.threads = threads;
  require(y[0] == p.n && y[1] == p.k, "y must be (n, K, ...)");
  require(p.n >= 0 && p.c >= 1 && p.k >= 1, "channels must be positive");
  require(groups >= 1 && p.c % groups == 0 && p.k % groups == 0, "groups must divide C and K");
  require(w[1] * groups == p.c, "w must be (K, C / groups, ...)");
  for (int d = 0; d < 3; ++d) {
    p.x[d] = x[d + 2], p.f[d] = w[d + 2], p.y[d] = y[d + 2];
    p.stride[d] = stride[d], p.dilation[d] = dilation[d], p.pad[d] = pad[d];
    require(p.x[d] >= 0 && p.y[d] >= 0 && p.f[d] >= 1, "extents must not be negative, filters not empty");
    require(p.stride[d] >= 1 && p.dilation[d] >= 1, "stride and dilation must be positive");
  }
  return p;
}

inline void copy_strides(const Ints &from, i64 *to) {
  require(from.size() == 5, "strides need 5 entries");
  for (int i = 0; i < 5; ++i) to[i] = from[i];
}

inline Operands make_operands(uintptr_t x, const Ints &x_strides, uintptr_t w, const Ints &w_strides, uintptr_t y, const Ints &y_strides) {
  Operands o{};
  o.x = reinterpret_cast<void *>(x), o.w = reinterpret_cast<void *>(w), o.y = reinterpret_cast<void *>(y);
  copy_strides(x_strides, o.xs), copy_strides(w_strides, o.ws), copy_strides(y_strides, o.ys);
  return o;
}

inline void set_epilogue(Operands &o, uintptr_t bias, int act, double coef, bool accumulate) {
  require(act >= int(Act::identity) && act <= int(Act::tanh), "unknown activation");
  o.bias = reinterpret_cast<const void *>(bias);
  o.act = Act(act), o.coef = coef, o.accumulate = accumulate;
}

inline void set_workspace(Operands &o, uintptr_t workspace, i64 bytes) {
  require(bytes >= 0 && workspace % 64 == 0, "the workspace must be 64-byte aligned");
  o.workspace = reinterpret_cast<void *>(workspace);
  o.workspace_bytes = workspace ? bytes : 0;
}

}  // namespace direct
}  // namespace ooc
