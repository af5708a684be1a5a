// A piece of attention: what is kept (queries, or keys where their gradients are summed) against what passes.
//
// No scores outlive their block. The largest score and the sum of exponentials of each query are known before anything is weighted, so
// that all else is a sum of products in the order of what passes, whatever the blocks. Meaning: ooc/ops/attention.py.

OOC_INLINE const char *at(const Rows &t, i64 n, i64 k, i64 row, i64 item) {
  return t.data + (n * t.strides[0] + k * t.strides[1] + row * t.strides[2]) * item;
}

OOC_INLINE double exact(const Rows &t, const AttentionPiece &p, i64 row, i64 which) {
  return reinterpret_cast<const double *>(at(t, p.n, p.k, row, 8))[which * t.strides[3]];
}

// In f32 alone, within two units of the last place: weights are rounded once more where they are summed.
OOC_INLINE float exponential(float x) {
  const float held = choose(x < -87.0f, -87.0f, x), shift = 0x1.8p23f;  // adding it rounds to an integer, kept in the low bits
  const float t = held * 1.44269504f + shift, n = t - shift;
  const float r = (held - n * 0.693145751953125f) - n * 1.42860677e-6f;
  float p = 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const float y = bit_cast<float>((bit_cast<uint32_t>(t) << 23) + bit_cast<uint32_t>(p));
  return choose(x == x, choose(x < -87.0f, 0.0f, y), x);
}

// As exact as libm's, and it vectorises.
OOC_INLINE double exponential(double x) {
  const double held = choose(x < -708.0, -708.0, x), shift = 0x1.8p52;
  const double t = held * 1.4426950408889634 + shift, n = t - shift;
  const double r = (held - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
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
  p = p * r + 1.0;
  const double y = bit_cast<double>((bit_cast<uint64_t>(t) << 52) + bit_cast<uint64_t>(p));
  return choose(x == x, choose(x < -708.0, 0.0, y), x);
}

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
  alignas(kLine) C scores[kKept * kColumns<C>], slopes[kKept * kColumns<C>], sums[kKept * kColumns<C>];
  alignas(kLine) C kept[kKept * kDeep<C>], beside[kKept * kDeep<C>], passing[kDeep<C> * kColumns<C>];
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
  const Four &bs = job.bias.strides;
  const i64 item = item_size(job.type), along = turned ? bs[2] : bs[3], down = turned ? bs[3] : bs[2];
  for (i64 r = 0; r < p.kept.count; ++r) {
    C *x = room.scores + r * kColumns<C>;
    for (i64 j = 0; j < pass.count; ++j) x[j] *= C(job.scale);
    if (job.bias.data)
      add_row(x, job.bias.data + (p.n * bs[0] + p.k * bs[1] + (p.kept.lo + r) * down + pass.lo * along) * item, job.type, along,
              pass.count);
  }
}

// The largest score of each query and the sum of exponentials beside it, so far: in f64, so that it hardly matters where keys were
// split.
template <typename C>
OOC_INLINE void sum_up(double *tops, double *totals, Room<C> &room, const AttentionPiece &p, Span pass) {
  for (i64 r = 0; r < p.kept.count; ++r) {
    C *x = room.scores + r * kColumns<C>;
    C top = x[0];
    int sick = 0;
    for (i64 j = 0; j < pass.count; ++j) top = x[j] > top ? x[j] : top;
    for (i64 j = 0; j < pass.count; ++j) sick |= x[j] != x[j];
    const double high = tops[r] > double(top) ? tops[r] : double(top);
    double total = totals[r] > 0 ? totals[r] * std::exp(tops[r] - high) : totals[r];
    if (high > -HUGE_VAL) {
      constexpr i64 lanes = 8;
      double part[lanes] = {};
      for (i64 j = pass.count; j % lanes; ++j) x[j] = C(-HUGE_VAL);
      for (i64 j = 0; j < pass.count; j += lanes)
        for (i64 i = 0; i < lanes; ++i) part[i] += exponential(double(x[j + i]) - high);
      for (i64 i = 0; i < lanes; ++i) total += part[i];
    }
    tops[r] = high, totals[r] = sick || high == HUGE_VAL ? NAN : total;
  }
}

