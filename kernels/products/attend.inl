// A piece of attention: what is kept (queries, or keys where their gradients are summed) against what passes.
//
// No scores outlive their block. In the forward pass what is summed is relative to a power of two, which grows with the largest score so
// far; the gradients know it, and the sum of exponentials. All is a sum of products in the order of what passes, whatever the blocks.
// Meaning: ooc/ops/attention.py.

OOC_INLINE const char *at(const Rows &t, i64 n, i64 k, i64 row, i64 item) {
  return t.data + (n * t.strides[0] + k * t.strides[1] + row * t.strides[2]) * item;
}

OOC_INLINE const double &exact(const Rows &t, const AttentionPiece &p, i64 row, i64 which) {
  return reinterpret_cast<const double *>(at(t, p.n, p.k, row, 8))[which * t.strides[3]];
}

// exp(r) for |r| <= ln 2 / 2, within two units of the last place.
OOC_INLINE float near_one(float r) {
  float p = 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  return p * r + 1.0f;
}
OOC_INLINE double near_one(double r) {
  double p = 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  return p * r + 1.0;
}

// ln 2 in three parts, of which the products of the first two with whole numbers are exact, for exponents of kEven.
template <typename C>
struct Split;
template <>
struct Split<float> {
  typedef uint32_t Bits;
  static constexpr int mantissa = 23;
  static constexpr float lowest = -125, round = 0x1.8p23f, high = 0x1.63p-1f, middle = -0x1.bdp-13f, low = -0x1.05c61p-29f;
};
template <>
struct Split<double> {
  typedef uint64_t Bits;
  static constexpr int mantissa = 52;
  static constexpr double lowest = -1021, round = 0x1.8p52, high = 0x1.62e42fefa4p-1, middle = -0x1.8432a1b0e2p-43,
                          low = -0x1.8cff81a12a17ep-85;
};

constexpr double kLn2 = 0.693147180559945309417;
constexpr double kEven = 5000;         // exponents below it are computed so
constexpr double kPowers = 1 << 20;    // scores below it are relative to a power of two

// exp(x) / 2^power, for |power ln 2| < kEven and x no larger than that; another power scales it exactly.
template <typename C>
OOC_INLINE C exponential(C x, C power) {
  typedef Split<C> S;
  const C held = choose(x < C(-2 * kEven), C(-2 * kEven), x);
  const C n = (held * C(1 / kLn2) + S::round) - S::round;
  const C p = near_one(((held - n * S::high) - n * S::middle) - n * S::low);
  const C scale = n - power, shift = choose(scale < S::lowest, S::lowest, scale) + S::round;
  const C y = bit_cast<C>((bit_cast<typename S::Bits>(shift) << S::mantissa) + bit_cast<typename S::Bits>(p));
  return choose(x == x, choose(scale < S::lowest, C(0), y), x);
}

// The same for any scores, slowly.
OOC_INLINE double exponential_over(double x, double base) {
  if (x == -HUGE_VAL) return 0;
  if (!(std::fabs(x) < kPowers && std::fabs(base) < kPowers)) return std::exp(x - base);
  const double n = std::rint(x / kLn2);
  return std::ldexp(std::exp(x - n * kLn2), int(n - std::rint(base / kLn2)));
}

// What scores are relative to where this is the largest of them.
OOC_INLINE double base_of(double top) { return std::fabs(top) < kPowers ? std::ceil(top / kLn2) * kLn2 : top; }

// What is relative to one base, relative to another one.
OOC_INLINE double rescaling(double before, double base) {
  if (std::fabs(before) < kPowers && std::fabs(base) < kPowers) return std::ldexp(1.0, int(std::rint(before / kLn2) - std::rint(base / kLn2)));
  return std::exp(before - base);
}

OOC_INLINE bool even(double base) { return std::fabs(base) < kEven; }

template <typename C, typename E>
OOC_INLINE void add_values(C *x, const char *from, i64 step, i64 count) {
  for (i64 j = 0; j < count; ++j) x[j] += widen(reinterpret_cast<const E *>(from)[j * step]);
}

OOC_INLINE void add_row(float *x, const char *from, Dtype type, i64 step, i64 count) {
  if (type == Dtype::f32) add_values<float, float>(x, from, step, count);
  else if (type == Dtype::f16) add_values<float, Half>(x, from, step, count);
  else add_values<float, Bfloat>(x, from, step, count);
}
OOC_INLINE void add_row(double *x, const char *from, Dtype, i64 step, i64 count) { add_values<double, double>(x, from, step, count); }

