// What happens to sums: old values, bias and activation, for rows of one channel and squares of several.

template <class T>
struct Epilogue {
  const T *bias;
  Act act;
  T coef;
  bool accumulate;
};

template <class T>
OOC_INLINE T activate(T v, Act act, T coef) {
  switch (act) {
    case Act::relu: return v < 0 ? T(0) : v;
    case Act::clipped_relu:
      if (v < 0) return T(0);
      return v > coef ? coef : v;
    case Act::elu: return v < 0 ? coef * T(std::expm1(v)) : v;
    case Act::leaky_relu: return v > 0 ? v : coef * v;
    case Act::sigmoid: return T(1) / (T(1) + T(std::exp(-v)));
    case Act::tanh: return T(std::tanh(v));
    default: return v;
  }
}

template <class T>
static void store_row_slow(const T *sum, T *out, i64 n, i64 stride, T bias, const Epilogue<T> &e) {
  for (i64 i = 0; i < n; ++i) {
    const T old = e.accumulate ? out[i * stride] : T(0);
    out[i * stride] = activate<T>(old + sum[i] + bias, e.act, e.coef);
  }
}

// out[i] = act(old + sum[i] + bias) for a row of one output channel.
template <class T>
OOC_INLINE void store_row(const T *sum, T *out, i64 n, i64 stride, T bias, const Epilogue<T> &e) {
  if (e.act > Act::relu || (e.act == Act::relu && e.accumulate)) return store_row_slow(sum, out, n, stride, bias, e);
  if (stride == 1) {  // the compiler makes vector loops of these
    if (e.accumulate)
      for (i64 i = 0; i < n; ++i) out[i] += sum[i] + bias;
    else if (e.act == Act::relu)
      for (i64 i = 0; i < n; ++i) out[i] = sum[i] + bias < 0 ? T(0) : sum[i] + bias;
    else
      for (i64 i = 0; i < n; ++i) out[i] = sum[i] + bias;
    return;
  }
  if (e.accumulate)
    for (i64 i = 0; i < n; ++i) out[i * stride] += sum[i] + bias;
  else if (e.act == Act::relu)
    for (i64 i = 0; i < n; ++i) out[i * stride] = sum[i] + bias < 0 ? T(0) : sum[i] + bias;
  else
    for (i64 i = 0; i < n; ++i) out[i * stride] = sum[i] + bias;
}

// out[i] = act(sum[i] + bias) for sums that began with the old values. No bias is not a bias of
// zero: -0 stays -0.
template <class T>
static void store_sum(const T *sum, T *out, i64 n, i64 stride, i64 channel, const Epilogue<T> &e) {
  if (e.bias) return store_row(sum, out, n, stride, e.bias[channel], e);
  if (e.act == Act::identity)
    for (i64 i = 0; i < n; ++i) out[i * stride] = sum[i];
  else
    for (i64 i = 0; i < n; ++i) out[i * stride] = activate<T>(sum[i], e.act, e.coef);
}

// Sums of one row of outputs, for several channels, and where they go.
template <class T>
struct OutputRow {
  const T *sum;
  i64 pitch;  // between the sums of channels
  T *out;
  i64 n;          // outputs of a channel
  i64 stride;     // between them
  i64 k_stride;   // between channels
  i64 channels, first;
};

// act(old + sum + bias) for several channels, innermost in the result: the squares of whole vectors
// that the usual epilogues allow. Says how many channels and positions it has done. `zero`: no
// bias counts as a bias of zero. The row comes by value, so that its owner may keep it in registers.
template <class T>
static Range store_turned(OutputRow<T> row, const Epilogue<T> &e, bool zero) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  if (e.act > Act::relu || (e.act == Act::relu && e.accumulate) || row.n < L || row.channels < L) return {0, 0};
  const T *sum = row.sum, *bias = e.bias ? e.bias + row.first : nullptr;
  T *out = row.out;
  const i64 pitch = row.pitch, stride = row.stride;
  const Range done{row.channels / L * L, row.n / L * L};
  for (i64 c = 0; c < done.lo; c += L)
    for (i64 j = 0; j < done.hi; j += L) {
      V v[L];
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) v[i] = *(const V *)(sum + (c + i) * pitch + j);
      transpose_square<T>(v);
      const V b = bias ? *(const V *)(bias + c) : V{};
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) {
        V *to = (V *)(out + (j + i) * stride + c);
        V s = bias || zero ? v[i] + b : v[i];
        if (e.act == Act::relu) s = s < 0 ? V{} : s;
        *to = e.accumulate ? *to + s : s;
      }
    }
  return done;
}

// act(old + sum + bias) for the whole row.
template <class T>
OOC_INLINE void store_output(const OutputRow<T> &row, const Epilogue<T> &e) {
  Range done{0, 0};
  if (row.k_stride == 1) done = store_turned(row, e, true);
  for (i64 k = 0; k < row.channels; ++k) {
    const i64 q = k < done.lo ? done.hi : 0;
    const T bias = e.bias ? e.bias[row.first + k] : T(0);
    store_row(row.sum + k * row.pitch + q, row.out + k * row.k_stride + q * row.stride, row.n - q, row.stride, bias, e);
  }
}

#ifdef OOC_DOT
// To nearest even.
OOC_INLINE uint16_t bf16_of(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  const uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16, nan = u >> 16 | 0x40u;
  return uint16_t((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

// act(sum + bias) for the whole row, rounded to bf16.
static void store_rounded(const OutputRow<float> &row, uint16_t *out, const Epilogue<float> &e) {
  constexpr i64 SOME = 256;
  float line[SOME];
  for (i64 k = 0; k < row.channels; ++k)
    for (i64 q = 0; q < row.n; q += SOME) {
      const i64 n = imin(SOME, row.n - q);
      store_row(row.sum + k * row.pitch + q, line, n, 1, e.bias ? e.bias[row.first + k] : 0.f, e);
      uint16_t *to = out + k * row.k_stride + q * row.stride;
      if (row.stride == 1)
        for (i64 i = 0; i < n; ++i) to[i] = bf16_of(line[i]);
      else
        for (i64 i = 0; i < n; ++i) to[i * row.stride] = bf16_of(line[i]);
    }
}
#endif

// act(sum + bias) for sums that began with the old values: `e` accumulates no more.
template <class T>
OOC_INLINE void store_chains(const OutputRow<T> &row, const Epilogue<T> &e) {
  Range done{0, 0};
  if (row.k_stride == 1) done = store_turned(row, e, false);
  for (i64 k = 0; k < row.channels; ++k) {
    const i64 q = k < done.lo ? done.hi : 0;
    store_sum(row.sum + k * row.pitch + q, row.out + k * row.k_stride + q * row.stride, row.n - q, row.stride, row.first + k, e);
  }
}
