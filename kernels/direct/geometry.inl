// Axes of a convolution as a gather sees them: extents, taps and residues; ranges, runs and boxes of positions.
//
// Positions are named n c d h w in inputs, n k o p q in outputs, and taps t r s.

// One axis of a gather.
struct Axis {
  i64 in, out;         // extents
  i64 mul, off, step;  // position in `in` of output j and tap i: j * mul + off + i * step
  i64 taps;            // may be 0: then nothing is gathered
  i64 tap0, tap_step;  // filter index of tap i: tap0 + i * tap_step
  i64 first, every;    // output j is position first + j * every of the real tensor
  // The tile splits `in` by residue modulo mul, so that a step of one output is a step of one
  // in the tile. Tap i lies in phase i % phases, advanced by (i / phases) * adv; a tile of n
  // outputs has n + ext positions in each phase.
  i64 phases, adv, ext;
};

static void split_phases(Axis &a) {
  const i64 period = a.mul / gcd(a.step, a.mul);
  a.phases = imax(1, imin(a.taps, period));
  a.adv = a.step * period / a.mul;
  a.ext = a.taps > 0 ? (a.taps - 1) / period * a.adv : 0;
}

static Axis forward_axis(const Problem &p, int d) {
  Axis a{p.x[d], p.y[d], p.stride[d], -p.pad[d], p.dilation[d], p.f[d], 0, 1, 0, 1, 0, 0, 0};
  split_phases(a);
  return a;
}

// Data gradient, taps with tap * dilation = m modulo the stride. These reach the x positions
// with (x + pad) = m modulo the stride. m does not depend on the padding, so neither do the
// packed weights.
static Axis backward_axis(const Problem &p, int d, i64 m) {
  const i64 s = p.stride[d], dil = p.dilation[d], every = s / gcd(dil, s);
  const i64 r = mod(m - p.pad[d], s);
  Axis a{};
  a.in = p.y[d], a.out = r < p.x[d] ? ceil_div(p.x[d] - r, s) : 0;
  a.mul = 1, a.step = dil / gcd(dil, s);
  a.first = r, a.every = s;
  i64 t0 = 0;
  while (t0 < every && t0 * dil % s != m) ++t0;
  if (t0 < every && t0 < p.f[d]) {
    a.taps = (p.f[d] - 1 - t0) / every + 1;
    a.tap0 = t0 + (a.taps - 1) * every;  // last tap first: positions in `in` ascend
    a.tap_step = -every;
    a.off = (r + p.pad[d] - a.tap0 * dil) / s;
  }
  split_phases(a);
  return a;
}

// An axis with the extents and taps of the largest residue class: bounds them all.
static Axis largest_axis(const Problem &p, int d) {
  if (p.pass != Pass::dgrad) return forward_axis(p, d);
  const i64 s = p.stride[d], g = gcd(p.dilation[d], s);
  Axis a{p.y[d], ceil_div(p.x[d], s), 1, 0, p.dilation[d] / g, ceil_div(p.f[d], s / g), 0, 1, 0, s, 0, 0, 0};
  split_phases(a);
  return a;
}

OOC_INLINE i64 volume(const i64 *e) { return e[0] * e[1] * e[2]; }
OOC_INLINE i64 taps_of(const Axis *a) { return a[0].taps * a[1].taps * a[2].taps; }
OOC_INLINE i64 phases_of(const Axis *a) { return a[0].phases * a[1].phases * a[2].phases; }
OOC_INLINE i64 outputs_of(const Axis *a) { return a[0].out * a[1].out * a[2].out; }

struct Index3 {
  i64 v[3];
};

// Row-major index of a box with the extents of b (b[0] unbounded).
OOC_INLINE Index3 unflatten(i64 i, i64 b1, i64 b2) { return {{i / (b1 * b2), i / b2 % b1, i % b2}}; }

OOC_INLINE Range inside(i64 start, i64 mul, i64 extent, i64 n) {
  Range r;
  r.lo = start >= 0 ? 0 : imin(n, ceil_div(-start, mul));
  r.hi = start >= extent ? 0 : imin(n, (extent - 1 - start) / mul + 1);
  if (r.hi < r.lo) r.hi = r.lo;
  return r;
}

// A dense run of positions of an (n, o, p, q) box of outputs.
struct Run {
  i64 begin, count;
};

// Walks the output rows that a run touches: visit(n, o, p, q, columns, distance from the start of the run), q being the
// first column.
template <class F>
OOC_INLINE void for_rows(const Axis *a, const Run &run, F visit) {
  i64 q = run.begin % a[2].out, row = run.begin / a[2].out;
  i64 p = row % a[1].out, o = row / a[1].out % a[0].out, n = row / (a[1].out * a[0].out);
  for (i64 done = 0; done < run.count;) {
    const i64 len = imin(run.count - done, a[2].out - q);
    visit(n, o, p, q, len, done);
    done += len, q = 0;
    if (++p == a[1].out) {
      p = 0;
      if (++o == a[0].out) o = 0, ++n;
    }
  }
}

// A box of output positions of one image: its first one, and extents.
struct Box {
  i64 n, first[3], size[3];
};

// Output channels [k, k + rows) of a group.
struct Channels {
  i64 group, k, rows;
};
