// The micro kernel of gathers, and the packed weights that it reads.

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
      const V a = w[i] - V{};  // broadcast
#pragma GCC unroll 4
      for (int j = 0; j < V_; ++j) s[i][j] += a * b[j];
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

// One line of `vecs` vectors for `rows` output channels. Weight panels of MR channels lie
// `panel` elements apart per channel row: the last, narrower one needs no padding.
template <class T>
struct Product {
  i64 rows, vecs, depth;
  const T *w;
  i64 panel;
  const T *x;
  const int *off;  // of the (channel, tap) pairs in x
  T *c;
  i64 ldc;   // between rows of c
  bool add;  // to what c holds
};

template <class T>
static void multiply(const Product<T> &a) {
  constexpr int L = Vec<T>::lanes;
  const i64 rows = a.rows, vecs = a.vecs, depth = a.depth, panel = a.panel, ldc = a.ldc;
  const i64 chunk = imax(1, WEIGHT_BYTES / (MR * depth * i64(sizeof(T)))) * MR;
  for (i64 m0 = 0; m0 < rows; m0 += chunk)
    for (i64 v = 0, nv; v < vecs; v += nv) {
      nv = next_vecs(vecs - v);
      const Micro<T> full = micro_of_rows<T, MR>(MR, nv);
      const T *w = a.w, *x = a.x + v * L;
      T *c = a.c + v * L;
      const i64 end = imin(rows, m0 + chunk);
      i64 m = m0;
      for (; m + MR <= end; m += MR) full(depth, w + m * panel, x, a.off, c + m * ldc, ldc, a.add);
      if (m < end) micro_of_rows<T, MR>(end - m, nv)(depth, w + m * panel, x, a.off, c + m * ldc, ldc, a.add);
    }
}

// Channels per reduction block. Depends on nothing but the taps: the order of summation, and
// with it every bit of the result, is the same for all tiles.
OOC_INLINE i64 channel_block(i64 cin, i64 taps) { return clamp(288 / imax(1, taps), 1, cin); }

// Layout: [group][panel of MR output channels][channel][tap][output channel in the panel].
template <class T>
static void pack_weights(const Gather<T> &t, T *packed, int threads) {
  const i64 taps = taps_of(t.ax), depth = t.cin * taps, panels = ceil_div(t.cout, MR);
  share(t.groups * panels, t.groups * t.cout * depth > PACK_WORK ? threads : 1, [&](i64 job, int) {
    const i64 g = job / panels, k = job % panels * MR, rows = imin(MR, t.cout - k);
    T *dst = packed + (g * t.cout + k) * depth;
    const T *src = t.w + g * t.wgroup + k * t.wk;
    for (i64 c = 0; c < t.cin; ++c)
      for (i64 i = 0; i < taps; ++i, dst += rows) {
        const Index3 tap = unflatten(i, t.ax[1].taps, t.ax[2].taps);
        const T *s = src + c * t.wc;
        for (int d = 0; d < 3; ++d) s += (t.ax[d].tap0 + tap.v[d] * t.ax[d].tap_step) * t.wtap[d];
        for (i64 r = 0; r < rows; ++r) dst[r] = s[r * t.wk];
      }
  });
}
