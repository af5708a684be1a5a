// Softmax over channels, in f64.

enum { CHANNELS = 1 << 1 };  // the axis that is summed

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