template <typename C>
struct Room {
  alignas(kLine) C scores[kKept * kColumns<C>], slopes[kKept * kColumns<C>];
  alignas(kLine) C kept[kKept * kDeep<C>], beside[kKept * kDeep<C>], passing[kDeep<C> * kColumns<C>];
  double bases[kKept], totals[kKept];
};

// Products of kept rows with rows that pass. packed: room for the kept ones, which are in it from the first pass on, where there is
// room for all of their depth.
template <typename C>
OOC_INLINE void multiply_rows(C *block, C *packed, Room<C> &room, const Attention &job, const AttentionPiece &p, const Rows &kept,
                              const Rows &passing, Span pass, i64 depth) {
  std::memset(static_cast<void *>(block), 0, sizeof(room.scores));
  const i64 item = item_size(job.type);
  for (i64 c = 0; c < depth; c += kDeep<C>) {
    const i64 deep = depth - c < kDeep<C> ? depth - c : kDeep<C>;
    if (!pass.lo || depth > kDeep<C>)
      pack<kHigh>(packed, at(kept, p.n, p.k, p.kept.lo, item) + c * kept.strides[3] * item, job.type, kept.strides[2],
                  kept.strides[3], p.kept.count, deep);
    pack<kWide<C>>(room.passing, at(passing, p.n, p.k, pass.lo, item) + c * passing.strides[3] * item, job.type,
                   passing.strides[2], passing.strides[3], pass.count, deep);
    add_products(block, packed, 1, kHigh, kHigh * deep, p.kept.count, room.passing, pass.count, deep);
  }
}

template <typename C>
OOC_INLINE void score(Room<C> &room, const Attention &job, const AttentionPiece &p, Span pass) {
  const bool turned = job.turned();
  multiply_rows(room.scores, room.kept, room, job, p, turned ? job.k : job.q, turned ? job.q : job.k, pass, job.c);
  for (i64 r = 0; r < p.kept.count; ++r)
    for (i64 j = 0; j < pass.count; ++j) room.scores[r * kColumns<C> + j] *= C(job.scale);
  const i64 item = item_size(job.type);
  for (const Added &bias : job.biases) {
    if (!bias.rows.data) continue;
    const Four &bs = bias.rows.strides;
    const i64 along = turned ? bs[2] : bs[3], down = turned ? bs[3] : bs[2];
    const char *from = bias.rows.data + (p.n * bs[0] + p.k / job.inner * bias.group + p.k % job.inner * bs[1] + pass.lo * along) * item;
    for (i64 r = 0; r < p.kept.count; ++r)
      add_row(room.scores + r * kColumns<C>, from + (p.kept.lo + r) * down * item, job.type, along, pass.count);
  }
}

// The largest of a row's scores, and whether one is no number.
template <typename C>
OOC_INLINE C largest(const C *x, bool &sick) {
  typedef C Vec __attribute__((vector_size(VEC_BYTES), may_alias));
  constexpr i64 lanes = VEC_BYTES / i64(sizeof(C));
  const Vec *parts = reinterpret_cast<const Vec *>(x);
  Vec tops = parts[0];
  auto odd = parts[0] != parts[0];
  for (i64 j = 1; j < kColumns<C> / lanes; ++j) tops = parts[j] > tops ? parts[j] : tops, odd |= parts[j] != parts[j];
  C top = tops[0];
  sick = odd[0];
  for (i64 i = 1; i < lanes; ++i) top = tops[i] > top ? tops[i] : top, sick |= odd[i] != 0;
  return top;
}

// Scores become exponentials, relative to what is the largest score so far; what was summed before is scaled to that.
template <typename C>
OOC_INLINE void sum_up(Room<C> &room, C *sums, i64 chunks, i64 chunk, const AttentionPiece &p, Span pass) {
  for (i64 r = 0; r < p.kept.count; ++r) {
    C *x = room.scores + r * kColumns<C>;
    for (i64 j = pass.count; j < kColumns<C>; ++j) x[j] = C(-HUGE_VAL);
    bool sick = false;
    const double before = room.bases[r], high = base_of(largest(x, sick)), base = before > high ? before : high;
    if (base > before && before > -HUGE_VAL) {
      const double factor = rescaling(before, base);
      room.totals[r] *= factor;
      for (i64 q = 0; q < chunks; ++q)
        for (i64 j = 0; j < kColumns<C>; ++j) sums[q * chunk + r * kColumns<C> + j] *= C(factor);
    }
    room.bases[r] = base;
    if (sick || base == HUGE_VAL) room.totals[r] = NAN;
    const C power = C(std::rint(base / kLn2));
    if (even(base))
      for (i64 j = 0; j < kColumns<C>; ++j) x[j] = exponential(x[j], power);
    else
      for (i64 j = 0; j < kColumns<C>; ++j) x[j] = C(exponential_over(x[j], base));
  }
  constexpr i64 some = 8;  // sums in turn, of several rows at a time
  for (i64 r = 0; r < p.kept.count; r += some) {
    double totals[some];
    for (i64 i = 0; i < some; ++i) totals[i] = room.totals[r + i];
    for (i64 j = 0; j < pass.count; ++j)
      for (i64 i = 0; i < some; ++i) totals[i] += room.scores[(r + i) * kColumns<C> + j];
    for (i64 i = 0; i < some; ++i) room.totals[r + i] = totals[i];
  }
}

