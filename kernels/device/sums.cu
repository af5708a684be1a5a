// Sums of many terms, and plain sums over a batch.
//
// S is a sum, with as many values v of type V as rows of its partial sum. Its terms are those of a block along the axes
// whose bit in `summed` is 1, at the coordinate `pin` along the others. Each kernel comes twice: NAME takes the terms one
// after the other; where that leaves too few threads, NAME_parts first takes every PARTS-th of them in a thread of its own,
// and NAME joins the parts in their order.

// Some terms, in row-major order: every step-th from a start.
struct Walk { At at, by; i64 hi[5], extent[5], left; };

DEVICE Walk walk(const Tensor& t, i64 summed, const At& pin, i64 start, i64 step) {
  Walk w;
  i64 count = 1;
  for (int axis = 0; axis < 5; ++axis) {
    const bool sums = summed >> axis & 1;
    w.extent[axis] = sums ? t.extent[axis] : 1;
    w.at.x[axis] = sums ? t.lo[axis] : pin.x[axis];
    w.hi[axis] = w.at.x[axis] + w.extent[axis];
    count *= w.extent[axis];
  }
  w.left = start < count ? (count - start + step - 1) / step : 0;
  for (int axis = 4; axis >= 0 && w.left; --axis) {  // numbers of terms as digits, one per axis: steps need no division
    w.at.x[axis] += start % w.extent[axis];
    w.by.x[axis] = step % w.extent[axis];
    start /= w.extent[axis];
    step /= w.extent[axis];
  }
  return w;
}

DEVICE void advance(Walk& w) {
  i64 carry = 0;
  for (int axis = 4; axis >= 0; --axis) {
    w.at.x[axis] += w.by.x[axis] + carry;
    carry = w.at.x[axis] >= w.hi[axis];
    if (carry) w.at.x[axis] -= w.extent[axis];
  }
  --w.left;
}

template <class S> DEVICE void take_parts(const Args& a, const Tensor& terms, const Tensor& made) {
  const i64 results = elements(made), parts = PARTS;
  const bool together = terms.stride[1] == 1;  // neighbouring threads read neighbouring terms
  for (i64 i = THREAD; i < results * parts; i += THREADS) {
    const i64 result = together ? i % results : i / parts, part = together ? i / results : i % parts;
    const At at = element(made, result);
    S sum = begin(a, at, (S*)0);
    for (Walk w = walk(terms, sum.summed, sum.pin, part, parts); w.left; advance(w)) add(a, at, w.at, sum);
    for (int r = 0; r < S::rows; ++r) ((typename S::V*)SCRATCH.data)[(result * parts + part) * S::rows + r] = sum.v[r];
  }
}

template <class S> DEVICE void join(const typename S::V* part, S& sum) {
  for (int r = 0; r < S::rows; ++r) sum.v[r] += part[r];
}

template <class S> DEVICE typename S::V& partial(const Args& a, const At& at, int r) {
  return value<typename S::V>(ACC, S::rows > 1 ? row(ACC, 0, r, at) : offset(ACC, at));
}

template <class S> DEVICE void take(const Args& a, const Tensor& terms, const Tensor& made) {
  EACH(at, made) {
    S sum = begin(a, at, (S*)0);
    if (!a.first && ACC.data)
      for (int r = 0; r < S::rows; ++r) sum.v[r] = partial<S>(a, at, r);
    if (PARTS > 1) {
      const typename S::V* parts = (typename S::V*)SCRATCH.data + i * PARTS * S::rows;
      for (i64 part = 0; part < PARTS; ++part) join(parts + part * S::rows, sum);
    } else {
      for (Walk w = walk(terms, sum.summed, sum.pin, 0, 1); w.left; advance(w)) add(a, at, w.at, sum);
    }
    if (a.last) finish(a, at, sum);
    else
      for (int r = 0; r < S::rows; ++r) partial<S>(a, at, r) = sum.v[r];
  }
}

#define SUM(name, S, terms, made)                              \
  KERNEL(name##_parts) { take_parts<S>(a, a.t[terms], a.t[made]); } \
  KERNEL(name) { take<S>(a, a.t[terms], a.t[made]); }

// ---- sums over a batch, in f64. whole = bits of the summed axes.
struct Sum { typedef double V; enum { rows = 1 }; At pin; i64 summed; V v[1]; };

// reduce: t = x y; whole = summed axes, whether y has the computed type; real = alpha.
DEVICE Sum begin(const Args& a, const At& at, Sum*) { return Sum{at, a.whole[0], {0}}; }
DEVICE void add(const Args& a, const At&, const At& x, Sum& sum) { sum.v[0] += a.real[0] * load(a.t[0], x); }
DEVICE void finish(const Args& a, const At& at, const Sum& sum) {
  if (a.whole[1]) wide(a.t[1], at) = (C)sum.v[0];
  else store(a.t[1], at, (C)sum.v[0]);
}

SUM(reduce, Sum, 0, 1)
