// Ordered loops of results whose rows are long: vectors of neighbouring columns, straight from and to the operands.

constexpr i64 COLUMN_VECTORS = 5;    // of a row that all taps serve: with fewer, inputs are gathered (measured)
constexpr i64 COLUMN_CHANNELS = 16;  // of a job, for which terms are looked up once

// A term of an output row: the row of its inputs, that of column 0, where its weight is among those of a channel, which columns
// have one.
template <class T>
struct ColumnTerm {
  const T *row;
  i64 off, w;
  Range q;
};

// Some channels of an output row.
template <class T>
struct ColumnRow {
  T *out;
  const T *w;
  i64 pitch, wk;       // from channel to channel, of results and of weights
  bool fresh, blocks;  // sums begin at 0, not at the old values; a chain of its own for these terms, which is added to the sum
};

// Vectors of columns from q on, which all terms serve.
template <class T, int R, int V_>
static void whole_columns(const ColumnTerm<T> *term, i64 terms, const ColumnRow<T> &row, i64 q) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  const i64 wk = row.wk, pitch = row.pitch;
  T *const out = row.out + q;
  V s[R][V_];
#pragma GCC unroll 4
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < V_; ++j) s[i][j] = row.fresh || row.blocks ? V{} : *(const V *)(out + i * pitch + j * L);
  for (const ColumnTerm<T> *t = term; t < term + terms; ++t) {
    const T *in = t->row + t->off + q, *w = row.w + t->w;
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) {
      const V f = w[i * wk] - V{};  // broadcast
#pragma GCC unroll 8
      for (int j = 0; j < V_; ++j) s[i][j] = fused(f, *(const V *)(in + j * L), s[i][j]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < V_; ++j) {
      V *to = (V *)(out + i * pitch + j * L);
      *to = row.blocks && !row.fresh ? *to + s[i][j] : s[i][j];
    }
}

// The inputs of a vector of columns from q on, of which the row holds some: whatever it holds for the others.
template <class T>
OOC_INLINE typename Vec<T>::type inputs_near(const ColumnTerm<T> &t, i64 extent, i64 q) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  const i64 at = t.off + q, near = clamp(at, 0, extent - L), by = at - near;
  const V x = *(const V *)(t.row + near);
#if defined(__GNUC__) && !defined(__clang__)
  typename LaneVec<T>::type from;
#pragma GCC unroll 16
  for (int j = 0; j < L; ++j) from[j] = j;
  return __builtin_shuffle(x, from + typename Lane<T>::type(by));  // modulo the lanes
#else
  const V twice[2] = {x, x};
  return *(const V *)((const T *)twice + (by & (L - 1)));
#endif
}

// Columns [q, q + n), at most a vector of them, of which terms serve some.
template <class T, int R>
static void some_columns(const ColumnTerm<T> *term, i64 terms, const ColumnRow<T> &row, i64 extent, i64 q, i64 n) {
  typedef typename Vec<T>::type V;
  typedef typename Lane<T>::type I;
  constexpr int L = Vec<T>::lanes;
  typename LaneVec<T>::type lane;
#pragma GCC unroll 16
  for (int j = 0; j < L; ++j) lane[j] = I(j);
  V s[R];
#pragma GCC unroll 4
  for (int i = 0; i < R; ++i) s[i] = row.fresh || row.blocks ? V{} : load_lanes(row.out + i * row.pitch + q, n);
  for (const ColumnTerm<T> *t = term; t < term + terms; ++t) {
    const i64 lo = imax(0, t->q.lo - q), hi = imin(n, t->q.hi - q);
    if (lo >= hi) continue;
    const V x = inputs_near(*t, extent, q);
    const T *w = row.w + t->w;
    const auto serves = (lane >= I(lo)) & (lane < I(hi));
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) s[i] = serves ? fused(w[i * row.wk] - V{}, x, s[i]) : s[i];
  }
#pragma GCC unroll 4
  for (int i = 0; i < R; ++i) {
    T *to = row.out + i * row.pitch + q;
    if (row.blocks && !row.fresh) s[i] += load_lanes(to, n);
    store_lanes(to, s[i], n);
  }
}

// All columns for R channels; `all`: those that all terms serve.
template <class T, int R>
static void column_rows(const ColumnTerm<T> *term, i64 terms, const ColumnRow<T> &row, const Axis &a, const Range &all) {
  constexpr int L = Vec<T>::lanes, V_ = R == 1 ? 8 : R == 2 ? 4 : 3;
  const auto some = [&](i64 from, i64 end) {
    for (i64 q = from; q < end; q += L) some_columns<T, R>(term, terms, row, a.in, q, imin(L, end - q));
  };
  some(0, all.lo);
  i64 q = all.lo;
  for (; q + V_ * L <= all.hi; q += V_ * L) whole_columns<T, R, V_>(term, terms, row, q);
  for (; q + L <= all.hi; q += L) whole_columns<T, R, 1>(term, terms, row, q);
  some(q, a.out);
}

