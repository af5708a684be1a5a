// Convolution: t = x w y b (dgrad: dy w dx b; wgrad: x dy dw); whole = stride(3) dilation(3) pad(3) channels of x per
// group, of y per group, act; real = coef. Sums go over channels, then taps; of wgrad over n, then positions.

struct Convolution {
  Index stride[3], dilation[3], pad[3], c, k;
};

DEVICE Convolution convolution(const Args& a) {
  Convolution v;
  for (int s = 0; s < 3; ++s) v.stride[s] = number(a, s), v.dilation[s] = number(a, 3 + s), v.pad[s] = number(a, 6 + s);
  v.c = number(a, 9), v.k = number(a, 10);
  return v;
}

// Where a sum starts and where it goes; the partial sum is the result itself where that has the computed type.
DEVICE C start(const Args& a, const At& at) { return a.first || !ACC.data ? (C)0 : wide(ACC, at); }

DEVICE void end(const Args& a, const At& at, C sum) {
  const Tensor& b = a.t[3];
  if (!a.last) wide(ACC, at) = sum;
  else store(a.t[2], at, activate(number(a, 11), a.real[0], b.data ? sum + bias(b, at) : sum));
}

// N channels of a position, the first of which is at: what they read of x or dy is read once, and taps are looked for once. Each sum
// has its own order.
template <int N> struct Sums {
  C v[N];
  int some;  // of them are there
};

DEVICE At channel(At at, int j) { return at.x[1] += j, at; }

template <int N> DEVICE Sums<N> start_some(const Args& a, const At& at) {
  const Index left = ends(a.t[2], 1) - at.x[1];
  Sums<N> sums;
  sums.some = left < N ? (int)left : N;
  for (int j = 0; j < N; ++j) sums.v[j] = N == 1 || j < sums.some ? start(a, channel(at, j)) : (C)0;
  return sums;
}

// Adds a value times a filter's tap of each channel: from an element of w on, so far apart.
template <int N> DEVICE void add_some(Sums<N>& sums, C value, const Tensor& w, Index from, Index apart) {
  for (int j = 0; j < N; ++j)
    if (N == 1 || j < sums.some) sums.v[j] += value * load(w, from + j * apart);
}

template <int N> DEVICE void end_some(const Args& a, const At& at, const Sums<N>& sums) {
  for (int j = 0; j < N; ++j)
    if (N == 1 || j < sums.some) end(a, channel(at, j), sums.v[j]);
}

// from: the first channel of x that the group reads.
template <int N> DEVICE void fprop_of(const Args& a, const Convolution& v, const At& at, Index from) {
  const Tensor &x = a.t[0], &w = a.t[1];
  Sums<N> sums = start_some<N>(a, at);
  for (Index c = begins(w, 1); c < ends(w, 1); ++c)
    for (Index t = 0; t < w.extent[2]; ++t) {
      const Index d = at.x[2] * v.stride[0] + t * v.dilation[0] - v.pad[0];
      if (!inside(x, 2, d)) continue;
      for (Index r = 0; r < w.extent[3]; ++r) {
        const Index h = at.x[3] * v.stride[1] + r * v.dilation[1] - v.pad[1];
        if (!inside(x, 3, h)) continue;
        for (Index s = 0; s < w.extent[4]; ++s) {
          const Index u = at.x[4] * v.stride[2] + s * v.dilation[2] - v.pad[2];
          if (!inside(x, 4, u)) continue;
          add_some<N>(sums, load(x, offset(x, at.x[0], from + c, d, h, u)), w, offset(w, at.x[1], c, t, r, s), (Index)w.stride[0]);
        }
      }
    }
  end_some<N>(a, at, sums);
}

