// Which runs of squares and how many output channels at a time Winograd's way takes: those of the least estimated cost that fit
// the memory of a thread.

constexpr int ELEMENTS = 16;        // of a turned square
constexpr i64 WINOGRAD_PAIRS = 64;  // of channel and depth tap in a block of the sum: turned, it stays in the second cache
constexpr i64 TURNED_ROWS = 32;     // output channels whose filters are turned at a time, or half of them where room is dear
constexpr i64 MOST_SQUARES = 144;   // of a run: more do not pay

struct WinogradPlan {
  i64 run, kpart;     // squares and output channels of a job, which has all runs of a weight gradient one after the other
  i64 rows;           // output channels whose filters are turned at a time
  i64 runs, kparts;   // runs of all squares, and parts of the output channels of a group
  i64 cpart, cparts;  // input channels of a job of a weight gradient
  i64 pitch;          // from a pair, or an output channel, to the next: a vector more than a run, so that rows may end beyond
  double cost;        // cycles
  bool found;
};

// Output channels rounded up to whole panels.
OOC_INLINE i64 panels(i64 rows) { return round_up(rows, MR); }

// Channels per block: as everywhere, it depends on taps alone, so that bits do not depend on plans.
OOC_INLINE i64 winograd_block(i64 cin, i64 depth_taps) { return clamp(WINOGRAD_PAIRS / imax(1, depth_taps), 1, cin); }

// Numbers from one element of a matrix to the next: never whole pages, or all 16 would meet in a few lines of the cache.
template <class T>
OOC_INLINE i64 apart_for(i64 numbers) {
  constexpr i64 LINE = 64 / i64(sizeof(T));
  return round_up(numbers, 2 * LINE) + LINE;
}

// Where a thread has turned inputs, products, turned filters, and rows of inputs, of outputs or of packed filters: elements
// from the start of its memory.
struct WinogradRoom {
  i64 products, filters, rows, end;
};

template <class T>
static WinogradRoom winograd_room(i64 pairs, const WinogradPlan &p) {
  constexpr i64 L = Vec<T>::lanes, LINE = 64 / i64(sizeof(T));
  const i64 rows = imax(L * 4 * (2 * p.pitch + 2) + 2 * L + 2, 9 * pairs * MR);
  WinogradRoom r;
  r.products = ELEMENTS * apart_for<T>(pairs * p.pitch);
  r.filters = r.products + ELEMENTS * apart_for<T>(panels(p.kpart) * p.pitch);
  r.rows = r.filters + ELEMENTS * apart_for<T>(panels(p.rows) * pairs);
  r.end = r.rows + round_up(rows, LINE);
  return r;
}

// The output squares of a gather, axis by axis.
OOC_INLINE i64 squares_of(const Axis *a) { return a[0].out * ceil_div(a[1].out, 2) * ceil_div(a[2].out, 2); }

template <class T>
static WinogradPlan winograd_plan(const Gather<T> &t, i64 bytes, int threads) {
  constexpr i64 L = Vec<T>::lanes;
  const i64 all = t.batch * squares_of(t.ax), taps = t.ax[0].taps, block = winograd_block(t.cin, taps);
  const double pairs = double(t.cin) * taps;
  WinogradPlan best{};
  for (i64 vecs = 1; vecs <= MOST_SQUARES / L; ++vecs) {
    WinogradPlan p{};
    p.runs = ceil_div(all, vecs * L);
    p.run = ceil_div(all, p.runs);  // even ones
    p.pitch = round_up(p.run, L) + L;
    const double columns = Planner<T>::columns(ceil_div(p.run, L));
    for (i64 parts = 1; parts <= ceil_div(t.cout, MR); parts += imax(1, parts / 2)) {
      p.kpart = imin(t.cout, panels(ceil_div(t.cout, parts))), p.kparts = ceil_div(t.cout, p.kpart);
      const auto fits = [&] { return winograd_room<T>(block * taps, p).end * i64(sizeof(T)) <= bytes; };
      p.rows = imin(TURNED_ROWS, p.kpart);
      if (!fits()) p.rows = imin(TURNED_ROWS / 2, p.kpart);
      if (!fits()) continue;
      // Measured roughly, cycles: a square of an input 17, a row of them 130 more, a filter 15, an output square 12.
      const double products = FMA_CYCLES * ELEMENTS * panels(p.kpart) * columns * (pairs + 6 * ceil_div(t.cin, block));
      const double inputs = p.run * (17.0 + 130.0 / ceil_div(t.ax[2].out, 2));
      const double turns = (pairs * (inputs + 15.0 * p.kpart) + 12.0 * p.kpart * p.run) * 8 / L;
      p.cost = double(ceil_div(p.runs * p.kparts * t.groups, threads)) * (products + turns);
      p.found = true;
      if (!best.found || p.cost < best.cost) best = p;
    }
    if (vecs * L >= all) break;
  }
  return best;
}