// The same for any number of channels.
template <class T>
static void column_channels(i64 channels, const ColumnTerm<T> *term, i64 terms, ColumnRow<T> row, const Axis &a, const Range &all) {
  for (i64 k = 0; k < channels; k += OR) {
    const i64 some = imin(OR, channels - k);
    if (some == 1) column_rows<T, 1>(term, terms, row, a, all);
    if (some == 2) column_rows<T, 2>(term, terms, row, a, all);
    if (some == 3) column_rows<T, 3>(term, terms, row, a, all);
    if (some == 4) column_rows<T, 4>(term, terms, row, a, all);
    row.out += OR * row.pitch, row.w += OR * row.wk;
  }
}

// The columns of results that all taps serve.
OOC_INLINE Range served(const Axis &a) {
  Range all{0, a.out};
  for (i64 i = 0; i < a.taps; ++i) {
    const Range q = inside(a.off + i * a.step, a.mul, a.in, a.out);
    all = {imax(all.lo, q.lo), imin(all.hi, q.hi)};
  }
  return {all.lo, imax(all.lo, all.hi)};
}

// Depthwise convolutions are faster in boxes that are turned: 28 instead of 19 GF/s with 15 x 15 on 256 x 256.
template <class T>
OOC_INLINE bool takes_columns(const Gather<T> &t) {
  if (t.ax[2].mul != 1 || t.is[4] != 1 || t.os[4] != 1 || (t.groups > 1 && t.cin * t.cout == 1)) return false;
  const Range all = served(t.ax[2]);
  return all.hi - all.lo >= COLUMN_VECTORS * Vec<T>::lanes;
}

// The columns that have an input, of a tap so far from them: `inside` without dividing.
OOC_INLINE Range columns_of(i64 off, const Axis &a) {
  const i64 lo = clamp(-off, 0, a.out);
  return {lo, imax(lo, imin(a.out, a.in - off))};
}

// The tap behind one; whether that begins anew.
OOC_INLINE bool next_tap(const Axis *a, Index3 &tap) {
  for (int d = 2; d >= 0; --d) {
    if (++tap.v[d] < a[d].taps) return false;
    tap.v[d] = 0;
  }
  return true;
}

// Some channels of an output row, the number of which counts all images.
template <class T>
static void column_job(const Gather<T> &t, const Range &all, const Channels &of, i64 number) {
  const Axis *a = t.ax;
  const i64 taps = taps_of(a), pairs = t.cin * taps, first = of.group * t.cout + of.k;
  const i64 p = number % a[1].out, o = number / a[1].out % a[0].out, image = number / (a[1].out * a[0].out);
  const i64 chunk = taps && taps < STEPS ? STEPS / taps * taps : STEPS;  // whole channels, if one fits
  const T *in = t.in + image * t.is[0] + of.group * t.cin * t.is[1];
  ColumnTerm<T> term[STEPS];
  ColumnRow<T> row{t.out + image * t.os[0] + first * t.os[1] + o * t.os[2] + p * t.os[3],
                   t.w + of.group * t.wgroup + of.k * t.wk, t.os[1], t.wk, !t.e.accumulate, !t.chained && pairs > chunk};
  Index3 tap{};
  for (i64 from = 0, c = 0; from == 0 || from < pairs; from += chunk) {
    i64 terms = 0;
    for (i64 i = from; i < imin(pairs, from + chunk); ++i) {
      const i64 d = o * a[0].mul + a[0].off + tap.v[0] * a[0].step, h = p * a[1].mul + a[1].off + tap.v[1] * a[1].step;
      if (d >= 0 && d < a[0].in && h >= 0 && h < a[1].in) {
        const i64 off = a[2].off + tap.v[2] * a[2].step;
        i64 w = c * t.wc;
        for (int e = 0; e < 3; ++e) w += (a[e].tap0 + tap.v[e] * a[e].tap_step) * t.wtap[e];
        term[terms++] = {in + c * t.is[1] + d * t.is[2] + h * t.is[3], off, w, columns_of(off, a[2])};
      }
      if (next_tap(a, tap)) ++c;
    }
    if (terms || row.fresh) column_channels(of.rows, term, terms, row, a[2], all);
    row.fresh = false;
  }
  Epilogue<T> e = t.e;
  e.accumulate = false;  // the sums began with the old values
  if (!e.bias && e.act == Act::identity) return;
  for (i64 k = 0; k < of.rows; ++k) store_sum(row.out + k * row.pitch, row.out + k * row.pitch, a[2].out, 1, first + k, e);
}

template <class T>
static void column_gather(const Gather<T> &t, int threads) {
  const Range all = served(t.ax[2]);
  const i64 parts = ceil_div(t.cout, COLUMN_CHANNELS), rows = t.batch * t.ax[0].out * t.ax[1].out, jobs = rows * t.groups * parts;
  const int team = team_for<T>(double(rows) * t.ax[2].out * t.groups * t.cout * t.cin * imax(1, taps_of(t.ax)), threads, PLAIN);
  share_runs(jobs, team, [&](i64 lo, i64 hi, int) {
    for (i64 i = lo; i < hi; ++i) {
      const i64 part = i / rows, k = part % parts * COLUMN_CHANNELS;
      column_job(t, all, Channels{part / parts, k, imin(COLUMN_CHANNELS, t.cout - k)}, i % rows);
    }
  });
}
