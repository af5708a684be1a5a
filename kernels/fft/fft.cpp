// Convolution by transforms as Python calls it.
#include "fft.hpp"

#include "../direct/arguments.hpp"

namespace ooc {
namespace {

const fft::Kernels &kernels() { return widest<fft::Kernels>({fft::kernels_base(), fft::kernels_avx2(), fft::kernels_avx512()}); }

}  // namespace

std::shared_ptr<fft::Tables> fft_tables(int dtype, const Three &lengths, i64 folded) {
  direct::require(dtype == int(Dtype::f32) || dtype == int(Dtype::f64), "dtype must be f32 or f64");
  auto tables = std::make_shared<fft::Tables>();
  tables->dtype = Dtype(dtype);
  i64 numbers = 1, longest = 1;
  for (int d = 0; d < 3; ++d) {
    direct::require(lengths[d] >= 1, "segments are not empty");
    tables->lengths.axis[d] = lengths[d];
    numbers *= lengths[d];
    longest = std::max(longest, lengths[d]);
  }
  direct::require(folded >= 1 && longest % folded == 0, "segments fold into lines of the same length");
  direct::require(folded == 1 || (numbers == longest && folded % 16 == 0), "only lines are folded, into whole vectors");
  tables->lengths.folded = folded;
  tables->plans = kernels().prepare(tables->dtype, tables->lengths);
  return tables;
}

bool fft_conv(const std::string &pass, int dtype, uintptr_t x, const Ints &x_shape,
              const Ints &x_strides, uintptr_t w, const Ints &w_shape, const Ints &w_strides,
              uintptr_t y, const Ints &y_shape, const Ints &y_strides, const Ints &stride,
              const Ints &dilation, const Ints &pad_lo, i64 groups, uintptr_t bias, int act,
              double coef, bool accumulate, uintptr_t workspace, i64 workspace_bytes, bool packed, int threads,
              const fft::Tables &tables) {
  using namespace direct;
  const Problem p = make_problem(pass, dtype, x_shape, w_shape, y_shape, stride, dilation, pad_lo, groups, threads);
  require(p.stride[0] * p.stride[1] * p.stride[2] == 1, "transforms take no stride");
  Operands o = make_operands(x, x_strides, w, w_strides, y, y_strides);
  set_epilogue(o, bias, act, coef, accumulate);
  set_workspace(o, workspace, workspace_bytes);
  o.packed = packed;
  require(p.dtype == tables.dtype, "tables are of another dtype");
  return kernels().run(p, o, tables);
}

}  // namespace ooc