// c: the first channel within its group; lo, hi: the channels of dy that are summed.
template <int N> DEVICE void dgrad_of(const Args& a, const Convolution& v, const At& at, Index c, Index lo, Index hi) {
  const Tensor &dy = a.t[0], &w = a.t[1];
  Sums<N> sums = start_some<N>(a, at);
  for (Index k = lo; k < hi; ++k)
    for (Index t = 0; t < w.extent[2]; ++t) {
      Index d = at.x[2] + v.pad[0] - t * v.dilation[0];
      if (!window(dy, 2, v.stride[0], d)) continue;
      for (Index r = 0; r < w.extent[3]; ++r) {
        Index h = at.x[3] + v.pad[1] - r * v.dilation[1];
        if (!window(dy, 3, v.stride[1], h)) continue;
        for (Index s = 0; s < w.extent[4]; ++s) {
          Index u = at.x[4] + v.pad[2] - s * v.dilation[2];
          if (!window(dy, 4, v.stride[2], u)) continue;
          add_some<N>(sums, load(dy, offset(dy, at.x[0], k, d, h, u)), w, offset(w, k, c, t, r, s), (Index)w.stride[1]);
        }
      }
    }
  end_some<N>(a, at, sums);
}

KERNEL(conv_fprop) {
  const Convolution v = convolution(a);
  EACH(at, a.t[2]) { fprop_of<1>(a, v, at, at.x[1] / v.k * v.c); }
}

KERNEL(conv_dgrad) {
  const Tensor& w = a.t[1];
  const Convolution v = convolution(a);
  EACH(at, a.t[2]) {
    const Index group = at.x[1] / v.c;
    // A block of several groups has the filters of all of them.
    const Index lo = begins(w, 0) > group * v.k ? begins(w, 0) : group * v.k, end_w = ends(w, 0), end_g = (group + 1) * v.k;
    dgrad_of<1>(a, v, at, at.x[1] % v.c, lo, end_w < end_g ? end_w : end_g);
  }
}

// Several channels in a thread, of one group alone.
enum { BLOCKED = 8 };

// The first channel of the i-th of such blocks. Neighbours in i are neighbours in memory.
DEVICE At block_of(const Tensor& t, Count i) {
  const Count blocks = ((Count)t.extent[1] + BLOCKED - 1) / BLOCKED;
  const bool together = t.stride[1] == 1;
  At at;
  Count block = 0;
  if (together) block = i % blocks, i /= blocks;
  for (int axis = 4; axis >= 2; --axis) at.x[axis] = taken_off(t, axis, i);
  if (!together) block = i % blocks, i /= blocks;
  at.x[1] = (Index)t.lo[1] + (Index)block * BLOCKED;
  at.x[0] = (Index)t.lo[0] + (Index)i;
  return at;
}

#define EACH_BLOCK(at, t)                                                                             \
  At at;                                                                                              \
  const Count blocks = elements(t) / (Count)t.extent[1] * (((Count)t.extent[1] + BLOCKED - 1) / BLOCKED); \
  for (Count i = (Count)THREAD; i < blocks && (at = block_of(t, i), true); i += (Count)THREADS)

KERNEL(conv_fprop_blocked) {
  const Convolution v = convolution(a);
  EACH_BLOCK(at, a.t[2]) { fprop_of<BLOCKED>(a, v, at, 0); }
}

KERNEL(conv_dgrad_blocked) {
  const Convolution v = convolution(a);
  EACH_BLOCK(at, a.t[2]) { dgrad_of<BLOCKED>(a, v, at, at.x[1], begins(a.t[1], 0), ends(a.t[1], 0)); }
}

struct FilterGradient { typedef C V; enum { rows = 1, along = 0 }; At pin; int summed; V v[1]; };

DEVICE FilterGradient begin(const Args&, const At& at, FilterGradient*) {
  return FilterGradient{{{0, at.x[0], 0, 0, 0}}, 1 | 4 | 8 | 16, {0}};  // over n and positions
}
DEVICE void add(const Args& a, const At& at, const At& y, FilterGradient& sum) {
  const Tensor &x = a.t[0], &dy = a.t[1];
  const Convolution v = convolution(a);
  At from;
  from.x[0] = y.x[0];
  from.x[1] = at.x[0] / v.k * v.c + at.x[1];
  for (int s = 0; s < 3; ++s) {
    from.x[s + 2] = y.x[s + 2] * v.stride[s] + at.x[s + 2] * v.dilation[s] - v.pad[s];
    if (!inside(x, s + 2, from.x[s + 2])) return;
  }
  sum.v[0] += load(x, from) * load(dy, y);
}
DEVICE void finish(const Args& a, const At& at, const FilterGradient& sum) { store(a.t[2], at, sum.v[0]); }

SUM(conv_wgrad, FilterGradient, a.t[1], a.t[2])
