// Ordered loops of depthwise convolutions with channels innermost: vectors of channels, straight from and to the operands.

// A term of an output row: where its input of column 0 is, which columns have one, its weights.
template <class T>
struct Term {
  const T *in, *w;
  Range q;
};

constexpr i64 LANE_ROWS = 8;  // output rows of a job, for which weights are collected once

// An output row of some channels.
template <class T>
struct LaneRow {
  T *out;
  i64 stride, n;  // of columns
  i64 hop;        // inputs from column to column
  i64 lanes;      // channels
  bool fresh;     // sums begin at 0, not at the old values
};

// Q columns of an output row from column q on: a chain for each channel over the terms.
template <class T, bool whole, int Q>
OOC_INLINE void lane_columns(const Term<T> *term, i64 terms, const LaneRow<T> &row, i64 q) {
  typedef typename Vec<T>::type V;
  const i64 lanes = whole ? Vec<T>::lanes : row.lanes, hop = row.hop, os = row.stride;
  T *const out = row.out + q * os;
  V s[Q];
#pragma GCC unroll 8
  for (int u = 0; u < Q; ++u) s[u] = row.fresh ? V{} : load_lanes(out + u * os, lanes);
  for (const Term<T> *i = term; i < term + terms; ++i) {
    const V w = *(const V *)i->w;
    const T *in = i->in + q * hop;
    if (whole && q >= i->q.lo && q + Q <= i->q.hi) {
#pragma GCC unroll 8
      for (int u = 0; u < Q; ++u) s[u] = fused(*(const V *)(in + u * hop), w, s[u]);
    } else {
#pragma GCC unroll 8
      for (int u = 0; u < Q; ++u)
        if (q + u >= i->q.lo && q + u < i->q.hi) s[u] = fused(load_lanes(in + u * hop, lanes), w, s[u]);
    }
  }
#pragma GCC unroll 8
  for (int u = 0; u < Q; ++u) store_lanes(out + u * os, s[u], lanes);
}

// One output row: as many columns at a time as hide each other's latency, then those that are left.
template <class T, bool whole>
static void lane_row(const Term<T> *term, i64 terms, const LaneRow<T> &row) {
  i64 q = 0;
  for (; q + 8 <= row.n; q += 8) lane_columns<T, whole, 8>(term, terms, row, q);
  if (q + 4 <= row.n) lane_columns<T, whole, 4>(term, terms, row, q), q += 4;
  if (q + 2 <= row.n) lane_columns<T, whole, 2>(term, terms, row, q), q += 2;
  if (q < row.n) lane_columns<T, whole, 1>(term, terms, row, q);
}

// Output rows [row0, row1) of the channels [ch, ch + lanes).
template <class T>
static void lane_job(const Gather<T> &t, i64 ch, i64 lanes, i64 row0, i64 row1) {
  constexpr int L = Vec<T>::lanes;
  const Axis *a = t.ax;
  const i64 taps = taps_of(a), hop = a[2].mul * t.is[4];
  alignas(64) T w[STEPS * L];
  Term<T> term[STEPS];
  i64 at[STEPS][3], offset[STEPS];  // input position of a tap for output (0, 0, 0), and where it is
  Range columns[STEPS];
  for (i64 i0 = 0; i0 == 0 || i0 < taps; i0 += STEPS) {
    const i64 i1 = imin(taps, i0 + STEPS);
    for (i64 i = 0; i < i1 - i0; ++i) {
      const Index3 tap = unflatten(i0 + i, a[1].taps, a[2].taps);
      const T *from = t.w + ch * t.wgroup;
      for (int d = 0; d < 3; ++d) {
        from += (a[d].tap0 + tap.v[d] * a[d].tap_step) * t.wtap[d];
        at[i][d] = a[d].off + tap.v[d] * a[d].step;
      }
      offset[i] = at[i][0] * t.is[2] + at[i][1] * t.is[3] + at[i][2] * t.is[4];
      columns[i] = inside(at[i][2], a[2].mul, a[2].in, a[2].out);
      for (i64 l = 0; l < L; ++l) w[i * L + l] = l < lanes ? from[l * t.wgroup] : T(0);
    }
    for (i64 row = row0; row < row1; ++row) {
      const i64 p = row % a[1].out, o = row / a[1].out % a[0].out, n = row / (a[1].out * a[0].out);
      const i64 d0 = o * a[0].mul, h0 = p * a[1].mul, origin = n * t.is[0] + ch + d0 * t.is[2] + h0 * t.is[3];
      i64 terms = 0;
      for (i64 i = 0; i < i1 - i0; ++i) {
        const i64 d = d0 + at[i][0], h = h0 + at[i][1];
        const Range q = columns[i];
        if (d < 0 || d >= a[0].in || h < 0 || h >= a[1].in || q.lo == q.hi) continue;
        term[terms++] = {t.in + (origin + offset[i]), w + i * L, q};
      }
      T *out = t.out + n * t.os[0] + ch + o * t.os[2] + p * t.os[3];
      const LaneRow<T> to{out, t.os[4], a[2].out, hop, lanes, i0 == 0 && !t.e.accumulate};
      if (lanes == L)
        lane_row<T, true>(term, terms, to);
      else
        lane_row<T, false>(term, terms, to);
      if (i1 < taps || (!t.e.bias && t.e.act == Act::identity)) continue;
      for (i64 q = 0; q < a[2].out; ++q)
        for (i64 i = 0; i < lanes; ++i) {
          T &v = out[q * t.os[4] + i];
          v = activate<T>(t.e.bias ? v + t.e.bias[ch + i] : v, t.e.act, t.e.coef);
        }
    }
  }
}

