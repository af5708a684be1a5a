// The weight gradient by a plan: the jobs, what each copies, and where its sums go.

// A box of output positions of one image.
struct Box {
  i64 image, j[3], size[3];
};

template <class T>
static Box wgrad_box(const WgradPlan<T> &w, i64 index) {
  Box b;
  for (int d = 2; d >= 0; --d) {
    b.j[d] = index % w.tiles[d] * w.tile.t[d], index /= w.tiles[d];
    b.size[d] = imin(w.tile.t[d], w.ax[d].out - b.j[d]);
  }
  b.image = index;
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
  for (i64 panel = job.panel0; panel < job.panel1; ++panel) {
    const i64 pitch = panel_width(w, panel);
    for (i64 row = 0; row < b.size[0] * b.size[1]; ++row, dy += b.size[2] * pitch)
      for (i64 v = 0; v < pitch; v += L) {
        const i64 k = panel * WNV * L + v;
        const T *src = static_cast<const T *>(o.y) + b.image * o.ys[0] + (job.group * w.cout + k) * o.ys[1] +
                       (b.j[0] + row / b.size[1]) * o.ys[2] + (b.j[1] + row % b.size[1]) * o.ys[3] + b.j[2] * o.ys[4];
        transpose_row(dy + v, pitch, src, o.ys[1], o.ys[4], imin(L, w.cout - k), b.size[2]);
      }
  }
}

// One box: the input channels [c, c + block) against the panels of the job.
template <class T>
static void wgrad_block(const WgradPlan<T> &w, const Operands &o, const Box &b, const WgradJob &job, i64 c, const int *off, T *X, const T *dy, T *sums, bool add) {
  constexpr i64 L = Vec<T>::lanes;
  const i64 channels = imin(w.block, job.c1 - c), rows = channels * w.taps, all_rows = w.cin * w.taps;
  const T *x = static_cast<const T *>(o.x) + b.image * o.xs[0] + (job.group * w.cin + c) * o.xs[1];
  fill_tile(X, w.ax, w.tile, x, o.xs, channels, b.j, b.size);
  const i64 pitch[2] = {w.tile.p[1] * w.tile.p[2], w.tile.p[2]}, positions = volume(b.size);
  for (i64 panel = job.panel0; panel < job.panel1; ++panel) {
    const i64 width = panel_width(w, panel);
    T *acc = sums + (job.group * w.lanes + panel * WNV * L) * all_rows + c * w.taps * width;
    for (i64 r = 0; r < rows; r += WMR)
      wgrad_micro_of<T, WMR>(imin(WMR, rows - r), width / L)(b.size, pitch, X, off + r, dy, acc + r * width, add);
    dy += positions * width;
  }
}

// Writes w = old + sums for output channels [k, k + channels) of group g and input channel c;
// sums of (channel k + i, row) at sum[row * row_step + i * k_step].
template <class T>
static void store_weights(const Problem &p, const Operands &o, const WgradPlan<T> &w, i64 g, i64 k, i64 channels, i64 c, const T *sum, i64 row_step, i64 k_step) {
  for (i64 i = 0; i < channels; ++i) {
    T *q = static_cast<T *>(o.w) + (g * w.cout + k + i) * o.ws[0] + c * o.ws[1];
    const T *s = sum + c * w.taps * row_step + i * k_step;
    for (i64 t0 = 0; t0 < p.f[0]; ++t0)
      for (i64 t1 = 0; t1 < p.f[1]; ++t1)
        for (i64 t2 = 0; t2 < p.f[2]; ++t2, s += row_step) {
          T &to = q[t0 * o.ws[2] + t1 * o.ws[3] + t2 * o.ws[4]];
          to = o.accumulate ? to + *s : *s;
        }
  }
}

