// Ordered loops of depthwise convolutions with positions innermost: boxes of some channels are turned, channels innermost, and
// go to the loops of ordered_depthwise.inl, which skip what is absent.

constexpr i64 TURNED = 1280;  // vectors of what a box meets, on the stack
constexpr i64 MADE = 512;     // and of the box
constexpr i64 TURN_RUN = 32;  // columns of a box that is cut across

template <class T>
struct Turned {
  static constexpr int L = Vec<T>::lanes;
  alignas(64) T met[TURNED * L], made[MADE * L];
};

// Part of an image, in elements: where its first one is, strides (channel, d, h, w), extents.
template <class T>
struct Part {
  T *at;
  const i64 *strides;  // of c d h w
  i64 size[3];

  bool dense() const {  // its positions follow one another
    return strides[3] == 1 && (size[1] == 1 || strides[2] == size[2]) && (size[0] == 1 || strides[1] == size[1] * size[2]);
  }
};

// to[i * L + c] = from[c * channel + i * step], or back.
template <class T, bool back>
static void turn_line(T *to, T *from, i64 channel, i64 lanes, i64 n, i64 step) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  i64 i = 0;
  if (lanes == L && step == 1 && n >= L)
    for (; i < n; i = i + 2 * L <= n || i + L == n ? i + L : n - L) {  // the last square overlaps the one before
      V v[L];
#pragma GCC unroll 16
      for (int r = 0; r < L; ++r) v[r] = back ? *(const V *)(to + (i + r) * L) : *(const V *)(from + r * channel + i);
      transpose_square<T>(v);
#pragma GCC unroll 16
      for (int r = 0; r < L; ++r) *(V *)(back ? from + r * channel + i : to + (i + r) * L) = v[r];
    }
  for (; i < n; ++i)
    for (i64 c = 0; c < lanes; ++c) {
      T &a = to[i * L + c], &b = from[c * channel + i * step];
      if (back) b = a;
      else a = b;
    }
}

template <class T, bool back>
static void turn(T *to, const Part<T> &part, i64 lanes) {
  constexpr int L = Vec<T>::lanes;
  const i64 *s = part.strides, *size = part.size;
  if (part.dense()) return turn_line<T, back>(to, part.at, s[0], lanes, volume(size), 1);
  for (i64 d = 0; d < size[0]; ++d)
    for (i64 h = 0; h < size[1]; ++h, to += size[2] * L)
      turn_line<T, back>(to, part.at + d * s[1] + h * s[2], s[0], lanes, size[2], s[3]);
}

// Positions of the other spatial tensor (x for a result y, y for a result x) that [first, first + size) of an axis meet.
static Range met_by(const Problem &p, int d, i64 first, i64 size) {
  const i64 reach = (p.f[d] - 1) * p.dilation[d], s = p.stride[d], last = first + size - 1;
  const bool dgrad = p.pass == Pass::dgrad;
  const i64 lo = dgrad ? ceil_div(imax(0, first + p.pad[d] - reach), s) : first * s - p.pad[d];
  const i64 hi = dgrad ? (last + p.pad[d] < 0 ? 0 : (last + p.pad[d]) / s + 1) : last * s - p.pad[d] + reach + 1;
  const i64 all = dgrad ? p.y[d] : p.x[d];
  const Range r{imin(imax(0, lo), all), imin(imax(0, hi), all)};
  return r.lo < r.hi ? r : Range{0, 0};
}

// At most so many.
static i64 most_met(const Problem &p, int d, i64 size) {
  const i64 reach = (p.f[d] - 1) * p.dilation[d], s = p.stride[d];
  return p.pass == Pass::dgrad ? imin(p.y[d], (size + reach - 1) / s + 1) : imin(p.x[d], (size - 1) * s + reach + 1);
}

// Extents of boxes of what a pass walks over (x for dgrad, else y); false where none fits. Rows of a weight gradient are chains
// and stay whole, in their order.
static bool box_of(const Problem &p, i64 *size) {
  const i64 *all = p.pass == Pass::dgrad ? p.x : p.y;
  size[0] = size[1] = 1, size[2] = all[2];
  const auto fits = [&] {
    return volume(size) <= MADE && most_met(p, 0, size[0]) * most_met(p, 1, size[1]) * most_met(p, 2, size[2]) <= TURNED;
  };
  if (!fits() && p.pass != Pass::wgrad) size[2] = imin(size[2], TURN_RUN);
  if (!fits()) return false;
  for (int d = 1; d >= 0; --d) {
    if (d == 0 && p.pass == Pass::wgrad && size[1] < all[1]) break;
    for (i64 n = all[d]; n > 1 && size[d] == 1; n = ceil_div(n, 2)) {
      size[d] = n;
      if (!fits()) size[d] = 1;
    }
  }
  return true;
}

// Rows of a result, turned.
template <class T>
static void turned_rows(const Problem &q, const Operands &u) {
  const auto run = [&](const Gather<T> &t) { lane_job(t, 0, q.groups, 0, t.ax[0].out * t.ax[1].out); };
  if (q.pass == Pass::fprop) return run(forward_task<T>(q, u));
  for_residues(q, [&](const Index3 &m) { run(backward_task<T>(q, u, m)); });
}

