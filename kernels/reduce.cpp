// Sums over tensors, and the sums that batch normalisation needs.
//
// Tensors are (n, k, d, h, w) with strides in elements, of any sign, and element-aligned. Results of
// reductions are f64 and have strides of 0 on the axes that are summed.
//
// The order of all additions is fixed by the shape alone. A row, along w, is added up in kLanes
// interleaved partial sums, in f64, and rows are added to the result one after the other, in order of
// (n, d, h) and then k: consecutive calls for the parts of a tensor cut along n, d or h (in that
// order) give the bits of one call for the whole, for any strides and any number of threads.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <stdexcept>

#include "calls.hpp"
#include "numbers.hpp"
#include "row_sums.hpp"
#include "team.hpp"

namespace ooc {
namespace {

constexpr i64 kBatch = 1024;    // sums of rows that wait in the first cache to be added to results
constexpr i64 kShared = 16384;  // the same where threads share the rows of one result
constexpr i64 kNear = 16384;    // bytes between neighbouring results of which some rows are added up, one result after the other

// Neighbouring results while rows are added to them.
struct Result {
  alignas(64) double a[3][kChunk];
};

// Adds rows of n elements; for moments by the formulas of Chan, Golub and LeVeque.
OOC_UNFUSED OOC_CLONES void absorb(Sum what, Result &s, const double *out, const double *more, i64 rows, i64 count,
                                   double n, double alpha) {
  for (i64 r = 0; r < rows; ++r, out += count, more += count) {
    switch (what) {
      case Sum::x:
      case Sum::product:
        for (i64 v = 0; v < count; ++v) s.a[0][v] += alpha * out[v];
        break;
      case Sum::moments:
        for (i64 v = 0; v < count; ++v) {
          const double before = s.a[0][v], after = before + n, far = out[v] - s.a[1][v], share = n / after;
          const double move = far * share, spread = (far * far) * (before * share);
          s.a[0][v] = after;
          s.a[1][v] += move;
          s.a[2][v] += more[v] + spread;
        }
        break;
      case Sum::backward:
        for (i64 v = 0; v < count; ++v) {
          s.a[0][v] += out[v];
          s.a[1][v] += more[v];
        }
        break;
    }
  }
}

struct ReduceAxis {
  i64 n = 1, x = 0, y = 0, acc = 0, stat = 0;  // extent and strides
};

struct Offsets {
  i64 x = 0, y = 0, acc = 0, stat = 0;

  void move(const ReduceAxis &a, i64 by) {
    x += by * a.x;
    y += by * a.y;
    acc += by * a.acc;
    stat += by * a.stat;
  }
};

struct Axes {
  int rank = 0;
  ReduceAxis ax[5];

  void push(const ReduceAxis &a) { ax[rank++] = a; }
  i64 volume() const {
    i64 v = 1;
    for (int i = 0; i < rank; ++i) v *= ax[i].n;
    return v;
  }
  Offsets at(i64 u) const {  // u: row-major
    Offsets o;
    for (int i = rank - 1; i >= 0; --i) {
      o.move(ax[i], u % ax[i].n);
      u /= ax[i].n;
    }
    return o;
  }
};

// Neighbouring results, and the statistics that are theirs.
struct Chunk {
  Offsets from;
  i64 count;
  const double *mean, *rstd;
};

struct Reduce {
  Sum what;
  Dtype type;
  const char *x, *y;
  double *acc;
  i64 acc_row;  // between the values of one result
  const double *mean, *rstd;
  double alpha;
  bool accumulate;

  Axes kept, summed;  // but for the two below
  ReduceAxis row;     // what is summed first: w, or nothing
  ReduceAxis side;    // neighbouring results, or nothing
  i64 most = kChunk;  // of these at a time: where the row is nearer, so many that a batch has their neighbouring rows
  bool along = true;  // the row is nearer than the side: one result after the other

  ReduceAxis inner() const { return summed.rank ? summed.ax[summed.rank - 1] : ReduceAxis{}; }

