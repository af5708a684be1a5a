// Sampling where a second tensor says, and its gradients: as ooc/ops/grid_sample.py, term by term, so that no bit depends on the
// threads or on the tiling.
//
// Tensors are (n, channels, d, h, w) with strides in elements. f64 is computed in f64, the other dtypes in f32. The results of a
// row pass in pieces: where each of them lies is computed once for all channels.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "calls.hpp"
#include "team.hpp"

namespace ooc {
namespace {

// Codes of ooc.ops.grid_sample.MODES and PADDINGS, in order; the passes.
enum class Mode : int { nearest = 0, linear = 1, cubic = 2 };
enum class Padding : int { zeros = 0, border = 1, reflection = 2 };
enum class Pass : int { forward = 0, dx = 1, dgrid = 2 };

constexpr i64 kResults = 64;  // results of a piece
constexpr int kMost = 4;      // places along an axis
constexpr int kFar = 1 << 30;

// Along an axis: the positions of x, what is held of them, where the block of results begins, from where to where each of them may
// read.
struct Line {
  i64 extent, lo, held;
  const i64 *from, *to;
};

struct Sampling {
  Pass pass;
  Mode mode;
  Padding padding;
  bool aligned;
  int rank, taps;  // taps: along each axis that there is
  const char *x, *grid, *dy;
  char *y, *acc;  // what is made, and its partial sums
  Five x_strides, grid_strides, dy_strides, y_strides, acc_strides;
  Five results;  // n, channels, d, h, w of the block of results
  std::array<Line, 3> line;
  bool more, last;
};

template <typename C>
struct Taps {
  i64 place[kMost];
  C weight[kMost], slope[kMost];
};

// Where the results of a piece are: place by place, for each the offset in x (-1: none), and what that counts for.
template <typename C>
struct Piece {
  int count, places;
  bool all;  // whether none is missing
  std::vector<i64> at;
  std::vector<C> weight, slope;  // slope: by axis
  std::array<bool, kResults> far;

