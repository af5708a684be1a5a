// Winograd's way to a gather of 3 x 3 taps at stride 1 on the last two axes, F(2 x 2, 3 x 3): 16 multiplications for a square of
// four outputs where the sum has 36. Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2015).
//
// Filters g are turned into U = G g G', the inputs d of a square into V = B' d B, of 16 elements each. For each element a matrix
// product sums over pairs of channel and depth tap: M[k][square] = sum of U[k][pair] * V[pair][square]; outputs are A' M A.
// A job has some output channels at a run of squares. Filters are turned again for each job, a few output channels at a time:
// that costs a twentieth of what it serves, and no room for turned filters, which are 16 ninths of the filters.
//
// Numbers that are not finite would spoil the whole square, and products may overflow where the sum does not. Both show in the
// outputs, which are computed again by the ordered loops then, before anything is stored.

constexpr i64 INSIDE = 2;  // outputs of a square on each axis

template <class T>
struct WinogradJob {
  const Gather<T> &t;
  const WinogradPlan &p;
  Channels of;
  Run run;
  i64 vecs;
  T *inputs, *products, *filters, *rows;  // of the thread
  const int *off;                         // of pairs in `inputs`, for one element
};

// Visits the rows of squares of a run: visit(n, o, first output row, first output column, squares, distance from the start).
template <class F>
OOC_INLINE void for_squares(const Axis *a, const Run &run, F visit) {
  Axis squares[3] = {a[0], a[1], a[2]};
  for (int d = 1; d < 3; ++d) squares[d].out = ceil_div(a[d].out, INSIDE);
  for_rows(squares, run, [&](i64 n, i64 o, i64 i, i64 j, i64 len, i64 done) { visit(n, o, i * INSIDE, j * INSIDE, len, done); });
}

// ---------------------------------------------------------------------------- inputs

// The even and the odd ones of 2 L numbers.
template <class T>
OOC_INLINE void part_pairs(typename Vec<T>::type low, typename Vec<T>::type high, typename Vec<T>::type &even,
                           typename Vec<T>::type &odd) {
  constexpr int L = Vec<T>::lanes;
  typename LaneVec<T>::type e{}, o{};
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i) e[i] = 2 * i, o[i] = 2 * i + 1;
  even = shuffle(low, high, e), odd = shuffle(low, high, o);
}

// B' d B of a row of squares: four rows of inputs, `row` apart, to elements `apart` apart.
template <class T>
static void turn_inputs(const T *x, i64 row, i64 squares, T *v, i64 apart) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  for (i64 j = 0; j < squares; j += L, x += 2 * L, v += L) {
    // Columns in vectors: of the first two of each square, and of the two that it shares with the next one.
    V h[4][4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const T *s = x + (i & 1) * L + (i >> 1) * 2;
      const V d0 = *(const V *)s, d1 = *(const V *)(s + row), d2 = *(const V *)(s + 2 * row), d3 = *(const V *)(s + 3 * row);
      h[0][i] = d0 - d2, h[1][i] = d1 + d2, h[2][i] = d2 - d1, h[3][i] = d1 - d3;
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      V c0, c1, c2, c3;
      part_pairs<T>(h[i][0], h[i][1], c0, c1);
      part_pairs<T>(h[i][2], h[i][3], c2, c3);
      T *to = v + 4 * i * apart;
      *(V *)to = c0 - c2;
      *(V *)(to + apart) = c1 + c2;
      *(V *)(to + 2 * apart) = c2 - c1;
      *(V *)(to + 3 * apart) = c1 - c3;
    }
  }
}

// The inputs of a block of channels, turned.
template <class T>
static void turn_block(const WinogradJob<T> &job, i64 c, i64 channels, i64 apart) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  const Gather<T> &t = job.t;
  const i64 taps = t.ax[0].taps, pitch = job.p.pitch;
  if (job.run.count % L)  // lanes in excess are zeros
    for (i64 e = 0; e < ELEMENTS; ++e)
      for (i64 i = 0; i < channels * taps; ++i) *(V *)(job.inputs + e * apart + i * pitch + (job.vecs - 1) * L) = V{};
  const T *in = t.in + (job.of.group * t.cin + c) * t.is[1];
  for_squares(t.ax, job.run, [&](i64 n, i64 o, i64 p, i64 q, i64 len, i64 done) {
    const Box box{n, {o, p, q}, {1, INSIDE, INSIDE * len}};
    for (i64 tap = 0; tap < taps; ++tap) {
      Axis a[3] = {t.ax[0], t.ax[1], t.ax[2]};
      a[0].off += tap * a[0].step, a[0].taps = 1;
      split_phases(a[0]);
      const Tile tile = make_tile(a, 1, INSIDE, INSIDE * len);
      for (i64 i = 0; i < channels; i += L) {
        const i64 some = imin(L, channels - i);
        zero_row(job.rows + some * tile.channel, 2 * L + 2);  // which the last row is read beyond its end
        fill_tile(job.rows, a, tile, Inputs<T>{in + n * t.is[0] + i * t.is[1], t.is, some}, box);
        for (i64 k = 0; k < some; ++k)
          turn_inputs(job.rows + k * tile.channel, tile.in[2], len, job.inputs + ((i + k) * taps + tap) * pitch + done, apart);
      }
    }
  });
}

