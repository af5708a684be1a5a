// How memory goes to regions of files: buffered or past the page cache, gaps untouched.
#pragma once
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "files.hpp"

namespace ooc::staging {

// First and one past the last file byte of the region.
inline std::pair<i64, i64> file_range(const Walk &w) {
  i64 last = w.a + w.item;
  for (int i = 0; i < w.rank; ++i) last += (w.ax[i].n - 1) * w.ax[i].a;
  return {w.a, last};
}

inline void check_apart(const Walk &w) {
  for (int i = 0; i < w.rank; ++i)
    if (w.ax[i].a == 0) throw std::invalid_argument("several elements share one place in the file");
}

class Writer {
 public:
  Writer(int fd, int fd_direct, Bounce bounce) : fd_(fd), fd_direct_(fd_direct), bounce_(bounce) {}

  Traffic traffic;

  void write(const Walk &w) {
    check_size(w);
    if (bounce_.skipped_by(w.item))
      for_blocks(w, Block{w.rank, 1, w.item, w.item},
                 [&](const Walk &part, i64 offset, i64) { write_run(offset, w.item, address(part.b)); });
    else
      for_blocks(w, choose_block(w, bounce_.capacity(), [](i64 gap, i64, i64) { return gap == 0; }),
                 [&](const Walk &part, i64 offset, i64 span) { gather(part, reserve(offset, span)); });
    flush();
  }

 private:
  int fd_, fd_direct_;
  Bounce bounce_;
  // File bytes [begin_, end_) wait in the bounce buffer, whose first byte stands for base_.
  i64 base_ = 0, begin_ = 0, end_ = 0;

  // The file has its final size before regions are written. (Only regular files have a size.)
  void check_size(const Walk &w) const {
    struct stat st;
    const auto range = file_range(w);
    if (fstat(fd_, &st) != 0) throw IoFailure{errno, "fstat", range.first};
    const i64 size = st.st_size;
    if (S_ISREG(st.st_mode) && range.second > size)
      throw EndOfFile{"file shrank", range.first, range.second - range.first,
                      std::max<i64>(0, size - range.first)};
  }

  static void gather(const Walk &part, char *extent) {
    Walk copy = part;
    copy.a = static_cast<i64>(reinterpret_cast<uintptr_t>(extent));
    copy_walk(copy, 1);
  }

  // Room for file bytes [offset, offset + size). Bytes that continue the waiting ones join them, so
  // that a long run is cut on pages and the pages at the cuts are not written half by half.
  char *reserve(i64 offset, i64 size) {
    if (offset != end_) flush();
    if (begin_ < end_ && end_ - base_ + size > bounce_.size) flush_pages();
    if (begin_ == end_) {
      base_ = bounce_.direct ? page_floor(offset) : offset;
      begin_ = end_ = offset;
    }
    end_ += size;
    return bounce_.base + (offset - base_);
  }

  void flush() {
    if (begin_ < end_) write_extent(begin_, end_, bounce_.base + (begin_ - base_));
    begin_ = end_;
  }

  // Writes the whole pages and keeps the rest, which is less than a page.
  void flush_pages() {
    const i64 stop = page_floor(end_);
    if (!bounce_.direct || stop <= begin_) return flush();
    write_extent(begin_, stop, bounce_.base + (begin_ - base_));
    std::memmove(bounce_.base, bounce_.base + (stop - base_), static_cast<size_t>(end_ - stop));
    base_ = begin_ = stop;
  }

  // A long run that is contiguous in memory too.
  void write_run(i64 offset, i64 size, const char *src) {
    if (!bounce_.direct || size < kDirectMin || congruent(offset, src)) {
      flush();
      return write_extent(offset, offset + size, src);
    }
    for (i64 done = 0; done < size;) {
      const i64 count = std::min(size - done, bounce_.capacity());
      std::memcpy(reserve(offset + done, count), src + done, static_cast<size_t>(count));
      done += count;
    }
  }

  // File bytes [begin, end), which lie at `mem`: whole pages past the cache where that pays.
  void write_extent(i64 begin, i64 end, const char *mem) {
    const i64 from = page_ceil(begin), to = page_floor(end);
    i64 at = begin;
    if (fd_direct_ >= 0 && to - from >= kDirectMin && congruent(begin, mem)) {
      plain(begin, from, mem);
      at = direct(from, to, mem + (from - begin));
    }
    plain(at, end, mem + (at - begin));
  }

  // Writes [at, end), returns how far it came.
  i64 direct(i64 at, i64 end, const char *mem) {
    while (at < end) {
      const ssize_t n = pwrite(fd_direct_, mem, static_cast<size_t>(std::min(end - at, kMaxRequest)), at);
      ++traffic.calls;
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EINVAL) fd_direct_ = -1;
      if (n < 0 && errno != EINVAL && errno != EAGAIN) throw IoFailure{errno, "pwrite (direct)", at};
      // A part of a page cannot be continued past the cache.
      if (n <= 0 || n % kPage) return at + std::max<i64>(0, count_direct(n));
      at += count_direct(n);
      mem += n;
    }
    return at;
  }

  i64 count_direct(i64 n) {
    if (n > 0) traffic.direct += n;
    return n;
  }

  void plain(i64 at, i64 end, const char *mem) {
    while (at < end) {
      const ssize_t n = pwrite(fd_, mem, static_cast<size_t>(std::min(end - at, kMaxRequest)), at);
      ++traffic.calls;
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw IoFailure{errno, "pwrite", at};
      if (n == 0) throw IoFailure{EIO, "pwrite wrote nothing", at};
      at += n;
      mem += n;
      traffic.plain += n;
    }
  }
};

}  // namespace ooc::staging
