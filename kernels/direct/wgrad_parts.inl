// Which plan of the weight gradient fits the workspace: all weights at once, or parts of them one after the other.

// Decided by the filter alone.
static bool halo_too_large(const Problem &p) {
  Axis a[3];
  for (int d = 0; d < 3; ++d) a[d] = forward_axis(p, d);
  double bytes = double(dtype_size(p)) * phases_of(a);
  for (int d = 0; d < 3; ++d) bytes *= 1 + a[d].ext;
  return bytes > MAX_HALO_BYTES;
}

// Wanted at most, for a thread: every part of the weights goes over all of x and dy, so large tensors repay large parts.
// Where room is dear, small tensors lose little with less.
constexpr i64 WGRAD_THREAD_BYTES = 512 << 10, MOST_WGRAD_THREAD_BYTES = 2 << 20, LEAN_WGRAD_THREAD_BYTES = 128 << 10;

static i64 wgrad_thread_bytes(const Problem &p) {
  return clamp(problem_bytes(p) / 8, WGRAD_THREAD_BYTES, MOST_WGRAD_THREAD_BYTES);
}

static i64 lean_wgrad_thread_bytes(const Problem &p) {
  return clamp(lean_share(p), LEAN_WGRAD_THREAD_BYTES, MOST_WGRAD_THREAD_BYTES);
}

constexpr i64 MAX_SHRINK = 32;  // of the buffers of the smallest parts

// The largest buffers that fit; total = 0 if none do.
template <class T>
static WgradPlan<T> fitting_plan(const Problem &p, i64 bytes, i64 most = 8) {
  for (i64 shrink = 1; shrink <= most; shrink *= 2) {
    const WgradPlan<T> w = wgrad_plan<T>(p, shrink);
    if (w.total <= bytes) return w;
  }
  return WgradPlan<T>{};
}

// Two problems with half of the weights each: groups, or the larger of input and output channels,
// while there are whole register blocks to share out. False if there is nothing to halve.
template <class T>
static bool halve(const Problem &p, const Operands &o, Problem *part, Operands *operands) {
  const i64 panel = WNV * Vec<T>::lanes, least = WMR / gcd(volume(p.f), WMR), cin = p.c / p.groups, cout = p.k / p.groups;
  i64 c = p.c, k = p.k;  // of the first part
  part[0] = part[1] = p, operands[0] = operands[1] = o;
  if (p.groups > 1) {
    part[0].groups = ceil_div(p.groups, 2), part[1].groups = p.groups - part[0].groups;
    c = part[0].groups * cin, k = part[0].groups * cout;
  } else if (cout > panel && (cout >= cin || cin <= least)) {
    k = round_up(ceil_div(cout, 2), panel);
  } else if (cin > least) {
    c = round_up(ceil_div(cin, 2), least);
  } else {
    return false;
  }
  part[0].c = c, part[0].k = k;
  Operands &second = operands[1];
  if (c < p.c) part[1].c = p.c - c, second.x = static_cast<T *>(o.x) + c * o.xs[1];
  if (k < p.k) part[1].k = p.k - k, second.y = static_cast<T *>(o.y) + k * o.ys[1];
  second.w = static_cast<T *>(o.w) + (k < p.k ? k * o.ws[0] : c * o.ws[1]);
  return true;
}

// Whether all weights, or parts of them one after the other, fit.
template <class T>
static bool some_parts_fit(const Problem &p, i64 bytes) {
  if (fitting_plan<T>(p, bytes).total) return true;
  Problem part[2];
  Operands none[2];
  return halve<T>(p, Operands{}, part, none) ? some_parts_fit<T>(part[0], bytes) : fitting_plan<T>(p, bytes, MAX_SHRINK).total > 0;
}

// Threads take the parts as they come.
struct Turn {
  i64 part, mine;  // the next part met, the one to compute
  i64 *next;       // the first that nobody has taken
  void take() { mine = take_number(next); }
};

template <class T>
static void wgrad_parts(const Problem &p, const Operands &o, Turn &turn) {
  WgradPlan<T> w = fitting_plan<T>(p, o.workspace_bytes);
  Problem part[2];
  Operands operands[2];
  if (!w.total && halve<T>(p, o, part, operands)) {
    for (int i = 0; i < 2; ++i) wgrad_parts<T>(part[i], operands[i], turn);
    return;
  }
  if (turn.part++ != turn.mine) return;
  if (!w.total) w = fitting_plan<T>(p, o.workspace_bytes, MAX_SHRINK);
  if (w.total)
    run_wgrad(p, o, w);
  else
    ordered_wgrad<T>(p, o);
  turn.take();
}

// All at once if each thread's share of the workspace would do for a thread alone, else in parts of
// a thread each: either way the tiles, and with them the bits, depend on that share alone.
template <class T>
static void conv_wgrad(const Problem &p, const Operands &o) {
  const i64 each = o.workspace_bytes / p.threads / 64 * 64;  // of the workspace, for a thread
  Problem alone = p;
  alone.threads = 1;
  if (p.n * volume(p.y) == 0 || halo_too_large(p) || is_depthwise(p) || !some_parts_fit<T>(alone, each))
    return ordered_wgrad<T>(p, o);
  for (i64 shrink = 1; shrink <= 8; shrink *= 2)
    if (wgrad_plan<T>(alone, shrink).total <= each) return run_wgrad(p, o, wgrad_plan<T>(p, shrink));
  i64 next = 0;
  const int team = team_for<T>(total_work(p), p.threads);
  share(team, team, [&](i64, int member) {
    Operands mine = o;
    mine.workspace_bytes = each;
    mine.workspace = static_cast<char *>(o.workspace) + member * each;
    Turn turn{0, 0, &next};
    turn.take();
    wgrad_parts<T>(alone, mine, turn);
  });
}
