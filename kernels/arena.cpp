// Offsets of buffers that live from a first to a last moment: ooc/schedule/arena.py tells how they are chosen.
#include <algorithm>

#include "calls.hpp"

namespace ooc {

Ints place_buffers(const Ints &begins, const Ints &ends, const Ints &longer, const Ints &nbytes, i64 align, bool best_fit,
                   i64 limit) {
  Ints lows(nbytes.size()), highs(nbytes.size()), until(longer), by_low;  // by_low: those that are placed
  by_low.reserve(nbytes.size());
  const auto lowest = [&](i64 i) {
    i64 top = 0, at = -1, least = 0;
    for (i64 j : by_low) {
      if (begins[j] > until[i] || begins[i] > until[j]) continue;
      const i64 room = lows[j] - top;
      if (room >= std::max<i64>(nbytes[i], 1) && (at < 0 || room < least)) {
        at = top, least = room;
        if (!best_fit) break;
      }
      top = std::max(top, highs[j]);
    }
    return at < 0 ? top : at;
  };
  for (i64 i = 0; i < static_cast<i64>(nbytes.size()); i++) {
    lows[i] = lowest(i);
    while (until[i] > ends[i] && lows[i] + nbytes[i] > limit) {
      until[i] = ends[i] + (until[i] - ends[i]) * 3 / 4;
      lows[i] = lowest(i);
    }
    highs[i] = (lows[i] + nbytes[i] + align - 1) / align * align;
    by_low.insert(std::upper_bound(by_low.begin(), by_low.end(), lows[i], [&](i64 low, i64 j) { return low < lows[j]; }), i);
  }
  return lows;
}

}  // namespace ooc
