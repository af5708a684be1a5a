// Dense forms of kernels that go element by element: tensors of one shape whose elements lie in one order without gaps, at multiples
// of 16 bytes, fewer than 2^31 of them. The same arithmetic, in the same order, as the kernels of these names without `_dense`.
//
// whole[24] = elements, whole[25] = those of a channel that follow each other, a multiple of LANES, whole[26] = channels.

enum { LANES = 16 / sizeof(E) };
struct alignas(16) Pack { E v[LANES]; };

// The packs that fall to this thread.
#define EACH_PACK(i)                                      \
  const unsigned packs = (unsigned)(a.whole[24] / LANES); \
  for (unsigned i = (unsigned)THREAD; i < packs; i += (unsigned)THREADS)

// Where the value of a pack's channel is.
DEVICE i64 channel(const Args& a, const Tensor& t, unsigned pack) {
  const unsigned inner = (unsigned)(a.whole[25] / LANES), channels = (unsigned)a.whole[26];
  return (i64)(pack / inner % channels) * t.stride[1];
}

DEVICE Pack* packs_of(const Tensor& t) { return (Pack*)t.data; }

KERNEL(pointwise_dense) {
  const Tensor& b = a.t[2];
  const Pack *x = packs_of(a.t[0]), *z = packs_of(a.t[1]);
  const C alpha = (C)a.real[1], beta = (C)a.real[2];
  EACH_PACK(i) {
    const C plus = b.data ? value<C>(b, channel(a, b, i)) : (C)0;
    Pack p = x[i];
    const Pack q = a.whole[1] ? z[i] : p;
    for (int j = 0; j < LANES; ++j) {
      C v = widen(p.v[j]) * alpha;
      if (a.whole[1]) v += widen(q.v[j]) * beta;
      if (b.data) v += plus;
      p.v[j] = narrow(activate(a.whole[0], a.real[0], v));
    }
    packs_of(a.t[3])[i] = p;
  }
}

KERNEL(multiply_dense) {
  const Tensor& b = a.t[2];
  EACH_PACK(i) {
    const C plus = b.data ? value<C>(b, channel(a, b, i)) : (C)0;
    Pack p = packs_of(a.t[0])[i];
    const Pack q = packs_of(a.t[1])[i];
    for (int j = 0; j < LANES; ++j) {
      C v = widen(p.v[j]) * widen(q.v[j]);
      if (b.data) v += plus;
      p.v[j] = narrow(activate(a.whole[0], a.real[0], v));
    }
    packs_of(a.t[3])[i] = p;
  }
}

KERNEL(activation_backward_dense) {
  EACH_PACK(i) {
    const Pack y = packs_of(a.t[0])[i];
    Pack dy = packs_of(a.t[1])[i];
    for (int j = 0; j < LANES; ++j) dy.v[j] = narrow(pull_back(a.whole[0], a.real[0], widen(y.v[j]), widen(dy.v[j])));
    packs_of(a.t[2])[i] = dy;
  }
}

KERNEL(bn_apply_dense) {
  const Tensor &mean = a.t[1], &var = a.t[2], &scale = a.t[3], &b = a.t[4];
  EACH_PACK(i) {
    const C factor = (C)(value<double>(scale, channel(a, scale, i)) / sqrt(value<double>(var, channel(a, var, i)) + a.real[1]));
    const C middle = (C)value<double>(mean, channel(a, mean, i)), plus = (C)value<double>(b, channel(a, b, i));
    Pack p = packs_of(a.t[0])[i];
    for (int j = 0; j < LANES; ++j) {
      const C z = (widen(p.v[j]) - middle) * factor + plus;
      p.v[j] = narrow(activate(a.whole[0], a.real[0], z));
    }
    packs_of(a.t[5])[i] = p;
  }
}
