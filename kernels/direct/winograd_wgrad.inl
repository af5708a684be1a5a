// Winograd's way to the weight gradient of 3 x 3 taps at stride 1, F(3 x 3, 2 x 2): 16 multiplications for a square of four
// outputs where the sum has 36.
//
// Inputs d of a square are turned into V = B' d B as in the forward pass, its gradients e into U = G e G'. For each of the 16
// elements a matrix product sums over squares: M[pair][k] = sum of V[pair][square] * U[square][k]; weights are A' M A. A job has
// some input channels and some output channels, and goes through all squares, run by run; runs depend on shapes alone, and with
// them every bit. The halves of G are left to A'.
//
// What is not finite spoils nine weights at once: then all of a channel and a vector of others come from the ordered loops.

constexpr i64 WGRAD_RUN = 64;    // squares of a run at most
constexpr i64 MOST_PAIRS = 128;  // of channel and depth tap in a job

// Elements from the start of a thread's memory: after the turned inputs a panel of turned gradients, sums, and rows of either.
template <class T>
static WinogradRoom wgrad_room(i64 taps, const WinogradPlan &p) {
  constexpr i64 L = Vec<T>::lanes, LINE = 64 / i64(sizeof(T));
  const i64 pairs = p.cpart * taps;
  const i64 rows = imax(imax(L * 4 * (2 * p.pitch + 2) + 2 * L + 2, 4 * p.run * L), 9 * taps * L);
  WinogradRoom r;
  r.filters = ELEMENTS * apart_for<T>(pairs * p.pitch);
  r.products = r.filters + ELEMENTS * apart_for<T>(p.run * WNV * L);
  r.rows = r.products + ELEMENTS * apart_for<T>(pairs * p.kpart);
  r.end = r.rows + round_up(rows, LINE);
  return r;
}

template <class T>
static WinogradPlan winograd_wgrad_plan(const Gather<T> &t, i64 bytes, int threads) {
  constexpr i64 L = Vec<T>::lanes, PANEL = WNV * L;
  const i64 all = t.batch * squares_of(t.ax), taps = t.ax[0].taps;
  WinogradPlan best{};
  WinogradPlan p{};
  p.runs = ceil_div(all, WGRAD_RUN);
  p.run = ceil_div(all, p.runs);
  p.pitch = round_up(p.run, L) + L;
  for (p.cparts = 1; p.cparts <= t.cin; ++p.cparts) {
    p.cpart = ceil_div(t.cin, p.cparts);
    if (p.cpart * taps > MOST_PAIRS && p.cpart > 1) continue;
    for (p.kparts = 1; p.kparts <= ceil_div(t.cout, PANEL); ++p.kparts) {
      p.kpart = round_up(ceil_div(t.cout, p.kparts), p.kparts > 1 ? PANEL : L);
      if (wgrad_room<T>(taps, p).end * i64(sizeof(T)) > bytes) continue;
      // Cycles: of products, and of turning a square of inputs, a row of them, and one of gradients in a vector of channels.
      const double pairs = double(p.cpart) * taps, vecs = double(p.kpart) / L;
      const double turns = pairs * (17.0 + 130.0 / ceil_div(t.ax[2].out, 2)) * 8 / L + 40 * vecs;
      const double work = double(all) * (FMA_CYCLES * ELEMENTS * pairs * vecs * 1.1 + turns);
      p.cost = double(ceil_div(p.cparts * ceil_div(t.cout, p.kpart) * t.groups, threads)) * work;
      p.found = true;
      if (!best.found || p.cost < best.cost) best = p;
      break;  // smaller parts turn more
    }
    if (p.cpart * taps < 2 * WMR) break;
  }
  if (best.found) best.kparts = ceil_div(t.cout, best.kpart), best.cparts = ceil_div(t.cin, best.cpart);
  return best;
}