OOC_INLINE double share_of(double total) { return total == 0 ? 0 : 1 / total; }

// Scores become weights, whole lines at a time: what a compiler makes of the rest of a line rounds otherwise, and bits would depend on
// where keys are split.
template <typename C>
OOC_INLINE void weigh(Room<C> &room, const Attention &job, const AttentionPiece &p, Span pass) {
  const bool turned = job.turned();
  const i64 whole = up(pass.count, kWide<C>) * kWide<C>;
  const auto base = [&](i64 r, i64 j) OOC_LAMBDA { return exact(job.sums, p, turned ? pass.lo + j : p.kept.lo + r, 0); };
  const auto share = [&](i64 r, i64 j) OOC_LAMBDA { return share_of(exact(job.sums, p, turned ? pass.lo + j : p.kept.lo + r, 1)); };
  C powers[kColumns<C>] = {}, shares[kColumns<C>] = {};
  bool fast = true;
  for (i64 j = 0; turned && j < pass.count; ++j)
    fast = fast && even(base(0, j)), powers[j] = C(std::rint(base(0, j) / kLn2)), shares[j] = C(share(0, j));
  for (i64 r = 0; r < p.kept.count; ++r) {
    C *x = room.scores + r * kColumns<C>;
    if (turned ? !fast : !even(base(r, 0))) {
      for (i64 j = 0; j < pass.count; ++j) x[j] = C(exponential_over(x[j], base(r, j))) * C(share(r, j));
    } else if (turned) {
      for (i64 j = 0; j < whole; ++j) x[j] = exponential(x[j], powers[j]) * shares[j];
    } else {
      const C power = C(std::rint(base(r, 0) / kLn2)), one = C(share(r, 0));
      for (i64 j = 0; j < whole; ++j) x[j] = exponential(x[j], power) * one;
    }
  }
}

// Weights become slopes of the scores: weight * (dy v^T - dots).
template <typename C>
OOC_INLINE void slope(Room<C> &room, const Attention &job, const AttentionPiece &p, Span pass) {
  const bool turned = job.turned();
  multiply_rows(room.slopes, room.beside, room, job, p, turned ? job.v : job.dy, turned ? job.dy : job.v, pass, job.e);
  for (i64 r = 0; r < p.kept.count; ++r) {
    C *x = room.scores + r * kColumns<C>;
    const C *g = room.slopes + r * kColumns<C>;
    for (i64 j = 0; j < pass.count; ++j) x[j] *= g[j] - C(exact(job.dots, p, turned ? pass.lo + j : p.kept.lo + r, 0));
  }
}

// sums += weights or slopes times the rows that pass.
template <typename C>
OOC_INLINE void add_weighted(Room<C> &room, C *sums, const Attention &job, const AttentionPiece &p, const Rows &passing, Span pass,
                             Span depth) {
  const i64 item = item_size(job.type);
  pack<kWide<C>>(room.passing, at(passing, p.n, p.k, pass.lo, item) + depth.lo * passing.strides[3] * item, job.type,
                 passing.strides[3], passing.strides[2], depth.count, pass.count);
  add_products(sums, room.scores, kColumns<C>, 1, kHigh * kColumns<C>, p.kept.count, room.passing, depth.count, pass.count);
}

// Of each query the product of y, which stands in for q, and dy.
template <typename C>
OOC_INLINE void multiply_alike(const Attention &job, const AttentionPiece &p) {
  C y[kRows], dy[kRows];
  const i64 item = item_size(job.type);
  double *out = reinterpret_cast<double *>(job.out) + p.n * job.out_strides[0] + p.k * job.out_strides[1];
  for (i64 r = p.kept.lo; r < p.kept.lo + p.kept.count; ++r) {
    double sum = 0;
    for (i64 lo = 0; lo < job.e; lo += kRows) {
      const i64 count = job.e - lo < kRows ? job.e - lo : kRows;
      for (i64 j = 0; j < count; ++j) y[j] = dy[j] = 0;
      add_row(y, at(job.q, p.n, p.k, r, item) + lo * job.q.strides[3] * item, job.type, job.q.strides[3], count);
      add_row(dy, at(job.dy, p.n, p.k, r, item) + lo * job.dy.strides[3] * item, job.type, job.dy.strides[3], count);
      for (i64 j = 0; j < count; ++j) sum += double(y[j]) * double(dy[j]);
    }
    out[r * job.out_strides[2]] = sum;
  }
}

