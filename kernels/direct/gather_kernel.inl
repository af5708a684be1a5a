// The micro kernel of gathers, and the packed weights that it reads. Where OOC_DOT(sum, a, b) is defined, what is multiplied are pairs
// of bf16 in the place of f32.

// c[R rows][V vectors] (+)= sum over p of weights[p][R] * x[off[p] + ...].
template <class T, int R, int V_>
static void micro(i64 depth, const T *__restrict w, const T *__restrict x, const int *__restrict off, T *__restrict c, i64 ldc,
                  bool add) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  V s[R][V_];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < V_; ++j) s[i][j] = V{};
  for (i64 p = 0; p < depth; ++p, w += R) {
    const T *xp = x + off[p];
    V b[V_];
#pragma GCC unroll 4
    for (int j = 0; j < V_; ++j) b[j] = *(const V *)(xp + j * L);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
#ifdef OOC_DOT
      const V a = OOC_BROADCAST(w[i]);
#pragma GCC unroll 4
      for (int j = 0; j < V_; ++j) s[i][j] = OOC_DOT(s[i][j], a, b[j]);
#else
      const V a = w[i] - V{};  // broadcast
#pragma GCC unroll 4
      for (int j = 0; j < V_; ++j) s[i][j] += a * b[j];
#endif
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < V_; ++j) {
      V *q = (V *)(c + i * ldc + j * L);
      *q = add ? *q + s[i][j] : s[i][j];
    }
}

template <class T>
using Micro = void (*)(i64, const T *, const T *, const int *, T *, i64, bool);

template <class T, int R>
static Micro<T> micro_of_rows(i64 rows, i64 vecs) {
  if (rows == R) {
    if (vecs == 1) return micro<T, R, 1>;
    return vecs == 2 ? micro<T, R, 2> : micro<T, R, 3>;
  }
  if constexpr (R > 1) return micro_of_rows<T, R - 1>(rows, vecs);
  return nullptr;
}

// Three vectors at a time; four are better taken as two and two than as three and one.
OOC_INLINE i64 next_vecs(i64 left) { return left == 4 ? 2 : imin(left, NV); }

constexpr i64 WEIGHT_BYTES = 256 << 10;  // weights to keep in the second-level cache

// One line of `vecs` vectors for `rows` output channels. Weight panels of MR channels follow
// one another: the last, narrower one needs no padding.
template <class T>
struct Product {
  i64 rows, vecs, depth;
  const T *w;
  const T *x;
  const int *off;  // of the (channel, tap) pairs in x
  T *c;
  i64 ldc;   // between rows of c
  bool add;  // to what c holds
};

template <class T>
static void multiply(const Product<T> &a) {
  constexpr int L = Vec<T>::lanes;
  const i64 rows = a.rows, vecs = a.vecs, depth = a.depth, ldc = a.ldc;
  const i64 chunk = imax(1, WEIGHT_BYTES / (MR * depth * i64(sizeof(T)))) * MR;
  for (i64 m0 = 0; m0 < rows; m0 += chunk)
    for (i64 v = 0, nv; v < vecs; v += nv) {
      nv = next_vecs(vecs - v);
      const Micro<T> full = micro_of_rows<T, MR>(MR, nv);
      const T *w = a.w, *x = a.x + v * L;
      T *c = a.c + v * L;
      const i64 end = imin(rows, m0 + chunk);
      i64 m = m0;
      for (; m + MR <= end; m += MR) full(depth, w + m * depth, x, a.off, c + m * ldc, ldc, a.add);
      if (m < end) micro_of_rows<T, MR>(end - m, nv)(depth, w + m * depth, x, a.off, c + m * ldc, ldc, a.add);
    }
}

constexpr i64 PAIRS = 144;  // of channel and tap in a reduction block: a register block's vectors of all of them fit the first cache

// Channels per reduction block. Depends on nothing but the taps: the order of summation, and
// with it every bit of the result, is the same for all tiles.
OOC_INLINE i64 channel_block(i64 cin, i64 taps) { return clamp(PAIRS / imax(1, taps), 1, cin); }

// Some output channels of a group, MR at most, and some of its input channels.
struct Panel {
  i64 group, k, rows, c, channels;
};

