// The weight gradient by a plan: the jobs, what each copies, and where its sums go.

// What all jobs share.
template <class T>
struct WgradRun {
  const Problem &p;
  const Operands &o;
  const WgradPlan<T> &w;
  const int *off;  // of the (channel, tap) pairs in a halo tile
  T *sums;         // of all weights
};

// What a thread has of its own: a halo tile of x, and dy of a box.
template <class T>
struct WgradTiles {
  T *x, *dy;
};

template <class T>
static Box wgrad_box(const WgradPlan<T> &w, i64 index) {
  Box b;
  for (int d = 2; d >= 0; --d) {
    b.first[d] = index % w.tiles[d] * w.tile.out[d], index /= w.tiles[d];
    b.size[d] = imin(w.tile.out[d], w.ax[d].out - b.first[d]);
  }
  b.n = index;
  return b;
}

// Panels hold WNV vectors of output channels; the last one may hold fewer.
template <class T>
OOC_INLINE i64 panel_width(const WgradPlan<T> &w, i64 panel) {
  return imin(WNV * Vec<T>::lanes, w.lanes - panel * WNV * Vec<T>::lanes);
}

// The range of channels of a job.
struct WgradJob {
  i64 group, c0, c1, panel0, panel1;
};

template <class T>
static WgradJob wgrad_job(const WgradPlan<T> &w, i64 index) {
  const i64 blocks = ceil_div(w.cin, w.block), panels = ceil_div(w.lanes, WNV * Vec<T>::lanes);
  const i64 ks = index % w.ksplit, cs = index / w.ksplit % w.csplit;
  WgradJob j;
  j.group = index / (w.ksplit * w.csplit);
  j.c0 = blocks * cs / w.csplit * w.block, j.c1 = imin(w.cin, blocks * (cs + 1) / w.csplit * w.block);
  j.panel0 = panels * ks / w.ksplit, j.panel1 = panels * (ks + 1) / w.ksplit;
  return j;
}

// dy of the box and the channels of the job, panel after panel.
template <class T>
static void transpose_dy(const WgradPlan<T> &w, const Operands &o, const Box &b, const WgradJob &job, T *dy) {
  constexpr i64 L = Vec<T>::lanes;
  const i64 rows = o.ys[3] == b.size[2] * o.ys[4] ? b.size[1] : 1;  // that follow one another
  for (i64 panel = job.panel0; panel < job.panel1; ++panel) {
    const i64 pitch = panel_width(w, panel);
    for (i64 row = 0; row < b.size[0] * b.size[1]; row += rows, dy += rows * b.size[2] * pitch)
      for (i64 v = 0; v < pitch; v += L) {
        const i64 k = panel * WNV * L + v;
        const T *src = static_cast<const T *>(o.y) + b.n * o.ys[0] + (job.group * w.cout + k) * o.ys[1] +
                       (b.first[0] + row / b.size[1]) * o.ys[2] + (b.first[1] + row % b.size[1]) * o.ys[3] + b.first[2] * o.ys[4];
        transpose_row(dy + v, pitch, src, o.ys[1], o.ys[4], imin(L, w.cout - k), rows * b.size[2]);
      }
  }
}

// The x of a box in the halo tile of a thread: `channels` of a group from c on.
template <class T>
static Patch<T> take_patch(const WgradRun<T> &run, const Box &b, i64 group, i64 c, i64 channels, T *X) {
  const WgradPlan<T> &w = run.w;
  const Operands &o = run.o;
  const T *x = static_cast<const T *>(o.x) + b.n * o.xs[0] + (group * w.cin + c) * o.xs[1];
  fill_tile(X, w.ax, w.tile, Inputs<T>{x, o.xs, channels}, b);
  return {X, b.size, w.tile.plane(), w.tile.in[2]};
}

