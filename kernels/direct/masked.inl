// Rows of several channels by vectors of which some numbers are loaded and stored, where the processor can: what is loaded and stored
// of a row is worked out once for all channels.

// As many numbers at the beginning of a vector of 16.
OOC_INLINE uint16_t first_numbers(i64 count) { return uint16_t(count <= 0 ? 0 : 0xffffu >> (16 - imin(count, 16))); }

// Those of a range, seen from position `at`.
OOC_INLINE uint16_t numbers_of(Range r, i64 at) { return uint16_t(first_numbers(r.hi - at) & ~first_numbers(r.lo - at)); }

OOC_INLINE __m512 load_some(const float *p, uint16_t some) { return _mm512_maskz_loadu_ps(some, p); }
OOC_INLINE __m512d load_some(const double *p, uint16_t some) { return _mm512_maskz_loadu_pd(__mmask8(some), p); }
OOC_INLINE void store_some(float *p, uint16_t some, __m512 v) { _mm512_mask_storeu_ps(p, some, v); }
OOC_INLINE void store_some(double *p, uint16_t some, __m512d v) { _mm512_mask_storeu_pd(p, __mmask8(some), v); }

OOC_INLINE __m512 every_second(__m512 low, __m512 high) {
  return _mm512_permutex2var_ps(low, _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0), high);
}
OOC_INLINE __m512d every_second(__m512d low, __m512d high) {
  return _mm512_permutex2var_pd(low, _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0), high);
}

// A vector of a row: what is stored of it, and what is loaded, of one vector or, with stride 2, of two.
template <class T>
struct MaskedPart {
  T *dst;
  const T *src;
  uint16_t stored, low, high;
};

template <class T>
struct MaskedCopies {
  static constexpr int MOST = 64;
  static constexpr i64 L = Vec<T>::lanes;

  i64 dst_step, src_step, channels, stride;  // as those of PlainCopies, the stride 1 or 2
  int count = 0;
  MaskedPart<T> parts[MOST];

  MaskedCopies(i64 to, i64 from, i64 some, i64 hop) : dst_step(to), src_step(from), channels(some), stride(hop) {}
  ~MaskedCopies() { flush(); }

  // See copy_inside; reads nothing beside those numbers and what lies between them.
  void add(T *dst, const T *src, i64 n, Range r) {
    for (i64 i = 0; i < n; i += L) {
      if (count == MOST) flush();
      const Range taken{stride * (r.lo - i), r.hi > r.lo ? stride * (r.hi - 1 - i) + 1 : stride * (r.lo - i)};
      parts[count++] = {dst + i, src + stride * (i - r.lo), first_numbers(n - i), numbers_of(taken, 0), numbers_of(taken, L)};
    }
  }

  void flush() {
    for (i64 c = 0; c < channels; ++c)
      for (const MaskedPart<T> *a = parts; a < parts + count; ++a) {
        const T *src = a->src + c * src_step;
        const auto v = load_some(src, a->low);
        store_some(a->dst + c * dst_step, a->stored, stride == 1 ? v : every_second(v, load_some(src + L, a->high)));
      }
    count = 0;
  }
};

// Under masks where they serve.
template <class T>
struct RowCopies {
  PlainCopies<T> plain;
  MaskedCopies<T> masked;
  bool under_masks;

  RowCopies(i64 to, i64 from, i64 some, i64 hop)
      : plain(to, from, some, hop), masked(to, from, some, hop), under_masks(from != 1 && (hop == 1 || hop == 2)) {}

  void add(T *dst, const T *src, i64 n, Range r) { under_masks ? masked.add(dst, src, n, r) : plain.add(dst, src, n, r); }
};
