// Forward and data gradient with a workspace.
//
// The two are one operation here, the "gather":
//     out[n, k, j] = sum over c, i of in[n, c, j * mul + off + i * step] * w[k, c, tap(i)]
// on each of three axes; positions outside `in` are zeros. The data gradient with stride s is
// s^3 gathers (one per residue of the x index), each with its share of the filter taps.
//
// A gather copies a block of `in` with its borders into a per-thread tile, so that the inner
// loop needs no bounds checks, and multiplies it with packed weights. Two tile layouts:
//   halo:   each channel once, with its borders; a tap is an offset into the tile. Output rows
//           are computed as one long line, the borders between rows are computed in vain.
//   im2col: each (channel, tap) pair is one dense line of output positions, over the borders
//           of rows and images. More copying, no waste: better for small planes, many channels.
// Both feed the same micro kernel. Every output is summed in the order (channel block,
// channel, tap) whatever the tile and thread count are, so the bits never depend on them.

struct Job {
  Channels of;
  Box box;  // halo
  Run run;  // im2col
};

template <class T>
static Job make_job(const Gather<T> &t, const Plan &p, i64 index) {
  Job job{};
  const i64 kparts = ceil_div(t.cout, p.kpart);
  job.of.k = index % kparts * p.kpart, index /= kparts;
  job.of.rows = imin(p.kpart, t.cout - job.of.k);
  if (p.im2col) {
    job.run.begin = index % p.tiles[2] * p.run;
    job.run.count = imin(p.run, t.batch * outputs_of(t.ax) - job.run.begin);
    job.of.group = index / p.tiles[2];
    return job;
  }
  Box &box = job.box;
  for (int d = 2; d >= 0; --d) {
    box.first[d] = index % p.tiles[d] * p.tile.out[d], index /= p.tiles[d];
    box.size[d] = imin(p.tile.out[d], t.ax[d].out - box.first[d]);
  }
  job.of.group = index % t.groups, box.n = index / t.groups;
  return job;
}

template <class T>
static void store_job(const Gather<T> &t, const Plan &plan, const Job &job, const T *sums) {
  const i64 pitch = plan.vecs * Vec<T>::lanes, line = plan.slices * pitch;
  const i64 first = job.of.group * t.cout + job.of.k;
  const auto store = [&](i64 n, i64 o, i64 p, i64 q, i64 len, const T *sum) {
    const i64 at = n * t.os[0] + first * t.os[1] + o * t.os[2] + p * t.os[3] + q * t.os[4];
#ifdef OOC_DOT
    if (t.rounded) return store_rounded(OutputRow<T>{sum, line, nullptr, len, t.os[4], t.os[1], job.of.rows, first}, t.rounded + at, t.e);
#endif
    store_output(OutputRow<T>{sum, line, t.out + at, len, t.os[4], t.os[1], job.of.rows, first}, t.e);
  };
  if (plan.im2col) {
    for_rows(t.ax, job.run, [&](i64 n, i64 o, i64 p, i64 q, i64 len, i64 done) { store(n, o, p, q, len, sums + done); });
    return;
  }
  const Box &box = job.box;
  for (i64 d = 0; d < box.size[0]; ++d)
    for (i64 h = 0; h < box.size[1]; ++h)
      store(box.n, box.first[0] + d, box.first[1] + h, box.first[2], box.size[2], sums + d * pitch + h * plan.tile.in[2]);
}

// What the threads share, and the memory of one of them. packed: all weights, or null where it packs those of its own jobs.
template <class T>
struct Shared {
  const Gather<T> &t;
  const Plan &p;
  const T *packed;
  const int *off;
};

template <class T>
struct Own {
  T *x, *sums, *weights;
};

// A channel block of a job's weights, in panels.
template <class T>
static const T *weights_of(const Shared<T> &s, const Job &job, i64 c, i64 channels, T *own) {
  const Gather<T> &t = s.t;
  const i64 taps = taps_of(t.ax);
  if (s.packed) return s.packed + job.of.group * t.cout * t.cin * taps + (c * t.cout + job.of.k * channels) * taps;
  for (i64 m = 0; m < job.of.rows; m += MR)
    pack_panel(t, Panel{job.of.group, job.of.k + m, imin(MR, job.of.rows - m), c, channels}, own + m * channels * taps);
  return own;
}

