// Element by element: sums of tensors with bias and activation, gradients of activations, dropout.

// t = x z b y; whole = act, whether z counts; real = coef alpha beta.
KERNEL(pointwise) {
  const Tensor &x = a.t[0], &z = a.t[1], &b = a.t[2], &y = a.t[3];
  EACH(at, y) {
    C v = load(x, at) * (C)a.real[1];
    if (a.whole[1]) v += load(z, at) * (C)a.real[2];
    if (b.data) v += bias(b, at);
    store(y, at, activate(a.whole[0], a.real[0], v));
  }
}

// t = y dy dx; whole = act; real = coef.
KERNEL(activation_backward) {
  EACH(at, a.t[2]) store(a.t[2], at, pull_back(a.whole[0], a.real[0], load(a.t[0], at), load(a.t[1], at)));
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

// t = x y; whole = extents of channels and positions(3), seed, the words from which on an element is kept; real = scale.
KERNEL(dropout) {
  EACH(at, a.t[1]) {
    u64 index = at.x[0];
    for (int axis = 1; axis < 5; ++axis) index = index * a.whole[axis - 1] + at.x[axis];
    const bool kept = philox(index, (u64)a.whole[4]) >= (u64)a.whole[5];
    store(a.t[1], at, kept ? load(a.t[0], at) * (C)a.real[0] : (C)0);
  }
}
