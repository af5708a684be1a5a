// Sampling where a second tensor says, and its gradients: as ooc/ops/grid_sample.py, term by term.
//
// whole = extent(3) size(3) how(1 or 2 where -1 and 1 are the centres of the outer values), as positions.cu has it; mode, padding
// (see MODES and PADDINGS there), spatial axes, and by how much each may read beside an even grid (3; -1: anywhere).

enum { MODE = 7, PADDING = 8, AXES = 9, MARGIN = 10 };
enum { NEAREST, LINEAR, CUBIC };
enum { ZEROS, BORDER, REFLECTION };
#define FAR_OUT 1073741824.0f

// Of a result, along an axis: the places that it is made of (-1: none), what they count for, and how that changes with the position.
template <class P> struct Taps { int count; Index place[4]; P weight[4], slope[4]; };

DEVICE bool is_aligned(const Args& a) { return number(a, 6) == 2; }
template <class P> DEVICE P held(P at, P lo, P hi) { return at < lo ? lo : at > hi ? hi : at; }
template <class P> DEVICE Index place_of(P at, Index extent) { return at >= 0 && at < (P)extent ? (Index)at : -1; }

// A position beyond the ends brought back; turn: how it changes with the position.
template <class P> DEVICE P brought(const Args& a, Index extent, P at, P& turn) {
  turn = 1;
  const P end = (P)(extent - 1);
  if (number(a, PADDING) == ZEROS) return at;
  if (number(a, PADDING) == REFLECTION) {
    const P low = is_aligned(a) ? (P)0 : (P)-0.5, span = (P)(is_aligned(a) ? extent - 1 : extent);
    if (span == 0) return turn = 0;
    turn = at < low ? (P)-1 : (P)1;
    const P beyond = (P)fabs(at - low), rest = (P)fmod(beyond, span);
    const bool odd = fmod((P)floor(beyond / span), (P)2) == 1;
    at = (odd ? span - rest : rest) + low;
    turn = odd ? -turn : turn;
  }
  at = held(at, (P)0, end);
  if (!(at > 0 && at < end)) turn = 0;
  return at;
}