template <class T>
OOC_INLINE bool takes_lanes(const Gather<T> &t) {
  return t.cin == 1 && t.cout == 1 && t.groups > 1 && t.is[1] == 1 && t.os[1] == 1;
}

template <class T>
static void lane_gather(const Gather<T> &t, int threads) {
  constexpr int L = Vec<T>::lanes;
  const i64 rows = t.batch * t.ax[0].out * t.ax[1].out, blocks = ceil_div(t.groups, L), jobs = blocks * ceil_div(rows, LANE_ROWS);
  const int team = team_for<T>(double(rows) * t.ax[2].out * t.groups * imax(1, taps_of(t.ax)), threads, LANEWISE);
  share(jobs, team, [&](i64 i, int) {
    const i64 ch = i % blocks * L, row = i / blocks * LANE_ROWS;
    lane_job(t, ch, imin(L, t.groups - ch), row, imin(rows, row + LANE_ROWS));
  });
}

constexpr int LANE_TAPS = 9;  // weights of each channel per register block

// An output row of some channels, against the inputs of several taps.
template <class T>
struct LaneColumns {
  const T *x[LANE_TAPS], *y;  // of column 0
  Range q[LANE_TAPS], all;    // the columns of each tap, and those of all
  i64 hop, stride, n;         // from column to column in x and in y; columns
  i64 lanes;
};

template <class T, bool whole>
OOC_INLINE typename Vec<T>::type load_whole(const T *p, i64 lanes) {
  return load_lanes(p, whole ? Vec<T>::lanes : lanes);
}

// s[i] += in the order of columns [begin, end): x of tap i times y; edge: where some taps have no input.
template <class T, bool whole, bool edge, int M>
OOC_INLINE void lane_terms(const LaneColumns<T> &from, i64 begin, i64 end, typename Vec<T>::type (&s)[M]) {
  typedef typename Vec<T>::type V;
  for (i64 q = begin; q < end; ++q) {
    const V b = load_whole<T, whole>(from.y + q * from.stride, from.lanes);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
      if (!edge || (q >= from.q[i].lo && q < from.q[i].hi)) s[i] = fused(load_whole<T, whole>(from.x[i] + q * from.hop, from.lanes), b, s[i]);
  }
}

// *to[i] += the sum of a row for tap i.
template <class T, bool whole, int M>
static void lane_dots(i64 taps, const LaneColumns<T> &from, typename Vec<T>::type *const *to) {
  typedef typename Vec<T>::type V;
  if (taps == M) {
    V s[M];
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) s[i] = V{};
    lane_terms<T, whole, true, M>(from, 0, from.all.lo, s);
    lane_terms<T, whole, false, M>(from, from.all.lo, from.all.hi, s);
    lane_terms<T, whole, true, M>(from, from.all.hi, from.n, s);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) *to[i] += s[i];
  } else if constexpr (M > 1) {
    lane_dots<T, whole, M - 1>(taps, from, to);
  }
}

