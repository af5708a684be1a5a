// Blocks of products of matrices: pieces of both factors are packed so that registers hold a block of results while what is summed
// over runs. A result sums its terms one after the other, whatever the blocks. What lies beyond the matrices is packed as zeros.

// count x deep elements as lines of W side by side, deep of each; those beyond count are zeros.
template <i64 W, typename C, typename E>
OOC_INLINE void pack_as(C *to, const E *from, i64 step, i64 deeper, i64 count, i64 deep) {
  for (i64 line = 0; line < count; line += W, to += W * deep, from += W * step) {
    const i64 some = count - line < W ? count - line : W;
    if (some < W) std::memset(static_cast<void *>(to), 0, size_t(W * deep) * sizeof(C));
    if (deeper == 1 || some < W) {
      for (i64 i = 0; i < some; ++i)
        for (i64 c = 0; c < deep; ++c) to[c * W + i] = widen(from[i * step + c * deeper]);
    } else {
      for (i64 c = 0; c < deep; ++c)
        for (i64 i = 0; i < W; ++i) to[c * W + i] = widen(from[i * step + c * deeper]);
    }
  }
}

template <i64 W>
OOC_INLINE void pack(float *to, const char *from, Dtype type, i64 step, i64 deeper, i64 count, i64 deep) {
  if (type == Dtype::f32) pack_as<W>(to, reinterpret_cast<const float *>(from), step, deeper, count, deep);
  else if (type == Dtype::f16) pack_as<W>(to, reinterpret_cast<const Half *>(from), step, deeper, count, deep);
  else pack_as<W>(to, reinterpret_cast<const Bfloat *>(from), step, deeper, count, deep);
}

template <i64 W>
OOC_INLINE void pack(double *to, const char *from, Dtype, i64 step, i64 deeper, i64 count, i64 deep) {
  pack_as<W>(to, reinterpret_cast<const double *>(from), step, deeper, count, deep);
}

// sums += a b of H rows and L lines; a: its rows and what is summed lie so far apart. Lines of b lie `deep` rows apart.
template <i64 H, i64 L, typename C>
OOC_INLINE void add_block(C *sums, const C *a, i64 row, i64 step, const C *b, i64 deep) {
  typedef C Vec __attribute__((vector_size(VEC_BYTES), may_alias));
  constexpr i64 lanes = VEC_BYTES / i64(sizeof(C)), parts = kWide<C> / lanes;
  Vec held[H][L * parts];
  for (i64 r = 0; r < H; ++r)
    for (i64 j = 0; j < L * parts; ++j) held[r][j] = *reinterpret_cast<const Vec *>(sums + r * kColumns<C> + j * lanes);
  for (i64 c = 0; c < deep; ++c) {
    Vec line[L * parts];
    for (i64 j = 0; j < L * parts; ++j)
      line[j] = *reinterpret_cast<const Vec *>(b + (j / parts * deep + c) * kWide<C> + j % parts * lanes);
    for (i64 r = 0; r < H; ++r)
      for (i64 j = 0; j < L * parts; ++j) held[r][j] += a[r * row + c * step] * line[j];
  }
  for (i64 r = 0; r < H; ++r)
    for (i64 j = 0; j < L * parts; ++j) *reinterpret_cast<Vec *>(sums + r * kColumns<C> + j * lanes) = held[r][j];
}

// sums += a b of a piece; high: from kHigh rows of a to the next ones.
template <typename C>
OOC_INLINE void add_products(C *sums, const C *a, i64 row, i64 step, i64 high, i64 rows, const C *b, i64 columns, i64 deep) {
  for (i64 j = 0; j < columns;) {
    const bool wide = LINES > 1 && columns - j > (LINES - 1) * kWide<C>;
    for (i64 r = 0; r < rows; r += kHigh)
      for (i64 h = 0; h < kHigh; h += HIGH) {
        C *const block = sums + (r + h) * kColumns<C> + j;
        const C *const from = a + r / kHigh * high + h * row;
        if (wide) add_block<HIGH, LINES>(block, from, row, step, b + j * deep, deep);
        else add_block<HIGH, 1>(block, from, row, step, b + j * deep, deep);
      }
    j += wide ? LINES * kWide<C> : kWide<C>;
  }
}

template <typename E, typename C>
OOC_INLINE void put_row(char *y, i64 at, i64 step, const C *sums, i64 count, C alpha) {
  E *to = reinterpret_cast<E *>(y) + at;
  for (i64 i = 0; i < count; ++i) narrow(sums[i] * alpha, to[i * step]);
}

OOC_INLINE void put(char *y, Dtype type, i64 at, i64 step, const float *sums, i64 count, float alpha) {
  if (type == Dtype::f32) put_row<float>(y, at, step, sums, count, alpha);
  else if (type == Dtype::f16) put_row<Half>(y, at, step, sums, count, alpha);
  else put_row<Bfloat>(y, at, step, sums, count, alpha);
}

OOC_INLINE void put(char *y, Dtype, i64 at, i64 step, const double *sums, i64 count, double alpha) {
  put_row<double>(y, at, step, sums, count, alpha);
}

