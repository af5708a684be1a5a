// See pairs.hpp.

// bf16 numbers of which neighbours along an axis make pairs, those of a group among each other; the last one of an odd number of
// them pairs with zero.
struct Singles {
  const uint16_t *at;
  i64 extent[5], strides[5];
  int axis;
  i64 per;  // along the axis, in a group

  i64 pairs() const { return extent[axis] / per * ceil_div(per, 2); }
  i64 count() const {
    i64 all = pairs();
    for (int d = 0; d < 5; ++d) all *= d == axis ? 1 : extent[d];
    return all;
  }

  // Whether they lie in pairs already.
  bool paired() const {
    bool even = strides[axis] == 1 && per % 2 == 0 && reinterpret_cast<uintptr_t>(at) % 4 == 0;
    for (int d = 0; d < 5; ++d) even = even && (d == axis || extent[d] == 1 || strides[d] % 2 == 0);
    return even;
  }
};

// Where pairs lie.
struct Pairs {
  void *at;
  i64 strides[5];
};

// Of two rows, the second one of zeros where it is null.
static void pair_rows(uint32_t *to, const uint16_t *from, const uint16_t *next, i64 n, i64 step) {
  if (!next)
    for (i64 i = 0; i < n; ++i) to[i] = from[i * step];
  else if (step == 1)
    for (i64 i = 0; i < n; ++i) to[i] = from[i] | uint32_t(next[i]) << 16;
  else
    for (i64 i = 0; i < n; ++i) to[i] = from[i * step] | uint32_t(next[i * step]) << 16;
}

// Of one row, in which the numbers of all pairs follow one another.
static void pair_along(uint32_t *to, const uint16_t *from, i64 groups, i64 per) {
  const i64 half = ceil_div(per, 2);
  for (i64 g = 0; g < groups; ++g, to += half, from += per) {
    if (per % 2) to[half - 1] = 0;
    std::memcpy(to, from, size_t(per) * sizeof(uint16_t));
  }
}

static Pairs pair_up(const Singles &s, void *room, int threads) {
  Pairs to{room, {}};
  if (s.paired()) {
    to.at = const_cast<uint16_t *>(s.at);
    for (int d = 0; d < 5; ++d) to.strides[d] = d == s.axis ? 1 : s.strides[d] / 2;
    return to;
  }
  // Axes from the outermost to the innermost. A row runs along the last one longer than a number behind the pairs' axis, or along
  // that axis where its numbers are neighbours.
  const bool innermost = s.strides[s.axis] == 1;
  i64 extent[5], all = 1;
  int order[5] = {0, 1, 2, 3, 4}, along = s.axis;
  if (innermost)
    for (int d = s.axis; d < 4; ++d) order[d] = d + 1, order[d + 1] = s.axis;
  for (int i = 4; i >= 0; --i) {
    const int d = order[i];
    extent[d] = d == s.axis ? s.pairs() : s.extent[d];
    to.strides[d] = all, all *= extent[d];
    if (!innermost && d > s.axis && (along == s.axis || extent[along] == 1)) along = d;
  }
  const i64 half = ceil_div(s.per, 2);
  i64 row = extent[along];  // and of axes that go on where it ends
  for (int d = along - 1; !innermost && d >= 0 && d != s.axis && (extent[d] == 1 || s.strides[d] == row * s.strides[along]); --d)
    row *= extent[d], extent[d] = 1;
  share_runs(all / imax(1, row), all > PACK_WORK ? threads : 1, [&](i64 lo, i64 hi, int) {
    for (i64 r = lo; r < hi; ++r) {
      i64 rest = r, target = 0, source = 0;
      bool odd = false;
      for (int d = 4; d >= 0; --d) {
        if (d == along) continue;
        const i64 index = rest % extent[d], first = index % half * 2;
        rest /= extent[d];
        target += index * to.strides[d];
        source += (d == s.axis ? index / half * s.per + first : index) * s.strides[d];
        odd = odd || (d == s.axis && first + 1 == s.per);
      }
      uint32_t *out = static_cast<uint32_t *>(room) + target;
      const uint16_t *from = s.at + source;
      if (innermost) pair_along(out, from, s.extent[s.axis] / s.per, s.per);
      else pair_rows(out, from, odd ? nullptr : from + s.strides[s.axis], row, s.strides[along]);
    }
  });
  return to;
}

static Singles singles(const void *at, const i64 *strides, i64 outer, i64 inner, const i64 *spatial, int axis, i64 per) {
  Singles s{static_cast<const uint16_t *>(at), {outer, inner, spatial[0], spatial[1], spatial[2]}, {}, axis, per};
  for (int d = 0; d < 5; ++d) s.strides[d] = strides[d];
  return s;
}

static direct::Paired run_paired(const Problem &given, const Operands &operands, bool rounded) {
  Problem p = given;
  Operands o = operands;
  join_rows(p, o);
  const bool fprop = p.pass == Pass::fprop;
  i64 &summed = fprop ? p.c : p.k;
  const i64 per = summed / p.groups;
  const Singles x = fprop ? singles(o.x, o.xs, p.n, p.c, p.x, 1, per) : singles(o.y, o.ys, p.n, p.k, p.y, 1, per);
  const Singles w = singles(o.w, o.ws, p.k, p.c / p.groups, p.f, fprop ? 1 : 0, per);
  p.dtype = Dtype::f32, summed = p.groups * ceil_div(per, 2);
  const auto bytes_of = [](const Singles &s) { return s.paired() ? 0 : lines(s.count() * i64(sizeof(float))); };
  o.workspace_bytes -= bytes_of(x) + bytes_of(w);
  if (o.workspace_bytes <= 0) return {};
  char *behind = static_cast<char *>(o.workspace) + o.workspace_bytes / 64 * 64;
  const Rooms<float> rooms = rooms_of<float>(p, o);
  const auto task = [&] {
    Gather<float> t = fprop ? forward_task<float>(p, o) : backward_task<float>(p, o, Index3{});
    if (rounded) t.rounded = static_cast<uint16_t *>(fprop ? o.y : o.x);
    return t;
  };
  const Gather<float> shape = task();
  if (is_depthwise(p)) return {};
  if (shape.batch * outputs_of(shape.ax) > 0 && !make_plan(shape, rooms.thread, p.threads, !rooms.packed).found) return {};
  const Pairs in = pair_up(x, behind + bytes_of(w), p.threads);
  (fprop ? o.x : o.y) = in.at;
  for (int d = 0; d < 5; ++d) (fprop ? o.xs : o.ys)[d] = in.strides[d];
  if (!o.packed || !rooms.packed) {
    const Pairs filters = pair_up(w, behind, p.threads);
    o.w = filters.at;
    for (int d = 0; d < 5; ++d) o.ws[d] = filters.strides[d];
  }
  return {in_tiles(task(), p, o.packed, rooms, 0), rooms.packed != nullptr};
}
