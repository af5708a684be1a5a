// How regions of files come to memory: out of the page cache or past it, run by run or with the gaps between them.
#pragma once
#include <fcntl.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include "files.hpp"

namespace ooc::staging {

constexpr i64 kStraightPiece = 8 << 20;  // whether the page cache is asked is decided anew this often
constexpr i64 kGapMax = 32 << 10;        // reading a shorter gap costs less than another request
constexpr i64 kGapRatio = 64;            // but not more than so many times what is wanted
constexpr i64 kGapCached = 8 << 10;      // the same where all is in the page cache: there another request takes a microsecond

#if defined(__linux__) && defined(RWF_NOWAIT)
#if !defined(SYS_cachestat) && !defined(__alpha__)
#define SYS_cachestat 451
#endif

// Pages of [offset, offset + size) in the page cache; -1 if the kernel (before 6.5) cannot tell.
inline i64 cached_pages(int fd, i64 offset, i64 size) {
#ifdef SYS_cachestat
  uint64_t range[2] = {static_cast<uint64_t>(offset), static_cast<uint64_t>(size)};
  uint64_t stat[5] = {};
  if (syscall(SYS_cachestat, fd, range, stat, 0u) == 0) return static_cast<i64>(stat[0]);
#endif
  return -1;
}
#endif

// Whether nearly all that a walk reads is in the page cache; false where the kernel cannot tell.
inline bool cached(int fd, const Walk &w) {
#if defined(__linux__) && defined(RWF_NOWAIT)
  i64 span = w.item;
  for (int i = 0; i < w.rank; ++i) span += (w.ax[i].n - 1) * w.ax[i].a;
  return cached_pages(fd, w.a, span) * kPage >= w.steps() * w.item / 8 * 7;
#else
  (void)fd, (void)w;
  return false;
#endif
}

// What is read of the file at once: single runs, or several with the gaps between them.
inline Block extents_to_read(const Walk &w, const Bounce &bounce, i64 gap_max = kGapMax) {
  if (bounce.skipped_by(w.item)) return Block{w.rank, 1, w.item, w.item};
  return choose_block(w, bounce.capacity(), [gap_max](i64 gap, i64 stride, i64 payload) {
    // Within a page a gap is free: the page has to come anyway.
    return gap < kPage || (gap < gap_max && stride <= kGapRatio * payload);
  });
}

class Reader {
 public:
  Reader(int fd, int fd_direct, Bounce bounce, i64 gap_max = kGapMax)
      : fd_(fd), fd_direct_(fd_direct), bounce_(bounce), gap_max_(gap_max) {}

  Traffic traffic;

  void read(const Walk &w) {
    const Block block = extents_to_read(w, bounce_, gap_max_);
    const bool alone = block.level == w.rank && block.step == 1 && !bounce_.direct;  // gathered with no other run
    if (alone || bounce_.skipped_by(w.item))
      for_blocks(w, block, [&](const Walk &part, i64 offset, i64) { read_run(offset, w.item, address(part.b)); });
    else
      for_blocks(w, block, [&](const Walk &part, i64 offset, i64 span) { scatter(part, fetch(offset, span)); });
  }

 private:
  int fd_, fd_direct_;
  Bounce bounce_;
  i64 gap_max_;
  bool nowait_ = true, cachestat_ = true;

  static void scatter(const Walk &part, const char *extent) {
    Walk copy = part;  // side A becomes the destination
    copy.a = part.b;
    copy.b = static_cast<i64>(reinterpret_cast<uintptr_t>(extent));
    for (int i = 0; i < copy.rank; ++i) std::swap(copy.ax[i].a, copy.ax[i].b);
    copy_walk(copy, 1);
  }

  // One extent to the bounce buffer; where it lies there.
  char *fetch(i64 offset, i64 size) {
    char *at = bounce_.base + (bounce_.direct ? offset % kPage : 0);
    const bool pays = bounce_.direct && direct_pays(size);
    i64 got = from_cache(offset, size, at, pays);
    if (pays && got < size) got = direct(offset, size, got);
    plain(offset, size, got, at);
    return at;
  }

  // A long run that is contiguous in memory too.
  void read_run(i64 offset, i64 size, char *dst) {
    const bool straight = congruent(offset, dst);
    const bool pays = (straight || bounce_.direct) && direct_pays(size);
    const i64 limit = !pays ? kMaxRequest : straight ? kStraightPiece : bounce_.size;
    for (const i64 end = offset + size; offset < end;) {
      // Pieces end on a page so that no page is read twice.
      const i64 stop = std::min(end, page_floor(offset) + limit);
      read_piece(offset, stop - offset, dst, pays, straight);
      dst += stop - offset;
      offset = stop;
    }
  }