// The sums that a forward piece begins with, and those that it ends with.
template <typename C>
OOC_INLINE void take_totals(Room<C> &room, const Attention &job, const AttentionPiece &p) {
  for (i64 r = 0; r < kKept; ++r) {
    const bool more = job.more && r < p.kept.count;
    room.bases[r] = more ? exact(job.sums, p, p.kept.lo + r, 0) : -HUGE_VAL;
    room.totals[r] = more ? exact(job.sums, p, p.kept.lo + r, 1) : 0;
  }
}

template <typename C>
OOC_INLINE void leave_totals(const Room<C> &room, const Attention &job, const AttentionPiece &p) {
  for (i64 r = 0; r < p.kept.count; ++r)
    for (i64 which = 0; which < 2; ++which)
      const_cast<double &>(exact(job.sums, p, p.kept.lo + r, which)) = which ? room.totals[r] : room.bases[r];
}

template <typename C>
OOC_INLINE void attend_any(const Attention &job, const AttentionPiece &p) {
  if (job.of == Attend::dots) return multiply_alike<C>(job, p);
  Room<C> room;
  const Four &as = job.acc_strides, &os = job.out_strides;
  const bool forward = job.of == Attend::forward, sloped = !forward && job.of != Attend::dv;
  const Rows &passing = forward ? job.v : job.of == Attend::dq ? job.k : job.of == Attend::dk ? job.q : job.dy;
  const i64 passes = job.turned() ? job.queries : job.keys, most = kColumns<C>;
  const i64 chunks = up(p.depth.count, most), chunk = up(p.kept.count, kHigh) * kHigh * most;
  C *const sums = static_cast<C *>(__builtin_alloca_with_align(size_t(chunks * chunk) * sizeof(C), kLine * 8));
  C *const acc = reinterpret_cast<C *>(job.acc) + p.n * as[0] + p.k * as[1] + p.kept.lo * as[2] + p.depth.lo * as[3];
  std::memset(static_cast<void *>(sums), 0, size_t(chunks * chunk) * sizeof(C));
  if (job.more && job.of != Attend::scores)
    for (i64 r = 0; r < p.kept.count; ++r)
      for (i64 j = 0; j < p.depth.count; ++j) sums[j / most * chunk + r * most + j % most] = acc[r * as[2] + j * as[3]];
  if (forward) take_totals(room, job, p);
  for (i64 lo = 0; lo < passes; lo += most) {
    const Span pass{lo, least(most, passes - lo)};
    score(room, job, p, pass);
    if (forward) sum_up(room, sums, chunks, chunk, p, pass);
    else weigh(room, job, p, pass);
    if (sloped) slope(room, job, p, pass);
    if (job.of == Attend::scores) {
      for (i64 r = 0; r < p.kept.count; ++r)
        put(job.out, job.type, p.n * os[0] + p.k * os[1] + (p.kept.lo + r) * os[2] + lo * os[3], os[3], room.scores + r * most,
            pass.count, C(1));
      continue;
    }
    for (i64 q = 0; q < chunks; ++q) {
      const Span depth{p.depth.lo + q * most, least(most, p.depth.count - q * most)};
      add_weighted(room, sums + q * chunk, job, p, passing, pass, depth);
    }
  }
  if (forward) leave_totals(room, job, p);
  if (job.of == Attend::scores) return;
  for (i64 r = 0; r < p.kept.count; ++r) {
    const C factor = forward ? C(share_of(room.totals[r])) : sloped ? C(job.scale) : C(1);
    for (i64 q = 0; q < chunks; ++q) {
      const C *row = sums + q * chunk + r * most;
      const i64 first = q * most, count = least(most, p.depth.count - first);
      if (job.last)
        put(job.out, job.type, p.n * os[0] + p.k * os[1] + (p.kept.lo + r) * os[2] + (p.depth.lo + first) * os[3], os[3], row, count, factor);
      else
        for (i64 j = 0; j < count; ++j) acc[r * as[2] + (first + j) * as[3]] = row[j];
    }
  }
}