// One box: the input channels [c, c + block) against the panels of the job.
template <class T>
static void wgrad_block(const WgradRun<T> &run, const WgradTiles<T> &mine, const Box &b, const WgradJob &job, i64 c, bool add) {
  constexpr i64 L = Vec<T>::lanes;
  const WgradPlan<T> &w = run.w;
  const i64 channels = imin(w.block, job.c1 - c), rows = channels * w.taps, all_rows = w.cin * w.taps;
  const Patch<T> patch = take_patch(run, b, job.group, c, channels, mine.x);
  const T *dy = mine.dy;
  for (i64 panel = job.panel0; panel < job.panel1; ++panel) {
    const i64 width = panel_width(w, panel);
    T *acc = run.sums + (job.group * w.lanes + panel * WNV * L) * all_rows + c * w.taps * width;
    for (i64 r = 0; r < rows; r += WMR)
      wgrad_micro_of<T, WMR>(imin(WMR, rows - r), width / L)(patch, run.off + r, dy, acc + r * width, add);
    dy += volume(b.size) * width;
  }
}

// Whether the weights of an output channel follow one another as the sums do.
static bool rows_follow(const Problem &p, const i64 *ws) {
  i64 step = 1;
  for (int d = 2; d >= 0; step *= p.f[d--])
    if (p.f[d] > 1 && ws[d + 2] != step) return false;
  return p.c == p.groups || ws[1] == step;
}

// to[k * pitch + row] = old + sum[row * step + k], in squares: so weights are written by whole vectors.
template <class T>
static void store_turned(T *to, i64 pitch, const T *sum, i64 step, i64 rows, i64 outputs, bool accumulate) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  const i64 squares = rows / L * L, whole = outputs / L * L;
  for (i64 k = 0; k < whole; k += L)
    for (i64 row = 0; row < squares; row += L) {
      V v[L];
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) v[i] = *(const V *)(sum + (row + i) * step + k);
      transpose_square<T>(v);
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) {
        V &q = *(V *)(to + (k + i) * pitch + row);
        q = accumulate ? q + v[i] : v[i];
      }
    }
  for (i64 k = 0; k < outputs; ++k)
    for (i64 row = k < whole ? squares : 0; row < rows; ++row) {
      T &q = to[k * pitch + row];
      q = accumulate ? q + sum[row * step + k] : sum[row * step + k];
    }
}

// Writes w = old + sums for some output channels and input channel c; sums of (channel k + i, row) at
// sum[row * row_step + i * k_step].
template <class T>
static void store_weights(const WgradRun<T> &run, const Channels &of, i64 c, const T *sum, i64 row_step, i64 k_step) {
  const Problem &p = run.p;
  const Operands &o = run.o;
  for (i64 i = 0; i < of.rows; ++i) {
    T *q = static_cast<T *>(o.w) + (of.group * run.w.cout + of.k + i) * o.ws[0] + c * o.ws[1];
    const T *from = sum + c * run.w.taps * row_step + i * k_step;
    for (i64 t = 0; t < p.f[0]; ++t)
      for (i64 r = 0; r < p.f[1]; ++r)
        for (i64 s = 0; s < p.f[2]; ++s, from += row_step) {
          T &to = q[t * o.ws[2] + r * o.ws[3] + s * o.ws[4]];
          to = o.accumulate ? to + *from : *from;
        }
  }
}

// The sums of a panel and the input channels of a job.
template <class T>
static void store_panel(const WgradRun<T> &run, const WgradJob &job, i64 panel) {
  const WgradPlan<T> &w = run.w;
  const Operands &o = run.o;
  const i64 *f = run.p.f, *ws = o.ws, k = panel * WNV * Vec<T>::lanes, width = panel_width(w, panel), channels = job.c1 - job.c0;
  const Channels of{job.group, k, imin(width, w.cout - k)};
  const T *all = run.sums + (job.group * w.lanes + k) * w.cin * w.taps, *sum = all + job.c0 * w.taps * width;
  T *to = static_cast<T *>(o.w) + (job.group * w.cout + k) * ws[0] + job.c0 * ws[1];
  if (rows_follow(run.p, ws)) {
    store_turned(to, ws[0], sum, width, channels * w.taps, of.rows, o.accumulate);
  } else if (ws[1] == 1) {
    for (i64 tap = 0; tap < w.taps; ++tap) {
      const Index3 at = unflatten(tap, f[1], f[2]);
      T *first = to + at.v[0] * ws[2] + at.v[1] * ws[3] + at.v[2] * ws[4];
      store_turned(first, ws[0], sum + tap * width, w.taps * width, channels, of.rows, o.accumulate);
    }
  } else {
    for (i64 c = job.c0; c < job.c1; ++c) store_weights(run, of, c, all, width, 1);  // the sums of a channel fit the first-level cache
  }
}