// G e G' without its halves, of a row of squares and a vector of output channels: e[row][column][channel] to elements `apart`
// apart, `width` from a square to the next.
template <class T>
static void turn_gradients(const T *e, i64 row, i64 squares, T *u, i64 apart, i64 width) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  for (i64 j = 0; j < squares; ++j, e += 2 * L, u += width) {
    V h[4][2];
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const V a = *(const V *)(e + s * L), b = *(const V *)(e + row + s * L);
      h[0][s] = a, h[1][s] = a + b, h[2][s] = a - b, h[3][s] = b;
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      T *to = u + 4 * i * apart;
      *(V *)to = h[i][0];
      *(V *)(to + apart) = h[i][0] + h[i][1];
      *(V *)(to + 2 * apart) = h[i][0] - h[i][1];
      *(V *)(to + 3 * apart) = h[i][1];
    }
  }
}

// The gradients of `width` output channels from k on, zeros beyond the last one and beyond the planes, turned.
template <class T>
static void turn_panel(const WinogradJob<T> &job, i64 k, i64 width, i64 apart) {
  constexpr int L = Vec<T>::lanes;
  const Gather<T> &t = job.t;
  for (i64 v = 0; v < width; v += L) {
    const i64 first = job.of.group * t.cout + k + v, channels = clamp(t.cout - k - v, 0, L);
    for_squares(t.ax, job.run, [&](i64 n, i64 o, i64 p, i64 q, i64 len, i64 done) {
      const Box box = box_of(t.ax, n, o, p, q, len);
      const i64 row = INSIDE * len * L;
      for (i64 i = 0; i < INSIDE; ++i) {
        const i64 columns = i < box.size[1] ? box.size[2] : 0;
        const T *src = t.out + n * t.os[0] + first * t.os[1] + o * t.os[2] + (p + i) * t.os[3] + q * t.os[4];
        transpose_row(job.rows + i * row, L, src, t.os[1], t.os[4], channels, columns);
        zero_row(job.rows + i * row + columns * L, row - columns * L);
      }
      turn_gradients(job.rows, row, len, job.filters + done * width + v, apart, width);
    });
  }
}

// A' M A of a pair and a vector of output channels: elements `apart` apart to nine vectors. Not zero where one is not finite.
template <class T>
static typename Vec<T>::type turn_sums(const T *m, i64 apart, T *w) {
  typedef typename Vec<T>::type V;
  constexpr int L = Vec<T>::lanes;
  const T half = T(0.5);
  V h[3][4], spoilt{};
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const T *s = m + i * apart;
    const V m1 = *(const V *)(s + 4 * apart) * half, m2 = *(const V *)(s + 8 * apart) * half;
    h[0][i] = *(const V *)s + (m1 + m2), h[1][i] = m1 - m2, h[2][i] = (m1 + m2) - *(const V *)(s + 12 * apart);
  }
#pragma GCC unroll 3
  for (int i = 0; i < 3; ++i) {
    const V m1 = h[i][1] * half, m2 = h[i][2] * half;
    const V a = h[i][0] + (m1 + m2), b = m1 - m2, c = (m1 + m2) - h[i][3];
    *(V *)(w + 3 * i * L) = a, *(V *)(w + (3 * i + 1) * L) = b, *(V *)(w + (3 * i + 2) * L) = c;
    spoilt += a * T(0) + b * T(0) + c * T(0);
  }
  return spoilt;
}

// What a weight gradient is about: inputs and outputs as a gather has them, and where weights go.
template <class T>
struct WinogradWeights {
  const Problem &p;
  const Operands &o;
  const Gather<T> &t;

  T *at(i64 k, i64 c) const { return static_cast<T *>(o.w) + k * o.ws[0] + c * o.ws[1]; }

  // Input channel c of the group against some output channels: [tap][3][3][channel] at `w`.
  void store(const Channels &of, i64 c, const T *w) const {
    for (i64 i = 0; i < of.rows; ++i) {
      T *to = at(of.group * t.cout + of.k + i, c);
      const T *from = w + i;
      for (i64 tap = 0; tap < p.f[0]; ++tap)
        for (i64 r = 0; r < 3; ++r)
          for (i64 s = 0; s < 3; ++s, from += Vec<T>::lanes) {
            T &weight = to[tap * o.ws[2] + r * o.ws[3] + s * o.ws[4]];
            weight = o.accumulate ? weight + *from : *from;
          }
    }
  }

