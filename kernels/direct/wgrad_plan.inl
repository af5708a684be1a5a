// The weight gradient with a workspace: how it is cut into tiles and jobs.
//
// A job is a range of input channels times a range of output channels of one group. It visits
// the output positions tile by tile: dy is transposed into panels [position][output channel],
// x goes into halo tiles of a few channels, and each register block multiplies WMR (channel,
// tap) rows of x with WNV vectors of output channels, over all positions of the tile. Sums of
// all weights stay in the workspace. Jobs share the weights out, never the positions, and
// tiles depend on the shapes and the workspace of a thread alone: the bits do not depend on the
// thread count. Jobs copy some data twice, but need no barriers; sharing the panels between
// threads was a disaster as soon as other processes wanted the cores.
//
// With few output channels per group (depthwise) vectors of channels would be empty; then
// vectors run along the rows ("dots") and each weight is a dot product.

constexpr i64 MAX_DY_BYTES = 512 << 10, MIN_DY_BYTES = 16 << 10;
constexpr i64 MAX_XTILE_BYTES = 96 << 10, MIN_XTILE_BYTES = 8 << 10;
constexpr i64 MAX_POSITIONS = 512, MAX_PAIRS = 4096;
constexpr i64 MAX_HALO_BYTES = 1 << 20;  // filters that reach farther take the plain loops

template <class T>
struct WgradPlan {
  bool dots;
  Axis ax[3];
  i64 cin, cout, groups, taps, lanes;  // lanes: output channels rounded up to vectors
  Tile tile;
  i64 tiles[3];
  i64 block;       // input channels per unit
  i64 csplit, ksplit;  // jobs per group along input blocks and output panels
  i64 x_bytes, dy_bytes;  // of one thread
  i64 sums_bytes, offset_bytes, total;
};

// Tile of at most `positions` outputs, a channel of which fits into `bytes` if any can.
template <class T>
static Tile wgrad_tile(const Axis *a, i64 positions, i64 bytes) {
  constexpr i64 L = Vec<T>::lanes;
  i64 t[3] = {1, 1, a[2].out};
  if (t[2] > positions) t[2] = imin(positions, round_up(even(a[2].out, positions), L));
  const i64 rows = imax(1, positions / t[2]);
  if (a[0].ext > 0)  // near cubes have the least halo
    while (4 * t[0] * t[0] <= rows && 2 * t[0] <= a[0].out) t[0] *= 2;
  t[1] = even(a[1].out, imax(1, rows / t[0]));
  t[0] = even(a[0].out, imax(1, rows / t[1]));
  for (;;) {
    const Tile tile = make_tile(a, t[0], t[1], t[2]);
    if (tile.channel * i64(sizeof(T)) <= bytes) return tile;
    if (t[0] > 1) t[0] = (t[0] + 1) / 2;
    else if (t[1] > 1) t[1] = (t[1] + 1) / 2;
    else if (t[2] > L) t[2] = imax(L, round_up(t[2] / 2, L));
    else return tile;
  }
}

// Splits channels into jobs so that the slowest thread ends soonest.
template <class T>
static void split_jobs(WgradPlan<T> &w, int threads) {
  constexpr i64 L = Vec<T>::lanes;
  const i64 blocks = ceil_div(w.cin, w.block), panels = w.dots ? 1 : ceil_div(w.lanes, WNV * L);
  double best = 0;
  for (i64 cs = 1; cs <= imin(blocks, 4 * threads); ++cs)
    for (i64 round = 0; round <= 2; ++round) {  // jobs for each thread: one group's, one, two
      const i64 ks = clamp(ceil_div(round * threads, w.groups * cs), 1, panels);
      const double c = double(ceil_div(blocks, cs)) * w.block, k = double(ceil_div(panels, ks)) * WNV * L;
      const i64 jobs = w.groups * cs * ks;
      // Cycles per position: multiply-adds, and about one per element copied or transposed.
      double cost = double(ceil_div(jobs, threads)) * (c * w.taps * k / L + c + k);
      if (threads > 1 && jobs < 2 * threads) cost *= 1.05;  // nothing to even out a slow thread
      if (best == 0 || cost < best) best = cost, w.csplit = cs, w.ksplit = ks;
    }
}

// Buffers as functions that grow with the extents (see gather_need). `shrink` > 1 for less
// memory than wanted.
template <class T>
static WgradPlan<T> wgrad_plan(const Problem &p, i64 shrink) {
  constexpr i64 L = Vec<T>::lanes, S = sizeof(T);
  WgradPlan<T> w{};
  for (int d = 0; d < 3; ++d) w.ax[d] = forward_axis(p, d);
  const Axis *a = w.ax;
  w.groups = p.groups, w.cin = p.c / p.groups, w.cout = p.k / p.groups, w.taps = taps_of(a);
  w.dots = w.cout <= L / 4;
  w.lanes = w.dots ? w.cout : round_up(w.cout, L);
  const i64 dy_room = clamp(problem_bytes(p) / 4, MIN_DY_BYTES, MAX_DY_BYTES) / shrink;
  const i64 width = w.dots ? L : w.lanes;
  const i64 positions = clamp(dy_room / (width * S) / L * L, w.dots ? L : 4 * L, MAX_POSITIONS);
  const i64 least = make_tile(a, 1, 1, imin(L, a[2].out)).channel;
  const i64 whole = w.cin * make_tile(a, a[0].out, a[1].out, a[2].out).channel;
  const i64 usual = clamp(problem_bytes(p) / 8, MIN_XTILE_BYTES, MAX_XTILE_BYTES) / shrink;
  const i64 room = imin(whole * S, imax(usual, least * S));
  w.tile = wgrad_tile<T>(a, positions, room);
  w.block = clamp(imin(room / (w.tile.channel * S), MAX_PAIRS / w.taps), 1, w.cin);
  // Blocks for all threads, of whole register blocks where possible. No effect on the bits.
  const i64 even_rows = WMR / gcd(w.taps, WMR);
  w.block = imin(w.block, imax(imin(even_rows, w.cin), w.groups * w.cin / (2 * p.threads)));
  if (w.block > even_rows) w.block -= w.block % even_rows;
  for (int d = 0; d < 3; ++d) w.tiles[d] = ceil_div(a[d].out, w.tile.out[d]);
  w.x_bytes = lines(room + L * S);
  // A row of dy is padded to whole vectors in the dots, a tile of one-column rows the most.
  const i64 outputs = imin(positions, outputs_of(a));
  w.dy_bytes = lines(width * outputs * S);
  w.sums_bytes = lines(w.groups * w.lanes * w.cin * w.taps * S);
  w.offset_bytes = lines(imin(w.cin * w.taps, imax(MAX_PAIRS, w.taps)) * i64(sizeof(int)));
  w.total = w.sums_bytes + w.offset_bytes + p.threads * (w.x_bytes + w.dy_bytes);
  return w;
}
