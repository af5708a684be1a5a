// Element by element: sums and products of tensors with bias and activation, gradients of activations, padding and cropping, dropout.

// t = x z b y; whole = act, whether z counts; real = coef alpha beta.
KERNEL(pointwise) {
  const Tensor &x = a.t[0], &z = a.t[1], &b = a.t[2], &y = a.t[3];
  EACH(at, y) {
    C v = load(x, at) * (C)a.real[1];
    if (a.whole[1]) v += load(z, at) * (C)a.real[2];
    if (b.data) v += bias(b, at);
    store(y, at, activate(number(a, 0), a.real[0], v));
  }
}

template <int ACT, bool ADD, bool BIAS> DEVICE void pointwise_packs(const Args& a) {
  const C alpha = (C)a.real[1], beta = (C)a.real[2];
  EACH_SHARE(s, BIAS) {
    const C plus = BIAS ? of_channel<C>(a.t[2], s) : (C)0;
    Pack x[UNROLL], z[UNROLL];
    fetch(a.t[0], s, x);
    if (ADD) fetch(a.t[1], s, z);
    EACH_LANE(u, j) {
      C v = widen(x[u].v[j]) * alpha;
      if (ADD) v += widen(z[u].v[j]) * beta;
      if (BIAS) v += plus;
      x[u].v[j] = narrow(activate(ACT, (C)a.real[0], v));
    }
    put(a.t[3], s, x);
  }
}

template <int ACT> DEVICE void pointwise_dense(const Args& a) {
  if (a.whole[1]) {
    if (a.t[2].data) pointwise_packs<ACT, true, true>(a);
    else pointwise_packs<ACT, true, false>(a);
  } else {
    if (a.t[2].data) pointwise_packs<ACT, false, true>(a);
    else pointwise_packs<ACT, false, false>(a);
  }
}
ACTIVATED(pointwise_dense)

// t = x z b y; whole = act; real = coef.
KERNEL(multiply) {
  const Tensor &x = a.t[0], &z = a.t[1], &b = a.t[2], &y = a.t[3];
  EACH(at, y) {
    C v = load(x, at) * load(z, at);
    if (b.data) v += bias(b, at);
    store(y, at, activate(number(a, 0), a.real[0], v));
  }
}

template <int ACT> DEVICE void multiply_dense(const Args& a) {
  const bool biased = a.t[2].data;
  EACH_SHARE(s, biased) {
    const C plus = biased ? of_channel<C>(a.t[2], s) : (C)0;
    Pack x[UNROLL], z[UNROLL];
    fetch(a.t[0], s, x);
    fetch(a.t[1], s, z);
    EACH_LANE(u, j) {
      C v = widen(x[u].v[j]) * widen(z[u].v[j]);
      if (biased) v += plus;
      x[u].v[j] = narrow(activate(ACT, (C)a.real[0], v));
    }
    put(a.t[3], s, x);
  }
}
ACTIVATED(multiply_dense)

// t = y dy dx; whole = act; real = coef.
KERNEL(activation_backward) {
  EACH(at, a.t[2]) store(a.t[2], at, pull_back(number(a, 0), a.real[0], load(a.t[0], at), load(a.t[1], at)));
}

template <int ACT> DEVICE void activation_backward_dense(const Args& a) {
  EACH_SHARE(s, false) {
    Pack y[UNROLL], dy[UNROLL];
    fetch(a.t[0], s, y);
    fetch(a.t[1], s, dy);
    EACH_LANE(u, j) dy[u].v[j] = narrow(pull_back(ACT, (C)a.real[0], widen(y[u].v[j]), widen(dy[u].v[j])));
    put(a.t[2], s, dy);
  }
}
ACTIVATED(activation_backward_dense)

// t = x y; whole = lead of channels and positions(3); real = what lies around x.
KERNEL(place) {
  const Tensor &x = a.t[0], &y = a.t[1];
  EACH(at, y) {
    At from = at;
    bool held = true;
    for (int axis = 1; axis < 5; ++axis) {
      from.x[axis] -= number(a, axis - 1);
      held = held && inside(x, axis, from.x[axis]);
    }
    store(y, at, held ? load(x, from) : (C)a.real[0]);
  }
}

// The 32-bit random word of an index: as random_words in ooc/ops/dropout.py.
DEVICE unsigned int philox(u64 index, u64 seed) {
  unsigned int word[4] = {(unsigned int)(index >> 2), (unsigned int)(index >> 34), 0, 0};
  unsigned int key[2] = {(unsigned int)seed, (unsigned int)(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const u64 left = (u64)0xD2511F53u * word[0], right = (u64)0xCD9E8D57u * word[2];
    word[0] = (unsigned int)(right >> 32) ^ word[1] ^ key[0];
    word[1] = (unsigned int)right;
    word[2] = (unsigned int)(left >> 32) ^ word[3] ^ key[1];
    word[3] = (unsigned int)left;
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return word[index & 3];
}

// t = x y draw; whole = extents of channels and positions(3), seed, the words from which on an element is kept; real = scale.
KERNEL(dropout) {
  const u64 draw = a.t[2].data ? value<u64>(a.t[2], 0) : 0, key = (u64)a.whole[4] + draw * 0x9E3779B97F4A7C15u;
  EACH(at, a.t[1]) {
    u64 index = at.x[0];
    for (int axis = 1; axis < 5; ++axis) index = index * a.whole[axis - 1] + at.x[axis];
    const bool kept = philox(index, key) >= (u64)a.whole[5];
    store(a.t[1], at, kept ? load(a.t[0], at) * (C)a.real[0] : (C)0);
  }
}
