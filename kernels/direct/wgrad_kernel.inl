// Micro kernels of the weight gradient: register blocks of weights, and dot products; dy transposed for the former.

// A box of x in its halo tile, as the micro kernels read it.
template <class T>
struct Patch {
  const T *x;
  const i64 *size;   // outputs per axis
  i64 plane, row;    // between planes and rows of x
};

// x[R rows][position] times dy[position][V vectors], summed into acc[R][V].
template <class T, int R, int V_>
static void wgrad_micro(const Patch<T> &from, const int *off, const T *dy, T *acc, bool add) {
  typedef typename Vec<T>::type V;
  const T *x = from.x;
  const i64 size[3] = {from.size[0], from.size[1], from.size[2]}, pitch[2] = {from.plane, from.row};
  constexpr int L = Vec<T>::lanes, U = VEC_BYTES == 64 ? 2 : 1;  // positions per round: spares pointer loads
  V s[R][V_];
  const T *row[R];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    row[i] = x + off[i];
#pragma GCC unroll 4
    for (int j = 0; j < V_; ++j) s[i][j] = V{};
  }
  for (i64 d = 0; d < size[0]; ++d)
    for (i64 h = 0; h < size[1]; ++h) {
      i64 w = d * pitch[0] + h * pitch[1];
      const i64 end = w + size[2];
      for (; w + U <= end; w += U, dy += U * V_ * L) {
        V b[U][V_];
#pragma GCC unroll 2
        for (int u = 0; u < U; ++u)
#pragma GCC unroll 4
          for (int j = 0; j < V_; ++j) b[u][j] = *(const V *)(dy + (u * V_ + j) * L);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
          for (int u = 0; u < U; ++u) {
            const V a = row[i][w + u] - V{};
#pragma GCC unroll 4
            for (int j = 0; j < V_; ++j) s[i][j] += a * b[u][j];
          }
      }
      for (; w < end; ++w, dy += V_ * L)
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) {
          const V a = row[i][w] - V{};
#pragma GCC unroll 4
          for (int j = 0; j < V_; ++j) s[i][j] += a * *(const V *)(dy + j * L);
        }
    }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < V_; ++j) {
      V *q = (V *)(acc + (i * V_ + j) * L);
      *q = add ? *q + s[i][j] : s[i][j];
    }
}

template <class T>
using WgradMicro = void (*)(const Patch<T> &, const int *, const T *, T *, bool);

template <class T, int R>
static WgradMicro<T> wgrad_micro_of(i64 rows, i64 vecs) {
  if (rows == R) return vecs == 1 ? wgrad_micro<T, R, 1> : wgrad_micro<T, R, 2>;
  if constexpr (R > 1) return wgrad_micro_of<T, R - 1>(rows, vecs);
  return nullptr;
}

// dst[position * pitch + channel] = src[channel * sc + position * sw], zeros beyond `channels`.
template <class T>
static void transpose_row(T *dst, i64 pitch, const T *src, i64 sc, i64 sw, i64 channels, i64 n) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  i64 w = 0;
  if (sw == 1 && channels == L && n >= L)
    for (; w < n; w = w + 2 * L <= n || w + L == n ? w + L : n - L) {  // the last square overlaps the one before
      V v[L];
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) v[i] = *(const V *)(src + i * sc + w);
      transpose_square<T>(v);
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) *(V *)(dst + (w + i) * pitch) = v[i];
    }
  for (; w < n; ++w) {
    T *d = dst + w * pitch;
    const T *s = src + w * sw;
    if (sc == 1 && channels == L) {
      *(V *)d = *(const V *)s;
      continue;
    }
    for (i64 c = 0; c < channels; ++c) d[c] = s[c * sc];
    for (i64 c = channels; c < L; ++c) d[c] = 0;
  }
}

// R dot products of rows of dy (padded to vectors) with shifted rows of x, added to acc.
template <class T, int R>
static void dots_micro(const Patch<T> &from, const int *off, const T *dy, i64 dy_pitch, T *acc, bool add) {
  typedef typename Vec<T>::type V;
  const T *x = from.x;
  const i64 size[3] = {from.size[0], from.size[1], from.size[2]}, pitch[2] = {from.plane, from.row};
  constexpr int L = Vec<T>::lanes;
  typename LaneVec<T>::type lane;
  for (int i = 0; i < L; ++i) lane[i] = i;
  V s[R];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) s[i] = V{};
  const i64 whole = size[2] / L * L, rest = size[2] - whole;
  const auto used = lane < typename Lane<T>::type(rest);
  for (i64 d = 0; d < size[0]; ++d)
    for (i64 h = 0; h < size[1]; ++h, dy += dy_pitch) {
      const T *row = x + d * pitch[0] + h * pitch[1];
      for (i64 w = 0; w < whole; w += L) {
        const V b = *(const V *)(dy + w);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) s[i] += b * *(const V *)(row + off[i] + w);
      }
      if (!rest) continue;
      const V b = *(const V *)(dy + whole);
      // What lies right of the row may be anything, an infinity too: mask it out.
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) s[i] += b * (used ? *(const V *)(row + off[i] + whole) : V{});
    }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    T sum = 0;
    for (int l = 0; l < L; ++l) sum += s[i][l];
    acc[i] = add ? acc[i] + sum : sum;
  }
}

constexpr int DOTS = VEC_BYTES == 64 ? 9 : 6;

template <class T, int R>
static void dots_rows(i64 rows, const Patch<T> &from, const int *off, const T *dy, i64 dy_pitch, T *acc, bool add) {
  if (rows == R) return dots_micro<T, R>(from, off, dy, dy_pitch, acc, add);
  if constexpr (R > 1) dots_rows<T, R - 1>(rows, from, off, dy, dy_pitch, acc, add);
}
