// Vectors, small arithmetic, squares of vectors that are transposed, parts of vectors.

#if defined(__GNUC__)
#define OOC_INLINE static inline __attribute__((always_inline))
#else
#define OOC_INLINE static inline
#endif

template <class T>
struct Vec {
  typedef T type __attribute__((vector_size(VEC_BYTES), aligned(sizeof(T)), may_alias));
  static constexpr int lanes = VEC_BYTES / int(sizeof(T));
};

// a * b + c, rounded once if the instruction set can: always or never, whatever the compiler
// makes of other sums of products.
OOC_INLINE Vec<float>::type fused(Vec<float>::type a, Vec<float>::type b, Vec<float>::type c) { return OOC_FMA_F32(a, b, c); }
OOC_INLINE Vec<double>::type fused(Vec<double>::type a, Vec<double>::type b, Vec<double>::type c) { return OOC_FMA_F64(a, b, c); }

constexpr int NV = 3;   // vectors of output positions per register block
constexpr int WNV = 2;  // vectors of output channels per register block of the weight gradient

// Own versions of the std:: helpers: nothing here may instantiate a std template (see the
// including files).
OOC_INLINE i64 imin(i64 a, i64 b) { return a < b ? a : b; }
OOC_INLINE i64 imax(i64 a, i64 b) { return a > b ? a : b; }
OOC_INLINE i64 clamp(i64 v, i64 lo, i64 hi) { return imax(lo, imin(v, hi)); }
OOC_INLINE i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
OOC_INLINE i64 round_up(i64 a, i64 b) { return ceil_div(a, b) * b; }
OOC_INLINE i64 mod(i64 a, i64 b) { return (a % b + b) % b; }

static i64 gcd(i64 a, i64 b) { return b ? gcd(b, a % b) : a; }

// Bytes rounded up to whole cache lines: every part of the workspace starts on one.
OOC_INLINE i64 lines(i64 bytes) { return round_up(bytes, 64); }

// Positions w of [0, n) with 0 <= start + w * mul < extent.
struct Range {
  i64 lo, hi;
};

template <class T>
struct Lane;
template <>
struct Lane<float> {
  typedef int32_t type;
};
template <>
struct Lane<double> {
  typedef int64_t type;
};
template <class T>
struct LaneVec {
  typedef typename Lane<T>::type type __attribute__((vector_size(VEC_BYTES)));
};

// Numbers of two vectors, taken as one of twice the length, in the order that `from` names. Clang has not GCC's function for it, but
// makes the same instructions of the loop wherever it knows the order.
template <class V, class M>
OOC_INLINE V shuffle(V a, V b, M from) {
#if defined(__clang__)
  constexpr int L = sizeof(V) / sizeof(a[0]);
  V mixed;
#pragma unroll
  for (int i = 0; i < L; ++i) mixed[i] = from[i] & L ? b[from[i] & (L - 1)] : a[from[i] & (L - 1)];
  return mixed;
#else
  return __builtin_shuffle(a, b, from);
#endif
}

// v = its transpose, a square of L vectors.
template <class T>
OOC_INLINE void transpose_square(typename Vec<T>::type *v) {
  constexpr int L = Vec<T>::lanes;
  typedef typename Vec<T>::type V;
  typedef typename LaneVec<T>::type M;
#pragma GCC unroll 4
  for (int s = 1; s < L; s *= 2) {  // swap bit s of row number and lane number
    M low{}, high{};
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) {
      low[i] = i & s ? L + i - s : i;
      high[i] = i & s ? L + i : i + s;
    }
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i)
      if (!(i & s)) {
        const V a = v[i], b = v[i + s];
        v[i] = shuffle(a, b, low);
        v[i + s] = shuffle(a, b, high);
      }
  }
}

// The first `lanes` of a vector: all of them, or as many as there are channels left.
template <class T>
OOC_INLINE typename Vec<T>::type load_lanes(const T *p, i64 lanes) {
  typename Vec<T>::type v{};
  if (lanes == Vec<T>::lanes) return *(const typename Vec<T>::type *)p;
  for (i64 i = 0; i < lanes; ++i) v[i] = p[i];
  return v;
}

template <class T>
OOC_INLINE void store_lanes(T *p, typename Vec<T>::type v, i64 lanes) {
  if (lanes == Vec<T>::lanes) *(typename Vec<T>::type *)p = v;
  else
    for (i64 i = 0; i < lanes; ++i) p[i] = v[i];
}