template <class P> DEVICE void cubic(P t, P* weight, P* slope) {
  const P a = (P)-0.75, u = t + 1, v = 1 - t, w = 2 - t;
  weight[0] = ((a * u - 5 * a) * u + 8 * a) * u - 4 * a;
  weight[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
  weight[2] = ((a + 2) * v - (a + 3)) * v * v + 1;
  weight[3] = ((a * w - 5 * a) * w + 8 * a) * w - 4 * a;
  slope[0] = (3 * a * u - 10 * a) * u + 8 * a;
  slope[1] = (3 * (a + 2) * t - 2 * (a + 3)) * t;
  slope[2] = (2 * (a + 3) - 3 * (a + 2) * v) * v;
  slope[3] = (10 * a - 3 * a * w) * w - 8 * a;
}

template <class P> DEVICE Taps<P> taps_of(const Args& a, Index extent, P at) {
  Taps<P> t;
  if (at != at) at = -1;
  at = held(at, (P)-FAR_OUT, (P)FAR_OUT);
  const P size = (P)extent, less = (P)(extent - 1), pace = (is_aligned(a) ? less : size) / 2;
  at = is_aligned(a) ? (at + 1) / 2 * less : ((at + 1) * size - 1) / 2;
  P turn;
  if (number(a, MODE) == CUBIC) {
    const P first = (P)floor(at);
    t.count = 4;
    for (int i = 0; i < 4; ++i) t.place[i] = place_of(brought(a, extent, first + (P)(i - 1), turn), extent);
    cubic(at - first, t.weight, t.slope);
    for (int i = 0; i < 4; ++i) t.slope[i] = t.slope[i] * pace;
    return t;
  }
  at = brought(a, extent, at, turn);
  if (number(a, MODE) == NEAREST) {
    t.count = 1, t.place[0] = place_of((P)rint(at), extent), t.weight[0] = 1, t.slope[0] = 0;
    return t;
  }
  const P first = (P)floor(at), share = at - first;
  t.count = 2, t.place[0] = place_of(first, extent), t.place[1] = place_of(first + 1, extent);
  t.weight[0] = 1 - share, t.weight[1] = share;
  t.slope[0] = -(pace * turn), t.slope[1] = pace * turn;
  return t;
}

// At nearest, PyTorch's roundings tell which that is; else positions are exact, in f64.
DEVICE Taps<C> narrowed(const Taps<double>& exact) {
  Taps<C> t;
  t.count = exact.count;
  for (int i = 0; i < t.count; ++i)
    t.place[i] = exact.place[i], t.weight[i] = (C)exact.weight[i], t.slope[i] = (C)exact.slope[i];
  return t;
}

// Whether a result may not read some of its places along an axis.
DEVICE bool too_far(const Args& a, int s, Index result, const Taps<C>& t) {
  const Index margin = number(a, MARGIN + s);
  if (margin < 0) return false;
  const Sample even = sample(a, s, result);
  for (int i = 0; i < t.count; ++i)
    if (t.place[i] >= 0 && (t.place[i] < even.first - margin || t.place[i] > even.second + margin)) return true;
  return false;
}

// Where a result is, along each axis; whether that is too far away.
DEVICE bool located(const Args& a, const Tensor& grid, Index n, const Index* result, Taps<C>* t) {
  bool far = false;
  for (int s = 0; s < 3; ++s) {
    if (s < 3 - number(a, AXES)) {
      t[s].count = 1, t[s].place[0] = 0, t[s].weight[0] = 1;
      continue;
    }
    const C at = load(grid, offset(grid, n, 2 - s, result[0], result[1], result[2]));
    if (number(a, MODE) == NEAREST) t[s] = taps_of(a, number(a, s), at);
    else t[s] = narrowed(taps_of(a, number(a, s), (double)at));
    far = too_far(a, s, result[s], t[s]) || far;
  }
  return far;
}

// The values of x at all places of a result, weighted; along: by how that changes along this axis; -1: not so.
DEVICE C mixed_at(const Args& a, const Tensor& x, Index n, Index k, const Taps<C>* t, int along) {
  const int axes = (int)number(a, AXES);
  C sum = 0;
  for (int d = 0; d < t[0].count; ++d)
    for (int h = 0; h < t[1].count; ++h)
      for (int w = 0; w < t[2].count; ++w) {
        const Index at[3] = {t[0].place[d], t[1].place[h], t[2].place[w]};
        if (!inside(x, 2, at[0]) || !inside(x, 3, at[1]) || !inside(x, 4, at[2])) continue;
        const int tap[3] = {d, h, w};
        C weight = 1;
        for (int s = 3 - axes; s < 3; ++s) weight = weight * (s == along ? t[s].slope[tap[s]] : t[s].weight[tap[s]]);
        sum += load(x, offset(x, n, k, at[0], at[1], at[2])) * weight;
      }
  return sum;
}

// t = x grid y
KERNEL(grid_sample) {
  EACH(at, a.t[2]) {
    Taps<C> t[3];
    const bool far = located(a, a.t[1], at.x[0], at.x + 2, t);
    store(a.t[2], at, far ? (C)float_of_bits(0x7fc00000u) : mixed_at(a, a.t[0], at.x[0], at.x[1], t, -1));
  }
}

// t = grid dy dx: every position looks for the results that are made of it, in ascending order.
KERNEL(grid_sample_dx) {
  const Tensor &grid = a.t[0], &dy = a.t[1];
  EACH(at, a.t[2]) {
    C sum = 0;
    Index r[3];
    for (r[0] = begins(dy, 2); r[0] < ends(dy, 2); ++r[0])
      for (r[1] = begins(dy, 3); r[1] < ends(dy, 3); ++r[1])
        for (r[2] = begins(dy, 4); r[2] < ends(dy, 4); ++r[2]) {
          Taps<C> t[3];
          if (located(a, grid, at.x[0], r, t)) continue;
          const C slope = load(dy, offset(dy, at.x[0], at.x[1], r[0], r[1], r[2]));
          for (int d = 0; d < t[0].count; ++d)
            for (int h = 0; h < t[1].count; ++h)
              for (int w = 0; w < t[2].count; ++w) {
                if (t[0].place[d] != at.x[2] || t[1].place[h] != at.x[3] || t[2].place[w] != at.x[4]) continue;
                sum += t[0].weight[d] * t[1].weight[h] * t[2].weight[w] * slope;
              }
        }
    store(a.t[2], at, sum);
  }
}

// t = x grid dy dgrid: a sum over channels in their order.
KERNEL(grid_sample_dgrid) {
  const Tensor &x = a.t[0], &dy = a.t[2];
  EACH(at, a.t[3]) {
    Taps<C> t[3];
    const bool far = located(a, a.t[1], at.x[0], at.x + 2, t);
    const int along = 2 - (int)at.x[1];
    C sum = a.first || !ACC.data ? (C)0 : wide(ACC, at);
    for (Index c = begins(dy, 1); c < ends(dy, 1); ++c) {
      const C slope = far ? (C)float_of_bits(0x7fc00000u) : mixed_at(a, x, at.x[0], c, t, along);
      sum += slope * load(dy, offset(dy, at.x[0], c, at.x[2], at.x[3], at.x[4]));
    }
    if (!a.last) wide(ACC, at) = sum;
    else store(a.t[3], at, sum);
  }
}