// Scores become weights, whole lines at a time: what a compiler makes of the rest of a line rounds otherwise, and bits would depend on
// where keys are split.
template <typename C>
OOC_INLINE void weigh(Room<C> &room, const Attention &job, const AttentionPiece &p, Span pass) {
  const bool turned = job.turned();
  const i64 whole = up(pass.count, kWide<C>) * kWide<C>;
  C tops[kColumns<C>] = {}, shares[kColumns<C>] = {};
  const auto known = [&](i64 query, i64 to) {
    const double top = exact(job.sums, p, query, 0), total = exact(job.sums, p, query, 1);
    tops[to] = top == -HUGE_VAL ? C(0) : C(top);
    shares[to] = total == 0 ? C(0) : C(1 / total);
  };
  if (turned)
    for (i64 j = 0; j < pass.count; ++j) known(pass.lo + j, j);
  for (i64 r = 0; r < p.kept.count; ++r) {
    C *x = room.scores + r * kColumns<C>;
    if (turned) {
      for (i64 j = 0; j < whole; ++j) x[j] = exponential(x[j] - tops[j]) * shares[j];
    } else {
      known(p.kept.lo + r, 0);
      const C top = tops[0], share = shares[0];
      for (i64 j = 0; j < whole; ++j) x[j] = exponential(x[j] - top) * share;
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
OOC_INLINE void add_weighted(Room<C> &room, const Attention &job, const AttentionPiece &p, const Rows &passing, Span pass) {
  const i64 item = item_size(job.type);
  pack<kWide<C>>(room.passing, at(passing, p.n, p.k, pass.lo, item) + p.depth.lo * passing.strides[3] * item, job.type, passing.strides[3],
                 passing.strides[2], p.depth.count, pass.count);
  add_products(room.sums, room.scores, kColumns<C>, 1, kHigh * kColumns<C>, p.kept.count, room.passing, p.depth.count, pass.count);
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

template <typename C>
OOC_INLINE void attend_any(const Attention &job, const AttentionPiece &p) {
  if (job.of == Attend::dots) return multiply_alike<C>(job, p);
  Room<C> room;
  const Four &as = job.acc_strides, &os = job.out_strides;
  const bool sloped = job.of != Attend::apply && job.of != Attend::dv && job.of != Attend::sum;
  const Rows &passing = job.of == Attend::apply ? job.v : job.of == Attend::dq ? job.k : job.of == Attend::dk ? job.q : job.dy;
  const i64 passes = job.turned() ? job.queries : job.keys;
  double tops[kKept], totals[kKept];
  double *const state = reinterpret_cast<double *>(job.out) + p.n * os[0] + p.k * os[1] + p.kept.lo * os[2];
  C *const acc = reinterpret_cast<C *>(job.acc) + p.n * as[0] + p.k * as[1] + p.kept.lo * as[2] + p.depth.lo * as[3];
  if (job.of == Attend::sum) {
    for (i64 r = 0; r < p.kept.count; ++r)
      tops[r] = job.more ? state[r * os[2]] : -HUGE_VAL, totals[r] = job.more ? state[r * os[2] + os[3]] : 0.0;
  } else {
    std::memset(static_cast<void *>(room.sums), 0, sizeof(room.sums));
    if (job.more)
      for (i64 r = 0; r < p.kept.count; ++r)
        for (i64 j = 0; j < p.depth.count; ++j) room.sums[r * kColumns<C> + j] = acc[r * as[2] + j * as[3]];
  }
  for (i64 lo = 0; lo < passes; lo += kColumns<C>) {
    const Span pass{lo, passes - lo < kColumns<C> ? passes - lo : kColumns<C>};
    score(room, job, p, pass);
    if (job.of == Attend::sum) {
      sum_up(tops, totals, room, p, pass);
      continue;
    }
    weigh(room, job, p, pass);
    if (sloped) slope(room, job, p, pass);
    if (job.of != Attend::scores) {
      add_weighted(room, job, p, passing, pass);
      continue;
    }
    for (i64 r = 0; r < p.kept.count; ++r)
      put(job.out, job.type, p.n * os[0] + p.k * os[1] + (p.kept.lo + r) * os[2] + lo * os[3], os[3], room.scores + r * kColumns<C>,
          pass.count, C(1));
  }
  if (job.of == Attend::scores) return;
  for (i64 r = 0; r < p.kept.count; ++r) {
    const C *row = room.sums + r * kColumns<C>;
    if (job.of == Attend::sum) {
      state[r * os[2]] = tops[r], state[r * os[2] + os[3]] = totals[r];
    } else if (job.last) {
      const i64 to = p.n * os[0] + p.k * os[1] + (p.kept.lo + r) * os[2] + p.depth.lo * os[3];
      put(job.out, job.type, to, os[3], row, p.depth.count, sloped ? C(job.scale) : C(1));
    } else {
      for (i64 j = 0; j < p.depth.count; ++j) acc[r * as[2] + j * as[3]] = row[j];
    }
  }
}

