// Sums of many terms.
//
// S is a sum, with as many values v of type V as rows of its partial sum. Its terms are those of a block along the axes
// whose bit in `summed` is 1, at the coordinate `pin` along the others. The rows lie `along` an axis. Each kernel comes three times: NAME takes the terms one
// after the other; where that leaves too few threads, NAME_parts first takes every PARTS-th of them in a thread of its own,
// NAME_groups joins GROUP parts at a time where they are many, and NAME joins what is left, all in their order.

// Some terms, in row-major order: every step-th from a start.
struct Walk { At at, by; Index hi[5], extent[5]; Count left; };

DEVICE Walk walk(const Tensor& t, int summed, const At& pin, Count start, Count step) {
  Walk w;
  Count count = 1;
  for (int axis = 0; axis < 5; ++axis) {
    const bool sums = summed >> axis & 1;
    w.extent[axis] = sums ? (Index)t.extent[axis] : 1;
    w.at.x[axis] = sums ? begins(t, axis) : pin.x[axis];
    w.hi[axis] = w.at.x[axis] + w.extent[axis];
    count *= (Count)w.extent[axis];
  }
  w.left = start < count ? (count - start + step - 1) / step : 0;
  for (int axis = 4; axis >= 0 && w.left; --axis) {  // numbers of terms as digits, one per axis: steps need no division
    const Count extent = (Count)w.extent[axis];
    w.at.x[axis] += (Index)(start % extent);
    w.by.x[axis] = (Index)(step % extent);
    start /= extent;
    step /= extent;
  }
  return w;
}

DEVICE void advance(Walk& w) {
  Index carry = 0;
  for (int axis = 4; axis >= 0; --axis) {
    w.at.x[axis] += w.by.x[axis] + carry;
    carry = w.at.x[axis] >= w.hi[axis];
    if (carry) w.at.x[axis] -= w.extent[axis];
  }
  --w.left;
}

// Where the values of a part of a result are.
template <class S> DEVICE typename S::V* part_of(const Args& a, Count result, Count part) {
  return (typename S::V*)SCRATCH.data + (result * (Count)PARTS + part) * S::rows;
}

template <class S> DEVICE void keep(typename S::V* part, const S& sum) {
  for (int r = 0; r < S::rows; ++r) part[r] = sum.v[r];
}

template <class S> DEVICE void take_parts(const Args& a, const Tensor& terms, const Tensor& made) {
  const Count results = elements(made), parts = (Count)PARTS;
  // Neighbouring threads read neighbouring terms: of other results where the axis of these is not summed.
  const bool together = !(begin(a, element(made, 0), (S*)0).summed >> (terms.stride[1] == 1 ? 1 : 4) & 1);
  for (Count i = (Count)THREAD; i < results * parts; i += (Count)THREADS) {
    const Count result = together ? i % results : i / parts, part = together ? i / results : i % parts;
    const At at = element(made, result);
    S sum = begin(a, at, (S*)0);
    for (Walk w = walk(terms, sum.summed, sum.pin, part, parts); w.left; advance(w)) add(a, at, w.at, sum);
    keep(part_of<S>(a, result, part), sum);
  }
}

template <class S> DEVICE void join(const typename S::V* part, S& sum) {
  for (int r = 0; r < S::rows; ++r) sum.v[r] += part[r];
}

// Each group becomes its first part.
template <class S> DEVICE void join_groups(const Args& a, const Tensor& made) {
  const Count parts = (Count)PARTS, size = (Count)GROUP, groups = (parts + size - 1) / size;
  for (Count i = (Count)THREAD, count = elements(made) * groups; i < count; i += (Count)THREADS) {
    const Count result = i / groups, from = i % groups * size;
    S sum = begin(a, element(made, result), (S*)0);
    for (Count part = from; part < from + size && part < parts; ++part) join(part_of<S>(a, result, part), sum);
    keep(part_of<S>(a, result, from), sum);
  }
}

template <class S> DEVICE typename S::V& partial(const Args& a, const At& at, int r) {
  return value<typename S::V>(ACC, S::rows > 1 ? row(ACC, S::along, r, at) : offset(ACC, at));
}

template <class S> DEVICE void take(const Args& a, const Tensor& terms, const Tensor& made) {
  EACH(at, made) {
    S sum = begin(a, at, (S*)0);
    if (!a.first && ACC.data)
      for (int r = 0; r < S::rows; ++r) sum.v[r] = partial<S>(a, at, r);
    if (PARTS > 1) {
      for (Count part = 0; part < (Count)PARTS; part += (Count)GROUP) join(part_of<S>(a, i, part), sum);
    } else {
      for (Walk w = walk(terms, sum.summed, sum.pin, 0, 1); w.left; advance(w)) add(a, at, w.at, sum);
    }
    if (a.last) finish(a, at, sum);
    else
      for (int r = 0; r < S::rows; ++r) partial<S>(a, at, r) = sum.v[r];
  }
}

#define SUM(name, S, terms, made)                         \
  KERNEL(name##_parts) { take_parts<S>(a, terms, made); } \
  KERNEL(name##_groups) { join_groups<S>(a, made); }      \
  KERNEL(name) { take<S>(a, terms, made); }

// A sum over the channels in one thread: where it goes on.
DEVICE double start_exact(const Args& a, const At& at) { return a.first || !ACC.data ? 0.0 : exact(ACC, at); }

// Softmax's two numbers of a position: the largest value of its channels, and the sum of exponentials relative to it.
DEVICE double& largest(const Tensor& sums, const At& at) { return value<double>(sums, row(sums, 1, 0, at)); }
DEVICE double& relative(const Tensor& sums, const At& at) { return value<double>(sums, row(sums, 1, 1, at)); }
