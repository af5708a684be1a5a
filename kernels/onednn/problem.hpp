// One convolution, as a caller states it and in oneDNN's terms.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#include "../common.hpp"

namespace ooc::onednn {

using Extents = std::vector<i64>;

constexpr int spatial_axes = 3;

enum class Pass { fprop, dgrad };

struct Tensor {
  Extents shape, strides;  // strides in elements
};

struct Problem {
  Pass pass;
  Tensor x, w, y;
  Extents stride, dilation, pad_lo, pad_hi;
  i64 groups;
  bool bias, accumulate;
  i64 x_offset = 0;  // elements from the caller's x to the first row described to oneDNN
};

[[noreturn]] inline void refuse(const std::string &reason) { throw std::runtime_error("oneDNN: " + reason); }

Pass pass_of(const std::string &name);

// Refuses, by an exception, what is no problem at all.
void check(const Problem &p);

// The problem as oneDNN wants it described. Refuses, by an exception, what oneDNN cannot compute.
Problem prepared(Problem p);

}  // namespace ooc::onednn
