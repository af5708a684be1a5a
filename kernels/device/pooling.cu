// Pooling: t = x y; whole = window(3) stride(3) pad(3) extent of x(3) how (0 max, 1 average, 2 average of what counts)

// The window that starts at given positions of x, its places numbered in row-major order: the sum of what lies inside, and the
// place of its first maximum, NaN being the largest.
struct Window { C sum, best; i64 first, count; };

DEVICE Window look(const Args& a, const Tensor& x, i64 n, i64 k, i64 d, i64 h, i64 w) {
  Window found = {0, 0, -1, 0};
  for (i64 t = 0; t < a.whole[0]; ++t) {
    if (!inside(x, 2, d + t)) continue;
    for (i64 r = 0; r < a.whole[1]; ++r) {
      if (!inside(x, 3, h + r)) continue;
      for (i64 s = 0; s < a.whole[2]; ++s) {
        if (!inside(x, 4, w + s)) continue;
        const C v = load(x, offset(x, n, k, d + t, h + r, w + s));
        if (found.first < 0 || v > found.best || (v != v && found.best == found.best)) {
          found.best = v;
          found.first = (t * a.whole[1] + r) * a.whole[2] + s;
        }
        found.sum += v;
        ++found.count;
      }
    }
  }
  return found;
}

KERNEL(pool) {
  const Tensor &x = a.t[0], &y = a.t[1];
  const i64 *stride = a.whole + 3, *pad = a.whole + 6, how = a.whole[12], all = a.whole[0] * a.whole[1] * a.whole[2];
  EACH(at, y) {
    const Window v = look(a, x, at.x[0], at.x[1], at.x[2] * stride[0] - pad[0], at.x[3] * stride[1] - pad[1],
                          at.x[4] * stride[2] - pad[2]);
    store(y, at, how == 0 ? v.best : v.sum / (C)(how == 1 ? all : v.count > 1 ? v.count : 1));
  }
}

// How many positions of x a window that starts at `from` counts along an axis.
DEVICE i64 counted(const Args& a, int s, i64 from) {
  const i64 lo = from > 0 ? from : 0, hi = from + a.whole[s] < a.whole[9 + s] ? from + a.whole[s] : a.whole[9 + s];
  return hi - lo > 1 ? hi - lo : 1;
}

// t = x dy dx, without x for averages: of every window that has this position, the gradient or its share.
KERNEL(pool_backward) {
  const Tensor &x = a.t[0], &dy = a.t[1], &dx = a.t[2];
  const i64 *stride = a.whole + 3, *pad = a.whole + 6, how = a.whole[12], all = a.whole[0] * a.whole[1] * a.whole[2];
  EACH(at, dx) {
    C sum = 0;
    for (i64 t = 0; t < a.whole[0]; ++t) {
      i64 d = at.x[2] + pad[0] - t;
      if (!window(dy, 2, stride[0], d)) continue;
      for (i64 r = 0; r < a.whole[1]; ++r) {
        i64 h = at.x[3] + pad[1] - r;
        if (!window(dy, 3, stride[1], h)) continue;
        for (i64 s = 0; s < a.whole[2]; ++s) {
          i64 u = at.x[4] + pad[2] - s;
          if (!window(dy, 4, stride[2], u)) continue;
          const C v = load(dy, offset(dy, at.x[0], at.x[1], d, h, u));
          const i64 from[3] = {d * stride[0] - pad[0], h * stride[1] - pad[1], u * stride[2] - pad[2]};
          if (how == 1) sum += v / (C)all;
          else if (how == 2) sum += v / (C)(counted(a, 0, from[0]) * counted(a, 1, from[1]) * counted(a, 2, from[2]));
          else if (look(a, x, at.x[0], at.x[1], from[0], from[1], from[2]).first == (t * a.whole[1] + r) * a.whole[2] + s) sum += v;
        }
      }
    }
    store(dx, at, sum);
  }
}