  // At most so many rows: all neighbouring ones together, where they are so few.
  i64 together(i64 rows) const {
    const i64 some = std::max<i64>(1, inner().n);
    return rows > some ? rows / some * some : rows;
  }

  int values() const {  // of one result
    switch (what) {
      case Sum::moments: return 3;
      case Sum::backward: return 2;
      default: return 1;
    }
  }

  void plan(const Five &shape, const Five &xs, const Five &ys, const Five &as, const Five &ss) {
    const auto axis = [&](int i) { return ReduceAxis{shape[i], xs[i], ys[i], as[i], ss[i]}; };
    if (shape[4] != 1 && as[4] == 0) row = axis(4);
    int near = -1;
    for (int i = 0; i < 5; ++i)
      if (shape[i] != 1 && as[i] != 0 && xs[i] != 0 && (near < 0 || std::abs(xs[i]) < std::abs(xs[near]))) near = i;
    if (near >= 0 && (row.n == 1 || std::abs(xs[near]) < std::abs(row.x))) {
      along = false;
      side = axis(near);
    } else if (near >= 0 && row.n <= kFew && std::abs(xs[near]) * item_size(type) <= kNear) {
      side = axis(near);
    }
    for (int i = 0; i < 5; ++i)
      if (shape[i] != 1 && as[i] != 0 && (side.n == 1 || i != near)) kept.push(axis(i));
    for (int i : {0, 2, 3, 1})
      if (shape[i] != 1 && as[i] == 0) summed.push(axis(i));
    if (along && side.n > 1) most = std::clamp<i64>(kBatch / std::max<i64>(1, inner().n), 1, kChunk);
  }

  // The sums of rows [begin, end) for a chunk of results.
  void rows(double *out, double *more, const Chunk &of, i64 begin, i64 end) const {
    const ReduceAxis next = inner();
    const i64 item = item_size(type);
    for (i64 r = begin; r < end;) {
      const i64 n = std::min(end - r, next.n - r % next.n);
      const Offsets o = summed.at(r);
      Rows t{};
      t.what = what, t.type = type;
      t.x = x + (of.from.x + o.x) * item;
      t.y = y ? y + (of.from.y + o.y) * item : nullptr;
      t.n = row.n, t.x_step = row.x, t.y_step = row.y;
      t.rows = n, t.x_next = next.x, t.y_next = next.y;
      t.count = of.count, t.x_side = side.x, t.y_side = side.y;
      t.mean = of.mean, t.rstd = of.rstd;
      sum_rows(out, more, t, along);
      out += n * of.count;
      more += n * of.count;
      r += n;
    }
  }

  void start(Result &s, const Offsets &from, i64 count) const {
    for (int i = 0; i < values(); ++i)
      for (i64 v = 0; v < count; ++v) s.a[i][v] = accumulate ? acc[from.acc + i * acc_row + v * side.acc] : 0.0;
  }

  void finish(const Result &s, const Offsets &from, i64 count) const {
    for (int i = 0; i < values(); ++i)
      for (i64 v = 0; v < count; ++v) acc[from.acc + i * acc_row + v * side.acc] = s.a[i][v];
  }

  // All rows of one chunk of results, in batches of at most `batch` sums; `team` threads share a batch.
  void chunk(i64 unit, i64 chunks, double *out, double *more, i64 batch, int team) const {
    const i64 first = unit % chunks * most, count = std::min(most, side.n - first);
    const i64 total = row.n ? summed.volume() : 0;
    Offsets from = kept.at(unit / chunks);
    from.move(side, first);
    alignas(64) double m[kChunk], s[kChunk];
    if (mean)
      for (i64 v = 0; v < count; ++v) {
        m[v] = mean[from.stat + v * side.stat];
        s[v] = rstd[from.stat + v * side.stat];
      }
    const Chunk of{from, count, mean ? m : nullptr, mean ? s : nullptr};
    Result result;
    start(result, from, count);
    const i64 step = together(batch / count), some = together((std::min(step, total) + 4 * team - 1) / (4 * team));
    for (i64 r = 0; r < total; r += step) {
      const i64 n = std::min(step, total - r);
      if (team == 1) {
        rows(out, more, of, r, r + n);
      } else {
        share((n + some - 1) / some, team, [&](i64 j, int) {
          const i64 i = j * some;
          rows(out + i * count, more + i * count, of, r + i, r + std::min(n, i + some));
        });
      }
      absorb(what, result, out, more, n, count, static_cast<double>(row.n), alpha);
    }
    finish(result, from, count);
  }

