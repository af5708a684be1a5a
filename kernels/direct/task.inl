// One gather: which channels, axes, operands and epilogue; how much work repays tiles, packing and threads.

template <class T>
struct Gather {
  i64 batch, groups, cin, cout;  // channels per group
  Axis ax[3];
  const T *in;
  T *out;           // position (0, 0, 0) of this residue class
  i64 is[5], os[5];  // os: strides between outputs of this class
  const T *w;
  i64 wgroup, wk, wc, wtap[3];  // strides: group, output channel, input channel, taps
  Epilogue<T> e;
  bool chained;
  uint16_t *rounded;  // where results go instead, rounded to bf16
};

template <class T>
static Gather<T> forward_task(const Problem &p, const Operands &o) {
  Gather<T> t{};
  t.batch = p.n, t.groups = p.groups, t.cin = p.c / p.groups, t.cout = p.k / p.groups;
  t.in = static_cast<const T *>(o.x), t.out = static_cast<T *>(o.y), t.w = static_cast<const T *>(o.w);
  t.wgroup = t.cout * o.ws[0], t.wk = o.ws[0], t.wc = o.ws[1];
  for (int i = 0; i < 5; ++i) t.is[i] = o.xs[i], t.os[i] = o.ys[i];
  for (int d = 0; d < 3; ++d) t.ax[d] = forward_axis(p, d), t.wtap[d] = o.ws[d + 2];
  t.e = {static_cast<const T *>(o.bias), o.act, T(o.coef), o.accumulate}, t.chained = o.chained;
  return t;
}

template <class T>
static Gather<T> backward_task(const Problem &p, const Operands &o, const Index3 &residue) {
  Gather<T> t{};
  t.batch = p.n, t.groups = p.groups, t.cin = p.k / p.groups, t.cout = p.c / p.groups;
  t.in = static_cast<const T *>(o.y), t.out = static_cast<T *>(o.x), t.w = static_cast<const T *>(o.w);
  t.wgroup = t.cin * o.ws[0], t.wk = o.ws[1], t.wc = o.ws[0];
  for (int i = 0; i < 5; ++i) t.is[i] = o.ys[i], t.os[i] = o.xs[i];
  for (int d = 0; d < 3; ++d) {
    t.ax[d] = backward_axis(p, d, residue.v[d]);
    t.wtap[d] = o.ws[d + 2];
    t.out += t.ax[d].first * o.xs[d + 2];
    t.os[d + 2] = o.xs[d + 2] * t.ax[d].every;
  }
  t.e = {static_cast<const T *>(o.bias), o.act, T(o.coef), o.accumulate}, t.chained = o.chained;
  return t;
}

// The residues of x positions of a data gradient, as taps have them: never more than there are positions.
template <class F>
OOC_INLINE void for_residues(const Problem &p, F visit) {
  for (i64 r0 = 0; r0 < imin(p.stride[0], p.x[0]); ++r0)
    for (i64 r1 = 0; r1 < imin(p.stride[1], p.x[1]); ++r1)
      for (i64 r2 = 0; r2 < imin(p.stride[2], p.x[2]); ++r2) {
        const i64 r[3] = {r0, r1, r2};
        Index3 m;
        for (int d = 0; d < 3; ++d) m.v[d] = mod(r[d] + p.pad[d], p.stride[d]);
        visit(m);
      }
}

// Where positions meet positions one by one, rows that follow one another are one: p and o become those of fewer axes. Not
// without a workspace, as the order of a weight gradient is by rows.
static void join_rows(Problem &p, Operands &o) {
  if (!o.workspace_bytes || volume(p.f) > 1) return;
  for (int d = 0; d < 3; ++d)
    if (p.stride[d] > 1 || p.pad[d] || p.x[d] != p.y[d]) return;
  for (int d = 1; d >= 0; --d) {
    const bool follow = o.xs[d + 2] == p.x[2] * o.xs[4] && o.ys[d + 2] == p.y[2] * o.ys[4];
    if (p.x[d] > 1 && !follow) return;
    p.x[2] = p.y[2] = p.x[2] * p.x[d], p.x[d] = p.y[d] = 1;
  }
}

constexpr i64 TINY_WORK = 32768;       // multiply-adds below which tiles and packing do not pay
constexpr i64 PACK_WORK = 400000;      // weights from which threads share the packing

constexpr double PLAIN = 2, LANEWISE = 4;  // slowness of the plain loops, and of loops over channels of their own

// How many threads share some multiply-adds. slowness: times what one takes in register blocks.
template <class T>
OOC_INLINE int team_for(double work, int threads, double slowness = 1) {
  return team_of(work * slowness / (2200 * Vec<T>::lanes), threads);
}

static i64 dtype_size(const Problem &p) { return p.dtype == Dtype::f32 ? 4 : 8; }

OOC_INLINE bool is_depthwise(const Problem &p) { return p.groups > 1 && p.c == p.groups && p.k == p.groups; }

OOC_INLINE double total_work(const Problem &p) {
  return double(p.n) * volume(p.y) * p.k * double(p.c / p.groups) * volume(p.f);
}

static i64 tensor_bytes(const Problem &p) { return dtype_size(p) * p.n * (p.c * volume(p.x) + p.k * volume(p.y)); }

static i64 problem_bytes(const Problem &p) { return tensor_bytes(p) + dtype_size(p) * p.k * (p.c / p.groups) * volume(p.f); }

// Where room is dear: what a thread asks for beside x and y of a block, an eighth of which the threads share.
static i64 lean_share(const Problem &p) { return tensor_bytes(p) / (8 * p.threads); }
