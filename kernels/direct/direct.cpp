// Run-time choice of the instruction set, and the direct convolution as Python calls it.
#include <numeric>
#include <string>
#include <vector>

#include "../calls.hpp"
#include "../isa.hpp"
#include "arguments.hpp"
#include "pairs.hpp"

namespace ooc {
namespace {

using namespace direct;

const Backend &backend() { return widest<Backend>({backend_base(), backend_avx2(), backend_avx512()}); }

}  // namespace

Ints direct_workspace(const std::string &pass, int dtype, const Ints &x_shape, const Ints &w_shape, const Ints &y_shape,
                      const Ints &stride, const Ints &dilation, i64 groups, int threads) {
  const Problem p =
      make_problem(pass, dtype, x_shape, w_shape, y_shape, stride, dilation, Ints(3, 0), groups, threads);
  const Workspace need = backend().workspace(p);
  return {need.packed_bytes, need.scratch_bytes, need.lean_bytes};
}

void direct_conv(const std::string &pass, int dtype, uintptr_t x, const Ints &x_shape,
                 const Ints &x_strides, uintptr_t w, const Ints &w_shape, const Ints &w_strides,
                 uintptr_t y, const Ints &y_shape, const Ints &y_strides, const Ints &stride,
                 const Ints &dilation, const Ints &pad_lo, i64 groups, uintptr_t bias, int act,
                 double coef, bool accumulate, uintptr_t workspace, i64 workspace_bytes, bool packed,
                 int threads, bool chained) {
  const Problem p =
      make_problem(pass, dtype, x_shape, w_shape, y_shape, stride, dilation, pad_lo, groups, threads);
  Operands o = make_operands(x, x_strides, w, w_strides, y, y_strides);
  set_epilogue(o, bias, act, coef, accumulate);
  set_workspace(o, workspace, workspace_bytes);
  o.packed = packed, o.chained = chained;
  backend().run(p, o);
}

bool winograd_conv(const std::string &pass, int dtype, uintptr_t x, const Ints &x_shape,
                   const Ints &x_strides, uintptr_t w, const Ints &w_shape, const Ints &w_strides,
                   uintptr_t y, const Ints &y_shape, const Ints &y_strides, const Ints &stride,
                   const Ints &dilation, const Ints &pad_lo, i64 groups, uintptr_t bias, int act,
                   double coef, bool accumulate, uintptr_t workspace, i64 workspace_bytes, int threads) {
  const Problem p =
      make_problem(pass, dtype, x_shape, w_shape, y_shape, stride, dilation, pad_lo, groups, threads);
  Operands o = make_operands(x, x_strides, w, w_strides, y, y_strides);
  set_epilogue(o, bias, act, coef, accumulate);
  set_workspace(o, workspace, workspace_bytes);
  return backend().winograd(p, o);
}

bool has_paired_conv() { return direct::paired_conv() != nullptr; }

std::pair<bool, bool> paired_conv(const std::string &pass, int dtype, uintptr_t x, const Ints &x_shape,
                 const Ints &x_strides, uintptr_t w, const Ints &w_shape, const Ints &w_strides,
                 uintptr_t y, const Ints &y_shape, const Ints &y_strides, const Ints &stride,
                 const Ints &dilation, const Ints &pad_lo, i64 groups, uintptr_t bias, int act,
                 double coef, bool accumulate, uintptr_t workspace, i64 workspace_bytes, bool packed, int threads, bool rounded) {
  require(dtype == int(Dtype::bf16), "pairs are of bf16");
  const Problem p = make_problem(pass, int(Dtype::f32), x_shape, w_shape, y_shape, stride, dilation, pad_lo, groups, threads);
  require(p.pass == Pass::fprop || (p.pass == Pass::dgrad && p.stride[0] * p.stride[1] * p.stride[2] == 1),
          "pairs serve fprop, and dgrad at stride 1");
  require(!(accumulate && rounded), "what is rounded does not accumulate");
  require(has_paired_conv(), "this processor has no dot products of bf16");
  Operands o = make_operands(x, x_strides, w, w_strides, y, y_strides);
  set_epilogue(o, bias, act, coef, accumulate);
  set_workspace(o, workspace, workspace_bytes);
  o.packed = packed;
  const Paired done = direct::paired_conv()(p, o, rounded);
  return {done.served, done.packed};
}

double peak(i64 rounds, int threads) {
  const Backend &b = backend();
  std::vector<double> done(threads);
  share(threads, threads, [&](i64 i, int) { done[i] = b.peak(rounds); });
  return std::accumulate(done.begin(), done.end(), 0.0);
}

}  // namespace ooc
