// Tensors with many zeros: a bit per item, and the items that are not zero. ooc/runtime/codec.py tells the layout.
//
// Items are moved as bits of 2, 4 or 8 bytes, at any address. Blocks do not depend on each other.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "calls.hpp"
#include "numbers.hpp"
#include "team.hpp"

namespace ooc {
namespace {

constexpr i64 kGroup = 32, kBlock = 1 << 16;  // items of a mask, of a block
constexpr double kPerMicrosecond = 5000;      // bytes

OOC_INLINE i64 groups_of(i64 items) { return (items + kGroup - 1) / kGroup; }

template <typename T>
OOC_INLINE T get(const char *at) {
  T x;
  std::memcpy(&x, at, sizeof(T));
  return x;
}
template <typename T>
OOC_INLINE void put(char *at, T x) {
  std::memcpy(at, &x, sizeof(T));
}

// How many of 32 bits are set, without an instruction that some processors lack.
OOC_INLINE i64 ones(uint32_t x) {
  x -= x >> 1 & 0x55555555u;
  x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
  return ((x + (x >> 4)) & 0x0F0F0F0Fu) * 0x01010101u >> 24;
}

// The masks of some items, and how many of these are kept.
template <typename T>
i64 masks_of(const char *x, i64 items, uint32_t *masks) {
  i64 kept = 0;
  for (i64 i = 0; i < items; i += kGroup, x += kGroup * sizeof(T), ++masks) {
    uint8_t bytes[kGroup] = {};
    if (items - i >= kGroup)
      for (i64 j = 0; j < kGroup; ++j) bytes[j] = get<T>(x + j * sizeof(T)) != 0;
    else
      for (i64 j = 0; j < items - i; ++j) bytes[j] = get<T>(x + j * sizeof(T)) != 0;
    uint32_t mask = 0;
    for (i64 j = 0; j < kGroup; j += 8) {  // the product has the lowest bits of eight bytes in its highest byte
      uint64_t eight = 0;
      for (i64 k = 0; k < 8; ++k) eight |= static_cast<uint64_t>(bytes[j + k]) << 8 * k;
      mask |= static_cast<uint32_t>(eight * 0x0102040810204080u >> 56) << j;
    }
    *masks = mask;
    kept += ones(mask);
  }
  return kept;
}

// A block of which so many items are kept: its masks, then those items.
template <typename T>
void pack_block(const char *x, i64 items, i64 kept, const uint32_t *masks, char *target) {
  char *const out = target + 4 * groups_of(items);
  std::memcpy(target, masks, 4 * groups_of(items));
  i64 k = 0;
  for (i64 i = 0; i < items; i += kGroup, x += kGroup * sizeof(T)) {
    const uint32_t mask = masks[i / kGroup];
    if (kept - k >= kGroup && items - i >= kGroup)  // what is not kept is overwritten
      for (i64 j = 0; j < kGroup; ++j) {
        put(out + k * sizeof(T), get<T>(x + j * sizeof(T)));
        k += mask >> j & 1;
      }
    else
      for (i64 j = 0; j < kGroup; ++j)
        if (mask >> j & 1) put(out + k++ * sizeof(T), get<T>(x + j * sizeof(T)));
  }
}

template <typename T>
void unpack_block(const char *masks, i64 items, i64 kept, char *y) {
  const char *const in = masks + 4 * groups_of(items);
  i64 k = 0;
  for (i64 i = 0; i < items; i += kGroup, masks += 4, y += kGroup * sizeof(T)) {
    const uint32_t mask = get<uint32_t>(masks);
    if (kept - k >= kGroup && items - i >= kGroup)  // what is not kept is read too
      for (i64 j = 0; j < kGroup; ++j) {
        const T bit = mask >> j & 1;
        put<T>(y + j * sizeof(T), get<T>(in + k * sizeof(T)) & static_cast<T>(T(0) - bit));
        k += bit;
      }
    else
      for (i64 j = 0; j < std::min(kGroup, items - i); ++j)
        put<T>(y + j * sizeof(T), mask >> j & 1 ? get<T>(in + k++ * sizeof(T)) : T(0));
  }
}

// Whether the masks of a block keep what the index says, and nothing beyond its items.
bool is_whole(const char *masks, i64 items, i64 kept) {
  for (i64 i = 0; i < items; i += kGroup) kept -= ones(get<uint32_t>(masks + i / kGroup * 4));
  const i64 rest = items % kGroup;
  return kept == 0 && (rest == 0 || get<uint32_t>(masks + items / kGroup * 4) >> rest == 0);
}

template <typename T>
i64 pack(const char *x, i64 count, char *target, i64 room, int threads) {
  const i64 blocks = (count + kBlock - 1) / kBlock, item = sizeof(T);
  // Blocks are counted and packed while they are in cache; threads take more of them, since they must be woken twice.
  const i64 wave = threads > 1 ? 64 * threads : 1;
  std::vector<i64> kept(wave), begin(wave);
  std::vector<uint32_t> masks(wave * kBlock / kGroup);
  i64 at = 4 * blocks;
  const auto items = [&](i64 b) { return std::min(kBlock, count - b * kBlock); };
  for (i64 first = 0; first < blocks; first += wave) {
    const i64 here = std::min(wave, blocks - first);
    share_runs(here, threads, [&](i64 lo, i64 hi, int) {
      for (i64 i = lo; i < hi; ++i)
        kept[i] = masks_of<T>(x + (first + i) * kBlock * item, items(first + i), &masks[i * kBlock / kGroup]);
    });
    for (i64 i = 0; i < here; ++i) {
      begin[i] = at;
      at += 4 * groups_of(items(first + i)) + kept[i] * item;
    }
    const i64 rest = std::max<i64>(0, count - (first + here) * kBlock);
    if (at + 4 * groups_of(rest) > room) return -1;
    share_runs(here, threads, [&](i64 lo, i64 hi, int) {
      for (i64 i = lo; i < hi; ++i) {
        const i64 b = first + i;
        put(target + 4 * b, static_cast<uint32_t>(kept[i]));
        pack_block<T>(x + b * kBlock * item, items(b), kept[i], &masks[i * kBlock / kGroup], target + begin[i]);
      }
    });
  }
  return at <= room ? at : -1;
}

template <typename F>
auto with_items(int item, const F &f) {
  switch (item) {
    case 2: return f(uint16_t());
    case 4: return f(uint32_t());
    case 8: return f(uint64_t());
  }
  throw std::invalid_argument("items of 2, 4 or 8 bytes");
}

int team(i64 count, int item, int threads) { return team_of(count * item / kPerMicrosecond, threads); }

}  // namespace

i64 pack_zeros(uintptr_t x, i64 count, int item, uintptr_t target, i64 room, int threads) {
  threads = team(count, item, threads);
  return with_items(item, [&](auto type) {
    return pack<decltype(type)>(reinterpret_cast<const char *>(x), count, reinterpret_cast<char *>(target), room, threads);
  });
}

i64 unpack_zeros(uintptr_t source, uintptr_t begins, uintptr_t kepts, i64 count, int item, uintptr_t y, int threads) {
  const i64 blocks = (count + kBlock - 1) / kBlock;
  const auto *begin = reinterpret_cast<const i64 *>(begins), *kept = reinterpret_cast<const i64 *>(kepts);
  const auto masks = [&](i64 b) { return reinterpret_cast<const char *>(source) + begin[b]; };
  const auto items = [&](i64 b) { return std::min(kBlock, count - b * kBlock); };
  threads = team(count, item, threads);
  for (i64 b = 0; b < blocks; ++b)
    if (!is_whole(masks(b), items(b), kept[b])) return b;
  with_items(item, [&](auto type) {
    share_runs(blocks, threads, [&](i64 lo, i64 hi, int) {
      for (i64 b = lo; b < hi; ++b)
        unpack_block<decltype(type)>(masks(b), items(b), kept[b], reinterpret_cast<char *>(y) + b * kBlock * item);
    });
  });
  return -1;
}

}  // namespace ooc
