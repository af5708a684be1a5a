// Attention, a thread for each result: meaning as in ooc/ops/attention.py.
//
// t = q k v bias sums dots - - dy y dx mask; whole = the part (see PARTS there), and of either bias how its heads follow from those of q:
// divided by one number, modulo another; real = scale. Sums go along what passes in its order.

enum { FORWARD, OF_Q, OF_K, OF_V, OF_SCORES, DOTS };
enum { DEEP = 8 };  // results of a query that a thread sums at a time

#define LOWEST (-(double)float_of_bits(0x7f800000u))
#define LN2 0.693147180559945309417
#define EVEN 1048576.0  // scores below it are relative to a power of two

DEVICE bool even(double x) { return x < EVEN && x > -EVEN; }
DEVICE double nearest(double x) { return rint(x / LN2); }

// exp(x - base), which another base scales by a power of two exactly.
DEVICE double term(double x, double base) {
  if (x == LOWEST) return 0;
  if (!even(x) || !even(base)) return exp(x - base);
  const double n = nearest(x);
  return ldexp(exp(x - TIMES(n, LN2)), (int)(n - nearest(base)));
}

// What is relative to one base, relative to another one.
DEVICE double rescaling(double before, double base) {
  if (before == LOWEST) return 0;
  return even(before) && even(base) ? ldexp(1.0, (int)(nearest(before) - nearest(base))) : exp(before - base);
}

// A score more: a base above all of them, and the sum relative to it.
DEVICE void sum_up(double x, double& base, double& total) {
  if (x != x || x == -LOWEST) total = x - x, x = -LOWEST;  // +inf has no sum: NaN
  const double high = even(x) ? TIMES(ceil(x / LN2), LN2) : x;
  if (high > base) {
    total *= rescaling(base, high);
    base = high;
  }
  total += term(x, base);
}

DEVICE C row_product(const Tensor& x, Index i, const Tensor& z, Index j, const At& at) {
  C sum = 0;
  for (Index c = begins(x, 4); c < ends(x, 4); ++c)
    sum += load(x, offset(x, at.x[0], at.x[1], 0, i, c)) * load(z, offset(z, at.x[0], at.x[1], 0, j, c));
  return sum;
}

// A score and a bias, if there is one; its heads follow from whole[of] and the next one.
DEVICE C added(const Args& a, int slot, int of, C x, Index n, Index k, Index query, Index key) {
  const Tensor& t = a.t[slot];
  return t.data ? x + load(t, offset(t, n, k / number(a, of) % number(a, of + 1), 0, query, key)) : x;
}

DEVICE C score(const Args& a, const At& at, Index query, Index key) {
  const C x = row_product(a.t[0], query, a.t[1], key, at) * (C)a.real[0];
  return added(a, 11, 3, added(a, 3, 1, x, at.x[0], at.x[1], query, key), at.x[0], at.x[1], query, key);
}

DEVICE double about(const Tensor& t, const At& at, Index query, Index which) {
  return value<double>(t, offset(t, at.x[0], at.x[1], 0, query, which));
}

DEVICE double share(double total) { return total == 0 ? 0 : 1 / total; }

// The weight of a key for a query, or the slope of its score.
DEVICE C weight(const Args& a, const At& at, Index query, Index key, bool sloped) {
  const double base = about(a.t[4], at, query, 0), total = about(a.t[4], at, query, 1);
  const C weight = (C)(term((double)score(a, at, query, key), base) * share(total));
  return sloped ? weight * (row_product(a.t[8], query, a.t[2], key, at) - (C)about(a.t[5], at, query, 0)) : weight;
}

// Of a query all results, and its sums.
DEVICE void attend(const Args& a, At at) {
  const Tensor &k = a.t[1], &v = a.t[2], &sums = a.t[4], &y = a.t[9];
  const Index query = at.x[3];
  const double before = a.first ? LOWEST : about(sums, at, query, 0);
  double base = before, total = a.first ? 0 : about(sums, at, query, 1);
  for (Index key = begins(k, 3); key < ends(k, 3); ++key) sum_up((double)score(a, at, query, key), base, total);
  const C factor = (C)rescaling(before, base), part = (C)share(total);
  for (Index e = begins(y, 4); e < ends(y, 4); e += DEEP) {
    const Index some = ends(y, 4) - e < DEEP ? ends(y, 4) - e : (Index)DEEP;
    C held[DEEP];
    for (Index i = 0; i < some; ++i) {
      at.x[4] = e + i;
      held[i] = a.first || !ACC.data ? (C)0 : wide(ACC, at) * factor;
    }
    for (Index key = begins(k, 3); key < ends(k, 3); ++key) {
      const C x = (C)term((double)score(a, at, query, key), base);
      for (Index i = 0; i < some; ++i) held[i] += x * load(v, offset(v, at.x[0], at.x[1], 0, key, e + i));
    }
    for (Index i = 0; i < some; ++i) {
      at.x[4] = e + i;
      if (!a.last) wide(ACC, at) = held[i];
      else store(y, at, held[i] * part);
    }
  }
  value<double>(sums, offset(sums, at.x[0], at.x[1], 0, query, 0)) = base;
  value<double>(sums, offset(sums, at.x[0], at.x[1], 0, query, 1)) = total;
}

