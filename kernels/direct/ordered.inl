// The ordered loops: their promise, and the small product that all but the depthwise ones share.
//
// What runs without a workspace. The order of summation is a promise here (direct.hpp): the
// bits of a result depend on its own inputs alone, and cutting the summed axis into consecutive
// accumulating calls changes none of them.
//
// Forward and data gradient: one chain of multiply-adds per output, over channels, then taps,
// from the old value on. Weight gradient: one chain per weight and output row, over the row,
// added to the weight before the next row. Absent inputs take no part, not even as zeros: those
// would turn -0 into 0 and an infinite factor into NaN.
//
// Where nobody needs that promise (`chained` is off), a forward pass or a data gradient adds up the chains of blocks of terms: one
// chain of a hundred thousand terms rounds as often, and errs several times as far.
//
// Both are the same small product, sums[row][lane] += a[row][step] * x[step][lane]: lanes are
// output positions or (channel, tap) pairs, steps are (channel, tap) pairs or the positions of an
// output row. Where rows are long and their columns lie side by side, vectors of columns are taken as they lie (ordered_columns.inl);
// else x is gathered on the stack (37 KiB with AVX-512), with a mask of the lanes present in each
// step. Vectors run across independent chains only, and every chain is made of `fused`, in whole
// vectors, masked ones and single lanes alike.

constexpr i64 STEPS = 64;       // steps gathered at a time
constexpr i64 SUM_ROWS = 64;    // rows of sums on the stack
constexpr int OR = 4, ONV = 3;  // rows and vectors per register block

template <class T>
struct Stage {
  static constexpr int L = Vec<T>::lanes, LANES = ONV * L;
  alignas(64) T x[STEPS * LANES], sums[SUM_ROWS * LANES], totals[SUM_ROWS * LANES];
  uint64_t present[STEPS];  // bit: lane
  i64 at[STEPS];            // where step s of a row of `a` lies
};

OOC_INLINE uint64_t low_bits(i64 n) { return n >= 64 ? ~uint64_t(0) : (uint64_t(1) << n) - 1; }

// sums[R][V_ vectors] = (fresh ? 0 : sums) + a * x over `steps`, x[step] of V_ vectors.
template <class T, int R, int V_>
static void ordered_micro(i64 steps, const T *a, i64 row, const Stage<T> &st, T *sums, bool fresh) {
  typedef typename Vec<T>::type V;
  typedef typename Lane<T>::type I;
  constexpr int L = Vec<T>::lanes;
  typename LaneVec<T>::type lane;
  for (int i = 0; i < L; ++i) lane[i] = I(1) << i;
  const uint64_t all = low_bits(V_ * L);
  V s[R][V_];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < V_; ++j) s[i][j] = fresh ? V{} : *(const V *)(sums + (i * V_ + j) * L);
  const T *x = st.x;
  for (i64 p = 0; p < steps; ++p, x += V_ * L) {
    const T *ap = a + st.at[p];
    const uint64_t present = st.present[p];
    if (present == all) {
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) {
        const V f = ap[i * row] - V{};  // broadcast
#pragma GCC unroll 4
        for (int j = 0; j < V_; ++j) s[i][j] = fused(f, *(const V *)(x + j * L), s[i][j]);
      }
    } else if (present) {
#pragma GCC unroll 4
      for (int j = 0; j < V_; ++j) {
        const auto used = (lane & I(present >> (j * L))) != 0;
        const V b = *(const V *)(x + j * L);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) s[i][j] = used ? fused(ap[i * row] - V{}, b, s[i][j]) : s[i][j];
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < V_; ++j) *(V *)(sums + (i * V_ + j) * L) = s[i][j];
}

template <class T, int V_>
static void ordered_rows(i64 rows, i64 steps, const T *a, i64 row, Stage<T> &st, bool fresh) {
  T *sums = st.sums;
  i64 r = 0;
  for (; r + OR <= rows; r += OR) ordered_micro<T, OR, V_>(steps, a + r * row, row, st, sums + r * V_ * Vec<T>::lanes, fresh);
  a += r * row, sums += r * V_ * Vec<T>::lanes;
  if (rows - r == 3) ordered_micro<T, 3, V_>(steps, a, row, st, sums, fresh);
  if (rows - r == 2) ordered_micro<T, 2, V_>(steps, a, row, st, sums, fresh);
  if (rows - r == 1) ordered_micro<T, 1, V_>(steps, a, row, st, sums, fresh);
}

// All rows of sums; rows of `a` lie `row` apart.
template <class T>
static void ordered_product(i64 rows, i64 vecs, i64 steps, const T *a, i64 row, Stage<T> &st, bool fresh) {
  if (vecs == 1) return ordered_rows<T, 1>(rows, steps, a, row, st, fresh);
  if (vecs == 2) return ordered_rows<T, 2>(rows, steps, a, row, st, fresh);
  ordered_rows<T, 3>(rows, steps, a, row, st, fresh);
}
