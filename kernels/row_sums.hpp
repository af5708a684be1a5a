// Sums of rows of tensors in a fixed order: the inner loops of reductions.
#pragma once
#include "common.hpp"

namespace ooc {

// What is added up: x; x * y; count, mean and squared distance from the mean of x; and of y times
// normalised x, and y.
enum class Sum { x, product, moments, backward };

constexpr i64 kChunk = 64;  // neighbouring results that are computed together
constexpr i64 kFew = 64;    // elements of rows that are added up four at a time

// Rows of x and y: `rows` of them, of n elements, for `count` neighbouring results.
struct Rows {
  Sum what;
  Dtype type;
  const char *x, *y;
  i64 n, x_step, y_step;
  i64 rows, x_next, y_next;
  i64 count, x_side, y_side;
  const double *mean, *rstd;  // of the results
};

// The sum of row r for result v goes to out[r * count + v], second values (squared distances, sums of y) to `more`.
// along: one result after the other, for rows nearer in memory than neighbouring results.
void sum_rows(double *out, double *more, const Rows &t, bool along);

}  // namespace ooc
