// Whether a tensor holds infinities or NaN.
//
// Tensors are (n, k, d, h, w) with strides in elements, of any sign, and element-aligned.
#include <algorithm>
#include <atomic>

#include "calls.hpp"
#include "tiles.hpp"

namespace ooc {
namespace {

constexpr i64 kLook = 16384;  // items between two looks at what the others found

// The largest magnitude of n items, as bits: numbers in their order, then infinity, then NaN.
template <typename Bits>
OOC_INLINE Bits largest_any(const Bits *x, i64 n, i64 step) {
  const Bits magnitude = Bits(~Bits(0)) >> 1;
  Bits top = 0;
  if (step == 1)
    for (i64 i = 0; i < n; ++i) top = std::max<Bits>(top, x[i] & magnitude);
  else
    for (i64 i = 0; i < n; ++i) top = std::max<Bits>(top, x[i * step] & magnitude);
  return top;
}

OOC_CLONES uint32_t largest(const uint32_t *x, i64 n, i64 step) { return largest_any(x, n, step); }
OOC_CLONES uint16_t largest(const uint16_t *x, i64 n, i64 step) { return largest_any(x, n, step); }
OOC_CLONES uint64_t largest(const uint64_t *x, i64 n, i64 step) { return largest_any(x, n, step); }

template <typename Bits>
int special_of(const Bits *x, Bits infinity, const Nest<1> &nest, int threads) {
  const Axis<1> only = nest.axis(0);
  if (nest.rank <= 1 && only.n <= kLook) {  // a call for few items takes less than what follows
    const Bits top = largest(x + nest.start[0], only.n, only.s[0]);
    return (top >= infinity) + (top > infinity);
  }
  std::atomic<int> worst{0};
  for_tiles(nest, kLook, kLook, threads, [&](const Tile<1> &t) {
    if (worst.load(std::memory_order_relaxed) == 2) return;
    Bits top = 0;
    for (i64 r = 0; r < t.rows; ++r) top = std::max(top, largest(x + t.at[0] + r * t.row.s[0], t.cols, t.col.s[0]));
    const int found = (top >= infinity) + (top > infinity);
    int before = worst.load(std::memory_order_relaxed);
    while (found > before && !worst.compare_exchange_weak(before, found, std::memory_order_relaxed)) {
    }
  });
  return worst;
}

}  // namespace

int special(int dtype, uintptr_t x, const Five &shape, const Five &strides, int threads) {
  const Dtype type = dtype_of(dtype);
  const i64 count = volume(shape);
  if (count == 0) return 0;
  threads = team_of(count / kMicrosecond, threads);
  const Nest<1> nest = make_nest<1>(shape, {strides}, 1);
  if (type == Dtype::f64)
    return special_of<uint64_t>(reinterpret_cast<const uint64_t *>(x), 0x7ff0000000000000u, nest, threads);
  if (type == Dtype::f16 || type == Dtype::bf16)
    return special_of<uint16_t>(reinterpret_cast<const uint16_t *>(x), type == Dtype::f16 ? 0x7c00u : 0x7f80u, nest, threads);
  return special_of<uint32_t>(reinterpret_cast<const uint32_t *>(x), 0x7f800000u, nest, threads);
}

}  // namespace ooc
