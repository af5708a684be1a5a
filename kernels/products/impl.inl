// Included once per instruction set, which sets VEC_BYTES and the block that registers hold: HIGH rows of LINES lines.
using namespace products;

#include "blocks.inl"
#include "multiply.inl"
#include "attend.inl"

void multiply(const Product &job, const Piece &p) {
  job.type == Dtype::f64 ? multiply_any<double>(job, p) : multiply_any<float>(job, p);
}

void attend(const Attention &job, const AttentionPiece &p) {
  job.type == Dtype::f64 ? attend_any<double>(job, p) : attend_any<float>(job, p);
}
