// Pooling: t = x y; whole = window(3) stride(3) pad(3) extent of x(3) how (0 max, 1 average, 2 average of what counts), how to divide
// by the strides(3)

// The window that starts at given positions of x, its places numbered in row-major order: the sum of what lies inside, and the
// place of its first maximum, NaN being the largest.
struct Window { C sum, best; Index first, count; };

// Some whole numbers.
struct Range { Index lo, hi; };

// The places of a window along an axis of x that lie in its block, where it starts at a position.
DEVICE Range held(const Args& a, const Tensor& x, int s, Index from) {
  const Index lo = begins(x, s + 2) - from, hi = ends(x, s + 2) - from, size = number(a, s);
  return Range{lo > 0 ? lo : 0, hi < size ? hi : size};
}

DEVICE Window look(const Args& a, const Tensor& x, Index n, Index k, Index d, Index h, Index w) {
  Window found = {0, 0, -1, 0};
  const Range ds = held(a, x, 0, d), hs = held(a, x, 1, h), ws = held(a, x, 2, w);
  if (ws.lo >= ws.hi) return found;
  const Index step = (Index)x.stride[4];
  for (Index t = ds.lo; t < ds.hi; ++t) {
    for (Index r = hs.lo; r < hs.hi; ++r) {
      Index at = offset(x, n, k, d + t, h + r, w + ws.lo);
      VISIT(x, 4, w + ws.hi - 1)
      for (Index s = ws.lo; s < ws.hi; ++s, at += step) {
        const C v = load(x, at);
        if (found.first < 0 || v > found.best || (v != v && found.best == found.best)) {
          found.best = v;
          found.first = (t * number(a, 1) + r) * number(a, 2) + s;
        }
        found.sum += v;
        ++found.count;
      }
    }
  }
  return found;
}

DEVICE Index stride_of(const Args& a, int s) { return number(a, 3 + s); }
DEVICE Index pad_of(const Args& a, int s) { return number(a, 6 + s); }
DEVICE Index places(const Args& a) { return number(a, 0) * number(a, 1) * number(a, 2); }

KERNEL(pool) {
  const Tensor &x = a.t[0], &y = a.t[1];
  const Index how = number(a, 12), all = places(a);
  EACH(at, y) {
    Index from[3];
    for (int s = 0; s < 3; ++s) from[s] = at.x[s + 2] * stride_of(a, s) - pad_of(a, s);
    const Window v = look(a, x, at.x[0], at.x[1], from[0], from[1], from[2]);
    store(y, at, how == 0 ? v.best : v.sum / (C)(how == 1 ? all : v.count > 1 ? v.count : 1));
  }
}

// How many positions of x a window that starts at `from` counts along an axis.
DEVICE Index counted(const Args& a, int s, Index from) {
  const Index end = from + number(a, s), extent = number(a, 9 + s);
  const Index lo = from > 0 ? from : 0, hi = end < extent ? end : extent;
  return hi - lo > 1 ? hi - lo : 1;
}

// A position of x, counted from where padding begins, over the stride.
DEVICE Index strides_in(const Args& a, int s, Index position) {
#if OOC_INDEX == 32
  const u64 how = (u64)a.whole[13 + s];
  return (Index)divided((unsigned)position, (unsigned)how, (unsigned)(how >> 32));
#else
  return position / stride_of(a, s);
#endif
}

// The windows that have a position of x, of those whose gradients a block of dy holds.
DEVICE Range windows(const Args& a, const Tensor& dy, int s, Index x) {
  const Index last = x + pad_of(a, s), first = last - number(a, s) + stride_of(a, s);
  const Index lo = first < stride_of(a, s) ? 0 : strides_in(a, s, first), hi = strides_in(a, s, last) + 1;
  return Range{lo > begins(dy, s + 2) ? lo : begins(dy, s + 2), hi < ends(dy, s + 2) ? hi : ends(dy, s + 2)};
}

// t = x dy dx, without x for averages: of every window that has this position, the gradient or its share; those that begin last come
// first.
KERNEL(pool_backward) {
  const Tensor &x = a.t[0], &dy = a.t[1], &dx = a.t[2];
  const Index how = number(a, 12), all = places(a);
  EACH(at, dx) {
    const Range ds = windows(a, dy, 0, at.x[2]), hs = windows(a, dy, 1, at.x[3]), ws = windows(a, dy, 2, at.x[4]);
    C sum = 0;
    for (Index d = ds.hi - 1; d >= ds.lo; --d)
      for (Index h = hs.hi - 1; h >= hs.lo; --h)
        for (Index w = ws.hi - 1; w >= ws.lo; --w) {
          const Index from[3] = {d * stride_of(a, 0) - pad_of(a, 0), h * stride_of(a, 1) - pad_of(a, 1), w * stride_of(a, 2) - pad_of(a, 2)};
          const C v = load(dy, offset(dy, at.x[0], at.x[1], d, h, w));
          if (how == 1) {
            sum += v / (C)all;
          } else if (how == 2) {
            sum += v / (C)(counted(a, 0, from[0]) * counted(a, 1, from[1]) * counted(a, 2, from[2]));
          } else {
            const Index own = ((at.x[2] - from[0]) * number(a, 1) + at.x[3] - from[1]) * number(a, 2) + at.x[4] - from[2];
            if (look(a, x, at.x[0], at.x[1], from[0], from[1], from[2]).first == own) sum += v;
          }
        }
    store(dx, at, sum);
  }
}