  void read_piece(i64 offset, i64 size, char *dst, bool pays, bool straight) {
    pays = pays && direct_pays(size);
    i64 got = from_cache(offset, size, dst, pays);
    if (pays && got < size) {
      if (straight) {
        got = direct_straight(offset, size, got, dst);
      } else {
        const i64 have = direct(offset, size, got);
        std::memcpy(dst + got, bounce_.base + offset % kPage + got, static_cast<size_t>(have - got));
        got = have;
      }
    }
    plain(offset, size, got, dst);
  }

  bool direct_pays(i64 size) const { return fd_direct_ >= 0 && size >= kDirectMin; }

  // What the page cache already holds of [offset, offset + size), from its beginning.
  i64 from_cache(i64 offset, i64 size, char *mem, bool direct_next) {
#if defined(__linux__) && defined(RWF_NOWAIT)
    if (!nowait_ || (direct_next && mostly_missing(offset, size))) return 0;
    i64 got = 0;
    while (got < size) {
      iovec v{mem + got, static_cast<size_t>(std::min(size - got, kMaxRequest))};
      const ssize_t n = preadv2(fd_, &v, 1, offset + got, RWF_NOWAIT);
      ++traffic.calls;
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL)) nowait_ = false;
      if (n < 0 && nowait_ && errno != EAGAIN) throw IoFailure{errno, "preadv2", offset + got};
      if (n <= 0) break;
      got += n;
    }
    traffic.plain += got;
    return got;
#else
    (void)offset, (void)size, (void)mem, (void)direct_next;
    return 0;
#endif
  }

#if defined(__linux__) && defined(RWF_NOWAIT)
  // Since Linux 5.10 a NOWAIT read that misses starts read-ahead, so that a direct read after it
  // would have the disk deliver the same bytes twice. Ask first, where the kernel can be asked.
  bool mostly_missing(i64 offset, i64 size) {
    if (!cachestat_) return false;
    const i64 pages = cached_pages(fd_, offset, size);
    ++traffic.calls;
    cachestat_ = pages >= 0;
    return cachestat_ && pages * kPage * 2 < size;
  }
#endif

  // One direct request; false when this descriptor or moment does not allow it.
  bool direct_request(i64 offset, i64 size, char *mem, i64 &got) {
    ssize_t n;
    do {
      n = pread(fd_direct_, mem, static_cast<size_t>(size), offset);
      ++traffic.calls;
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EINVAL) fd_direct_ = -1;
    if (n < 0 && errno != EINVAL && errno != EAGAIN) throw IoFailure{errno, "pread (direct)", offset};
    got = std::max<i64>(0, n);
    traffic.direct += got;
    return n >= 0;
  }

  // The rest of [offset, offset + size) after `have` bytes, as whole pages in the bounce buffer,
  // where the file's byte x lies at offset x - page_floor(offset). How much of it is there now.
  i64 direct(i64 offset, i64 size, i64 have) {
    const i64 base = page_floor(offset);
    const i64 from = page_floor(offset + have), to = page_ceil(offset + size);
    i64 got = 0;
    if (!direct_request(from, to - from, bounce_.base + (from - base), got)) return have;
    // A request that ends short met the end of the file (or a signal): plain reads find out.
    return std::max(have, std::min(size, from + got - offset));
  }

  // The same into memory that is aligned like the file: whole pages only, the edges by plain reads.
  i64 direct_straight(i64 offset, i64 size, i64 have, char *mem) {
    const i64 from = page_ceil(offset + have), to = page_floor(offset + size);
    if (to - from < kDirectMin) return have;
    plain(offset, from - offset, have, mem);
    i64 got = 0;
    direct_request(from, to - from, mem + (from - offset), got);
    return from - offset + got;
  }

  // Ordinary reads of whatever of [offset, offset + size) is missing after `have` bytes.
  void plain(i64 offset, i64 size, i64 have, char *mem) {
    while (have < size) {
      const ssize_t n = pread(fd_, mem + have, static_cast<size_t>(std::min(size - have, kMaxRequest)), offset + have);
      ++traffic.calls;
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw IoFailure{errno, "pread", offset + have};
      if (n == 0) throw EndOfFile{"file ends inside the region", offset, size, have};
      have += n;
    }
  }
};

}  // namespace ooc::staging
