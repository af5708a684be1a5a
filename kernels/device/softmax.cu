// Softmax over channels and its loss, in f64: a thread goes along the channels of a position.

#define CHANNELS(t, at) for (at.x[1] = begins(t, 1); at.x[1] < ends(t, 1); ++at.x[1])

DEVICE double start_exact(const Args& a, const At& at) { return a.first || !ACC.data ? 0.0 : exact(ACC, at); }

DEVICE double& largest(const Tensor& sums, const At& at) { return value<double>(sums, row(sums, 1, 0, at)); }
DEVICE double& relative(const Tensor& sums, const At& at) { return value<double>(sums, row(sums, 1, 1, at)); }

// t = x sums; sums = the largest value so far, and the sum of exponentials relative to it.
KERNEL(softmax_sum) {
  const Tensor &x = a.t[0], &sums = a.t[1];
  Tensor one = sums;
  one.extent[1] = 1, one.by[1] = 1u << 31, one.shift[1] = 31;  // a position has one thread, which makes both numbers
  const double lowest = -(double)float_of_bits(0x7f800000u);
  EACH(made, one) {
    At at = made;
    double top = a.first ? lowest : largest(sums, at), sum = a.first ? 0 : relative(sums, at);
    CHANNELS(x, at) {
      const double v = load(x, at);
      if (v > top || v != v) {
        sum = (sum > 0 ? sum * exp(top - v) : sum) + (1 + (v - v));  // +inf has no sum: NaN
        top = v;
      } else if (v != lowest) {
        sum += exp(v - top);
      }
    }
    largest(sums, made) = top;
    relative(sums, made) = sum;
  }
}

// t = x sums y; whole = whether the logarithm is wanted, here and below.
KERNEL(softmax) {
  EACH(at, a.t[2]) {
    const double z = load(a.t[0], at) - largest(a.t[1], at), sum = relative(a.t[1], at);
    store(a.t[2], at, (C)(a.whole[0] ? z - log(sum) : exp(z) / sum));
  }
}

// t = dy y s: s = sum of y * dy, or of dy alone where there is no y.
KERNEL(softmax_dot) {
  const Tensor &dy = a.t[0], &y = a.t[1], &s = a.t[2];
  EACH(made, s) {
    At at = made;
    double sum = start_exact(a, made);
    CHANNELS(dy, at) sum += y.data ? (double)load(dy, at) * load(y, at) : (double)load(dy, at);
    const Tensor& to = a.last ? s : ACC;
    exact(to, made) = sum;
  }
}

// t = y dy s dx
KERNEL(softmax_pull) {
  EACH(at, a.t[3]) {
    const double y = load(a.t[0], at), dy = load(a.t[1], at), s = exact(a.t[2], at);
    store(a.t[3], at, (C)(a.whole[0] ? dy - exp(y) * s : y * (dy - s)));
  }
}

// t = x labels sums loss; a negative label leaves its position out.
KERNEL(cross_entropy) {
  const Tensor &x = a.t[0], &labels = a.t[1], &loss = a.t[3];
  EACH(made, loss) {
    At at = made;
    double sum = start_exact(a, made);
    const i64 label = value<i64>(labels, offset(labels, made));
    at.x[1] = (Index)label;
    if (label >= x.lo[1] && label < x.lo[1] + x.extent[1]) sum += log(relative(a.t[2], made)) - (load(x, at) - largest(a.t[2], made));
    if (a.last) wide(loss, made) = (C)sum;
    else exact(ACC, made) = sum;
  }
}

// t = x labels sums dloss dx
KERNEL(cross_entropy_backward) {
  const Tensor &dloss = a.t[3], &dx = a.t[4];
  EACH(at, dx) {
    const i64 label = value<i64>(a.t[1], offset(a.t[1], at));
    const double own = exp(load(a.t[0], at) - largest(a.t[2], at)) / relative(a.t[2], at);
    const double share = own - (label == at.x[1] ? 1 : 0);
    store(dx, at, label < 0 ? (C)0 : (C)(share * wide(dloss, at)));
  }
}