template <class T>
static void run_job(const Shared<T> &s, const Job &job, const Own<T> &own) {
  constexpr int L = Vec<T>::lanes;
  const Gather<T> &t = s.t;
  const Plan &p = s.p;
  const i64 taps = taps_of(t.ax), block = channel_block(t.cin, taps), rows = job.of.rows;
  const i64 pitch = p.vecs * L, line = p.slices * pitch;
  const i64 used = p.im2col ? job.run.count : (job.box.size[1] - 1) * p.tile.in[2] + job.box.size[2];
  const i64 vecs = ceil_div(used, L), slices = p.im2col ? 1 : job.box.size[0];
  const i64 full = rows / MR * MR, rest = rows - full;
  const T *in = t.in + job.of.group * t.cin * t.is[1];
  for (i64 c = 0; c < t.cin; c += block) {
    const i64 channels = imin(block, t.cin - c), pairs = channels * taps;
    const T *w = weights_of(s, job, c, channels, own.weights);
    if (p.im2col)
      fill_im2col(own.x, pitch, t.ax, Inputs<T>{in + c * t.is[1], t.is, channels}, job.run);
    else
      fill_tile(own.x, t.ax, p.tile, Inputs<T>{in + job.box.n * t.is[0] + c * t.is[1], t.is, channels}, job.box);
    for (i64 d = 0; d < slices; ++d) {
      const T *x = own.x + d * p.tile.plane();
      T *sums = own.sums + d * pitch;
      Product<T> product{full, vecs, pairs, w, x, s.off, sums, line, c > 0};
      if (full) multiply(product);
      product.rows = rest;
      product.w = w + full * pairs;
      product.c = sums + full * line;
      if (rest) multiply(product);
    }
  }
  store_job(t, p, job, own.sums);
}

template <class T>
static void run_gather(const Gather<T> &t, const Plan &p, const T *packed, char *scratch, i64 offset_bytes, int threads) {
  const i64 taps = taps_of(t.ax), block = channel_block(t.cin, taps);
  int *off = reinterpret_cast<int *>(scratch);
  if (p.im2col)
    for (i64 i = 0; i < block * taps; ++i) off[i] = int(i * p.vecs * Vec<T>::lanes);
  else
    fill_offsets(off, t.ax, p.tile, block);
  const i64 tiles = p.im2col ? p.tiles[2] : t.batch * volume(p.tiles);
  const i64 jobs = tiles * t.groups * ceil_div(t.cout, p.kpart);
  const Room room = room_of<T>(p, packed ? 0 : block * taps);
  share(jobs, int(imin(threads, jobs)), [&](i64 i, int member) {
    char *mine = scratch + offset_bytes + member * room.end;
    const auto at = [&](i64 bytes) { return reinterpret_cast<T *>(mine + bytes); };
    run_job(Shared<T>{t, p, packed, off}, make_job(t, p, i), Own<T>{at(0), at(room.sums), at(room.weights)});
  });
}

constexpr i64 MAX_THREAD_BYTES = 640 << 10, MIN_THREAD_BYTES = 24 << 10, OWN_WEIGHT_BYTES = 256 << 10;
constexpr i64 MAX_RESIDUES = 4096;  // data gradients with larger strides take the plain loops

// Taps of the smallest residue class that has any.
static i64 fewest_taps(const Problem &p) {
  if (p.pass != Pass::dgrad) return volume(p.f);
  i64 taps = 1;
  for (int d = 0; d < 3; ++d) {
    const i64 every = p.stride[d] / gcd(p.dilation[d], p.stride[d]);
    taps *= (p.f[d] - imin(every, p.f[d])) / every + 1;
  }
  return taps;
}

// Bytes: of packed weights, of offsets, of a thread, and of one that packs weights itself.
struct GatherNeed {
  i64 packed, offsets, thread, packing;
};