// ---------------------------------------------------------------------------- filters

// G g G' of a panel: g[pair][tap][output channel] to elements `apart` apart.
template <class T>
static void turn_filters(const T *g, i64 pairs, T *u, i64 apart) {
  typedef T R __attribute__((vector_size(MR * sizeof(T)), aligned(sizeof(T)), may_alias));
  const T half = T(0.5);
  for (i64 i = 0; i < pairs; ++i, g += 9 * MR, u += MR) {
    R h[4][3];
#pragma GCC unroll 3
    for (int s = 0; s < 3; ++s) {
      const R g0 = *(const R *)(g + s * MR), g1 = *(const R *)(g + (3 + s) * MR), g2 = *(const R *)(g + (6 + s) * MR);
      const R ends = (g0 + g2) * half, middle = g1 * half;
      h[0][s] = g0, h[1][s] = ends + middle, h[2][s] = ends - middle, h[3][s] = g2;
    }
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      T *to = u + 4 * e * apart;
      const R ends = (h[e][0] + h[e][2]) * half, middle = h[e][1] * half;
      *(R *)to = h[e][0];
      *(R *)(to + apart) = ends + middle;
      *(R *)(to + 2 * apart) = ends - middle;
      *(R *)(to + 3 * apart) = h[e][2];
    }
  }
}

// Those of some output channels, in panels; rows that fill the last panel are zeros.
template <class T>
static void turn_panels(const WinogradJob<T> &job, const Panel &m, i64 apart) {
  const i64 pairs = m.channels * job.t.ax[0].taps;
  for (i64 r = 0; r < m.rows; r += MR) {
    const i64 rows = imin(MR, m.rows - r);
    pack_panel(job.t, Panel{m.group, m.k + r, rows, m.c, m.channels}, job.rows);
    if (rows < MR)
      for (i64 i = 9 * pairs - 1; i >= 0; --i)
        for (i64 j = MR - 1; j >= 0; --j) job.rows[i * MR + j] = j < rows ? job.rows[i * rows + j] : T(0);
    turn_filters(job.rows, pairs, job.filters + r * pairs, apart);
  }
}

// ---------------------------------------------------------------------------- outputs

// Two vectors become one row, their numbers in turn. spoilt: zero as long as all of them are finite.
template <class T>
OOC_INLINE void join_pairs(typename Vec<T>::type even, typename Vec<T>::type odd, T *to, typename Vec<T>::type &spoilt) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  spoilt += even * T(0) + odd * T(0);
  typename LaneVec<T>::type low{}, high{};
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i) low[i] = i / 2 + i % 2 * L, high[i] = low[i] + L / 2;
  *(V *)to = shuffle(even, odd, low), *(V *)(to + L) = shuffle(even, odd, high);
}

// A' M A of an output channel: elements `apart` apart to two rows of outputs, `row` apart. Not zero where one is not finite.
template <class T>
static typename Vec<T>::type turn_products(const T *m, i64 apart, i64 vecs, T *y, i64 row) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  V spoilt{};
  for (i64 j = 0; j < vecs; ++j, m += L, y += 2 * L) {
    V top[4], low[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const T *s = m + i * apart;
      const V m0 = *(const V *)s, m1 = *(const V *)(s + 4 * apart), m2 = *(const V *)(s + 8 * apart);
      const V m3 = *(const V *)(s + 12 * apart);
      top[i] = m0 + m1 + m2, low[i] = m1 - m2 - m3;
    }
    join_pairs<T>(top[0] + top[1] + top[2], top[1] - top[2] - top[3], y, spoilt);
    join_pairs<T>(low[0] + low[1] + low[2], low[1] - low[2] - low[3], y + row, spoilt);
  }
  return spoilt;
}

// The gather of a box of outputs alone.
template <class T>
static Gather<T> at_box(const Gather<T> &t, const Channels &of, const Box &box) {
  Gather<T> part = t;
  part.batch = part.groups = 1, part.cout = of.rows;
  part.in += box.n * t.is[0] + of.group * t.cin * t.is[1];
  part.w += of.group * t.wgroup + of.k * t.wk;
  const i64 first = of.group * t.cout + of.k;
  part.out += box.n * t.os[0] + first * t.os[1];
  if (t.e.bias) part.e.bias += first;
  for (int d = 0; d < 3; ++d) {
    part.ax[d].out = box.size[d], part.ax[d].off += box.first[d] * t.ax[d].mul;
    part.out += box.first[d] * t.os[d + 2];
  }
  return part;
}