// The weights of taps [taps.lo, taps.hi) of the channels [ch, ch + lanes).
template <class T, bool whole>
static void lane_weights(const Problem &p, const Operands &o, i64 ch, i64 lanes, const Range &taps) {
  typedef typename Vec<T>::type V;
  const i64 count = taps.hi - taps.lo;
  i64 at[LANE_TAPS][3], offset[LANE_TAPS];
  T *w[LANE_TAPS];
  Range columns[LANE_TAPS];
  V total[LANE_TAPS];
  for (i64 i = 0; i < count; ++i) {
    const Index3 tap = unflatten(taps.lo + i, p.f[1], p.f[2]);
    w[i] = static_cast<T *>(o.w) + ch * o.ws[0];
    total[i] = V{}, offset[i] = 0;
    for (int d = 0; d < 3; ++d) {
      at[i][d] = tap.v[d] * p.dilation[d] - p.pad[d];
      offset[i] += at[i][d] * o.xs[d + 2], w[i] += tap.v[d] * o.ws[d + 2];
    }
    columns[i] = inside(at[i][2], p.stride[2], p.x[2], p.y[2]);
    for (i64 l = 0; l < lanes && o.accumulate; ++l) total[i][l] = w[i][l * o.ws[0]];
  }
  LaneColumns<T> row;
  row.hop = p.stride[2] * o.xs[4], row.stride = o.ys[4], row.n = p.y[2], row.lanes = lanes;
  for (i64 n = 0; n < p.n; ++n)
    for (i64 a = 0; a < p.y[0]; ++a)
      for (i64 b = 0; b < p.y[1]; ++b) {
        const i64 d0 = a * p.stride[0], h0 = b * p.stride[1];
        const T *x = static_cast<const T *>(o.x) + n * o.xs[0] + ch + d0 * o.xs[2] + h0 * o.xs[3];
        row.y = static_cast<const T *>(o.y) + n * o.ys[0] + ch + a * o.ys[2] + b * o.ys[3];
        row.all = {0, p.y[2]};
        V *to[LANE_TAPS];
        i64 m = 0;
        for (i64 i = 0; i < count; ++i) {
          const i64 d = d0 + at[i][0], h = h0 + at[i][1];
          const Range &q = columns[i];
          if (d < 0 || d >= p.x[0] || h < 0 || h >= p.x[1] || q.lo == q.hi) continue;
          row.all = {imax(row.all.lo, q.lo), imin(row.all.hi, q.hi)};
          row.x[m] = x + offset[i], row.q[m] = q, to[m++] = total + i;
        }
        row.all.hi = imax(row.all.lo, row.all.hi);
        lane_dots<T, whole, LANE_TAPS>(m, row, to);
      }
  for (i64 i = 0; i < count; ++i)
    for (i64 l = 0; l < lanes; ++l) w[i][l * o.ws[0]] = total[i][l];
}

template <class T>
static void lane_weights(const Problem &p, const Operands &o, i64 ch, i64 lanes, const Range &taps) {
  if (lanes == Vec<T>::lanes)
    lane_weights<T, true>(p, o, ch, lanes, taps);
  else
    lane_weights<T, false>(p, o, ch, lanes, taps);
}

OOC_INLINE bool takes_lanes(const Problem &p, const Operands &o) {
  return p.groups > 1 && p.c == p.groups && p.k == p.groups && o.xs[1] == 1 && o.ys[1] == 1;
}

template <class T>
static void lane_wgrad(const Problem &p, const Operands &o) {
  constexpr int L = Vec<T>::lanes;
  const i64 taps = volume(p.f), parts = ceil_div(taps, LANE_TAPS), jobs = ceil_div(p.c, L) * parts;
  const int team = team_for<T>(double(p.c) * taps * p.n * volume(p.y), p.threads, LANEWISE);
  share(jobs, team, [&](i64 i, int) {
    const i64 ch = i / parts * L, tap = i % parts * LANE_TAPS;
    lane_weights<T>(p, o, ch, imin(L, p.c - ch), Range{tap, imin(taps, tap + LANE_TAPS)});
  });
}