template <class T>
static void run_wgrad_job(const Problem &p, const Operands &o, const WgradPlan<T> &w, const WgradJob &job, const int *off, T *X, T *dy, T *sums) {
  constexpr i64 L = Vec<T>::lanes;
  const i64 boxes = p.n * volume(w.tiles);
  for (i64 box = 0; box < boxes; ++box) {
    const Box b = wgrad_box(w, box);
    transpose_dy(w, o, b, job, dy);
    for (i64 c = job.c0; c < job.c1; c += w.block) wgrad_block(w, o, b, job, c, off, X, dy, sums, box > 0);
  }
  for (i64 panel = job.panel0; panel < job.panel1; ++panel)
    for (i64 c = job.c0; c < job.c1; ++c) {  // the sums of a panel and a channel fit the first-level cache
      const i64 k = panel * WNV * L, width = panel_width(w, panel);
      const T *sum = sums + (job.group * w.lanes + k) * w.cin * w.taps;
      store_weights(p, o, w, job.group, k, imin(width, w.cout - k), c, sum, width, 1);
    }
}

// All output channels of one group against a block of its input channels, one box.
template <class T>
static void dots_unit(const WgradPlan<T> &w, const Operands &o, const Box &b, i64 g, i64 c, const int *off, T *X, T *dy, T *sums, bool add) {
  const i64 channels = imin(w.block, w.cin - c), rows = channels * w.taps, all_rows = w.cin * w.taps;
  fill_tile(X, w.ax, w.tile, static_cast<const T *>(o.x) + b.image * o.xs[0] + (g * w.cin + c) * o.xs[1], o.xs, channels, b.j, b.size);
  const i64 pitch[2] = {w.tile.p[1] * w.tile.p[2], w.tile.p[2]}, dy_pitch = round_up(b.size[2], Vec<T>::lanes);
  for (i64 k = 0; k < w.cout; ++k) {
    const T *src = static_cast<const T *>(o.y) + b.image * o.ys[0] + (g * w.cout + k) * o.ys[1];
    for (i64 row = 0; row < b.size[0] * b.size[1]; ++row)
      copy_channels(dy + row * dy_pitch, 0, src + (b.j[0] + row / b.size[1]) * o.ys[2] + (b.j[1] + row % b.size[1]) * o.ys[3] + b.j[2] * o.ys[4],
                    0, 1, dy_pitch, Range{0, b.size[2]}, o.ys[4]);
    T *acc = sums + (g * w.cout + k) * all_rows + c * w.taps;
    for (i64 r = 0; r < rows; r += DOTS)
      dots_rows<T, DOTS>(imin(DOTS, rows - r), b.size, pitch, X, off + r, dy, dy_pitch, acc + r, add);
  }
}

// The dots of one block of input channels of one group.
template <class T>
static void run_dots_job(const Problem &p, const Operands &o, const WgradPlan<T> &w, i64 g, i64 c0, const int *off, T *X, T *dy, T *sums) {
  const i64 boxes = p.n * volume(w.tiles), step = w.cin * w.taps;
  for (i64 box = 0; box < boxes; ++box) dots_unit(w, o, wgrad_box(w, box), g, c0, off, X, dy, sums, box > 0);
  for (i64 c = c0; c < imin(w.cin, c0 + w.block); ++c) store_weights(p, o, w, g, 0, w.cout, c, sums + g * w.cout * step, 1, step);
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
  const i64 blocks = ceil_div(w.cin, w.block), jobs = w.groups * (w.dots ? blocks : w.csplit * w.ksplit);
  const int team = int(imin(threads, jobs));
  (void)team;
#ifdef _OPENMP
#pragma omp parallel num_threads(team) if (team > 1)
#endif
  {
#ifdef _OPENMP
    char *mine = at + omp_get_thread_num() * (w.x_bytes + w.dy_bytes);
#else
    char *mine = at;
#endif
    T *X = reinterpret_cast<T *>(mine), *dy = reinterpret_cast<T *>(mine + w.x_bytes);
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 1)
#endif
    for (i64 i = 0; i < jobs; ++i) {
      if (w.dots)
        run_dots_job(p, o, w, i / blocks, i % blocks * w.block, off, X, dy, sums);
      else
        run_wgrad_job(p, o, w, wgrad_job(w, i), off, X, dy, sums);
    }
  }
}
