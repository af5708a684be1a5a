// Steps of optimizers. f64 is computed in f64, the other dtypes in f32, with multiplications and additions rounded one by one,
// so that no element depends on where it lies in a tile. Every element is read before it is written: results may lie where
// inputs were.
#include <array>
#include <cmath>

#include "calls.hpp"
#include "tiles.hpp"

namespace ooc {
namespace {

// N tensors of one shape, results first, each of its own type; 0: one that takes no part.
template <int N>
struct Step {
  std::array<char *, N> data;
  std::array<Dtype, N> types;
  Rates rates;
};

// The rows of a tile of every tensor: f(pointers in the order of the tensors, columns).
template <typename C, int kMade, int N, typename F>
OOC_INLINE void each_row(const Step<N> &job, const Tile<N> &t, const F &f) {
  alignas(64) C room[N][kTile];
  View<const C> in[N] = {};
  View<C> out[N] = {};
  for (int j = 0; j < N; ++j) {
    char *at = job.data[j] ? job.data[j] + t.at[j] * item_size(job.types[j]) : nullptr;
    if (at && j < kMade) out[j] = view_out<C>(at, job.types[j], t.grid(j), room[j]);
    if (at && j >= kMade) in[j] = view_in<C>(at, job.types[j], t.grid(j), room[j]);
  }
  for (i64 r = 0; r < t.rows; ++r) {
    C *to[N];
    const C *from[N];
    for (int j = 0; j < N; ++j) {
      to[j] = j < kMade && job.data[j] ? out[j].row(r) : nullptr;
      from[j] = j >= kMade && job.data[j] ? in[j].row(r) : nullptr;
    }
    f(to, from, t.cols);
  }
  for (int j = 0; j < kMade; ++j)
    if (job.data[j]) store_view(job.data[j] + t.at[j] * item_size(job.types[j]), job.types[j], t.grid(j), out[j]);
}

// A step: f(pointers, what the gradient is multiplied by, i) for every element, whose first result is also the one at kHalf,
// where there is that; or, where nothing moves, every result from the input that it follows.
template <typename C, int kMade, int kHalf, int N, typename F>
OOC_INLINE void step(const Step<N> &job, const Tile<N> &t, const std::array<int, kMade> &follows, const F &f) {
  const C share = job.rates[7] == 0 ? C(1) : C(job.rates[7]);
  const bool still = job.rates[7] < 0;
  each_row<C, kMade>(job, t, [&](C *const *to, const C *const *from, i64 n) OOC_LAMBDA {
    if (still) {
      for (i64 i = 0; i < n; ++i) {
        C was[kMade];
        for (int j = 0; j < kMade; ++j) was[j] = to[j] ? from[follows[j]][i] : C(0);
        for (int j = 0; j < kMade; ++j)
          if (to[j]) to[j][i] = was[j];
      }
      return;
    }
    f(to, from, share, n);
    if (to[kHalf]) std::copy(to[0], to[0] + n, to[kHalf]);
  });
}

// q u h p g v; rates = lr, momentum, weight decay, whether Nesterov's.
template <typename C>
OOC_INLINE void sgd_any(const Step<6> &job, const Tile<6> &t) {
  const C lr = C(job.rates[0]), momentum = C(job.rates[1]), decay = C(job.rates[2]);
  const bool nesterov = job.rates[3] != 0;
  step<C, 3, 2>(job, t, {3, 5, 3}, [=](C *const *to, const C *const *from, C share, i64 n) OOC_LAMBDA {
    C *q = to[0], *u = to[1];
    const C *p = from[3], *g = from[4], *v = from[5];
    if (!v) {
      OOC_IVDEP
      for (i64 i = 0; i < n; ++i) q[i] = p[i] - lr * (share * g[i] + decay * p[i]);
    } else if (!nesterov) {
      OOC_IVDEP
      for (i64 i = 0; i < n; ++i) {
        const C was = p[i], kept = momentum * v[i] + (share * g[i] + decay * was);
        u[i] = kept;
        q[i] = was - lr * kept;
      }
    } else {
      OOC_IVDEP
      for (i64 i = 0; i < n; ++i) {
        const C was = p[i], d = share * g[i] + decay * was, kept = momentum * v[i] + d;
        u[i] = kept;
        q[i] = was - lr * (d + momentum * kept);
      }
    }
  });
}

// q r s h p g m v; rates = lr, beta1, beta2, eps, weight decay, number of the step, whether the decay is apart.
template <typename C>
OOC_INLINE void adam_any(const Step<8> &job, const Tile<8> &t) {
  const Rates &x = job.rates;
  const bool apart = x[6] != 0;
  const C keep1 = C(x[1]), keep2 = C(x[2]), take1 = C(1 - x[1]), take2 = C(1 - x[2]), eps = C(x[3]);
  const C by = C(x[0] / (1 - std::pow(x[1], x[5]))), root = C(std::sqrt(1 - std::pow(x[2], x[5])));
  const C left = apart ? C(1 - x[0] * x[4]) : C(1), decay = apart ? C(0) : C(x[4]);
  step<C, 4, 3>(job, t, {4, 6, 7, 4}, [=](C *const *to, const C *const *from, C share, i64 n) OOC_LAMBDA {
    C *q = to[0], *r = to[1], *s = to[2];
    const C *p = from[4], *g = from[5], *m = from[6], *v = from[7];
    OOC_IVDEP
    for (i64 i = 0; i < n; ++i) {
      const C was = left * p[i], d = share * g[i] + decay * was;
      const C first = keep1 * m[i] + take1 * d, second = keep2 * v[i] + take2 * (d * d);
      r[i] = first;
      s[i] = second;
      q[i] = was - by * (first / (std::sqrt(second) / root + eps));
    }
  });
}

// q s u c h p g v b a; rates = lr, alpha, eps, weight decay, momentum.
template <typename C>
OOC_INLINE void rmsprop_any(const Step<10> &job, const Tile<10> &t) {
  const Rates &x = job.rates;
  const C lr = C(x[0]), keep = C(x[1]), take = C(1 - x[1]), eps = C(x[2]), decay = C(x[3]), momentum = C(x[4]);
  step<C, 5, 4>(job, t, {5, 7, 8, 9, 5}, [=](C *const *to, const C *const *from, C share, i64 n) OOC_LAMBDA {
    C *q = to[0], *s = to[1], *u = to[2], *c = to[3];
    const C *p = from[5], *g = from[6], *v = from[7], *b = from[8], *a = from[9];
    for (i64 i = 0; i < n; ++i) {
      const C was = p[i], d = share * g[i] + decay * was, square = keep * v[i] + take * (d * d);
      C under = square;
      if (a) {
        const C mean = keep * a[i] + take * d;
        c[i] = mean;
        under = square - mean * mean;
        under = under < 0 ? C(0) : under;
      }
      s[i] = square;
      C by = d / (std::sqrt(under) + eps);
      if (b) u[i] = by = momentum * b[i] + by;
      q[i] = was - lr * by;
    }
  });
}

// r x a; rates = the shares of a and of x. A share of 0 leaves its term out.
template <typename C>
OOC_INLINE void accrue_any(const Step<3> &job, const Tile<3> &t) {
  const C keep = C(job.rates[0]), take = C(job.rates[1]);
  each_row<C, 1>(job, t, [=](C *const *to, const C *const *from, i64 n) OOC_LAMBDA {
    C *r = to[0];
    const C *x = from[1], *a = from[2];
    OOC_IVDEP
    for (i64 i = 0; i < n; ++i) r[i] = (keep != 0 ? keep * a[i] : C(0)) + (take != 0 ? take * x[i] : C(0));
  });
}

OOC_UNFUSED OOC_CLONES void tile_f32(const Step<6> &job, const Tile<6> &t) { sgd_any<float>(job, t); }
OOC_UNFUSED OOC_CLONES void tile_f64(const Step<6> &job, const Tile<6> &t) { sgd_any<double>(job, t); }
OOC_UNFUSED OOC_CLONES void tile_f32(const Step<8> &job, const Tile<8> &t) { adam_any<float>(job, t); }
OOC_UNFUSED OOC_CLONES void tile_f64(const Step<8> &job, const Tile<8> &t) { adam_any<double>(job, t); }
OOC_UNFUSED OOC_CLONES void tile_f32(const Step<10> &job, const Tile<10> &t) { rmsprop_any<float>(job, t); }
OOC_UNFUSED OOC_CLONES void tile_f64(const Step<10> &job, const Tile<10> &t) { rmsprop_any<double>(job, t); }
OOC_UNFUSED OOC_CLONES void tile_f32(const Step<3> &job, const Tile<3> &t) { accrue_any<float>(job, t); }
OOC_UNFUSED OOC_CLONES void tile_f64(const Step<3> &job, const Tile<3> &t) { accrue_any<double>(job, t); }

template <int N>
void update(const std::array<int, N> &types, const std::array<uintptr_t, N> &data, const std::array<Five, N> &strides,
            const Five &shape, const Rates &rates, int threads) {
  Step<N> job{{}, {}, rates};
  for (int j = 0; j < N; ++j) {
    job.data[j] = reinterpret_cast<char *>(data[j]);
    job.types[j] = dtype_of(types[j]);
  }
  const i64 count = volume(shape);
  if (count == 0) return;
  threads = team_of(N * count / kMicrosecond, threads);
  const auto nest = make_nest<N>(shape, strides, N);
  for_tiles(nest, kTile, kTile, threads,
            [&](const Tile<N> &t) { job.types[0] == Dtype::f64 ? tile_f64(job, t) : tile_f32(job, t); });
}

}  // namespace

void sgd(const std::array<int, 6> &types, const std::array<uintptr_t, 6> &data, const std::array<Five, 6> &strides,
         const Five &shape, const Rates &rates, int threads) {
  update<6>(types, data, strides, shape, rates, threads);
}

void adam(const std::array<int, 8> &types, const std::array<uintptr_t, 8> &data, const std::array<Five, 8> &strides,
          const Five &shape, const Rates &rates, int threads) {
  update<8>(types, data, strides, shape, rates, threads);
}

void rmsprop(const std::array<int, 10> &types, const std::array<uintptr_t, 10> &data, const std::array<Five, 10> &strides,
             const Five &shape, const Rates &rates, int threads) {
  update<10>(types, data, strides, shape, rates, threads);
}

void accrue(const std::array<int, 3> &types, const std::array<uintptr_t, 3> &data, const std::array<Five, 3> &strides,
            const Five &shape, const Rates &rates, int threads) {
  update<3>(types, data, strides, shape, rates, threads);
}

}  // namespace ooc
