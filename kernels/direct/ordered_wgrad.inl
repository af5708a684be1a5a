// Ordered loops of the weight gradient.

// The (channel, tap) pairs of a job, one in each lane.
template <class T>
struct Pairs {
  i64 count;
  i64 x[Stage<T>::LANES], w[Stage<T>::LANES];           // element offsets in x and w
  i64 d[Stage<T>::LANES], h[Stage<T>::LANES];           // input row of output row 0
  i64 start[Stage<T>::LANES];                           // input column of output column 0
  Range q[Stage<T>::LANES];                             // output columns with an input
  bool on[Stage<T>::LANES];                             // has input in the current row
};

// Lane order follows the weights in memory, so that sums are added to whole vectors of them.
template <class T>
static void make_pairs(const Problem &p, const Operands &o, const Run &pairs, Pairs<T> &l) {
  const i64 cin = p.c / p.groups, taps = volume(p.f), begin = pairs.begin, count = pairs.count;
  const bool inner = o.ws[1] < o.ws[4] || taps == 1;  // channels innermost
  l.count = count;
  for (i64 i = 0; i < count; ++i) {
    const i64 c = inner ? (begin + i) % cin : (begin + i) / taps;
    const Index3 t = unflatten(inner ? (begin + i) / cin : (begin + i) % taps, p.f[1], p.f[2]);
    const i64 at[3] = {t.v[0] * p.dilation[0] - p.pad[0], t.v[1] * p.dilation[1] - p.pad[1], t.v[2] * p.dilation[2] - p.pad[2]};
    l.w[i] = c * o.ws[1] + t.v[0] * o.ws[2] + t.v[1] * o.ws[3] + t.v[2] * o.ws[4];
    l.x[i] = c * o.xs[1] + at[0] * o.xs[2] + at[1] * o.xs[3] + at[2] * o.xs[4];
    l.d[i] = at[0], l.h[i] = at[1], l.start[i] = at[2];
    l.q[i] = inside(at[2], p.stride[2], p.x[2], p.y[2]);
  }
}

// Columns [q0, q0 + n) of an output row: x of the lanes, `row` the address of offset 0 at q0.
template <class T>
static void stage_columns(const Pairs<T> &l, const T *row, i64 hop, i64 q0, i64 n, i64 pitch, Stage<T> &st) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  Range full{q0, q0 + n};  // columns that all lanes have
  bool all = true;
  for (i64 i = 0; i < l.count; ++i) {
    all = all && l.on[i];
    full.lo = imax(full.lo, l.q[i].lo), full.hi = imin(full.hi, l.q[i].hi);
  }
  if (!all || full.lo >= full.hi) full = {q0, q0};
  const uint64_t excess = low_bits(pitch) & ~low_bits(l.count);
  for (i64 s = 0; s < n; ++s) {
    const i64 q = q0 + s;
    uint64_t present = low_bits(pitch);
    if (q < full.lo || q >= full.hi) {
      present = 0;
      for (i64 i = 0; i < l.count; ++i) present |= uint64_t(l.on[i] && q >= l.q[i].lo && q < l.q[i].hi) << i;
      if (present) present |= excess;
    }
    st.present[s] = present;
  }
  for (i64 v = 0; v < l.count; v += L) {
    const i64 lanes = imin(L, l.count - v), lo = full.lo - q0, hi = full.hi - q0;
    T *x = st.x + v;
    bool beside = lanes == L;  // lanes beside one another in x
    for (i64 i = 1; i < lanes; ++i) beside = beside && l.x[v + i] == l.x[v] + i;
    i64 s = lo;
    if (beside) {
      for (; s < hi; ++s) *(V *)(x + s * pitch) = *(const V *)(row + l.x[v] + s * hop);
    } else if (hop == 1 && lanes == L) {
      for (; s + L <= hi; s += L) {
        V r[L];
#pragma GCC unroll 16
        for (int i = 0; i < L; ++i) r[i] = *(const V *)(row + l.x[v + i] + s);
        transpose_square<T>(r);
#pragma GCC unroll 16
        for (int i = 0; i < L; ++i) *(V *)(x + (s + i) * pitch) = r[i];
      }
    }
    for (i64 i = 0; i < lanes; ++i) {
      if (!l.on[v + i]) continue;
      const T *src = row + l.x[v + i];
      const i64 first = imax(0, l.q[v + i].lo - q0), last = imin(n, l.q[v + i].hi - q0);
      for (i64 u = first; u < imin(lo, last); ++u) x[u * pitch + i] = src[u * hop];
      for (i64 u = imax(s, first); u < last; ++u) x[u * pitch + i] = src[u * hop];
    }
  }
}

