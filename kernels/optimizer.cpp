// Steps of optimizers. f64 is computed in f64, the other dtypes in f32, with multiplications and additions rounded one by one,
// so that no element depends on where it lies in a tile. Every element is read before it is written: results may lie where
// inputs were.
#include <array>
#include <cmath>

#include "calls.hpp"
#include "tiles.hpp"

namespace ooc {
namespace {

// N tensors of one shape, results first; 0: one that takes no part.
template <int N>
struct Step {
  std::array<char *, N> data;
  Dtype type;
  Rates rates;
};

// The rows of a tile of every tensor: f(pointers in the order of the tensors, columns).
template <typename C, int kMade, int N, typename F>
OOC_INLINE void each_row(const Step<N> &job, const Tile<N> &t, const F &f) {
  alignas(64) C room[N][kTile];
  View<const C> in[N];
  View<C> out[N];
  for (int j = 0; j < N; ++j) {
    char *at = job.data[j] ? job.data[j] + t.at[j] * item_size(job.type) : nullptr;
    if (at && j < kMade) out[j] = view_out<C>(at, job.type, t.grid(j), room[j]);
    if (at && j >= kMade) in[j] = view_in<C>(at, job.type, t.grid(j), room[j]);
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
    if (job.data[j]) store_view(job.data[j] + t.at[j] * item_size(job.type), job.type, t.grid(j), out[j]);
}

// q u p g v; rates = lr, momentum, weight decay, whether Nesterov's.
template <typename C>
OOC_INLINE void sgd_any(const Step<5> &job, const Tile<5> &t) {
  const C lr = C(job.rates[0]), momentum = C(job.rates[1]), decay = C(job.rates[2]);
  const bool nesterov = job.rates[3] != 0;
  each_row<C, 2>(job, t, [=](C *const *to, const C *const *from, i64 n) OOC_LAMBDA {
    C *q = to[0], *u = to[1];
    const C *p = from[2], *g = from[3], *v = from[4];
    if (!v) {
      OOC_IVDEP
      for (i64 i = 0; i < n; ++i) q[i] = p[i] - lr * (g[i] + decay * p[i]);
    } else if (!nesterov) {
      OOC_IVDEP
      for (i64 i = 0; i < n; ++i) {
        const C was = p[i], kept = momentum * v[i] + (g[i] + decay * was);
        u[i] = kept;
        q[i] = was - lr * kept;
      }
    } else {
      OOC_IVDEP
      for (i64 i = 0; i < n; ++i) {
        const C was = p[i], d = g[i] + decay * was, kept = momentum * v[i] + d;
        u[i] = kept;
        q[i] = was - lr * (d + momentum * kept);
      }
    }
  });
}

// q r s p g m v; rates = lr, beta1, beta2, eps, weight decay, number of the step.
template <typename C>
OOC_INLINE void adam_any(const Step<7> &job, const Tile<7> &t) {
  const Rates &x = job.rates;
  const C keep1 = C(x[1]), keep2 = C(x[2]), take1 = C(1 - x[1]), take2 = C(1 - x[2]), eps = C(x[3]), decay = C(x[4]);
  const C step = C(x[0] / (1 - std::pow(x[1], x[5]))), share = C(std::sqrt(1 - std::pow(x[2], x[5])));
  each_row<C, 3>(job, t, [=](C *const *to, const C *const *from, i64 n) OOC_LAMBDA {
    C *q = to[0], *r = to[1], *s = to[2];
    const C *p = from[3], *g = from[4], *m = from[5], *v = from[6];
    OOC_IVDEP
    for (i64 i = 0; i < n; ++i) {
      const C was = p[i], d = g[i] + decay * was;
      const C first = keep1 * m[i] + take1 * d, second = keep2 * v[i] + take2 * (d * d);
      r[i] = first;
      s[i] = second;
      q[i] = was - step * (first / (std::sqrt(second) / share + eps));
    }
  });
}

OOC_UNFUSED OOC_CLONES void tile_f32(const Step<5> &job, const Tile<5> &t) { sgd_any<float>(job, t); }
OOC_UNFUSED OOC_CLONES void tile_f64(const Step<5> &job, const Tile<5> &t) { sgd_any<double>(job, t); }
OOC_UNFUSED OOC_CLONES void tile_f32(const Step<7> &job, const Tile<7> &t) { adam_any<float>(job, t); }
OOC_UNFUSED OOC_CLONES void tile_f64(const Step<7> &job, const Tile<7> &t) { adam_any<double>(job, t); }

template <int N>
void update(int dtype, const std::array<uintptr_t, N> &data, const std::array<Five, N> &strides, const Five &shape,
            const Rates &rates, int threads) {
  Step<N> job{{}, dtype_of(dtype), rates};
  for (int j = 0; j < N; ++j) job.data[j] = reinterpret_cast<char *>(data[j]);
  const i64 count = volume(shape);
  if (count == 0) return;
  threads = team_of(N * count / kMicrosecond, threads);
  const auto nest = make_nest<N>(shape, strides, N);
  for_tiles(nest, kTile, kTile, threads,
            [&](const Tile<N> &t) { job.type == Dtype::f64 ? tile_f64(job, t) : tile_f32(job, t); });
}

}  // namespace

void sgd(int dtype, const std::array<uintptr_t, 5> &data, const std::array<Five, 5> &strides, const Five &shape,
         const Rates &rates, int threads) {
  update<5>(dtype, data, strides, shape, rates, threads);
}

void adam(int dtype, const std::array<uintptr_t, 7> &data, const std::array<Five, 7> &strides, const Five &shape,
          const Rates &rates, int threads) {
  update<7>(dtype, data, strides, shape, rates, threads);
}

}  // namespace ooc
