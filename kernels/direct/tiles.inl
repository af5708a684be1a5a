// Copies of inputs with their borders: halo tiles and im2col tiles, row by row.

// The first and the last bytes of a row, which overlap.
template <int BYTES, class T>
OOC_INLINE void copy_ends(T *dst, const T *src, i64 n) {
  constexpr i64 some = BYTES / i64(sizeof(T));
  __builtin_memcpy(dst, src, BYTES);
  __builtin_memcpy(dst + n - some, src + n - some, BYTES);
}

// dst[i] = src[2 * i] for n numbers that fill a vector of so many bytes, the last one overlapping the one before. False if
// they do not. Reads nothing behind src[2 * (n - 1)].
template <int BYTES, class T>
OOC_INLINE bool copy_every_second(T *dst, const T *src, i64 n) {
  typedef T V __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
  typedef typename Lane<T>::type M __attribute__((vector_size(BYTES)));
  constexpr int L = BYTES / int(sizeof(T));
  if (n < L) return false;
  M even{};
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i) even[i] = i < L / 2 ? 2 * i : 2 * i + 1;
  for (i64 i = 0; i < n; i += L) {
    const i64 at = imin(i, n - L);
    const V low = *(const V *)(src + 2 * at), high = *(const V *)(src + 2 * at + L - 1);
    *(V *)(dst + at) = shuffle(low, high, even);
  }
  return true;
}

// dst[i] = src[i * stride]. Rows are short (often 14 or 28), so no call to memcpy.
template <class T>
OOC_INLINE void copy_row(T *dst, const T *src, i64 n, i64 stride) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  if (stride == 2 && (copy_every_second<VEC_BYTES>(dst, src, n) || copy_every_second<16>(dst, src, n))) return;
  if (stride != 1) {
    for (i64 i = 0; i < n; ++i) dst[i] = src[i * stride];
  } else if (n >= L) {  // the last vector overlaps the one before
    for (i64 i = 0; i + L < n; i += L) *(V *)(dst + i) = *(const V *)(src + i);
    *(V *)(dst + n - L) = *(const V *)(src + n - L);
  } else if (n * i64(sizeof(T)) >= 32) {
    copy_ends<32>(dst, src, n);
  } else if (n * i64(sizeof(T)) >= 16) {
    copy_ends<16>(dst, src, n);
  } else {
    for (i64 i = 0; i < n; ++i) dst[i] = src[i];
  }
}

// A border is a number or two: no call to memset, which compilers make of a loop.
template <class T>
OOC_INLINE void zero_row(T *dst, i64 n) {
  if (n > 0) dst[0] = 0;
  if (n > 1) dst[n - 1] = 0;
  for (i64 i = 1; i < n - 1; ++i) dst[i] = 0;
}

// dst[i * dst_step + j] = src[i + j * stride]: channels innermost to rows, in squares.
template <class T>
static void copy_turned(T *dst, i64 dst_step, const T *src, i64 channels, i64 n, i64 stride) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  const i64 whole = channels / L * L, squares = n / L * L;
  for (i64 c = 0; c < whole; c += L)
    for (i64 j = 0; j < squares; j += L) {
      V v[L];
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) v[i] = *(const V *)(src + c + (j + i) * stride);
      transpose_square<T>(v);
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) *(V *)(dst + (c + i) * dst_step + j) = v[i];
    }
  for (i64 c = 0; c < channels; ++c)
    for (i64 j = c < whole ? squares : 0; j < n; ++j) dst[c * dst_step + j] = src[c + j * stride];
}

// [0, lo) and [hi, n) zero, the rest copied.
template <class T>
OOC_INLINE void copy_inside(T *dst, const T *src, i64 n, Range r, i64 stride) {
  zero_row(dst, r.lo);
  if (r.hi > r.lo) copy_row(dst + r.lo, src, r.hi - r.lo, stride);
  zero_row(dst + r.hi, n - r.hi);
}

// The same row of several channels.
template <class T>
static void copy_channels(T *dst, i64 dst_step, const T *src, i64 src_step, i64 channels, i64 n, Range r, i64 stride) {
  if (src_step == 1 && stride != 1 && channels > 1) {
    for (i64 c = 0; c < channels; ++c) zero_row(dst + c * dst_step, r.lo), zero_row(dst + c * dst_step + r.hi, n - r.hi);
    return copy_turned(dst + r.lo, dst_step, src, channels, r.hi - r.lo, stride);
  }
  for (i64 c = 0; c < channels; ++c) copy_inside(dst + c * dst_step, src + c * src_step, n, r, stride);
}

// Rows of several channels, copied channel by channel where those lie apart: so memory is read in its order.
template <class T>
struct PlainCopies {
  static constexpr int MOST = 64;
  struct Row {
    T *dst;
    const T *src;
    i64 n;
    Range r;
  };

  i64 dst_step, src_step, channels, stride;  // between channels, and between numbers of a row of src
  int count = 0;
  Row rows[MOST];

  PlainCopies(i64 to, i64 from, i64 some, i64 hop) : dst_step(to), src_step(from), channels(some), stride(hop) {}
  ~PlainCopies() { flush(); }

  void add(T *dst, const T *src, i64 n, Range r) {
    if (count == MOST) flush();
    rows[count++] = Row{dst, src, n, r};
  }

  void flush() {
    if (src_step == 1) {
      for (int i = 0; i < count; ++i) {
        const Row &a = rows[i];
        copy_channels(a.dst, dst_step, a.src, src_step, channels, a.n, a.r, stride);
      }
    } else {
      for (i64 c = 0; c < channels; ++c)
        for (int i = 0; i < count; ++i) {
          const Row &a = rows[i];
          copy_inside(a.dst + c * dst_step, a.src + c * src_step, a.n, a.r, stride);
        }
    }
    count = 0;
  }
};

