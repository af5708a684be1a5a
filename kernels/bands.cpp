// Seconds of a training step in bands: ooc/networks/auto/bands.py tells what waits for what.
#include <algorithm>
#include <vector>

#include "calls.hpp"

namespace ooc {
namespace {

constexpr i64 LANES = 4;
enum { COMPUTE, LEAVE, BACK, DRAINED };

// Seconds that every band waits for a lane: what it does not move by its end is moved in the next one, as far as there is room.
template <typename Busy, typename Moving, typename Room>
std::vector<double> waits(i64 bands, Busy busy, Moving moving, Room room) {
  std::vector<double> late(bands, 0.0);
  double left = 0.0;
  for (i64 s = 0; s < bands; s++) {
    left = std::max(0.0, left + (moving(s) - busy(s)));
    const double after = s + 1 < bands ? room(s + 1) : 0.0;
    if (left > after) late[s] = left - after, left = after;
  }
  return late;
}

}  // namespace

double band_seconds(uintptr_t lanes_at, uintptr_t load_at, uintptr_t room_at, i64 bands, i64 turn, double per_byte, double tiny,
                    double others) {
  const auto *load = reinterpret_cast<const double *>(load_at), *room = reinterpret_cast<const double *>(room_at);
  const auto lane = [&](i64 s, i64 which) { return reinterpret_cast<const double *>(lanes_at)[s * LANES + which]; };
  const auto early = [&](i64 s) { return std::max(room[s] - load[s], 0.0) * per_byte; };
  const auto leaving = waits(
      bands, [&](i64 s) { return lane(s, COMPUTE); }, [&](i64 s) { return lane(s, LEAVE); },
      [&](i64 s) { return lane(s, DRAINED) > tiny ? 0.0 : early(s); });
  const auto coming = waits(  // from the end: what comes late is to come early, in the backward pass alone
      bands, [&](i64 s) { return lane(bands - 1 - s, COMPUTE); }, [&](i64 s) { return lane(bands - 1 - s, BACK); },
      [&](i64 s) { return bands - 1 - s >= turn ? early(bands - 1 - s) : 0.0; });
  double computing = 0.0, waiting = 0.0, moving = 0.0;
  for (i64 s = 0; s < bands; s++) {
    computing += lane(s, COMPUTE);
    waiting += std::max(leaving[s], coming[bands - 1 - s]);
    moving += lane(s, LEAVE) + lane(s, BACK);
  }
  return computing + waiting + others * moving;
}

}  // namespace ooc