// Everything here grows with each extent and with the batch, so that what is enough for a
// block is enough for a smaller one: min(all in one tile, max(a fixed size, smallest tile)).
template <class T>
static GatherNeed gather_need(const Problem &p) {
  constexpr i64 L = Vec<T>::lanes, S = sizeof(T);
  Axis a[3];
  for (int d = 0; d < 3; ++d) a[d] = largest_axis(p, d);
  const bool fprop = p.pass == Pass::fprop;
  const i64 cin = (fprop ? p.c : p.k) / p.groups, cout = (fprop ? p.k : p.c) / p.groups;
  // A residue class with fewer taps has longer channel blocks: no more pairs, but wider tiles.
  const i64 taps = taps_of(a), few = fewest_taps(p);
  const i64 block = channel_block(cin, few), pairs = imin(cin * taps, imax(PAIRS, taps));
  const i64 lane = imin(a[2].out, L), positions = round_up(p.n * outputs_of(a), L), rows = imin(cout, MR);
  const auto halo = [&](i64 d, i64 h, i64 w, i64 k) {
    const Tile t = make_tile(a, d, h, w);
    return lines((block * t.channel + halo_slack<T>(a)) * S) + lines(k * d * round_up(h * t.in[2], L) * S);
  };
  const auto im2col = [&](i64 n, i64 k) { return lines(pairs * n * S) + lines(k * n * S); };
  const i64 whole = imax(halo(a[0].out, a[1].out, a[2].out, cout), im2col(positions, cout));
  const i64 least = imin(halo(1, 1, lane, rows), im2col(L, rows));
  const i64 usual = clamp(lines(problem_bytes(p) / (2 * p.threads)), MIN_THREAD_BYTES, MAX_THREAD_BYTES);
  const i64 thread = imin(whole, imax(usual, least));
  // A thread that packs weights itself has a share for its tile, and as much for its weights.
  const i64 some = lines(lean_share(p)), panel = lines(rows * pairs * S);
  const i64 tile = imin(thread, imax(clamp(some, MIN_THREAD_BYTES, MAX_THREAD_BYTES), least));
  const i64 own = imax(clamp(some, MIN_THREAD_BYTES, OWN_WEIGHT_BYTES), panel);
  return {lines(p.k * (p.c / p.groups) * volume(p.f) * S), lines(pairs * sizeof(int)), thread, tile + 64 + own};
}

// One task for fprop, one per tap residue for dgrad; the packed weights follow one another, residue
// by residue.
template <class T, class F>
static void for_tasks(const Problem &p, const Operands &o, F visit) {
  if (p.pass == Pass::fprop) return visit(forward_task<T>(p, o));
  for (i64 m0 = 0; m0 < p.stride[0]; ++m0)
    for (i64 m1 = 0; m1 < p.stride[1]; ++m1)
      for (i64 m2 = 0; m2 < p.stride[2]; ++m2) visit(backward_task<T>(p, o, Index3{{m0, m1, m2}}));
}

// How a call's workspace is used: all packed weights, or null where each thread packs those of its jobs; what threads share and have,
// and of how many bytes either is.
template <class T>
struct Rooms {
  T *packed;
  char *scratch;
  i64 offsets, thread;
};

// Weights are packed whenever they fit, even if these extents then take the plain loops: a later call with packed = true may be for
// larger ones.
template <class T>
static Rooms<T> rooms_of(const Problem &p, const Operands &o) {
  const GatherNeed need = gather_need<T>(p);
  char *base = static_cast<char *>(o.workspace);
  const bool pack = o.workspace_bytes >= need.packed && o.workspace_bytes > 0;
  const i64 shared = pack ? need.packed : 0, left = o.workspace_bytes - shared - need.offsets;
  return {pack ? reinterpret_cast<T *>(base) : nullptr, base + shared, need.offsets,
          imin(pack ? need.thread : need.packing, left / p.threads / 64 * 64)};
}

// A task whose weights follow `before` others; false, and nothing done but packing, where no tile fits.
template <class T>
static bool in_tiles(const Gather<T> &t, const Problem &p, bool packed, const Rooms<T> &rooms, i64 before) {
  const i64 taps = taps_of(t.ax), count = t.groups * t.cout * t.cin * taps;
  T *weights = rooms.packed ? rooms.packed + before : nullptr;
  if (weights && !packed && count) pack_weights(t, weights, p.threads);
  if (t.batch * outputs_of(t.ax) == 0) return true;
  if (!taps || rooms.thread <= 0 || is_depthwise(p)) return false;
  const int team = team_for<T>(double(count) * t.batch * outputs_of(t.ax), p.threads);
  const Plan plan = make_plan(t, rooms.thread, team, !weights);
  if (!plan.found) return false;
  run_gather(t, plan, weights, rooms.scratch, rooms.offsets, team);
  return true;
}
