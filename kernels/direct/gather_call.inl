// The gathers of a call, one after the other: in tiles, or by the ordered loops.

static bool too_many_residues(const Problem &p) {
  return p.pass == Pass::dgrad && double(p.stride[0]) * p.stride[1] * p.stride[2] > MAX_RESIDUES;
}

// Small enough for the plain loops, whatever memory there is: with few outputs the weights are not read often enough to pack
// them.
static bool tiny(const Problem &p) {
  const i64 outputs = p.n * volume(p.pass == Pass::dgrad ? p.x : p.y);
  const i64 few = p.pass == Pass::wgrad ? 7 : volume(p.f) == 1 ? 64 : 32;
  return total_work(p) < TINY_WORK || outputs <= few;
}

template <class T>
static void conv_gather(const Problem &p, const Operands &o) {
  if (is_depthwise(p) && !takes_lanes(p, o) && turned<T>(p, o)) return;
  if (too_many_residues(p)) return ordered_dgrad<T>(p, o);
  const Rooms<T> rooms = rooms_of<T>(p, o);
  i64 before = 0;
  for_tasks<T>(p, o, [&](const Gather<T> &t) {
    if (!in_tiles(t, p, o.packed, rooms, before)) ordered_gather(t, p.threads);
    before += t.groups * t.cout * t.cin * taps_of(t.ax);
  });
}