  // The same by the ordered loops.
  void ordered(const Channels &of, i64 c) const {
    const i64 k = of.group * t.cout + of.k;
    Problem part = p;
    part.groups = part.c = 1, part.k = of.rows, part.threads = 1;
    Operands operands = o;
    operands.x = static_cast<T *>(o.x) + (of.group * t.cin + c) * o.xs[1];
    operands.y = static_cast<T *>(o.y) + k * o.ys[1];
    operands.w = at(k, c);
    ordered_wgrad<T>(part, operands);
  }
};

template <class T>
static void finish_weights(const WinogradWeights<T> &weights, const WinogradJob<T> &job, i64 c0, i64 channels, i64 apart) {
  typedef typename Vec<T>::type V;
  constexpr i64 L = Vec<T>::lanes, PANEL = WNV * L;
  const i64 taps = job.t.ax[0].taps, lanes = round_up(job.of.rows, L);
  for (i64 k = 0; k < job.of.rows; k += L) {
    const i64 panel = k / PANEL * PANEL, width = imin(PANEL, lanes - panel);
    const Channels of{job.of.group, job.of.k + k, imin(L, job.of.rows - k)};
    for (i64 c = 0; c < channels; ++c) {
      V spoilt{};
      for (i64 tap = 0; tap < taps; ++tap) {
        const T *m = job.products + panel * channels * taps + (c * taps + tap) * width + (k - panel);
        spoilt += turn_sums(m, apart, job.rows + 9 * tap * L);
      }
      bool finite = true;
      for (i64 i = 0; i < of.rows; ++i) finite = finite && spoilt[i] == 0;
      if (finite)
        weights.store(of, c0 + c, job.rows);
      else
        weights.ordered(of, c0 + c);
    }
  }
}

// All squares of some channels.
template <class T>
static void winograd_wgrad_job(const WinogradWeights<T> &weights, WinogradJob<T> job, i64 c, i64 channels) {
  constexpr i64 L = Vec<T>::lanes, PANEL = WNV * L;
  const Gather<T> &t = job.t;
  const i64 all = t.batch * squares_of(t.ax), pairs = channels * t.ax[0].taps, lanes = round_up(job.of.rows, L);
  const i64 inputs = apart_for<T>(pairs * job.p.pitch), sums = apart_for<T>(pairs * lanes);
  for (i64 begin = 0; begin < all; begin += job.p.run) {
    job.run = Run{begin, imin(job.p.run, all - begin)}, job.vecs = ceil_div(job.run.count, L);
    turn_block(job, c, channels, inputs);
    const i64 size[3] = {1, 1, job.run.count};
    for (i64 k = 0; k < lanes; k += PANEL) {
      const i64 width = imin(PANEL, lanes - k), gradients = apart_for<T>(job.p.run * width);
      turn_panel(job, job.of.k + k, width, gradients);
      for (i64 e = 0; e < ELEMENTS; ++e) {
        const Patch<T> patch{job.inputs + e * inputs, size, 0, 0};
        T *acc = job.products + e * sums + k * pairs;
        for (i64 r = 0; r < pairs; r += WMR)
          wgrad_micro_of<T, WMR>(imin(WMR, pairs - r), width / L)(patch, job.off + r, job.filters + e * gradients, acc + r * width,
                                                                  begin > 0);
      }
    }
  }
  finish_weights(weights, job, c, channels, sums);
}

template <class T>
static void run_winograd_wgrad(const WinogradWeights<T> &weights, const WinogradPlan &p, T *memory, int threads) {
  const Gather<T> &t = weights.t;
  const i64 taps = t.ax[0].taps, jobs = p.cparts * p.kparts * t.groups;
  const WinogradRoom room = wgrad_room<T>(taps, p);
  share(jobs, int(imin(threads, jobs)), [&](i64 i, int member) {
    int off[MOST_PAIRS];
    for (i64 j = 0; j < p.cpart * taps; ++j) off[j] = int(j * p.pitch);
    T *mine = memory + member * room.end;
    const i64 k = i % p.kparts * p.kpart, c = i / p.kparts % p.cparts * p.cpart, g = i / (p.kparts * p.cparts);
    const Channels of{g, k, imin(p.kpart, t.cout - k)};
    const WinogradJob<T> job{t, p, of, Run{}, 0, mine, mine + room.products, mine + room.filters, mine + room.rows, off};
    winograd_wgrad_job(weights, job, c, imin(p.cpart, t.cin - c));
  });
}
