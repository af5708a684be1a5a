// What pooling and its gradients share: blocks of outputs of neighbouring planes as one line.
//
// What the windows of a block see lies in a buffer, split by residue modulo the strides: a window position is then a line of the buffer,
// number by number, and output o of the block takes its o-th. Between the outputs of a row and those of the next are some that nobody
// wants.
#pragma once
#include <algorithm>

#include "tiles.hpp"

namespace ooc {
namespace {

enum class Pool : int { max = 0, average = 1, average_inside = 2 };

constexpr i64 kRoom = 4096;  // numbers of a buffer: it stays in the first cache

// A block along one spatial axis: so many outputs, and so many window positions at a time.
struct BlockAxis {
  i64 outputs, window, stride;

  i64 phases() const { return std::min(window, stride); }
  i64 pitch() const { return outputs + (window - 1) / stride; }  // outputs and what their windows see besides, of one phase
  i64 room() const { return phases() * pitch(); }
};

// Some outputs, window positions or numbers.
struct Interval {
  i64 first, count;
};

// Those of `count` positions first, first + step ... that lie in [lo, hi).
inline Interval inside(i64 first, i64 step, i64 count, i64 lo, i64 hi) {
  const i64 begin = std::clamp<i64>((lo - first + step - 1) / step, 0, count);
  return {begin, std::clamp<i64>((hi - first + step - 1) / step, begin, count) - begin};
}

template <typename C, typename T>
OOC_INLINE void copy_in(C *to, const T *from, i64 n, i64 step) {
  if (step == 1)
    for (i64 i = 0; i < n; ++i) to[i] = static_cast<C>(widen(from[i]));
  else if (step == 2)
    for (i64 i = 0; i < n; ++i) to[i] = static_cast<C>(widen(from[2 * i]));
  else
    for (i64 i = 0; i < n; ++i) to[i] = static_cast<C>(widen(from[i * step]));
}

template <typename C, typename T>
OOC_INLINE void copy_out(T *to, const C *from, i64 n, i64 step) {
  if (step == 1)
    for (i64 i = 0; i < n; ++i) narrow(from[i], to[i]);
  else
    for (i64 i = 0; i < n; ++i) narrow(from[i], to[i * step]);
}

}  // namespace
}  // namespace ooc
