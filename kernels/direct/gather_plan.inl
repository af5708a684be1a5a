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

// Bytes of the tile and the sums of one thread.
template <class T>
OOC_INLINE i64 thread_bytes(const Plan &p) {
  return lines(p.x_elems * sizeof(T)) + lines(p.kpart * p.slices * p.vecs * VEC_BYTES);
}

// Fits the output channels into the memory left, splits them for the threads, and estimates.
template <class T>
static void consider(Plan &best, Plan p, i64 bytes, i64 batch, i64 groups, i64 cin, i64 cout, const Axis *a, int threads) {
  if (p.x_elems >= (i64(1) << 30)) return;  // offsets are ints
  const i64 line = p.slices * p.vecs * VEC_BYTES, left = bytes - lines(p.x_elems * sizeof(T));
  p.kpart = left / line >= cout ? cout : left / line / MR * MR;  // parts begin on whole panels
  if (left < 0 || p.kpart < 1) return;
  const i64 tiles = p.im2col ? p.tiles[2] : batch * volume(p.tiles);
  const i64 wanted = ceil_div(3 * threads, imax(1, tiles * groups));  // parts, for balance
  const i64 parts0 = threads > 1 ? imin(wanted, ceil_div(cout, 4 * MR)) : 1;
  const i64 parts = imax(ceil_div(cout, p.kpart), parts0);
  p.kpart = imin(p.kpart, round_up(ceil_div(cout, parts), MR));
  const i64 kparts = ceil_div(cout, p.kpart), jobs = tiles * groups * kparts;
  const double depth = double(cin) * taps_of(a), vectors = double(p.slices) * p.vecs;
  // Measured roughly: a fused multiply-add per cycle, a copied vector in 4 cycles and more.
  const double fill = p.im2col ? depth * (p.vecs * 4.0 + p.run / double(a[2].out) * 8 + 4)
                               : double(cin) * phases_of(a) * p.tile.p[0] * p.tile.p[1] * (p.tile.p[2] * 4.0 / Vec<T>::lanes + 8);
  const double blocks = double(ceil_div(cin, channel_block(cin, taps_of(a))));
  const double work = cout * vectors * (depth + 3 * blocks + 6) / kparts + fill;
  p.cost = double(ceil_div(jobs, threads)) * work;
  p.found = true;
  if (!best.found || p.cost < best.cost) best = p;
}

template <class T>
static void consider_halo(Plan &best, i64 td, i64 th, i64 tw, i64 bytes, i64 batch, i64 groups, i64 cin, i64 cout, const Axis *a, int threads) {
  Plan p{};
  p.tile = make_tile(a, td, th, tw);
  p.slices = td;
  p.vecs = ceil_div((th - 1) * p.tile.p[2] + tw, Vec<T>::lanes);
  p.x_elems = channel_block(cin, taps_of(a)) * p.tile.channel + halo_slack<T>(a);
  for (int d = 0; d < 3; ++d) p.tiles[d] = ceil_div(a[d].out, p.tile.t[d]);
  consider<T>(best, p, bytes, batch, groups, cin, cout, a, threads);
}

// Even tiles: as many as `tile` would give, but no nearly empty one at the end.
OOC_INLINE i64 even(i64 extent, i64 tile) { return ceil_div(extent, ceil_div(extent, imin(extent, tile))); }

template <class T>
static Plan make_plan(const Gather<T> &t, i64 bytes, int threads) {
  constexpr int L = Vec<T>::lanes;
  const Axis *a = t.ax;
  const i64 block = channel_block(t.cin, taps_of(a));
  Plan best{};
  for (i64 tw = a[2].out > 1024 ? 1024 : a[2].out;;) {
    for (i64 td = 1;; td *= 2) {
      const i64 ed = even(a[0].out, td);
      for (i64 th = 1;; th *= 2) {
        consider_halo<T>(best, ed, even(a[1].out, th), tw, bytes, t.batch, t.groups, t.cin, t.cout, a, threads);
        if (th >= a[1].out || th >= 64) break;
      }
      if (td >= a[0].out || td >= 16) break;
    }
    if (tw <= L) break;
    tw = tw > 2 * L ? round_up(ceil_div(tw, 2), L) : L;
  }
  const i64 all = t.batch * outputs_of(a);
  for (i64 vecs = 1; vecs <= 12 * NV; vecs = vecs < NV ? vecs + 1 : vecs < 2 * NV ? 2 * NV : vecs + 2 * NV) {
    Plan p{};
    p.im2col = true;
    p.run = imin(all, vecs * L);
    p.vecs = ceil_div(p.run, L), p.slices = 1;
    p.x_elems = block * taps_of(a) * p.vecs * L;
    p.tiles[0] = p.tiles[1] = 1, p.tiles[2] = ceil_div(all, p.run);
    consider<T>(best, p, bytes, t.batch, t.groups, t.cin, t.cout, a, threads);
    if (p.run == all) break;
  }
  return best;
}