// Whether the taps of a channel follow one another in w as in packed weights, and channels as their taps.
template <class T>
static bool taps_in_line(const Gather<T> &t) {
  i64 next = 1;
  for (int d = 2; d >= 0; --d) {
    if (t.ax[d].taps > 1 && (t.ax[d].tap_step < 0 || t.ax[d].tap_step * t.wtap[d] != next)) return false;
    next *= t.ax[d].taps;
  }
  return t.wc == next;
}

// dst[p][r] = src[r][p] for MR rows, as squares of vectors; how many columns that did.
template <class T>
static i64 turn_rows(T *dst, const T *src, i64 row, i64 columns) {
  constexpr int L = Vec<T>::lanes, BLOCKS = L / MR;
  if constexpr (L % MR != 0) return 0;
  i64 p = 0;
  for (; p + L * BLOCKS <= columns; p += L * BLOCKS) {
    typename Vec<T>::type v[L];
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) v[i] = *(const typename Vec<T>::type *)(src + i % MR * row + p + i / MR * L);
    transpose_square<T>(v);
#pragma GCC unroll 16
    for (int j = 0; j < L; ++j)
#pragma GCC unroll 4
      for (int b = 0; b < BLOCKS; ++b) std::memcpy(dst + (p + b * L + j) * MR, (const T *)&v[j] + b * MR, MR * sizeof(T));
  }
  return p;
}

constexpr i64 PACKED_AT_ONCE = 32;  // channels, so that what is read for one tap is still in cache for the next

// Layout: [channel][tap][output channel].
template <class T, int R>
static void pack_rows(const Gather<T> &t, const Panel &m, const T *src, T *packed) {
  const i64 taps = taps_of(t.ax), rows = R ? R : m.rows;
  for (i64 c0 = 0; c0 < m.channels; c0 += PACKED_AT_ONCE)
    for (i64 i = 0; i < taps; ++i) {
      const Index3 tap = unflatten(i, t.ax[1].taps, t.ax[2].taps);
      const T *s = src + c0 * t.wc;
      for (int d = 0; d < 3; ++d) s += tap.v[d] * t.ax[d].tap_step * t.wtap[d];
      T *dst = packed + (c0 * taps + i) * rows;
      const i64 channels = imin(PACKED_AT_ONCE, m.channels - c0);
      for (i64 c = 0; c < channels; ++c, s += t.wc, dst += taps * rows)
        if (t.wk == 1)
          std::memcpy(dst, s, size_t(rows) * sizeof(T));
        else
          for (i64 r = 0; r < rows; ++r) dst[r] = s[r * t.wk];
    }
}

template <class T>
static void pack_panel(const Gather<T> &t, const Panel &m, T *packed) {
  const T *src = t.w + m.group * t.wgroup + m.k * t.wk + m.c * t.wc;
  for (int d = 0; d < 3; ++d) src += t.ax[d].tap0 * t.wtap[d];
  if (m.rows < MR) return pack_rows<T, 0>(t, m, src, packed);
  if (!taps_in_line(t)) return pack_rows<T, MR>(t, m, src, packed);
  const i64 depth = m.channels * taps_of(t.ax);
  for (i64 p = turn_rows(packed, src, t.wk, depth); p < depth; ++p)
    for (int r = 0; r < MR; ++r) packed[p * MR + r] = src[r * t.wk + p];
}

// All weights: [group][channel block][panel of MR output channels][channel][tap][output channel in the panel]. What a product
// reads follows one another, so that it does not meet itself in a few lines of the caches.
template <class T>
static void pack_weights(const Gather<T> &t, T *packed, int threads) {
  const i64 taps = taps_of(t.ax), depth = t.cin * taps, block = channel_block(t.cin, taps), panels = ceil_div(t.cout, MR);
  share(t.groups * panels, t.groups * t.cout * depth > PACK_WORK ? threads : 1, [&](i64 job, int) {
    const i64 g = job / panels, k = job % panels * MR;
    for (i64 c = 0; c < t.cin; c += block) {
      const i64 channels = imin(block, t.cin - c);
      T *to = packed + g * t.cout * depth + (c * t.cout + k * channels) * taps;
      pack_panel(t, Panel{g, k, imin(MR, t.cout - k), c, channels}, to);
    }
  });
}