// One box of the channels [ch, ch + lanes).
template <class T>
static void turned_box(const Problem &p, const Operands &o, const Box &box, i64 ch, i64 lanes, Turned<T> &st) {
  constexpr int L = Vec<T>::lanes;
  const bool dgrad = p.pass == Pass::dgrad, wgrad = p.pass == Pass::wgrad;
  Problem q = p;
  Operands u = o;
  q.n = 1, q.c = q.k = q.groups = lanes;
  u.w = static_cast<T *>(o.w) + ch * o.ws[0];
  if (o.bias) u.bias = static_cast<const T *>(o.bias) + ch;
  Part<T> x{static_cast<T *>(o.x) + box.n * o.xs[0] + ch * o.xs[1], o.xs + 1, {}};
  Part<T> y{static_cast<T *>(o.y) + box.n * o.ys[0] + ch * o.ys[1], o.ys + 1, {}};
  for (int d = 0; d < 3; ++d) {
    const Range met = met_by(p, d, box.first[d], box.size[d]), made{box.first[d], box.first[d] + box.size[d]};
    const Range &of_x = dgrad ? made : met, &of_y = dgrad ? met : made;
    x.at += of_x.lo * o.xs[d + 2], q.x[d] = x.size[d] = of_x.hi - of_x.lo;
    y.at += of_y.lo * o.ys[d + 2], q.y[d] = y.size[d] = of_y.hi - of_y.lo;
    q.pad[d] = p.pad[d] + of_x.lo - of_y.lo * p.stride[d];
  }
  T *tx = dgrad ? st.made : st.met, *ty = dgrad ? st.met : st.made;
  u.x = tx, u.y = ty;
  u.xs[1] = u.ys[1] = 1, u.xs[4] = u.ys[4] = L;
  u.xs[3] = x.size[2] * L, u.ys[3] = y.size[2] * L;
  u.xs[2] = x.size[1] * u.xs[3], u.ys[2] = y.size[1] * u.ys[3];
  if (!dgrad || o.accumulate) turn<T, false>(tx, x, lanes);
  if (dgrad || wgrad || o.accumulate) turn<T, false>(ty, y, lanes);
  if (wgrad) {
    const i64 taps = volume(p.f);
    for (i64 i = 0; i < taps; i += LANE_TAPS) lane_weights<T>(q, u, 0, lanes, Range{i, imin(taps, i + LANE_TAPS)});
  } else {
    turned_rows<T>(q, u);
    turn<T, true>(dgrad ? tx : ty, dgrad ? x : y, lanes);
  }
}

// A depthwise convolution in boxes of these extents.
template <class T>
static void turned_boxes(const Problem &p, const Operands &o, const i64 *size) {
  constexpr int L = Vec<T>::lanes;
  const i64 *all = p.pass == Pass::dgrad ? p.x : p.y;
  i64 tiles[3];
  for (int d = 0; d < 3; ++d) tiles[d] = ceil_div(all[d], size[d]);
  const i64 blocks = ceil_div(p.c, L), boxes = p.n * volume(tiles);
  const int team = team_for<T>(total_work(p), p.threads, LANEWISE);
  const auto box = [&](i64 i) {
    Box b{i / volume(tiles), {}, {}};
    for (int d = 2; d >= 0; --d) {
      b.first[d] = i % tiles[d] * size[d], i /= tiles[d];
      b.size[d] = imin(size[d], all[d] - b.first[d]);
    }
    return b;
  };
  const auto run = [&](i64 block, i64 i, bool accumulate, Turned<T> &st) {
    Operands u = o;
    u.accumulate = accumulate;
    turned_box(p, u, box(i), block * L, imin(L, p.c - block * L), st);
  };
  if (p.pass == Pass::wgrad)
    share(blocks, team, [&](i64 block, int) {
      Turned<T> st;
      for (i64 i = 0; i < boxes; ++i) run(block, i, o.accumulate || i > 0, st);
    });
  else
    share_runs(blocks * boxes, team, [&](i64 lo, i64 hi, int) {
      Turned<T> st;
      for (i64 i = lo; i < hi; ++i) run(i / volume(tiles) % blocks, i / volume(tiles) / blocks * volume(tiles) + i % volume(tiles), o.accumulate, st);
    });
}

// Taps [first, first + count) along an axis.
static Problem some_taps(const Problem &p, int d, i64 first, i64 count) {
  Problem q = p;
  q.f[d] = count, q.pad[d] -= first * p.dilation[d];
  return q;
}

// Where no box fits with what all taps meet: those of one half of the slower axis, and then of the other. Sums go on in their
// order, in which the taps of dgrad come backwards.
template <class T>
static void turned_taps(const Problem &p, const Operands &o) {
  i64 size[3];
  if (box_of(p, size)) return turned_boxes<T>(p, o, size);
  const int d = p.f[0] > 1 ? 0 : 1;
  const i64 half = p.f[d] / 2, starts[2] = {0, half}, counts[2] = {half, p.f[d] - half};
  for (int i = 0; i < 2; ++i) {
    const int part = p.pass == Pass::dgrad ? 1 - i : i;
    Operands some = o;
    some.w = static_cast<T *>(o.w) + starts[part] * o.ws[d + 2];
    if (p.pass != Pass::wgrad && i == 0) some.bias = nullptr, some.act = Act::identity;
    if (p.pass != Pass::wgrad && i == 1) some.accumulate = true;
    turned_taps<T>(some_taps(p, d, starts[part], counts[part]), some);
  }
}

// A depthwise convolution whose channels do not lie together. False where not even a box for a row of taps fits.
template <class T>
static bool turned(const Problem &p, const Operands &o) {
  i64 size[3];
  if (!p.n || !volume(p.x) || !volume(p.y) || !box_of(some_taps(some_taps(p, 0, 0, 1), 1, 0, 1), size)) return false;
  turned_taps<T>(p, o);
  return true;
}
