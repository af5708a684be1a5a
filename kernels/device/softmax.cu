// Softmax over channels and its loss, in f64.

enum { CHANNELS = 1 << 1 };  // the axis that is summed

DEVICE double start_exact(const Args& a, const At& at) { return a.first || !ACC.data ? 0.0 : exact(ACC, at); }

DEVICE double& largest(const Tensor& sums, const At& at) { return value<double>(sums, row(sums, 1, 0, at)); }
DEVICE double& relative(const Tensor& sums, const At& at) { return value<double>(sums, row(sums, 1, 1, at)); }

// softmax_sum: t = x sums. v = the largest value so far, and the sum of exponentials relative to it.
struct Exponentials { typedef double V; enum { rows = 2, along = 1 }; At pin; int summed; V v[2]; };

DEVICE Exponentials begin(const Args&, const At& at, Exponentials*) {
  return Exponentials{at, CHANNELS, {-(double)float_of_bits(0x7f800000u), 0}};
}
DEVICE void add(const Args& a, const At&, const At& x, Exponentials& sum) {
  const double v = load(a.t[0], x), top = sum.v[0];
  if (v > top || v != v) {
    sum.v[1] = (sum.v[1] > 0 ? sum.v[1] * exp(top - v) : sum.v[1]) + (1 + (v - v));  // +inf has no sum: NaN
    sum.v[0] = v;
  } else if (v != -(double)float_of_bits(0x7f800000u)) {
    sum.v[1] += exp(v - top);
  }
}
DEVICE void join(const double* part, Exponentials& sum) {
  const double v = part[0], top = sum.v[0], more = part[1];
  if (v > top || v != v) {
    sum.v[1] = (sum.v[1] > 0 ? sum.v[1] * exp(top - v) : sum.v[1]) + more;
    sum.v[0] = v;
  } else {
    sum.v[1] += more > 0 ? more * exp(v - top) : more;
  }
}
DEVICE void finish(const Args& a, const At& at, const Exponentials& sum) {
  largest(a.t[1], at) = sum.v[0];
  relative(a.t[1], at) = sum.v[1];
}

DEVICE Tensor positions(Tensor sums) {  // each is one result, of both numbers
  sums.extent[1] = 1, sums.by[1] = 1u << 31, sums.shift[1] = 31;
  return sums;
}

SUM(softmax_sum, Exponentials, a.t[0], positions(a.t[1]))

// t = x sums y; whole = whether the logarithm is wanted, here and below.
KERNEL(softmax) {
  EACH(at, a.t[2]) {
    const double z = load(a.t[0], at) - largest(a.t[1], at), sum = relative(a.t[1], at);
    store(a.t[2], at, (C)(a.whole[0] ? z - log(sum) : exp(z) / sum));
  }
}

// softmax_dot: t = dy y s: s = sum of y * dy, or of dy alone where there is no y.
struct Products { typedef double V; enum { rows = 1, along = 0 }; At pin; int summed; V v[1]; };

DEVICE Products begin(const Args&, const At& at, Products*) { return Products{at, CHANNELS, {0}}; }
DEVICE void add(const Args& a, const At&, const At& x, Products& sum) {
  sum.v[0] += a.t[1].data ? (double)load(a.t[0], x) * load(a.t[1], x) : (double)load(a.t[0], x);
}
DEVICE void finish(const Args& a, const At& at, const Products& sum) { exact(a.t[2], at) = sum.v[0]; }

SUM(softmax_dot, Products, a.t[0], a.t[2])

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