template <class T>
static void run_wgrad_job(const WgradRun<T> &run, const WgradTiles<T> &mine, const WgradJob &job) {
  const WgradPlan<T> &w = run.w;
  const i64 boxes = run.p.n * volume(w.tiles);
  for (i64 box = 0; box < boxes; ++box) {
    const Box b = wgrad_box(w, box);
    transpose_dy(w, run.o, b, job, mine.dy);
    for (i64 c = job.c0; c < job.c1; c += w.block) wgrad_block(run, mine, b, job, c, box > 0);
  }
  for (i64 panel = job.panel0; panel < job.panel1; ++panel) store_panel(run, job, panel);
}

// All output channels of one group against a block of its input channels, one box.
template <class T>
static void dots_unit(const WgradRun<T> &run, const WgradTiles<T> &mine, const Box &b, i64 g, i64 c, bool add) {
  const WgradPlan<T> &w = run.w;
  const Operands &o = run.o;
  const i64 channels = imin(w.block, w.cin - c), rows = channels * w.taps, all_rows = w.cin * w.taps;
  const Patch<T> patch = take_patch(run, b, g, c, channels, mine.x);
  const i64 dy_pitch = round_up(b.size[2], Vec<T>::lanes);
  for (i64 k = 0; k < w.cout; ++k) {
    const T *y = static_cast<const T *>(o.y) + b.n * o.ys[0] + (g * w.cout + k) * o.ys[1];
    for (i64 row = 0; row < b.size[0] * b.size[1]; ++row) {
      const T *src = y + (b.first[0] + row / b.size[1]) * o.ys[2] + (b.first[1] + row % b.size[1]) * o.ys[3] + b.first[2] * o.ys[4];
      copy_channels(mine.dy + row * dy_pitch, 0, src, 0, 1, dy_pitch, Range{0, b.size[2]}, o.ys[4]);
    }
    T *acc = run.sums + (g * w.cout + k) * all_rows + c * w.taps;
    for (i64 r = 0; r < rows; r += DOTS)
      dots_rows<T, DOTS>(imin(DOTS, rows - r), patch, run.off + r, mine.dy, dy_pitch, acc + r, add);
  }
}

// The dots of one block of input channels of one group.
template <class T>
static void run_dots_job(const WgradRun<T> &run, const WgradTiles<T> &mine, i64 g, i64 c0) {
  const WgradPlan<T> &w = run.w;
  const i64 boxes = run.p.n * volume(w.tiles), step = w.cin * w.taps;
  for (i64 box = 0; box < boxes; ++box) dots_unit(run, mine, wgrad_box(w, box), g, c0, box > 0);
  for (i64 c = c0; c < imin(w.cin, c0 + w.block); ++c)
    store_weights(run, Channels{g, 0, w.cout}, c, run.sums + g * w.cout * step, 1, step);
}

template <class T>
static void run_wgrad(const Problem &p, const Operands &o, WgradPlan<T> w) {
  const int threads = team_for<T>(total_work(p), p.threads);
  split_jobs(w, threads);
  char *at = static_cast<char *>(o.workspace);
  T *sums = reinterpret_cast<T *>(at);
  int *off = reinterpret_cast<int *>(at + w.sums_bytes);
  at += w.sums_bytes + w.offset_bytes;
  fill_offsets(off, w.ax, w.tile, w.block);
  const WgradRun<T> run{p, o, w, off, sums};
  const i64 blocks = ceil_div(w.cin, w.block), jobs = w.groups * (w.dots ? blocks : w.csplit * w.ksplit);
  const int team = int(imin(threads, jobs));
  share(jobs, team, [&](i64 i, int member) {
    char *mine = at + member * (w.x_bytes + w.dy_bytes);
    const WgradTiles<T> tiles{reinterpret_cast<T *>(mine), reinterpret_cast<T *>(mine + w.x_bytes)};
    if (w.dots)
      run_dots_job(run, tiles, i / blocks, i % blocks * w.block);
    else
      run_wgrad_job(run, tiles, wgrad_job(w, i));
  });
}