  explicit Piece(const Sampling &job) : count(0), places(1), all(true), far{} {
    for (int i = 0; i < job.rank; ++i) places *= job.taps;
    at.resize(kResults * places);
    weight.resize(kResults * places);
    if (job.pass == Pass::dgrid) slope.resize(kResults * places * job.rank);
  }
};

template <typename C>
struct Brought {
  C at, turn;
};

template <typename C>
Brought<C> brought(const Sampling &job, i64 extent, C at) {
  if (job.padding == Padding::zeros) return {at, C(1)};
  C turn = 1;
  const C end = static_cast<C>(extent - 1);
  if (job.padding == Padding::reflection) {
    const C low = job.aligned ? C(0) : C(-0.5), span = static_cast<C>(job.aligned ? extent - 1 : extent);
    if (span == C(0)) return {C(0), C(0)};
    turn = at < low ? C(-1) : C(1);
    const C beyond = std::fabs(at - low), rest = std::fmod(beyond, span);
    const bool odd = std::fmod(std::floor(beyond / span), C(2)) == C(1);
    at = (odd ? span - rest : rest) + low;
    turn = odd ? -turn : turn;
  }
  at = std::min(std::max(at, C(0)), end);
  return {at, at > C(0) && at < end ? turn : C(0)};
}

template <typename C>
OOC_UNFUSED void cubic(C t, C *weight, C *slope) {
  const C a = C(-0.75), u = t + 1, v = 1 - t, w = 2 - t;
  weight[0] = ((a * u - 5 * a) * u + 8 * a) * u - 4 * a;
  weight[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
  weight[2] = ((a + 2) * v - (a + 3)) * v * v + 1;
  weight[3] = ((a * w - 5 * a) * w + 8 * a) * w - 4 * a;
  slope[0] = (3 * a * u - 10 * a) * u + 8 * a;
  slope[1] = (3 * (a + 2) * t - 2 * (a + 3)) * t;
  slope[2] = (2 * (a + 3) - 3 * (a + 2) * v) * v;
  slope[3] = (10 * a - 3 * a * w) * w - 8 * a;
}

template <typename C>
i64 place_of(C at, i64 extent) {
  return at >= C(0) && at < static_cast<C>(extent) ? static_cast<i64>(at) : -1;
}

// At nearest, PyTorch's roundings tell which that is; else positions are exact, in f64.
template <typename C>
OOC_UNFUSED void taps_of(const Sampling &job, i64 extent, C at, Taps<C> &t) {
  if (at != at) at = C(-1);
  at = std::min(std::max(at, C(-kFar)), C(kFar));
  const C size = static_cast<C>(extent), less = static_cast<C>(extent - 1);
  at = job.aligned ? (at + 1) / 2 * less : ((at + 1) * size - 1) / 2;
  const C pace = (job.aligned ? less : size) / 2;
  if (job.mode == Mode::cubic) {
    const C first = std::floor(at);
    for (int i = 0; i < 4; ++i) t.place[i] = place_of(brought(job, extent, first + static_cast<C>(i - 1)).at, extent);
    cubic(at - first, t.weight, t.slope);
    for (C &slope : t.slope) slope = slope * pace;
    return;
  }
  const Brought<C> b = brought(job, extent, at);
  if (job.mode == Mode::nearest) {
    t.place[0] = place_of(std::nearbyint(b.at), extent);
    t.weight[0] = 1, t.slope[0] = 0;
    return;
  }
  const C first = std::floor(b.at), share = b.at - first;
  t.place[0] = place_of(first, extent), t.place[1] = place_of(first + 1, extent);
  t.weight[0] = 1 - share, t.weight[1] = share;
  t.slope[0] = -(pace * b.turn), t.slope[1] = pace * b.turn;
}

template <typename C>
void narrowed(const Sampling &job, i64 extent, C at, Taps<C> &t) {
  Taps<double> exact;
  taps_of(job, extent, static_cast<double>(at), exact);
  for (int i = 0; i < job.taps; ++i) {
    t.place[i] = exact.place[i];
    t.weight[i] = static_cast<C>(exact.weight[i]);
    t.slope[i] = static_cast<C>(exact.slope[i]);
  }
}

template <typename C, typename E>
C read(const char *p, i64 at) {
  return static_cast<C>(widen(reinterpret_cast<const E *>(p)[at]));
}

template <typename E, typename C>
void write(char *p, i64 at, C value) {
  narrow(value, reinterpret_cast<E *>(p)[at]);
}

// One result's places: the taps of each axis, crossed.
template <typename C>
void cross(const Sampling &job, const std::array<Taps<C>, 3> &axes, const std::array<i64, 3> &at, int r, Piece<C> &p) {
  bool far = false;
  std::array<int, 3> taps{1, 1, 1};
  for (int s = 3 - job.rank; s < 3; ++s) {
    taps[s] = job.taps;
    for (int i = 0; i < job.taps; ++i) {
      const i64 place = axes[s].place[i];
      far |= place >= 0 && (place < job.line[s].from[at[s]] || place >= job.line[s].to[at[s]]);
    }
  }
  p.far[r] = far;
  i64 to = r;
  for (int d = 0; d < taps[0]; ++d)
    for (int h = 0; h < taps[1]; ++h)
      for (int w = 0; w < taps[2]; ++w, to += kResults) {
        const std::array<int, 3> tap{d, h, w};
        i64 offset = 0;
        C weight = 1;
        bool there = true;
        for (int s = 3 - job.rank; s < 3; ++s) {
          const i64 place = axes[s].place[tap[s]] - job.line[s].lo;
          there &= place >= 0 && place < job.line[s].held;
          offset += place * job.x_strides[2 + s];
          weight = weight * axes[s].weight[tap[s]];
        }
        p.at[to] = there ? offset : -1;
        p.all &= there;
        p.weight[to] = weight;
        if (job.pass != Pass::dgrid) continue;
        for (int along = 0; along < job.rank; ++along) {
          C slope = 1;
          for (int s = 3 - job.rank; s < 3; ++s)
            slope = slope * (s - (3 - job.rank) == along ? axes[s].slope[tap[s]] : axes[s].weight[tap[s]]);
          p.slope[along * kResults * p.places + to] = slope;
        }
      }
}

// The places of results [lo, lo + count) of a row.
template <typename C, typename E>
void locate(const Sampling &job, i64 n, i64 d, i64 h, i64 lo, i64 count, Piece<C> &p) {
  p.count = static_cast<int>(count), p.all = true;
  std::array<Taps<C>, 3> axes;
  const i64 row = n * job.grid_strides[0] + d * job.grid_strides[2] + h * job.grid_strides[3];
  for (int r = 0; r < p.count; ++r) {
    const i64 from = row + (lo + r) * job.grid_strides[4];
    for (int s = 3 - job.rank; s < 3; ++s) {
      const C at = read<C, E>(job.grid, from + (2 - s) * job.grid_strides[1]);
      if (job.mode == Mode::nearest)
        taps_of(job, job.line[s].extent, at, axes[s]);
      else
        narrowed(job, job.line[s].extent, at, axes[s]);
    }
    cross(job, axes, {d, h, lo + r}, r, p);
  }
}

// Sums over the places of each result, of one channel. Products are rounded before they are added, as NumPy has them: the same bits
// on every machine.
template <typename C, typename E>
OOC_UNFUSED void sum_places(const Piece<C> &p, const C *weight, const char *x, i64 x_at, C *total) {
  for (int r = 0; r < p.count; ++r) total[r] = 0;
  for (int place = 0; place < p.places; ++place) {
    const i64 *at = p.at.data() + place * kResults;
    const C *w = weight + place * kResults;
    for (int r = 0; r < p.count; ++r) {
      if (!p.all && at[r] < 0) continue;
      const C part = read<C, E>(x, x_at + at[r]) * w[r];
      total[r] = total[r] + part;
    }
  }
}

template <typename C, typename E>
void forward(const Sampling &job, const Piece<C> &p, i64 x_at, i64 y_at) {
  C total[kResults];
  for (i64 k = 0; k < job.results[1]; ++k, x_at += job.x_strides[1], y_at += job.y_strides[1]) {
    sum_places<C, E>(p, p.weight.data(), job.x, x_at, total);
    for (int r = 0; r < p.count; ++r) write<E>(job.y, y_at + r * job.y_strides[4], p.far[r] ? static_cast<C>(NAN) : total[r]);
  }
}

template <typename C, typename E>
OOC_UNFUSED void scatter(const Sampling &job, const Piece<C> &p, i64 dy_at, C *plane) {
  for (int r = 0; r < p.count; ++r) {
    if (p.far[r]) continue;
    const C dy = read<C, E>(job.dy, dy_at + r * job.dy_strides[4]);
    for (i64 i = r; i < kResults * p.places; i += kResults) {
      if (p.at[i] < 0) continue;
      const C part = p.weight[i] * dy;
      plane[p.at[i]] = plane[p.at[i]] + part;
    }
  }
}

template <typename C, typename E>
OOC_UNFUSED void slopes(const Sampling &job, const Piece<C> &p, i64 x_at, i64 dy_at, i64 acc_at, i64 y_at) {
  C sum[kResults], total[kResults];
  for (int along = 0; along < job.rank; ++along) {
    const i64 component = job.rank - 1 - along;
    C *acc = reinterpret_cast<C *>(job.acc) + acc_at + component * job.acc_strides[1];
    for (int r = 0; r < p.count; ++r) total[r] = job.more ? acc[r * job.acc_strides[4]] : C(0);
    for (i64 c = 0; c < job.results[1]; ++c) {
      sum_places<C, E>(p, p.slope.data() + along * kResults * p.places, job.x, x_at + c * job.x_strides[1], sum);
      for (int r = 0; r < p.count; ++r) {
        const C dy = read<C, E>(job.dy, dy_at + c * job.dy_strides[1] + r * job.dy_strides[4]);
        const C term = (p.far[r] ? static_cast<C>(NAN) : sum[r]) * dy;
        total[r] = total[r] + term;
      }
    }
    for (int r = 0; r < p.count; ++r) {
      if (job.acc) acc[r * job.acc_strides[4]] = total[r];
      if (job.last) write<E>(job.y, y_at + component * job.y_strides[1] + r * job.y_strides[4], total[r]);
    }
  }
}

i64 row_of(const Five &strides, i64 n, i64 d, i64 h, i64 w) {
  return n * strides[0] + d * strides[2] + h * strides[3] + w * strides[4];
}

// body(n, d, h, begin, count) for the pieces of a sample's results, in ascending order.
template <typename Body>
void for_pieces(const Sampling &job, const Body &body) {
  for (i64 d = 0; d < job.results[2]; ++d)
    for (i64 h = 0; h < job.results[3]; ++h)
      for (i64 w = 0; w < job.results[4]; w += kResults) body(d, h, w, std::min(kResults, job.results[4] - w));
}

// y and dgrid: the results are shared.
template <typename C, typename E>
void by_results(const Sampling &job, int threads) {
  const i64 rows = job.results[0] * job.results[2] * job.results[3];
  share_runs(rows, threads, [&](i64 lo, i64 hi, int) {
    Piece<C> piece(job);
    for (i64 u = lo; u < hi; ++u) {
      const i64 h = u % job.results[3], d = u / job.results[3] % job.results[2], n = u / job.results[3] / job.results[2];
      for (i64 w = 0; w < job.results[4]; w += kResults) {
        locate<C, E>(job, n, d, h, w, std::min(kResults, job.results[4] - w), piece);
        const i64 x = n * job.x_strides[0], y = row_of(job.y_strides, n, d, h, w);
        if (job.pass == Pass::forward)
          forward<C, E>(job, piece, x, y);
        else
          slopes<C, E>(job, piece, x, row_of(job.dy_strides, n, d, h, w), row_of(job.acc_strides, n, d, h, w), y);
      }
    }
  });
}

// A plane of dx where it is summed, with the strides of x, and back.
template <typename C>
void clear(const Sampling &job, C *plane) {
  for (i64 d = 0; d < job.line[0].held; ++d)
    for (i64 h = 0; h < job.line[1].held; ++h)
      for (i64 w = 0; w < job.line[2].held; ++w) plane[row_of(job.x_strides, 0, d, h, w)] = 0;
}

template <typename C, typename E>
void round_to(const Sampling &job, const C *plane, i64 to) {
  for (i64 d = 0; d < job.line[0].held; ++d)
    for (i64 h = 0; h < job.line[1].held; ++h)
      for (i64 w = 0; w < job.line[2].held; ++w)
        write<E>(job.y, to + row_of(job.y_strides, 0, d, h, w), plane[row_of(job.x_strides, 0, d, h, w)]);
}

// dx: channels are shared, each sums over all results. planes: room for a plane of sums for each thread, where dx is too narrow to
// sum in.
template <typename C, typename E>
void by_channels(const Sampling &job, int threads, C *planes) {
  const i64 plane = job.line[0].held * job.line[1].held * job.line[2].held, k = job.results[1];
  const i64 parts = planes ? k : std::min<i64>(k, threads);
  share(job.results[0] * parts, threads, [&](i64 u, int member) {
    const i64 n = u / parts, lo = u % parts * k / parts, hi = (u % parts + 1) * k / parts, first = n * job.y_strides[0];
    const auto target = [&](i64 c) {
      return planes ? planes + member * plane : reinterpret_cast<C *>(job.y) + first + c * job.y_strides[1];
    };
    for (i64 c = lo; c < hi; ++c) clear(job, target(c));
    Piece<C> piece(job);
    for_pieces(job, [&](i64 d, i64 h, i64 w, i64 count) {
      locate<C, E>(job, n, d, h, w, count, piece);
      for (i64 c = lo; c < hi; ++c)
        scatter<C, E>(job, piece, row_of(job.dy_strides, n, d, h, w) + c * job.dy_strides[1], target(c));
    });
    if (planes) round_to<C, E>(job, target(lo), first + lo * job.y_strides[1]);
  });
}

template <typename C, typename E>
void run(const Sampling &job, int threads, C *planes) {
  if (job.pass == Pass::dx)
    by_channels<C, E>(job, threads, planes);
  else
    by_results<C, E>(job, threads);
}

}  // namespace

void grid_sample(const Seven &codes, int dtype, const std::array<uintptr_t, 5> &data, const std::array<Five, 5> &strides,
                 const Five &results, const std::array<std::array<i64, 3>, 3> &lines,
                 const std::array<std::array<uintptr_t, 2>, 3> &limits, uintptr_t workspace, int threads) {
  const auto [pass, mode, padding, aligned, rank, more, last] = codes;
  Sampling job{static_cast<Pass>(pass), static_cast<Mode>(mode), static_cast<Padding>(padding), aligned != 0, rank,
               mode == 2 ? 4 : mode + 1, reinterpret_cast<const char *>(data[0]), reinterpret_cast<const char *>(data[1]),
               reinterpret_cast<const char *>(data[2]), reinterpret_cast<char *>(data[3]), reinterpret_cast<char *>(data[4]),
               strides[0], strides[1], strides[2], strides[3], strides[4], results, {}, more != 0, last != 0};
  for (int s = 0; s < 3; ++s)
    job.line[s] = {lines[s][0], lines[s][1], lines[s][2], reinterpret_cast<const i64 *>(limits[s][0]),
                   reinterpret_cast<const i64 *>(limits[s][1])};
  const Dtype type = dtype_of(dtype);
  const bool narrow_type = type == Dtype::f16 || type == Dtype::bf16;
  if (job.pass == Pass::dx) {
    if (narrow_type && !workspace) throw std::invalid_argument("no room for sums");
    const i64 w = job.line[2].held;
    if (narrow_type) job.x_strides = {0, 0, job.line[1].held * w, w, 1};
    else job.x_strides = job.y_strides;
  }
  i64 places = 1;
  for (int s = 0; s < rank; ++s) places *= job.taps;
  threads = team_of(static_cast<double>(volume(results)) * static_cast<double>(places) / kMicrosecond, threads);
  if (type == Dtype::f64) run<double, double>(job, threads, nullptr);
  else if (type == Dtype::f32) run<float, float>(job, threads, nullptr);
  else if (type == Dtype::f16) run<float, Half>(job, threads, reinterpret_cast<float *>(workspace));
  else run<float, Bfloat>(job, threads, reinterpret_cast<float *>(workspace));
}

}  // namespace ooc
