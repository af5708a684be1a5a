// Attention, a thread for each result: meaning as in ooc/ops/attention.py.
//
// t = q k v bias sums dots - - dy y dx; whole = the part (see PARTS there); real = scale. Sums go along what passes in its order.

enum { SUM_UP, APPLY, OF_Q, OF_K, OF_V, OF_SCORES, DOTS };

DEVICE C row_product(const Tensor& x, Index i, const Tensor& z, Index j, const At& at) {
  C sum = 0;
  for (Index c = begins(x, 4); c < ends(x, 4); ++c)
    sum += load(x, offset(x, at.x[0], at.x[1], 0, i, c)) * load(z, offset(z, at.x[0], at.x[1], 0, j, c));
  return sum;
}

DEVICE C score(const Args& a, const At& at, Index query, Index key) {
  const C x = row_product(a.t[0], query, a.t[1], key, at) * (C)a.real[0];
  return a.t[3].data ? x + load(a.t[3], offset(a.t[3], at.x[0], at.x[1], 0, query, key)) : x;
}

DEVICE double about(const Tensor& t, const At& at, Index query, Index which) {
  return value<double>(t, offset(t, at.x[0], at.x[1], 0, query, which));
}

// The weight of a key for a query, or the slope of its score.
DEVICE C weight(const Args& a, const At& at, Index query, Index key, bool sloped) {
  const double lowest = -(double)float_of_bits(0x7f800000u), top = about(a.t[4], at, query, 0), total = about(a.t[4], at, query, 1);
  const C weight = total == 0 ? (C)0 : (C)(exp((double)score(a, at, query, key) - (top == lowest ? 0 : top)) / total);
  return sloped ? weight * (row_product(a.t[8], query, a.t[2], key, at) - (C)about(a.t[5], at, query, 0)) : weight;
}

DEVICE void sum_up(const Args& a, const At& at) {
  const Tensor& sums = a.t[4];
  const double lowest = -(double)float_of_bits(0x7f800000u);
  double top = a.first ? lowest : about(sums, at, at.x[3], 0), total = a.first ? 0 : about(sums, at, at.x[3], 1);
  for (Index key = begins(a.t[1], 3); key < ends(a.t[1], 3); ++key) {
    const double x = score(a, at, at.x[3], key);
    if (x > top || x != x) {
      total = (total > 0 ? total * exp(top - x) : total) + (1 + (x - x));  // +inf has no sum: NaN
      top = x;
    } else if (x != lowest) {
      total += exp(x - top);
    }
  }
  value<double>(sums, offset(sums, at.x[0], at.x[1], 0, at.x[3], 0)) = top;
  value<double>(sums, offset(sums, at.x[0], at.x[1], 0, at.x[3], 1)) = total;
}

KERNEL(attention) {
  const Index part = number(a, 0);
  if (part == SUM_UP) {
    EACH(at, a.t[4]) { if (at.x[4] == 0) sum_up(a, at); }
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
  const Tensor& made = a.t[part == APPLY ? 9 : 10];
  const Tensor& passing = a.t[part == APPLY ? 2 : part == OF_Q ? 1 : part == OF_K ? 0 : 8];
  const bool turned = part == OF_K || part == OF_V, sloped = part != APPLY && part != OF_V;
  const C scale = part == OF_Q || part == OF_K ? (C)a.real[0] : (C)1;
  EACH(at, made) {
    if (part == OF_SCORES) {
      store(made, at, weight(a, at, at.x[3], at.x[4], true));
      continue;
    }
    C sum = a.first || !ACC.data ? (C)0 : wide(ACC, at);
    for (Index row = begins(passing, 3); row < ends(passing, 3); ++row) {
      const Index query = turned ? row : at.x[3], key = turned ? at.x[3] : row;
      sum += weight(a, at, query, key, sloped) * load(passing, offset(passing, at.x[0], at.x[1], 0, row, at.x[4]));
    }
    if (!a.last) wide(ACC, at) = sum;
    else store(made, at, sum * scale);
  }
}

// Of a tile's scores, keys by queries, in the computed type: t = scores top total bias slopes dots - - made.

DEVICE C scored(const Args& a, Index n, Index k, Index key, Index query) {
  const C x = value<C>(a.t[0], offset(a.t[0], n, k, 0, key, query));
  return a.t[3].data ? x + load(a.t[3], offset(a.t[3], n, k, 0, key, query)) : x;
}

KERNEL(attention_rows) {
  const double lowest = -(double)float_of_bits(0x7f800000u);
  EACH(at, a.t[1]) {
    double top = a.first ? lowest : exact(a.t[1], at), total = a.first ? 0 : exact(a.t[2], at);
    for (Index key = begins(a.t[0], 3); key < ends(a.t[0], 3); ++key) {
      const double x = scored(a, at.x[0], at.x[1], key, at.x[4]);
      if (x > top || x != x) {
        total = (total > 0 ? total * exp(top - x) : total) + (1 + (x - x));  // +inf has no sum: NaN
        top = x;
      } else if (x != lowest) {
        total += exp(x - top);
      }
    }
    exact(a.t[1], at) = top;
    exact(a.t[2], at) = total;
  }
}

// whole = whether what is made has the element type.
KERNEL(attention_weigh) {
  const double lowest = -(double)float_of_bits(0x7f800000u);
  EACH(at, a.t[0]) {
    const double top = exact(a.t[1], at), total = exact(a.t[2], at);
    const C x = scored(a, at.x[0], at.x[1], at.x[3], at.x[4]);
    C weight = total == 0 ? (C)0 : (C)(exp((double)x - (top == lowest ? 0 : top)) / total);
    if (a.t[4].data) weight *= wide(a.t[4], at) - (C)exact(a.t[5], at);
    if (number(a, 0)) store(a.t[8], at, weight);
    else wide(a.t[8], at) = weight;
  }
}