// Adds the sums of an output row to the weights of `rows` output channels, w at the first.
template <class T>
static void add_row(const Pairs<T> &l, bool dense, i64 rows, i64 pitch, const T *sums, T *w, i64 ws) {
  for (i64 i = 0; i < rows; ++i, sums += pitch, w += ws)
    if (dense) {
      T *to = w + l.w[0];
      for (i64 v = 0; v < l.count; ++v) to[v] += sums[v];
    } else {
      for (i64 v = 0; v < l.count; ++v)
        if (l.on[v]) w[l.w[v]] += sums[v];
    }
}

// Some output channels against a run of pairs.
template <class T>
static void ordered_weights(const Problem &p, const Operands &o, const Channels &of, const Run &pairs, Stage<T> &st, Pairs<T> &l) {
  const i64 cin = p.c / p.groups, first = of.group * (p.k / p.groups) + of.k, rows = of.rows, count = pairs.count;
  const i64 vecs = ceil_div(count, Vec<T>::lanes), pitch = vecs * Vec<T>::lanes, hop = p.stride[2] * o.xs[4];
  T *w = static_cast<T *>(o.w) + first * o.ws[0];
  make_pairs(p, o, pairs, l);
  bool dense = true;
  i64 left = p.y[2], right = 0;  // columns that any lane has
  for (i64 v = 0; v < count; ++v) {
    dense = dense && l.w[v] == l.w[0] + v;
    if (l.q[v].lo < l.q[v].hi) left = imin(left, l.q[v].lo), right = imax(right, l.q[v].hi);
    if (!o.accumulate)
      for (i64 i = 0; i < rows; ++i) w[i * o.ws[0] + l.w[v]] = 0;
  }
  for (i64 s = 0; s < STEPS; ++s) st.at[s] = s * o.ys[4];
  for (i64 n = 0; n < p.n; ++n)
    for (i64 a = 0; a < p.y[0]; ++a)
      for (i64 b = 0; b < p.y[1]; ++b) {
        const i64 d = a * p.stride[0], h = b * p.stride[1];
        i64 on = 0;
        for (i64 v = 0; v < count; ++v) {
          l.on[v] = d + l.d[v] >= 0 && d + l.d[v] < p.x[0] && h + l.h[v] >= 0 && h + l.h[v] < p.x[1] && l.q[v].lo < l.q[v].hi;
          on += l.on[v];
        }
        if (!on) continue;
        const T *x = static_cast<const T *>(o.x) + n * o.xs[0] + of.group * cin * o.xs[1] + d * o.xs[2] + h * o.xs[3];
        const T *y = static_cast<const T *>(o.y) + n * o.ys[0] + first * o.ys[1] + a * o.ys[2] + b * o.ys[3];
        for (i64 q = left; q < right; q += STEPS) {
          const i64 steps = imin(STEPS, right - q);
          stage_columns(l, x + q * hop, hop, q, steps, pitch, st);
          ordered_product(rows, vecs, steps, y + q * o.ys[4], o.ys[1], st, q == left);
        }
        add_row(l, dense && on == count, rows, pitch, st.sums, w, o.ws[0]);
      }
}

template <class T>
static void ordered_wgrad(const Problem &p, const Operands &o) {
  if (takes_lanes(p, o)) return lane_wgrad<T>(p, o);
  if (is_depthwise(p) && turned<T>(p, o)) return;
  const i64 pairs = p.c / p.groups * volume(p.f), cout = p.k / p.groups;
  const int team = team_for<T>(double(p.k) * pairs * p.n * volume(p.y), p.threads, PLAIN);
  const i64 panels = ceil_div(pairs, Stage<T>::LANES), part = part_of(cout, SUM_ROWS, panels * p.groups, team);
  const i64 parts = ceil_div(cout, part), jobs = p.groups * panels * parts;
  share(jobs, team, [&](i64 i, int) {
    Stage<T> st;
    Pairs<T> l;
    const i64 g = i / (parts * panels), k = i % parts * part, begin = i / parts % panels * Stage<T>::LANES;
    ordered_weights(p, o, Channels{g, k, imin(part, cout - k)}, Run{begin, imin(Stage<T>::LANES, pairs - begin)}, st, l);
  });
}