  void run(int threads) const {
    const i64 chunks = (side.n + most - 1) / most, units = kept.volume() * chunks;
    if (threads > 1 && units < 4 * threads) {  // too few to share evenly
      alignas(64) double out[kShared], more[kShared];
      for (i64 u = 0; u < units; ++u) chunk(u, chunks, out, more, kShared, threads);
      return;
    }
    share_runs(units, threads, [&](i64 lo, i64 hi, int) {
      alignas(64) double out[kBatch], more[kBatch];
      for (i64 u = lo; u < hi; ++u) chunk(u, chunks, out, more, kBatch, 1);
    });
  }
};

// A tensor as Python hands it over.
struct Strided {
  uintptr_t at = 0;
  Five strides{};
};

struct Call {
  Sum what;
  int dtype;
  const Five &shape;
  Strided acc, x;
  bool accumulate;
  int threads;
  i64 acc_row = 0;  // between the values of one result
  Strided y{}, mean{};
  uintptr_t rstd = 0;  // strides as those of mean
  double alpha = 1;
};

void reduce(const Call &call) {
  Reduce job{call.what,
             dtype_of(call.dtype),
             reinterpret_cast<const char *>(call.x.at),
             reinterpret_cast<const char *>(call.y.at),
             reinterpret_cast<double *>(call.acc.at),
             call.acc_row,
             reinterpret_cast<const double *>(call.mean.at),
             reinterpret_cast<const double *>(call.rstd),
             call.alpha,
             call.accumulate,
             {}, {}, {}, {}};
  const int threads = team_of(volume(call.shape) / kMicrosecond, call.threads);
  job.plan(call.shape, call.x.strides, call.y.strides, call.acc.strides, call.mean.strides);
  job.run(threads);
}

}  // namespace

void reduce_sum(int dtype, uintptr_t acc, const Five &acc_strides, uintptr_t x, const Five &x_strides,
                const Five &shape, double alpha, bool accumulate, int threads) {
  Call call{Sum::x, dtype, shape, {acc, acc_strides}, {x, x_strides}, accumulate, threads};
  call.alpha = alpha;
  reduce(call);
}

void reduce_product(int dtype, uintptr_t acc, const Five &acc_strides, uintptr_t x, const Five &x_strides, uintptr_t y,
                    const Five &y_strides, const Five &shape, double alpha, bool accumulate, int threads) {
  Call call{Sum::product, dtype, shape, {acc, acc_strides}, {x, x_strides}, accumulate, threads};
  call.y = {y, y_strides};
  call.alpha = alpha;
  reduce(call);
}

void bn_moments(int dtype, uintptr_t acc, i64 row_stride, const Five &acc_strides, uintptr_t x, const Five &x_strides,
                const Five &shape, bool accumulate, int threads) {
  reduce(Call{Sum::moments, dtype, shape, {acc, acc_strides}, {x, x_strides}, accumulate, threads, row_stride});
}

void bn_backward_sums(int dtype, uintptr_t acc, i64 row_stride, const Five &acc_strides, uintptr_t x,
                      const Five &x_strides, uintptr_t dy, const Five &dy_strides, const Five &shape, uintptr_t mean,
                      uintptr_t rstd, const Five &stat_strides, bool accumulate, int threads) {
  Call call{Sum::backward, dtype, shape, {acc, acc_strides}, {x, x_strides}, accumulate, threads, row_stride};
  call.y = {dy, dy_strides};
  call.mean = {mean, stat_strides};
  call.rstd = rstd;
  reduce(call);
}

}  // namespace ooc
