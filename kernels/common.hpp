// Shared by every kernel file: index type, dtype codes, activations, threads.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ooc {

using i64 = int64_t;

// Codes of ooc.region.DTYPES, in order.
enum class Dtype : int { f64 = 0, f32 = 1, f16 = 2, bf16 = 3 };

// Codes of ooc.ops.pointwise.ACTIVATIONS, in order. `coef` is the ceiling of clipped relu,
// alpha of elu and the negative slope of leaky relu.
enum class Act : int { identity = 0, relu = 1, clipped_relu = 2, elu = 3, leaky_relu = 4, sigmoid = 5, tanh = 6 };

// Microseconds of work that repay another thread, which takes some 60 to wake. Tests ask for less, to share small problems.
extern double worth_waking;

// How many threads share work that takes one alone so long.
inline int team_of(double microseconds, int threads) {
  const double team = microseconds / worth_waking;
  if (team < 2 || threads < 2) return 1;
  return team < threads ? static_cast<int>(team) : threads;
}

}  // namespace ooc
