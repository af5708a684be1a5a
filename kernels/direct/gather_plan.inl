// Which tiles a gather takes: those of the least estimated cost that fit the memory of a thread.

struct Plan {
  bool im2col;
  Tile tile;         // halo
  i64 run;           // im2col: positions per tile
  i64 kpart;         // output channels per job
  i64 vecs, slices;  // a tile is `slices` lines of `vecs` vectors
  i64 tiles[3];      // tiles per axis (im2col: tiles[2] alone)
  i64 x_elems;       // tile, with room for the reads past its end
  double cost;       // cycles, for choosing
  bool found;
};

template <class T>
OOC_INLINE i64 halo_slack(const Axis *a) { return Vec<T>::lanes + a[2].ext; }

// Where a thread has its tile, its sums, and the weights that it packs itself, if it does: bytes from the start of its memory.
struct Room {
  i64 sums, weights, end;
};

template <class T>
OOC_INLINE Room room_of(const Plan &p, i64 pairs) {
  const i64 sums = lines(p.x_elems * sizeof(T)), weights = sums + lines(p.kpart * p.slices * p.vecs * VEC_BYTES);
  return {sums, weights, weights + lines(p.kpart * pairs * sizeof(T))};
}

constexpr i64 CHAINS = 8;  // sums of a register block that hide each other's latency

// Looks for the plan of least cost. bytes: what a thread has for a tile, its sums and, if it packs them itself, the weights of a
// channel block.
template <class T>
struct Planner {
  static constexpr int L = Vec<T>::lanes;
  const Gather<T> &t;
  i64 bytes;
  int threads;
  bool packing;
  Plan best{};

  i64 block() const { return channel_block(t.cin, taps_of(t.ax)); }

  // Vectors of a line as register blocks take them: a narrow one waits for its own sums, and each reads its weights.
  static double columns(i64 vecs) {
    double sum = 0;
    for (i64 v = 0, nv; v < vecs; v += nv) nv = next_vecs(vecs - v), sum += imax(nv, CHAINS / MR) + 0.3;
    return sum;
  }

  // Fits the output channels into the memory left, splits them for the threads, and estimates.
  void consider(Plan p) {
    if (p.x_elems >= (i64(1) << 30)) return;  // offsets are ints
    const Axis *a = t.ax;
    const i64 cin = t.cin, cout = t.cout, groups = t.groups;
    const i64 own = packing ? block() * taps_of(a) * i64(sizeof(T)) : 0;
    const i64 line = p.slices * p.vecs * VEC_BYTES + own, left = bytes - lines(p.x_elems * sizeof(T)) - 64 * packing;
    p.kpart = left / line >= cout ? cout : left / line / MR * MR;  // parts begin on whole panels
    if (left < 0 || p.kpart < 1) return;
    const i64 tiles = p.im2col ? p.tiles[2] : t.batch * volume(p.tiles);
    const i64 wanted = ceil_div(3 * threads, imax(1, tiles * groups));  // parts, for balance
    const i64 parts0 = threads > 1 ? imin(wanted, ceil_div(cout, 4 * MR)) : 1;
    const i64 parts = imax(ceil_div(cout, p.kpart), parts0);
    p.kpart = imin(p.kpart, round_up(ceil_div(cout, parts), MR));
    const i64 kparts = ceil_div(cout, p.kpart), jobs = tiles * groups * kparts;
    const double depth = double(cin) * taps_of(a), vectors = double(p.slices) * columns(p.vecs);
    // Measured roughly, in cycles: a copied vector in 4, a row in 16 more, a weight in 2.
    const double fill = p.im2col ? depth * (p.vecs * 4.0 + p.run / double(a[2].out) * 16 + 4)
                                 : double(cin) * phases_of(a) * p.tile.in[0] * p.tile.in[1] * (p.tile.in[2] * 4.0 / L + 16);
    const double blocks = double(ceil_div(cin, block()));
    const double pack = packing ? 2 * depth * cout / kparts : 0;
    const double work = FMA_CYCLES * cout * vectors * (depth + 3 * blocks + 6) / kparts + fill + pack;
    p.cost = double(ceil_div(jobs, threads)) * work;
    p.found = true;
    if (!best.found || p.cost < best.cost) best = p;
  }

  // A halo tile of so many outputs per axis.
  void consider_halo(i64 o, i64 p, i64 q) {
    const Axis *a = t.ax;
    Plan plan{};
    plan.tile = make_tile(a, o, p, q);
    plan.slices = o;
    plan.vecs = ceil_div((p - 1) * plan.tile.in[2] + q, L);
    plan.x_elems = block() * plan.tile.channel + halo_slack<T>(a);
    for (int d = 0; d < 3; ++d) plan.tiles[d] = ceil_div(a[d].out, plan.tile.out[d]);
    consider(plan);
  }

  void consider_im2col(i64 all, i64 vecs) {
    Plan plan{};
    plan.im2col = true;
    plan.run = imin(all, vecs * L);
    plan.vecs = ceil_div(plan.run, L), plan.slices = 1;
    plan.x_elems = block() * taps_of(t.ax) * plan.vecs * L;
    plan.tiles[0] = plan.tiles[1] = 1, plan.tiles[2] = ceil_div(all, plan.run);
    consider(plan);
  }
};

// Even tiles: as many as `tile` would give, but no nearly empty one at the end.
OOC_INLINE i64 even(i64 extent, i64 tile) { return ceil_div(extent, ceil_div(extent, imin(extent, tile))); }

// The lengths of im2col tiles that are tried, in vectors: few and short ones, then whole register blocks.
OOC_INLINE i64 longer(i64 vecs) {
  if (vecs < NV) return vecs + 1;
  return vecs < 2 * NV ? 2 * NV : vecs + 2 * NV;
}

template <class T>
static Plan make_plan(const Gather<T> &t, i64 bytes, int threads, bool packing) {
  constexpr int L = Vec<T>::lanes;
  const Axis *a = t.ax;
  Planner<T> planner{t, bytes, threads, packing};
  for (i64 q = imin(a[2].out, 1024);;) {
    for (i64 o = 1;; o *= 2) {
      for (i64 p = 1;; p *= 2) {
        planner.consider_halo(even(a[0].out, o), even(a[1].out, p), q);
        if (p >= a[1].out || p >= 64) break;
      }
      if (o >= a[0].out || o >= 16) break;
    }
    if (q <= L) break;
    q = q > 2 * L ? round_up(ceil_div(q, 2), L) : L;
  }
  const i64 all = t.batch * outputs_of(a);
  for (i64 vecs = 1; vecs <= 12 * NV; vecs = longer(vecs)) {
    planner.consider_im2col(all, vecs);
    if (vecs * L >= all) break;
  }
  return planner.best;
}