KERNEL(attention) {
  const Index part = number(a, 0);
  if (part == FORWARD) {
    EACH(at, a.t[4]) { if (at.x[4] == 0) attend(a, at); }
    return;
  }
  if (part == DOTS) {
    EACH(at, a.t[5]) {
      double sum = 0;
      for (Index c = begins(a.t[8], 4); c < ends(a.t[8], 4); ++c) {
        const Index from = offset(a.t[9], at.x[0], at.x[1], 0, at.x[3], c), beside = offset(a.t[8], at.x[0], at.x[1], 0, at.x[3], c);
        sum += (double)load(a.t[9], from) * load(a.t[8], beside);
      }
      exact(a.t[5], at) = sum;
    }
    return;
  }
  const Tensor& result = a.t[10];
  const Tensor& passing = a.t[part == OF_Q ? 1 : part == OF_K ? 0 : 8];
  const bool turned = part == OF_K || part == OF_V, sloped = part != OF_V;
  const C scale = part == OF_Q || part == OF_K ? (C)a.real[0] : (C)1;
  EACH(at, result) {
    if (part == OF_SCORES) {
      store(result, at, weight(a, at, at.x[3], at.x[4], true));
      continue;
    }
    C sum = a.first || !ACC.data ? (C)0 : wide(ACC, at);
    for (Index row = begins(passing, 3); row < ends(passing, 3); ++row) {
      const Index query = turned ? row : at.x[3], key = turned ? at.x[3] : row;
      sum += weight(a, at, query, key, sloped) * load(passing, offset(passing, at.x[0], at.x[1], 0, row, at.x[4]));
    }
    if (!a.last) wide(ACC, at) = sum;
    else store(result, at, sum * scale);
  }
}

// Of a tile's scores, keys by queries, in the computed type: t = scores base total bias slopes dots - factor result mask. whole: as the
// kernels say, and from 2 on the heads of bias and mask, as above.

DEVICE C scored(const Args& a, Index n, Index k, Index key, Index query) {
  const C x = value<C>(a.t[0], offset(a.t[0], n, k, 0, key, query));
  return added(a, 9, 4, added(a, 3, 2, x, n, k, key, query), n, k, key, query);
}

// The sums of each query, and by what is multiplied what was summed before.
KERNEL(attention_rows) {
  EACH(at, a.t[1]) {
    const double before = a.first ? LOWEST : exact(a.t[1], at);
    double base = before, total = a.first ? 0 : exact(a.t[2], at);
    for (Index key = begins(a.t[0], 3); key < ends(a.t[0], 3); ++key)
      sum_up((double)scored(a, at.x[0], at.x[1], key, at.x[4]), base, total);
    exact(a.t[1], at) = base;
    exact(a.t[2], at) = total;
    exact(a.t[7], at) = rescaling(before, base);
  }
}

// Exponentials, weights, or slopes. whole = whether the result has the element type, whether it is divided by the sums.
KERNEL(attention_weigh) {
  EACH(at, a.t[0]) {
    const C x = scored(a, at.x[0], at.x[1], at.x[3], at.x[4]);
    C weight = (C)(term((double)x, exact(a.t[1], at)) * (number(a, 1) ? share(exact(a.t[2], at)) : 1));
    if (a.t[4].data) weight *= wide(a.t[4], at) - (C)exact(a.t[5], at);
    if (number(a, 0)) store(a.t[8], at, weight);
    else wide(a.t[8], at) = weight;
  }
}

// t[8] = t[0] by a number for each query, a factor or one over a sum: queries by depth. whole = as above.
KERNEL(attention_scale) {
  EACH(at, a.t[0]) {
    const double by = exact(a.t[7], at);
    const C y = wide(a.t[0], at) * (C)(number(a, 1) ? share(by) : by);
    if (number(a, 0)) store(a.t[8], at, y);
    else wide(a.t[8], at) = y;
  }
}
