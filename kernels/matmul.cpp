// Products of matrices, one for each sample and head.
#include "blocks.hpp"
#include "calls.hpp"
#include "team.hpp"

namespace ooc {
namespace {

struct Factor {
  const char *data;
  Four strides;
};

struct Products {
  char *y, *acc;
  Four y_strides, acc_strides;
  Factor a, b;  // strides of b: of samples, heads, columns, c
  Dtype type;
  i64 heads, rows, columns, c;
  double alpha;
  bool more, last;
};

struct Piece {
  i64 n, k, row, column, rows, columns;
};

template <typename C>
OOC_INLINE void multiply_any(const Products &job, const Piece &p) {
  alignas(kLine) C sums[kRows * kColumns<C>], a[kRows * kDeep<C>], b[kDeep<C> * kColumns<C>];
  const i64 item = item_size(job.type);
  const Four &s = job.acc_strides, &ys = job.y_strides, &as = job.a.strides, &bs = job.b.strides;
  C *acc = reinterpret_cast<C *>(job.acc) + p.n * s[0] + p.k * s[1] + p.row * s[2] + p.column * s[3];
  std::memset(sums, 0, sizeof(sums));
  if (job.more)
    for (i64 r = 0; r < p.rows; ++r)
      for (i64 j = 0; j < p.columns; ++j) sums[r * kColumns<C> + j] = acc[r * s[2] + j * s[3]];
  for (i64 c = 0; c < job.c; c += kDeep<C>) {
    const i64 deep = job.c - c < kDeep<C> ? job.c - c : kDeep<C>;
    pack<kHigh>(a, job.a.data + (p.n * as[0] + p.k * as[1] + p.row * as[2] + c * as[3]) * item, job.type, as[2], as[3], p.rows, deep);
    pack<kWide<C>>(b, job.b.data + (p.n * bs[0] + p.k * bs[1] + p.column * bs[2] + c * bs[3]) * item, job.type, bs[2], bs[3],
                   p.columns, deep);
    for (i64 j = 0; j < p.columns; j += kWide<C>)
      for (i64 r = 0; r < p.rows; r += kHigh) add_products(sums + r * kColumns<C> + j, a + r * deep, 1, kHigh, b + j * deep, deep);
  }
  const i64 at = p.n * ys[0] + p.k * ys[1] + p.row * ys[2] + p.column * ys[3];
  for (i64 r = 0; r < p.rows; ++r) {
    const C *row = sums + r * kColumns<C>;
    if (job.last) {
      put(job.y, job.type, at + r * ys[2], ys[3], row, p.columns, C(job.alpha));
    } else {
      for (i64 j = 0; j < p.columns; ++j) acc[r * s[2] + j * s[3]] = row[j];
    }
  }
}

OOC_FUSED_CLONES void multiply_f32(const Products &job, const Piece &p) { multiply_any<float>(job, p); }
OOC_FUSED_CLONES void multiply_f64(const Products &job, const Piece &p) { multiply_any<double>(job, p); }

}  // namespace

void matmul(int dtype, uintptr_t y, const Four &y_strides, uintptr_t acc, const Four &acc_strides, uintptr_t a, const Four &a_strides,
            uintptr_t b, const Four &b_strides, const Five &shape, double alpha, bool more, bool last, int threads) {
  const auto [samples, heads, rows, columns, c] = shape;
  const i64 count = volume(shape);
  if (count == 0) return;
  if (!acc && (more || !last)) throw std::invalid_argument("partial sums without a place");
  const Products job{reinterpret_cast<char *>(y), reinterpret_cast<char *>(acc), y_strides, acc_strides,
                     {reinterpret_cast<const char *>(a), a_strides}, {reinterpret_cast<const char *>(b), b_strides},
                     dtype_of(dtype), heads, rows, columns, c, alpha, more, last};
  const bool wide = job.type == Dtype::f64;
  const i64 most = wide ? kColumns<double> : kColumns<float>, down = up(rows, kRows), across = up(columns, most);
  const auto body = [&](i64 i, int) {
    const i64 column = i % across * most, row = i / across % down * kRows, matrix = i / across / down;
    const Piece p{matrix / heads, matrix % heads, row, column, rows - row < kRows ? rows - row : kRows,
                  columns - column < most ? columns - column : most};
    wide ? multiply_f64(job, p) : multiply_f32(job, p);
  };
  share(samples * heads * down * across, team_of(static_cast<double>(count) / (4 * kMicrosecond), threads), body);
}

}  // namespace ooc
