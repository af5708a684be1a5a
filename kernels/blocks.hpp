// Blocks of products of matrices: pieces of both factors are packed so that registers hold a block of results while what is summed
// over runs. A result sums its terms one after the other, whatever the blocks. What lies beyond the matrices is packed as zeros.
#pragma once
#include "numbers.hpp"

// As OOC_CLONES, with instructions that multiply and add at once.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OOC_FUSED_CLONES __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define OOC_FUSED_CLONES
#endif

namespace ooc {
namespace {

// Pieces have a fixed size, whatever the tile and the budget: those of a thread take 128 KiB of its stack at most.
constexpr i64 kHigh = 6, kRows = 96;  // rows of a block in registers, of a piece
constexpr i64 kLine = 64;             // bytes of a block's row
template <typename C>
constexpr i64 kWide = kLine / i64(sizeof(C));
template <typename C>
constexpr i64 kColumns = 4 * kWide<C>;  // of a piece
template <typename C>
constexpr i64 kDeep = 8 * kWide<C>;  // of what is summed, of a piece

inline i64 up(i64 a, i64 b) { return (a + b - 1) / b; }

// count x deep elements as lines of W side by side, deep of each; those beyond count are zeros.
template <i64 W, typename C, typename E>
OOC_INLINE void pack_as(C *to, const E *from, i64 step, i64 deeper, i64 count, i64 deep) {
  for (i64 line = 0; line < count; line += W, to += W * deep, from += W * step) {
    const i64 some = count - line < W ? count - line : W;
    if (some < W) std::memset(static_cast<void *>(to), 0, size_t(W * deep) * sizeof(C));
    if (deeper == 1 || some < W) {
      for (i64 i = 0; i < some; ++i)
        for (i64 c = 0; c < deep; ++c) to[c * W + i] = widen(from[i * step + c * deeper]);
    } else {
      for (i64 c = 0; c < deep; ++c)
        for (i64 i = 0; i < W; ++i) to[c * W + i] = widen(from[i * step + c * deeper]);
    }
  }
}

template <i64 W>
OOC_INLINE void pack(float *to, const char *from, Dtype type, i64 step, i64 deeper, i64 count, i64 deep) {
  if (type == Dtype::f32) pack_as<W>(to, reinterpret_cast<const float *>(from), step, deeper, count, deep);
  else if (type == Dtype::f16) pack_as<W>(to, reinterpret_cast<const Half *>(from), step, deeper, count, deep);
  else pack_as<W>(to, reinterpret_cast<const Bfloat *>(from), step, deeper, count, deep);
}

template <i64 W>
OOC_INLINE void pack(double *to, const char *from, Dtype, i64 step, i64 deeper, i64 count, i64 deep) {
  pack_as<W>(to, reinterpret_cast<const double *>(from), step, deeper, count, deep);
}

// sums += a b of a block; a: its rows and what is summed lie so far apart.
template <typename C>
OOC_INLINE void add_products(C *sums, const C *a, i64 row, i64 step, const C *b, i64 deep) {
  typedef C Line __attribute__((vector_size(kLine), may_alias));
  Line held[kHigh];
  for (i64 r = 0; r < kHigh; ++r) held[r] = *reinterpret_cast<const Line *>(sums + r * kColumns<C>);
  for (i64 c = 0; c < deep; ++c) {
    const Line line = *reinterpret_cast<const Line *>(b + c * kWide<C>);
    for (i64 r = 0; r < kHigh; ++r) held[r] += a[r * row + c * step] * line;
  }
  for (i64 r = 0; r < kHigh; ++r) *reinterpret_cast<Line *>(sums + r * kColumns<C>) = held[r];
}

template <typename E, typename C>
OOC_INLINE void put_row(char *y, i64 at, i64 step, const C *sums, i64 count, C alpha) {
  E *to = reinterpret_cast<E *>(y) + at;
  for (i64 i = 0; i < count; ++i) narrow(sums[i] * alpha, to[i * step]);
}

OOC_INLINE void put(char *y, Dtype type, i64 at, i64 step, const float *sums, i64 count, float alpha) {
  if (type == Dtype::f32) put_row<float>(y, at, step, sums, count, alpha);
  else if (type == Dtype::f16) put_row<Half>(y, at, step, sums, count, alpha);
  else put_row<Bfloat>(y, at, step, sums, count, alpha);
}

OOC_INLINE void put(char *y, Dtype, i64 at, i64 step, const double *sums, i64 count, double alpha) {
  put_row<double>(y, at, step, sums, count, alpha);
}

}  // namespace
}  // namespace ooc
