// Steps of optimizers: every element of a step is read before any of it is written, so results may lie where inputs were.

// Tensors of E, or, as whole says, of C: those that outlast a step (0), gradients (1).
DEVICE C from(const Args& a, int slot, int which, const At& at) {
  return a.whole[which] ? wide(a.t[slot], at) : load(a.t[slot], at);
}
DEVICE void keep(const Args& a, int slot, const At& at, C v) {
  if (a.whole[0]) wide(a.t[slot], at) = v;
  else store(a.t[slot], at, v);
}

// What gradients are multiplied by; below 0: nothing moves.
DEVICE double share_of(const Tensor& rates) { return one(rates, 7) == 0 ? 1 : one(rates, 7); }

// Where nothing moves: p and what is kept beside it, a slot each from `reads` on, go to q and the slots behind it, p rounded to h.
template <int N> DEVICE void stay(const Args& a, int q, int reads, int h, const At& at) {
  C was[N];
  for (int i = 0; i < N; ++i) was[i] = a.t[reads + i].data ? from(a, reads + i, 0, at) : (C)0;
  for (int i = 0; i < N; ++i)
    if (a.t[reads + i].data) keep(a, q + i, at, was[i]);
  if (a.t[h].data) store(a.t[h], at, was[0]);
}

// The parameters, and rounded where they are kept of C.
DEVICE void settle(const Args& a, int q, int h, const At& at, C v) {
  keep(a, q, at, v);
  if (a.t[h].data) store(a.t[h], at, v);
}

// t = g p v rates q u h; rates = lr, momentum, weight decay, whether Nesterov's.
KERNEL(sgd) {
  const Tensor& rates = a.t[3];
  const C lr = (C)one(rates, 0), momentum = (C)one(rates, 1), decay = (C)one(rates, 2), share = (C)share_of(rates);
  const bool nesterov = one(rates, 3) != 0, still = share_of(rates) < 0;
  EACH(at, a.t[4]) {
    const C p = from(a, 1, 0, at);
    if (still) {
      stay<2>(a, 4, 1, 6, at);
      continue;
    }
    C d = share * from(a, 0, 1, at) + decay * p;
    if (a.t[2].data) {
      const C u = momentum * from(a, 2, 0, at) + d;
      d = nesterov ? d + momentum * u : u;
      keep(a, 5, at, u);
    }
    settle(a, 4, 6, at, p - lr * d);
  }
}

// t = g p m v rates q r s h; rates = lr, beta1, beta2, eps, weight decay, number of the step, whether the decay is apart.
KERNEL(adam) {
  const Tensor& rates = a.t[4];
  const double beta1 = one(rates, 1), beta2 = one(rates, 2), t = one(rates, 5);
  const bool apart = one(rates, 6) != 0, still = share_of(rates) < 0;
  const C keep1 = (C)beta1, keep2 = (C)beta2, take1 = (C)(1 - beta1), take2 = (C)(1 - beta2), eps = (C)one(rates, 3);
  const C step = (C)(one(rates, 0) / (1 - pow(beta1, t))), root = (C)sqrt(1 - pow(beta2, t)), share = (C)share_of(rates);
  const C left = apart ? (C)(1 - one(rates, 0) * one(rates, 4)) : (C)1, decay = apart ? (C)0 : (C)one(rates, 4);
  EACH(at, a.t[5]) {
    if (still) {
      stay<3>(a, 5, 1, 8, at);
      continue;
    }
    const C p = left * from(a, 1, 0, at), d = share * from(a, 0, 1, at) + decay * p;
    const C r = keep1 * from(a, 2, 0, at) + take1 * d, s = keep2 * from(a, 3, 0, at) + take2 * (d * d);
    settle(a, 5, 8, at, p - step * (r / (sqrt(s) / root + eps)));
    keep(a, 6, at, r);
    keep(a, 7, at, s);
  }
}

// t = g p v b a rates q s u c h; rates = lr, alpha, eps, weight decay, momentum.
KERNEL(rmsprop) {
  const Tensor& rates = a.t[5];
  const double alpha = one(rates, 1);
  const C lr = (C)one(rates, 0), held = (C)alpha, take = (C)(1 - alpha), eps = (C)one(rates, 2), decay = (C)one(rates, 3);
  const C momentum = (C)one(rates, 4), share = (C)share_of(rates);
  const bool still = share_of(rates) < 0;
  EACH(at, a.t[6]) {
    const C p = from(a, 1, 0, at);
    if (still) {
      stay<4>(a, 6, 1, 10, at);
      continue;
    }
    const C d = share * from(a, 0, 1, at) + decay * p, s = held * from(a, 2, 0, at) + take * (d * d);
    C under = s;
    if (a.t[4].data) {
      const C c = held * from(a, 4, 0, at) + take * d;
      keep(a, 9, at, c);
      under = s - c * c;
      under = under < 0 ? (C)0 : under;
    }
    C by = d / (sqrt(under) + eps);
    if (a.t[3].data) {
      by = momentum * from(a, 3, 0, at) + by;
      keep(a, 8, at, by);
    }
    keep(a, 7, at, s);
    settle(a, 6, 10, at, p - lr * by);
  }
}