// The box of outputs that a row of squares has, none beyond the last one.
OOC_INLINE Box box_of(const Axis *a, i64 n, i64 o, i64 p, i64 q, i64 squares) {
  return Box{n, {o, p, q}, {1, imin(INSIDE, a[1].out - p), imin(INSIDE * squares, a[2].out - q)}};
}

// Outputs of some channels, vectors of channels at a time: `y` has two rows of each, `pitch` apart.
template <class T>
static void store_squares(const WinogradJob<T> &job, const Channels &of, const T *y, i64 pitch) {
  const Gather<T> &t = job.t;
  const i64 first = of.group * t.cout + of.k;
  for_squares(t.ax, job.run, [&](i64 n, i64 o, i64 p, i64 q, i64 len, i64 done) {
    const Box box = box_of(t.ax, n, o, p, q, len);
    for (i64 i = 0; i < box.size[1]; ++i) {
      T *out = t.out + n * t.os[0] + first * t.os[1] + o * t.os[2] + (p + i) * t.os[3] + q * t.os[4];
      const T *sum = y + i * pitch + INSIDE * done;
      store_output(OutputRow<T>{sum, INSIDE * pitch, out, box.size[2], t.os[4], t.os[1], of.rows, first}, t.e);
    }
  });
}

template <class T>
static void finish_job(const WinogradJob<T> &job) {
  typedef typename Vec<T>::type V;
  constexpr i64 L = Vec<T>::lanes;
  const i64 pitch = INSIDE * job.p.pitch, apart = apart_for<T>(panels(job.of.rows) * job.p.pitch);
  for (i64 k = 0; k < job.of.rows; k += L) {
    const Channels of{job.of.group, job.of.k + k, imin(L, job.of.rows - k)};
    V spoilt{};
    for (i64 i = 0; i < of.rows; ++i)
      spoilt += turn_products(job.products + (k + i) * job.p.pitch, apart, job.vecs, job.rows + INSIDE * i * pitch, pitch);
    bool finite = true;
    for (i64 i = 0; i < L; ++i) finite = finite && spoilt[i] == 0;
    if (finite)
      store_squares(job, of, job.rows, pitch);
    else
      for_squares(job.t.ax, job.run, [&](i64 n, i64 o, i64 p, i64 q, i64 len, i64) {
        ordered_gather(at_box(job.t, of, box_of(job.t.ax, n, o, p, q, len)), 1);
      });
  }
}

// ---------------------------------------------------------------------------- jobs

template <class T>
static void winograd_job(const WinogradJob<T> &job) {
  const Gather<T> &t = job.t;
  const i64 taps = t.ax[0].taps, block = winograd_block(t.cin, taps), pitch = job.p.pitch;
  const i64 apart = apart_for<T>(panels(job.of.rows) * pitch);
  for (i64 c = 0; c < t.cin; c += block) {
    const i64 channels = imin(block, t.cin - c), pairs = channels * taps, inputs = apart_for<T>(pairs * pitch);
    turn_block(job, c, channels, inputs);
    for (i64 k = 0; k < job.of.rows; k += job.p.rows) {
      const i64 rows = imin(job.p.rows, job.of.rows - k), filters = apart_for<T>(panels(rows) * pairs);
      turn_panels(job, Panel{job.of.group, job.of.k + k, rows, c, channels}, filters);
      for (i64 e = 0; e < ELEMENTS; ++e) {
        T *products = job.products + e * apart + k * pitch;
        multiply(Product<T>{panels(rows), job.vecs, pairs, job.filters + e * filters, job.inputs + e * inputs, job.off, products,
                            pitch, c > 0});
      }
    }
  }
  finish_job(job);
}

template <class T>
static void run_winograd(const Gather<T> &t, const WinogradPlan &p, T *memory, int threads) {
  const i64 all = t.batch * squares_of(t.ax), jobs = p.runs * p.kparts * t.groups;
  const i64 pairs = winograd_block(t.cin, t.ax[0].taps) * t.ax[0].taps;
  const WinogradRoom room = winograd_room<T>(pairs, p);
  share(jobs, int(imin(threads, jobs)), [&](i64 i, int member) {
    int off[WINOGRAD_PAIRS];
    for (i64 j = 0; j < pairs; ++j) off[j] = int(j * p.pitch);
    T *mine = memory + member * room.end;
    const i64 k = i % p.kparts * p.kpart, g = i / p.kparts % t.groups, begin = i / (p.kparts * t.groups) * p.run;
    const Run run{begin, imin(p.run, all - begin)};
    winograd_job(WinogradJob<T>{t, p, Channels{g, k, imin(p.kpart, t.cout - k)}, run, ceil_div(run.count, Vec<T>::lanes), mine,
                                mine + room.products, mine + room.filters, mine + room.rows, off});
  });
}
