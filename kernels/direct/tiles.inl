// Copies of inputs with their borders: halo tiles and im2col tiles, row by row.

// dst[i] = src[i * stride]. Rows are short (often 14 or 28), so no call to memcpy.
template <class T>
OOC_INLINE void copy_row(T *dst, const T *src, i64 n, i64 stride) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  if (stride != 1) {
    for (i64 i = 0; i < n; ++i) dst[i] = src[i * stride];
  } else if (n >= L) {  // the last vector overlaps the one before
    for (i64 i = 0; i + L < n; i += L) *(V *)(dst + i) = *(const V *)(src + i);
    *(V *)(dst + n - L) = *(const V *)(src + n - L);
  } else {
    for (i64 i = 0; i < n; ++i) dst[i] = src[i];
  }
}

template <class T>
OOC_INLINE void zero_row(T *dst, i64 n) {
  for (i64 i = 0; i < n; ++i) dst[i] = 0;
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

// The same row of several channels: [0, lo) and [hi, n) zero, the rest copied.
template <class T>
static void copy_channels(T *dst, i64 dst_step, const T *src, i64 src_step, i64 channels, i64 n, Range r, i64 stride) {
  if (src_step == 1 && stride != 1 && channels > 1) {
    for (i64 c = 0; c < channels; ++c) zero_row(dst + c * dst_step, r.lo), zero_row(dst + c * dst_step + r.hi, n - r.hi);
    return copy_turned(dst + r.lo, dst_step, src, channels, r.hi - r.lo, stride);
  }
  for (i64 c = 0; c < channels; ++c, dst += dst_step) {
    zero_row(dst, r.lo);
    if (r.hi > r.lo) copy_row(dst + r.lo, src + c * src_step, r.hi - r.lo, stride);
    zero_row(dst + r.hi, n - r.hi);
  }
}

// Extents of a halo tile, and the element distances inside it.
struct Tile {
  i64 t[3];      // outputs per axis
  i64 p[3];      // positions per axis and phase: outputs + halo
  i64 plane;     // elements of one phase
  i64 channel;   // elements of one channel
};

static Tile make_tile(const Axis *a, i64 td, i64 th, i64 tw) {
  Tile t;
  t.t[0] = td, t.t[1] = th, t.t[2] = tw;
  for (int d = 0; d < 3; ++d) t.p[d] = t.t[d] + a[d].ext;
  t.plane = volume(t.p);
  t.channel = t.plane * phases_of(a);
  return t;
}

// Offset of a tap inside one channel of the tile.
static i64 tap_offset(const Axis *a, const Tile &t, const Index3 &tap) {
  i64 phase = 0, pos = 0;
  for (int d = 0; d < 3; ++d) {
    phase = phase * a[d].phases + tap.v[d] % a[d].phases;
    pos = pos * t.p[d] + tap.v[d] / a[d].phases * a[d].adv;
  }
  return phase * t.plane + pos;
}

// Offsets of all (channel, tap) pairs of a block, in the order of the packed weights.
static void fill_offsets(int *off, const Axis *a, const Tile &t, i64 channels) {
  const i64 taps = taps_of(a);
  for (i64 i = 0; i < taps; ++i) {
    const i64 o = tap_offset(a, t, unflatten(i, a[1].taps, a[2].taps));
    for (i64 c = 0; c < channels; ++c) off[c * taps + i] = int(o + c * t.channel);
  }
}

// Copies the inputs of outputs [j, j + size) of one image, `in` at the first channel.
template <class T>
static void fill_tile(T *X, const Axis *a, const Tile &t, const T *in, const i64 *is, i64 channels, const i64 *j, const i64 *size) {
  i64 phase = 0;
  for (i64 f0 = 0; f0 < a[0].phases; ++f0)
    for (i64 f1 = 0; f1 < a[1].phases; ++f1)
      for (i64 f2 = 0; f2 < a[2].phases; ++f2, ++phase) {
        const i64 b0 = j[0] * a[0].mul + a[0].off + f0 * a[0].step, b1 = j[1] * a[1].mul + a[1].off + f1 * a[1].step;
        const i64 b2 = j[2] * a[2].mul + a[2].off + f2 * a[2].step, width = size[2] + a[2].ext;
        const Range columns = inside(b2, a[2].mul, a[2].in, width);
        for (i64 d = 0; d < size[0] + a[0].ext; ++d)
          for (i64 h = 0; h < size[1] + a[1].ext; ++h) {
            const i64 d_in = b0 + d * a[0].mul, h_in = b1 + h * a[1].mul;
            const bool outside = d_in < 0 || d_in >= a[0].in || h_in < 0 || h_in >= a[1].in;
            const Range r = outside || columns.lo == columns.hi ? Range{0, 0} : columns;
            const T *src = r.lo == r.hi ? in : in + d_in * is[2] + h_in * is[3] + (b2 + r.lo * a[2].mul) * is[4];
            T *dst = X + phase * t.plane + (d * t.p[1] + h) * t.p[2];
            copy_channels(dst, t.channel, src, is[1], channels, width, r, a[2].mul * is[4]);
          }
      }
}

// Walks the output rows that a dense run of positions of an (n, o, p, q) box touches:
// visit(n, j0, j1, first column, columns, distance from the start of the run).
template <class F>
OOC_INLINE void for_rows(const Axis *a, i64 begin, i64 count, F visit) {
  i64 q = begin % a[2].out, row = begin / a[2].out;
  i64 j1 = row % a[1].out, j0 = row / a[1].out % a[0].out, n = row / (a[1].out * a[0].out);
  for (i64 done = 0; done < count;) {
    const i64 len = imin(count - done, a[2].out - q);
    visit(n, j0, j1, q, len, done);
    done += len, q = 0;
    if (++j1 == a[1].out) {
      j1 = 0;
      if (++j0 == a[0].out) j0 = 0, ++n;
    }
  }
}

// im2col tile: line (channel, tap) holds the inputs of `count` output positions, zeros up to `pitch`.
template <class T>
static void fill_im2col(T *X, i64 pitch, const Axis *a, const T *in, const i64 *is, i64 channels, i64 begin, i64 count) {
  const i64 taps = taps_of(a);
  for (i64 i = 0; i < taps; ++i) {
    const Index3 tap = unflatten(i, a[1].taps, a[2].taps);
    i64 b[3];
    for (int d = 0; d < 3; ++d) b[d] = a[d].off + tap.v[d] * a[d].step;
    for_rows(a, begin, count, [&](i64 n, i64 j0, i64 j1, i64 q, i64 len, i64 done) {
      const i64 d_in = j0 * a[0].mul + b[0], h_in = j1 * a[1].mul + b[1], w_in = q * a[2].mul + b[2];
      const bool outside = d_in < 0 || d_in >= a[0].in || h_in < 0 || h_in >= a[1].in;
      Range r = outside ? Range{0, 0} : inside(w_in, a[2].mul, a[2].in, len);
      if (r.lo == r.hi) r = Range{0, 0};
      const T *src = r.lo == r.hi ? in : in + n * is[0] + d_in * is[2] + h_in * is[3] + (w_in + r.lo * a[2].mul) * is[4];
      copy_channels(X + i * pitch + done, taps * pitch, src, is[1], channels, len, r, a[2].mul * is[4]);
    });
    for (i64 c = 0; c < channels; ++c) zero_row(X + (c * taps + i) * pitch + count, pitch - count);
  }
}
