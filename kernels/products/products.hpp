// Products of matrices, and attention by blocks of scores. One source (blocks.inl and what follows it) is compiled for several
// instruction sets; kernels() is the table of the one that serves.
#pragma once
#include "../calls.hpp"
#include "../isa.hpp"
#include "../numbers.hpp"

namespace ooc {
namespace products {

// Pieces have a fixed size, whatever the tile and the budget: those of a thread take 230 KiB of its stack for results of up to 2,048 values.
constexpr i64 kHigh = 6, kRows = 96;  // rows of a block in registers, of a piece
constexpr i64 kKept = 96;             // rows that are kept, of attention
constexpr i64 kSums = 192;            // rows of columns of its results that are summed at a time
constexpr i64 kLine = 64;             // bytes of a block's row
template <typename C>
constexpr i64 kWide = kLine / i64(sizeof(C));
template <typename C>
constexpr i64 kColumns = 4 * kWide<C>;  // of a piece
template <typename C>
constexpr i64 kDeep = 8 * kWide<C>;  // of what is summed, of a piece

inline i64 up(i64 a, i64 b) { return (a + b - 1) / b; }
inline i64 least(i64 a, i64 b) { return a < b ? a : b; }

struct Rows {
  const char *data;
  Four strides;  // of samples, heads, rows, depth
};

struct Product {
  char *y, *acc;
  Four y_strides, acc_strides;
  Rows a, b;  // rows of b are columns of the product
  Dtype type;
  i64 heads, rows, columns, c;
  double alpha;
  bool more, last;
  i64 run, begin;  // terms that are summed before they are added to the others, 0: all; where the first one stands among all
};

struct Piece {
  i64 n, k, row, column, rows, columns;
};

enum class Attend : int { forward, dq, dk, dv, scores, dots, last = dots };

struct Added {
  Rows rows;  // strides of samples, heads of a group, queries, keys
  i64 group;  // from group to group
};

struct Attention {
  Attend of;
  Dtype type;
  Rows q, k, v;
  Added biases[2];
  Rows sums, dots, dy;
  char *out, *acc;
  Four out_strides, acc_strides;
  i64 heads, inner, queries, keys, c, e;  // inner: heads of a group
  double scale;
  bool more, last;

  bool turned() const { return of == Attend::dk || of == Attend::dv; }  // keys are kept
};

struct Span {
  i64 lo, count;
};

// What is kept of a sample and head, and the depth of the result that is summed: all of it, in the forward pass.
struct AttentionPiece {
  i64 n, k;
  Span kept, depth;
};

// For an instruction set; null where the compiler has not got it.
struct Kernels {
  void (*multiply)(const Product &, const Piece &);
  void (*attend)(const Attention &, const AttentionPiece &);
};

const Kernels *kernels_avx512();
const Kernels *kernels_avx2();
const Kernels *kernels_base();
const Kernels &kernels();

}  // namespace products
}  // namespace ooc
