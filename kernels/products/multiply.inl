// A piece of a product of matrices.

template <typename C>
OOC_INLINE void add_sums(C *totals, C *sums) {  // which begin again
  for (i64 i = 0; i < kRows * kColumns<C>; ++i) totals[i] += sums[i], sums[i] = C(0);
}

template <typename C>
OOC_INLINE void multiply_any(const Product &job, const Piece &p) {
  alignas(kLine) C sums[kRows * kColumns<C>], totals[kRows * kColumns<C>], a[kRows * kDeep<C>], b[kDeep<C> * kColumns<C>];
  const i64 item = item_size(job.type);
  const Four &s = job.acc_strides, &ys = job.y_strides, &as = job.a.strides, &bs = job.b.strides;
  C *acc = reinterpret_cast<C *>(job.acc) + p.n * s[0] + p.k * s[1] + p.row * s[2] + p.column * s[3];
  C *const whole = job.run ? totals : sums;
  std::memset(sums, 0, sizeof(sums));
  if (job.run) std::memset(totals, 0, sizeof(totals));
  if (job.more)
    for (i64 r = 0; r < p.rows; ++r)
      for (i64 j = 0; j < p.columns; ++j) whole[r * kColumns<C> + j] = acc[r * s[2] + j * s[3]];
  for (i64 c = 0, deep; c < job.c; c += deep) {
    const i64 rest = job.run ? job.run - (job.begin + c) % job.run : job.c;
    deep = least(least(rest, job.c - c), kDeep<C>);
    pack<kHigh>(a, job.a.data + (p.n * as[0] + p.k * as[1] + p.row * as[2] + c * as[3]) * item, job.type, as[2], as[3], p.rows, deep);
    pack<kWide<C>>(b, job.b.data + (p.n * bs[0] + p.k * bs[1] + p.column * bs[2] + c * bs[3]) * item, job.type, bs[2], bs[3],
                   p.columns, deep);
    add_products(sums, a, 1, kHigh, kHigh * deep, p.rows, b, p.columns, deep);
    if (job.run && (deep == rest || c + deep == job.c)) add_sums(totals, sums);
  }
  const i64 at = p.n * ys[0] + p.k * ys[1] + p.row * ys[2] + p.column * ys[3];
  for (i64 r = 0; r < p.rows; ++r) {
    const C *row = whole + r * kColumns<C>;
    if (job.last) {
      put(job.y, job.type, at + r * ys[2], ys[3], row, p.columns, C(job.alpha));
    } else {
      for (i64 j = 0; j < p.columns; ++j) acc[r * s[2] + j * s[3]] = row[j];
    }
  }
}