#ifdef OOC_MASKED
#include "masked.inl"
#else
template <class T>
using RowCopies = PlainCopies<T>;
#endif

// Extents of a halo tile, and the element distances inside it.
struct Tile {
  i64 out[3];   // outputs per axis
  i64 in[3];    // positions per axis and phase: outputs + halo
  i64 phase;    // elements of one phase
  i64 channel;  // elements of one channel

  i64 plane() const { return in[1] * in[2]; }  // of one phase
};

static Tile make_tile(const Axis *a, i64 o, i64 p, i64 q) {
  Tile t;
  t.out[0] = o, t.out[1] = p, t.out[2] = q;
  for (int d = 0; d < 3; ++d) t.in[d] = t.out[d] + a[d].ext;
  t.phase = volume(t.in);
  t.channel = t.phase * phases_of(a);
  return t;
}

// Offset of a tap inside one channel of the tile.
static i64 tap_offset(const Axis *a, const Tile &t, const Index3 &tap) {
  i64 phase = 0, pos = 0;
  for (int d = 0; d < 3; ++d) {
    phase = phase * a[d].phases + tap.v[d] % a[d].phases;
    pos = pos * t.in[d] + tap.v[d] / a[d].phases * a[d].adv;
  }
  return phase * t.phase + pos;
}

// Offsets of all (channel, tap) pairs of a block, in the order of the packed weights.
static void fill_offsets(int *off, const Axis *a, const Tile &t, i64 channels) {
  const i64 taps = taps_of(a);
  for (i64 i = 0; i < taps; ++i) {
    const i64 o = tap_offset(a, t, unflatten(i, a[1].taps, a[2].taps));
    for (i64 c = 0; c < channels; ++c) off[c * taps + i] = int(o + c * t.channel);
  }
}

// Some channels of an input.
template <class T>
struct Inputs {
  const T *first;      // element (0, 0, 0) of the first of them, of one image or the first image
  const i64 *strides;  // n c d h w
  i64 channels;
};

// Copies the inputs of a box of outputs of one image, the image at x.first.
template <class T>
static void fill_tile(T *X, const Axis *a, const Tile &t, const Inputs<T> &x, const Box &box) {
  const T *in = x.first;
  const i64 *is = x.strides, *at = box.first, *size = box.size, channels = x.channels;
  i64 phase = 0;
  for (i64 f0 = 0; f0 < a[0].phases; ++f0)
    for (i64 f1 = 0; f1 < a[1].phases; ++f1)
      for (i64 f2 = 0; f2 < a[2].phases; ++f2, ++phase) {
        const i64 d0 = at[0] * a[0].mul + a[0].off + f0 * a[0].step, h0 = at[1] * a[1].mul + a[1].off + f1 * a[1].step;
        const i64 w0 = at[2] * a[2].mul + a[2].off + f2 * a[2].step, width = size[2] + a[2].ext;
        const Range columns = inside(w0, a[2].mul, a[2].in, width);
        const bool empty = columns.lo == columns.hi;
        const i64 planes = size[0] + a[0].ext, rows = size[1] + a[1].ext, hop = a[2].mul * is[4];
        const T *column = empty ? in : in + (w0 + columns.lo * a[2].mul) * is[4];
        RowCopies<T> copies(t.channel, is[1], channels, hop);
        for (i64 i = 0; i < planes; ++i) {
          const i64 d = d0 + i * a[0].mul;
          T *dst = X + phase * t.phase + i * t.plane();
          for (i64 j = 0, h = h0; j < rows; ++j, h += a[1].mul, dst += t.in[2]) {
            const bool outside = empty || d < 0 || d >= a[0].in || h < 0 || h >= a[1].in;
            const T *src = outside ? in : column + d * is[2] + h * is[3];
            copies.add(dst, src, width, outside ? Range{0, 0} : columns);
          }
        }
      }
}

// im2col tile: line (channel, tap) holds the inputs of a run of output positions, zeros up to `pitch`.
template <class T>
static void fill_im2col(T *X, i64 pitch, const Axis *a, const Inputs<T> &x, const Run &run) {
  const T *in = x.first;
  const i64 *is = x.strides, channels = x.channels, taps = taps_of(a);
  for (i64 i = 0; i < taps; ++i) {
    const Index3 tap = unflatten(i, a[1].taps, a[2].taps);
    i64 b[3];
    for (int d = 0; d < 3; ++d) b[d] = a[d].off + tap.v[d] * a[d].step;
    RowCopies<T> copies(taps * pitch, is[1], channels, a[2].mul * is[4]);
    for_rows(a, run, [&](i64 n, i64 o, i64 p, i64 q, i64 len, i64 done) {
      const i64 d = o * a[0].mul + b[0], h = p * a[1].mul + b[1], w = q * a[2].mul + b[2];
      const bool outside = d < 0 || d >= a[0].in || h < 0 || h >= a[1].in;
      Range r = outside ? Range{0, 0} : inside(w, a[2].mul, a[2].in, len);
      if (r.lo == r.hi) r = Range{0, 0};
      const T *src = r.lo == r.hi ? in : in + n * is[0] + d * is[2] + h * is[3] + (w + r.lo * a[2].mul) * is[4];
      copies.add(X + i * pitch + done, src, len, r);
    });
    for (i64 c = 0; c < channels; ++c) zero_row(X + (c * taps + i) * pitch + run.count, pitch - run.count);
  }
}
