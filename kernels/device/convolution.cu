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

KERNEL(conv_fprop) {
  const Tensor &x = a.t[0], &w = a.t[1], &y = a.t[2];
  const Convolution v = convolution(a);
  EACH(at, y) {
    const Index k = at.x[1], group = k / v.k;
    C sum = start(a, at);
    for (Index c = begins(w, 1); c < ends(w, 1); ++c)
      for (Index t = 0; t < w.extent[2]; ++t) {
        const Index d = at.x[2] * v.stride[0] + t * v.dilation[0] - v.pad[0];
        if (!inside(x, 2, d)) continue;
        for (Index r = 0; r < w.extent[3]; ++r) {
          const Index h = at.x[3] * v.stride[1] + r * v.dilation[1] - v.pad[1];
          if (!inside(x, 3, h)) continue;
          for (Index s = 0; s < w.extent[4]; ++s) {
            const Index u = at.x[4] * v.stride[2] + s * v.dilation[2] - v.pad[2];
            if (inside(x, 4, u)) sum += load(x, offset(x, at.x[0], group * v.c + c, d, h, u)) * load(w, offset(w, k, c, t, r, s));
          }
        }
      }
    end(a, at, sum);
  }
}

KERNEL(conv_dgrad) {
  const Tensor &dy = a.t[0], &w = a.t[1], &dx = a.t[2];
  const Convolution v = convolution(a);
  EACH(at, dx) {
    const Index group = at.x[1] / v.c, c = at.x[1] % v.c;
    // A block of several groups has the filters of all of them.
    const Index lo = begins(w, 0) > group * v.k ? begins(w, 0) : group * v.k, end_w = ends(w, 0), end_g = (group + 1) * v.k;
    C sum = start(a, at);
    for (Index k = lo; k < (end_w < end_g ? end_w : end_g); ++k)
      for (Index t = 0; t < w.extent[2]; ++t) {
        Index d = at.x[2] + v.pad[0] - t * v.dilation[0];
        if (!window(dy, 2, v.stride[0], d)) continue;
        for (Index r = 0; r < w.extent[3]; ++r) {
          Index h = at.x[3] + v.pad[1] - r * v.dilation[1];
          if (!window(dy, 3, v.stride[1], h)) continue;
          for (Index s = 0; s < w.extent[4]; ++s) {
            Index u = at.x[4] + v.pad[2] - s * v.dilation[2];
            if (window(dy, 4, v.stride[2], u)) sum += load(dy, offset(dy, at.x[0], k, d, h, u)) * load(w, offset(w, k, c, t, r, s));
          }
        }
      }
    end(a, at, sum);
  }
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
