// Products of spectra.

// A product for each frequency: out[i][j] (+)= sum over r of a[i][r] b[r][j], rows so far apart.
template <class T>
struct Product {
  const T *a, *b;
  T *out;
  i64 rows, columns, depth;
  i64 a_row, a_step, b_step, b_column, out_row, out_column;
  bool more;
};

template <int I, int J, bool CONJUGATE, class T>
OOC_INLINE void block(const Product<T> &p, const T *a, const T *b, T *out) {
  typedef typename Vec<T>::type V;
  constexpr i64 lanes = Vec<T>::lanes;
  for (i64 v = 0; v < LINE<T>; v += lanes) {
    V re[I][J], im[I][J];
    for (int i = 0; i < I; ++i)
      for (int j = 0; j < J; ++j) {
        const T *held = out + (i * p.out_row + j * p.out_column) * ROW<T> + v;
        re[i][j] = p.more ? *reinterpret_cast<const V *>(held) : V{};
        im[i][j] = p.more ? *reinterpret_cast<const V *>(held + LINE<T>) : V{};
      }
    for (i64 r = 0; r < p.depth; ++r) {
      V xr[J], xi[J];
      for (int j = 0; j < J; ++j) {
        const T *x = b + (r * p.b_step + j * p.b_column) * ROW<T> + v;
        xr[j] = *reinterpret_cast<const V *>(x), xi[j] = *reinterpret_cast<const V *>(x + LINE<T>);
      }
      for (int i = 0; i < I; ++i) {
        const T *w = a + (i * p.a_row + r * p.a_step) * ROW<T> + v;
        const V wr = *reinterpret_cast<const V *>(w), wi = *reinterpret_cast<const V *>(w + LINE<T>);
        for (int j = 0; j < J; ++j) {
          re[i][j] += wr * xr[j], im[i][j] += wr * xi[j];
          if (CONJUGATE) re[i][j] += wi * xi[j], im[i][j] -= wi * xr[j];
          else re[i][j] -= wi * xi[j], im[i][j] += wi * xr[j];
        }
      }
    }
    for (int i = 0; i < I; ++i)
      for (int j = 0; j < J; ++j) {
        T *to = out + (i * p.out_row + j * p.out_column) * ROW<T> + v;
        *reinterpret_cast<V *>(to) = re[i][j], *reinterpret_cast<V *>(to + LINE<T>) = im[i][j];
      }
  }
}

template <int I, bool CONJUGATE, class T>
static void band(const Product<T> &p, const T *a, T *out) {
  i64 j = 0;
  for (; j + WIDE <= p.columns; j += WIDE) block<I, WIDE, CONJUGATE>(p, a, p.b + j * p.b_column * ROW<T>, out + j * p.out_column * ROW<T>);
  for (; j < p.columns; ++j) block<I, 1, CONJUGATE>(p, a, p.b + j * p.b_column * ROW<T>, out + j * p.out_column * ROW<T>);
}

template <bool CONJUGATE, class T>
static void multiply(const Product<T> &p) {
  i64 i = 0;
  for (; i + HIGH <= p.rows; i += HIGH) band<HIGH, CONJUGATE>(p, p.a + i * p.a_row * ROW<T>, p.out + i * p.out_row * ROW<T>);
  for (; i < p.rows; ++i) band<1, CONJUGATE>(p, p.a + i * p.a_row * ROW<T>, p.out + i * p.out_row * ROW<T>);
}

// The frequencies of a line, each times one of a filter.
template <bool CONJUGATE, class T>
static void multiply_line(const T *filter, T *line) {
  multiply<CONJUGATE>(Product<T>{filter, line, line, 1, 1, 1, 1, 1, 1, 1, 1, 1, false});
}
