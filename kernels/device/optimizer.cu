// Steps of optimizers: every element of a step is read before any of it is written, so results may lie where inputs were.

DEVICE double rate(const Tensor& rates, Index i) { return value<double>(rates, offset(rates, 0, i, 0, 0, 0)); }

// t = p g v rates q u; rates = lr, momentum, weight decay, whether Nesterov's.
KERNEL(sgd) {
  const Tensor &v = a.t[2], &rates = a.t[3];
  const C lr = (C)rate(rates, 0), momentum = (C)rate(rates, 1), decay = (C)rate(rates, 2);
  const bool nesterov = rate(rates, 3) != 0;
  EACH(at, a.t[4]) {
    const C p = load(a.t[0], at);
    C d = load(a.t[1], at) + decay * p;
    if (v.data) {
      const C u = momentum * load(v, at) + d;
      d = nesterov ? d + momentum * u : u;
      store(a.t[5], at, u);
    }
    store(a.t[4], at, p - lr * d);
  }
}

// t = p g m v rates q r s; rates = lr, beta1, beta2, eps, weight decay, number of the step.
KERNEL(adam) {
  const Tensor& rates = a.t[4];
  const double beta1 = rate(rates, 1), beta2 = rate(rates, 2), t = rate(rates, 5);
  const C keep1 = (C)beta1, keep2 = (C)beta2, take1 = (C)(1 - beta1), take2 = (C)(1 - beta2), eps = (C)rate(rates, 3);
  const C decay = (C)rate(rates, 4), step = (C)(rate(rates, 0) / (1 - pow(beta1, t))), share = (C)sqrt(1 - pow(beta2, t));
  EACH(at, a.t[5]) {
    const C p = load(a.t[0], at), d = load(a.t[1], at) + decay * p;
    const C r = keep1 * load(a.t[2], at) + take1 * d, s = keep2 * load(a.t[3], at) + take2 * (d * d);
    store(a.t[5], at, p - step * (r / (sqrt(s) / share + eps)));
    store(a.t[6], at, r);
    store(a.t[7], at, s);
  }
}
