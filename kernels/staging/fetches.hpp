// What the system is told to fetch into the page cache before it is read.
#pragma once
#include <fcntl.h>

#include "reader.hpp"

namespace ooc::staging {

constexpr i64 kFetched = 128 << 10;  // Linux ignores what a request has beyond its read-ahead, 128 KiB as a rule;
                                     // and the first pages of a long one come with its last
constexpr i64 kGapFetched = 16 << 10;  // a shorter gap takes the disk less than another request; later tiles mostly want it, too

struct Range {
  i64 begin, end;
};

// Requests for regions of a file that will be read with such a bounce buffer, neighbours as one; but for what is read past
// the page cache anyway.
inline std::vector<Range> requests_for(int fd_direct, const std::vector<i64> &offsets, const std::vector<i64> &strides,
                                       const std::vector<std::vector<i64>> &shapes, i64 itemsize, i64 bounce_bytes) {
  const Bounce bounce(static_cast<uintptr_t>(bounce_bytes ? kPage : 0), bounce_bytes, nullptr, fd_direct);  // never touched
  std::vector<Range> ranges, requests;
  for (size_t i = 0; i < offsets.size(); ++i) {
    Walk w = make_walk(offsets[i], strides, offsets[i], strides, shapes.at(i), itemsize);
    if (!normalise(w)) continue;
    check_offset(w);
    for_blocks(w, extents_to_read(w, bounce), [&](const Walk &, i64 at, i64 span) {
      if (!bounce.direct || span < kDirectMin) ranges.push_back({at, at + span});
    });
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range &a, const Range &b) { return a.begin < b.begin; });
  for (size_t i = 0; i < ranges.size();) {
    Range whole = ranges[i];
    while (++i < ranges.size() && ranges[i].begin < whole.end + kGapFetched) whole.end = std::max(whole.end, ranges[i].end);
    for (; whole.begin < whole.end; whole.begin += kFetched)
      requests.push_back({whole.begin, std::min(whole.begin + kFetched, whole.end)});
  }
  return requests;
}

// A hint, so refusal is no error.
inline void request(int fd, const Range &range) {
#ifdef POSIX_FADV_WILLNEED
  (void)posix_fadvise(fd, range.begin, range.end - range.begin, POSIX_FADV_WILLNEED);
#else
  (void)fd, (void)range;
#endif
}

}  // namespace ooc::staging
