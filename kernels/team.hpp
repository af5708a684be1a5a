// How threads share work: pieces that nobody has begun are taken one by one, by whoever is awake.
//
// A call is done when all its pieces are. Nobody waits for a thread that has not come: where other programs want the
// processors, one that sleeps costs nothing, and one that is held up delays the others by the piece it is at. Pieces are
// independent, so that what each computes, to the bit, depends neither on who takes it nor on how many there are.
#pragma once
#include "common.hpp"

namespace ooc {

// Does one piece; member: a number below `team` that no other thread has meanwhile, for memory of its own.
using Task = void (*)(const void *what, i64 piece, int member);

// Helpers are woken, not waited for. The caller is member 0.
void share_pieces(i64 pieces, int team, Task task, const void *what);

// Takes a number from a counter that several threads count up.
i64 take_number(i64 *next);

// body(piece, member) for all pieces.
template <class Body>
void share(i64 pieces, int team, const Body &body) {
  if (team < 2 || pieces < 2) {
    for (i64 i = 0; i < pieces; ++i) body(i, 0);
    return;
  }
  share_pieces(pieces, team, [](const void *what, i64 piece, int member) { (*static_cast<const Body *>(what))(piece, member); }, &body);
}

// body(lo, hi, member) for runs of numbers that cover [0, count): several for each thread, so that a slow one takes fewer.
template <class Body>
void share_runs(i64 count, int team, const Body &body) {
  constexpr i64 each = 4;
  const i64 runs = team < 2 ? 1 : count < each * team ? count : each * team;
  if (count > 0) share(runs, team, [&](i64 i, int member) { body(count * i / runs, count * (i + 1) / runs, member); });
}

}  // namespace ooc
