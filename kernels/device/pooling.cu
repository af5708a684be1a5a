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

// How many windows before the one that begins with it reach into a cell, `stride` positions of an axis.
DEVICE Index reaching(const Args& a, int s) { return number(a, s) > stride_of(a, s) ? 1 : 0; }

// The cells of an axis that hold positions of a block.
DEVICE Range cells(const Args& a, const Tensor& dx, int s) {
  const Index lo = begins(dx, s + 2) + pad_of(a, s), hi = ends(dx, s + 2) - 1 + pad_of(a, s);
  return Range{strides_in(a, s, lo), strides_in(a, s, hi) + 1};
}

// The same for the largest, a thread for each cell: the windows that reach into it, at most two along an axis, are looked at once.
KERNEL(pool_backward_cells) {
  const Tensor &x = a.t[0], &dy = a.t[1], &dx = a.t[2];
  Range all[3];
  for (int s = 0; s < 3; ++s) all[s] = cells(a, dx, s);
  const Count ds = all[0].hi - all[0].lo, hs = all[1].hi - all[1].lo, ws = all[2].hi - all[2].lo;
  const Count planes = (Count)dx.extent[0] * (Count)dx.extent[1], ks = (Count)dx.extent[1];
  const bool together = dx.stride[1] == 1;  // channels are neighbours in memory
  for (Count i = (Count)THREAD; i < planes * ds * hs * ws; i += (Count)THREADS) {
    Count rest = i;
    Index cell[3], k = begins(dx, 1);
    if (together) k += (Index)(rest % ks), rest /= ks;
    cell[2] = all[2].lo + (Index)(rest % ws), rest /= ws;
    cell[1] = all[1].lo + (Index)(rest % hs), rest /= hs;
    cell[0] = all[0].lo + (Index)(rest % ds), rest /= ds;
    if (!together) k += (Index)(rest % ks), rest /= ks;
    const Index n = begins(dx, 0) + (Index)rest;
    C slopes[8];
    Index places_of[8][3];  // where the largest of each window lies; nowhere: -1
    Range near[3];
    for (int s = 0; s < 3; ++s) {
      const Index lo = cell[s] - reaching(a, s), hi = cell[s] + 1;
      near[s] = Range{lo > begins(dy, s + 2) ? lo : begins(dy, s + 2), hi < ends(dy, s + 2) ? hi : ends(dy, s + 2)};
    }
    int windows = 0;
    for (Index d = near[0].hi - 1; d >= near[0].lo; --d)
      for (Index h = near[1].hi - 1; h >= near[1].lo; --h)
        for (Index w = near[2].hi - 1; w >= near[2].lo; --w, ++windows) {
          const Index from[3] = {d * stride_of(a, 0) - pad_of(a, 0), h * stride_of(a, 1) - pad_of(a, 1), w * stride_of(a, 2) - pad_of(a, 2)};
          const Index first = look(a, x, n, k, from[0], from[1], from[2]).first;
          slopes[windows] = load(dy, offset(dy, n, k, d, h, w));
          places_of[windows][2] = first < 0 ? -1 : from[2] + first % number(a, 2);
          places_of[windows][1] = from[1] + first / number(a, 2) % number(a, 1);
          places_of[windows][0] = from[0] + first / number(a, 2) / number(a, 1);
        }
    Range own[3];
    for (int s = 0; s < 3; ++s) {
      const Index lo = cell[s] * stride_of(a, s) - pad_of(a, s), hi = lo + stride_of(a, s);
      own[s] = Range{lo > begins(dx, s + 2) ? lo : begins(dx, s + 2), hi < ends(dx, s + 2) ? hi : ends(dx, s + 2)};
    }
    for (Index d = own[0].lo; d < own[0].hi; ++d)
      for (Index h = own[1].lo; h < own[1].hi; ++h)
        for (Index w = own[2].lo; w < own[2].hi; ++w) {
          C sum = 0;
          for (int i = 0; i < windows; ++i)
            if (places_of[i][2] == w && places_of[i][1] == h && places_of[i][0] == d) sum += slopes[i];
          At at = {{n, k, d, h, w}};
          store(dx, at, sum);
        }
  }
}
