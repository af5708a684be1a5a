// Ordered loops of the forward pass and the data gradient.

// A run of output positions of a group: some of its (channel, tap) pairs, a step for each.
template <class T>
static void stage_pairs(const Gather<T> &t, const T *in, const Range &pairs, const Run &run, i64 pitch, Stage<T> &st) {
  const Axis *a = t.ax;
  const i64 taps = taps_of(a);
  for (i64 i = pairs.lo; i < imin(pairs.hi, pairs.lo + taps); ++i) {  // a tap of one channel, then the same of the others
    const Index3 tap = unflatten(i % taps, a[1].taps, a[2].taps);
    const i64 c = i / taps, channels = ceil_div(pairs.hi - i, taps), step = i - pairs.lo;
    i64 b[3], at = c * t.wc;
    for (int d = 0; d < 3; ++d) b[d] = a[d].off + tap.v[d] * a[d].step, at += (a[d].tap0 + tap.v[d] * a[d].tap_step) * t.wtap[d];
    uint64_t present = low_bits(pitch) & ~low_bits(run.count);  // lanes in excess may hold anything
    T *x = st.x + step * pitch;
    for_rows(a, run, [&](i64 n, i64 o, i64 p, i64 q, i64 len, i64 done) {
      const i64 d = o * a[0].mul + b[0], h = p * a[1].mul + b[1], w = q * a[2].mul + b[2];
      if (d < 0 || d >= a[0].in || h < 0 || h >= a[1].in) return;
      const Range r = inside(w, a[2].mul, a[2].in, len);
      if (r.lo == r.hi) return;
      present |= low_bits(r.hi - r.lo) << (done + r.lo);
      const T *src = in + n * t.is[0] + c * t.is[1] + d * t.is[2] + h * t.is[3] + (w + r.lo * a[2].mul) * t.is[4];
      copy_channels(x + done + r.lo, taps * pitch, src, t.is[1], channels, r.hi - r.lo, Range{0, r.hi - r.lo}, a[2].mul * t.is[4]);
    });
    if (!(present & low_bits(run.count))) present = 0;
    for (i64 k = 0; k < channels; ++k) st.present[step + k * taps] = present, st.at[step + k * taps] = at + k * t.wc;
  }
}

// Some output channels at a run of positions.
template <class T>
static void ordered_job(const Gather<T> &t, const Channels &of, const Run &run, Stage<T> &st) {
  const i64 vecs = ceil_div(run.count, Vec<T>::lanes), pitch = vecs * Vec<T>::lanes;
  const i64 rows = of.rows, first = of.group * t.cout + of.k;
  const i64 taps = taps_of(t.ax), pairs = t.cin * taps;
  const T *in = t.in + of.group * t.cin * t.is[1], *w = t.w + of.group * t.wgroup + of.k * t.wk;
  for (i64 i = 0; i < rows * pitch; ++i) st.sums[i] = 0;
  // What lanes in excess compute is not used, but takes a hundred times as long where it is subnormal.
  if (run.count < pitch) std::memset(st.x, 0, sizeof st.x);
  if (t.e.accumulate)
    for_rows(t.ax, run, [&](i64 n, i64 o, i64 p, i64 q, i64 len, i64 done) {
      const T *out = t.out + n * t.os[0] + first * t.os[1] + o * t.os[2] + p * t.os[3] + q * t.os[4];
      copy_channels(st.sums + done, pitch, out, t.os[1], rows, len, Range{0, len}, t.os[4]);
    });
  const i64 chunk = taps && taps < STEPS ? STEPS / taps * taps : STEPS;  // whole channels, if one fits
  const bool blocks = !t.chained && pairs > chunk;
  if (blocks) std::memcpy(st.totals, st.sums, rows * pitch * sizeof(T));
  for (i64 i = 0; i < pairs; i += chunk) {
    const Range some{i, imin(pairs, i + chunk)};
    stage_pairs(t, in, some, run, pitch, st);
    ordered_product(rows, vecs, some.hi - some.lo, w, t.wk, st, blocks);
    for (i64 j = 0; blocks && j < rows * pitch; ++j) st.totals[j] += st.sums[j];
  }
  if (blocks) std::memcpy(st.sums, st.totals, rows * pitch * sizeof(T));
  Epilogue<T> e = t.e;
  e.accumulate = false;  // the sums began with the old values
  for_rows(t.ax, run, [&](i64 n, i64 o, i64 p, i64 q, i64 len, i64 done) {
    T *out = t.out + n * t.os[0] + first * t.os[1] + o * t.os[2] + p * t.os[3] + q * t.os[4];
    store_chains(OutputRow<T>{st.sums + done, pitch, out, len, t.os[4], t.os[1], rows, first}, e);
  });
}

// Parts of at most `most`, smaller ones if there were fewer jobs than threads can share.
OOC_INLINE i64 part_of(i64 extent, i64 most, i64 others, int threads) {
  const i64 parts = imax(ceil_div(extent, most), imin(ceil_div(3 * threads, imax(1, others)), ceil_div(extent, 4 * OR)));
  return threads > 1 ? imin(most, round_up(ceil_div(extent, parts), OR)) : imin(most, extent);
}

template <class T>
static void ordered_gather(const Gather<T> &t, int threads) {
  if (takes_lanes(t)) return lane_gather(t, threads);
  if (takes_columns(t)) return column_gather(t, threads);
  const i64 all = t.batch * outputs_of(t.ax), run = imin(all, Stage<T>::LANES), runs = ceil_div(all, imax(1, run));
  const int team = team_for<T>(double(all) * t.groups * t.cout * t.cin * imax(1, taps_of(t.ax)), threads, PLAIN);
  const i64 part = part_of(t.cout, SUM_ROWS, runs * t.groups, team), parts = ceil_div(t.cout, part), jobs = runs * t.groups * parts;
  share(jobs, team, [&](i64 i, int) {
    Stage<T> st;
    const i64 k = i % parts * part, g = i / parts % t.groups, begin = i / (parts * t.groups) * run;
    ordered_job(t, Channels{g, k, imin(part, t.cout - k)}, Run{begin, imin(run, all - begin)}, st);
  });
}

template <class T>
static void ordered_dgrad(const Problem &p, const Operands &o) {
  for_residues(p, [&](const Index3 &m) { ordered_gather(backward_task<T>(p, o, m), p.threads); });
}
