// Products of matrices, one for each sample and head.
#include "../team.hpp"
#include "products.hpp"

namespace ooc {

using namespace products;

void matmul(int dtype, uintptr_t y, const Four &y_strides, uintptr_t acc, const Four &acc_strides, uintptr_t a, const Four &a_strides,
            uintptr_t b, const Four &b_strides, const Five &shape, double alpha, bool more, bool last, i64 run, i64 begin,
            int threads) {
  const i64 samples = shape[0], heads = shape[1], rows = shape[2], columns = shape[3], c = shape[4];
  const i64 count = volume(shape);
  if (count == 0) return;
  if (run < 0 || begin < 0) throw std::invalid_argument("runs have a length, and a beginning");
  if (!acc && (more || !last)) throw std::invalid_argument("partial sums without a place");
  const Product job{reinterpret_cast<char *>(y), reinterpret_cast<char *>(acc), y_strides, acc_strides,
                     {reinterpret_cast<const char *>(a), a_strides}, {reinterpret_cast<const char *>(b), b_strides},
                     dtype_of(dtype), heads, rows, columns, c, alpha, more, last, run, begin};
  const bool wide = job.type == Dtype::f64;
  const i64 most = wide ? kColumns<double> : kColumns<float>, down = up(rows, kRows), across = up(columns, most);
  const Kernels &widest = kernels();
  const auto body = [&](i64 i, int) {
    const i64 column = i % across * most, row = i / across % down * kRows, matrix = i / across / down;
    const Piece p{matrix / heads, matrix % heads, row, column, rows - row < kRows ? rows - row : kRows,
                  columns - column < most ? columns - column : most};
    widest.multiply(job, p);
  };
  share(samples * heads * down * across, team_of(static_cast<double>(count) / (4 * kMicrosecond), threads), body);
}

}  // namespace ooc
