// Moving strided blocks: memory to memory, file to memory, memory to file.
//
// All strides here are in bytes and may have any sign. Nothing larger than a few KiB is
// allocated: file traffic goes through the caller's bounce buffer.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "common.hpp"

namespace py = pybind11;

namespace ooc {
namespace {

constexpr int kMaxAxes = 8;
constexpr i64 kPage = 4096;                  // alignment that O_DIRECT asks for
constexpr i64 kDirectMin = 1 << 20;          // below this the page cache is faster: it reads ahead and writes behind
constexpr i64 kStraightMin = 128 << 10;      // runs this long need no bounce buffer
constexpr i64 kStraightPiece = 8 << 20;      // whether the page cache is asked is decided anew this often
constexpr i64 kGapMax = 32 << 10;            // reading a shorter gap costs less than another request
constexpr i64 kGapRatio = 64;                // but not more than so many times what is wanted
constexpr i64 kFetched = 128 << 10;           // Linux ignores what a request has beyond its read-ahead, 128 KiB as a rule;
                                             // and the first pages of a long one come with its last
constexpr i64 kMaxRequest = i64{1} << 30;    // one system call (Linux stops at 2 GiB, macOS fails there)
constexpr i64 kThreadedBytes = 4 << 20;      // smaller copies do not repay waking the threads

i64 page_floor(i64 x) { return x & ~(kPage - 1); }
i64 page_ceil(i64 x) { return page_floor(x + kPage - 1); }
i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

// ---------------------------------------------------------------------------------------------
// A pair of strided views of the same shape
// ---------------------------------------------------------------------------------------------

struct Axis {
  i64 n, a, b;  // extent, stride on side A, stride on side B
};

// `item` bytes are contiguous on both sides at every index. Positions are integers because
// side A is either an address or a file offset.
struct Walk {
  i64 a = 0, b = 0;
  i64 item = 1;
  int rank = 0;
  Axis ax[kMaxAxes];

  i64 steps() const {
    i64 count = 1;
    for (int i = 0; i < rank; ++i) count *= ax[i].n;
    return count;
  }
};

char *address(i64 p) { return reinterpret_cast<char *>(static_cast<uintptr_t>(p)); }

// The last axes are taken into the item while both sides are contiguous there.
void absorb(Walk &w) {
  while (w.rank > 0) {
    const Axis &x = w.ax[w.rank - 1];
    if (x.n != 1 && (x.a != w.item || x.b != w.item)) return;
    w.item *= x.n;
    --w.rank;
  }
}

// Side A ends with positive strides, the smallest innermost, and as few axes as possible.
// False when there is nothing to move.
bool normalise(Walk &w) {
  int kept = 0;
  for (int i = 0; i < w.rank; ++i) {
    Axis x = w.ax[i];
    if (x.n <= 0) return false;
    if (x.n == 1) continue;
    if (x.a < 0) {
      w.a += (x.n - 1) * x.a;
      w.b += (x.n - 1) * x.b;
      x.a = -x.a;
      x.b = -x.b;
    }
    w.ax[kept++] = x;
  }
  w.rank = kept;
  std::stable_sort(w.ax, w.ax + kept, [](const Axis &p, const Axis &q) {
    return p.a != q.a ? p.a > q.a : std::abs(p.b) > std::abs(q.b);
  });
  absorb(w);
  int out = 0;  // merge neighbours that continue one another on both sides
  for (int i = 1; i < w.rank; ++i) {
    Axis &outer = w.ax[out];
    const Axis &inner = w.ax[i];
    if (outer.a == inner.a * inner.n && outer.b == inner.b * inner.n)
      outer = Axis{outer.n * inner.n, inner.a, inner.b};
    else
      w.ax[++out] = inner;
  }
  w.rank = std::min(w.rank, out + 1);
  return w.item > 0;
}

Walk make_walk(i64 a, const std::vector<i64> &as, i64 b, const std::vector<i64> &bs,
               const std::vector<i64> &shape, i64 item) {
  if (shape.size() > kMaxAxes || as.size() != shape.size() || bs.size() != shape.size())
    throw std::invalid_argument("shape and strides must have one length, at most 8");
  if (item <= 0) throw std::invalid_argument("itemsize must be positive");
  Walk w;
  w.a = a;
  w.b = b;
  w.item = item;
  w.rank = static_cast<int>(shape.size());
  for (int i = 0; i < w.rank; ++i) {
    if (shape[i] < 0) throw std::invalid_argument("negative extent");
    w.ax[i] = Axis{shape[i], as[i], bs[i]};
  }
  return w;
}

// Odometer over the first `rank` axes of a walk.
struct Cursor {
  const Axis *ax;
  int rank;
  i64 index[kMaxAxes] = {};
  i64 a, b;

  Cursor(const Walk &w, int outer_rank) : ax(w.ax), rank(outer_rank), a(w.a), b(w.b) {}

  void seek(i64 flat) {
    for (int i = rank - 1; i >= 0; --i) {
      const i64 at = flat % ax[i].n;
      flat /= ax[i].n;
      a += (at - index[i]) * ax[i].a;
      b += (at - index[i]) * ax[i].b;
      index[i] = at;
    }
  }

  bool next() {
    for (int i = rank - 1; i >= 0; --i) {
      a += ax[i].a;
      b += ax[i].b;
      if (++index[i] < ax[i].n) return true;
      a -= ax[i].n * ax[i].a;
      b -= ax[i].n * ax[i].b;
      index[i] = 0;
    }
    return false;
  }
};

// ---------------------------------------------------------------------------------------------
// Memory to memory. Side A is the destination.
// ---------------------------------------------------------------------------------------------

// Views need not be aligned, hence memcpy; a constant length becomes one load and one store.
template <int kItem>
void copy_line(char *dst, i64 ds, const char *src, i64 ss, i64 n) {
  for (i64 i = 0; i < n; ++i) std::memcpy(dst + i * ds, src + i * ss, kItem);
}

void copy_line_any(char *dst, i64 ds, const char *src, i64 ss, i64 n, i64 item) {
  for (i64 i = 0; i < n; ++i) std::memcpy(dst + i * ds, src + i * ss, static_cast<size_t>(item));
}

void copy_line(char *dst, const char *src, const Axis &x, i64 n, i64 item) {
  switch (item) {
    case 1: return copy_line<1>(dst, x.a, src, x.b, n);
    case 2: return copy_line<2>(dst, x.a, src, x.b, n);
    case 4: return copy_line<4>(dst, x.a, src, x.b, n);
    case 8: return copy_line<8>(dst, x.a, src, x.b, n);
    case 16: return copy_line<16>(dst, x.a, src, x.b, n);
    default: return copy_line_any(dst, x.a, src, x.b, n, item);
  }
}

// Tile of a transpose: read along src's near axis j, written along dst's near axis i, so that each
// cache line of either side is touched once. The tile in between keeps power-of-two strides
// from throwing lines out before they are used up.
template <typename T>
struct Tile {
  static constexpr i64 kSide = std::max<i64>(8, 64 / static_cast<i64>(sizeof(T)));

  static void load(T (*tile)[kSide], const char *src, i64 i_stride, i64 j_stride, i64 ni, i64 nj) {
    if (j_stride == sizeof(T) && nj == kSide) {
      for (i64 i = 0; i < ni; ++i) std::memcpy(tile[i], src + i * i_stride, sizeof(T) * kSide);
      return;
    }
    for (i64 i = 0; i < ni; ++i)
      for (i64 j = 0; j < nj; ++j) std::memcpy(&tile[i][j], src + i * i_stride + j * j_stride, sizeof(T));
  }

  static void store(const T (*tile)[kSide], char *dst, i64 i_stride, i64 j_stride, i64 ni, i64 nj) {
    if (i_stride == sizeof(T) && ni == kSide) {
      for (i64 j = 0; j < nj; ++j) {
        T line[kSide];
        for (i64 i = 0; i < kSide; ++i) line[i] = tile[i][j];
        std::memcpy(dst + j * j_stride, line, sizeof(line));
      }
      return;
    }
    for (i64 j = 0; j < nj; ++j)
      for (i64 i = 0; i < ni; ++i) std::memcpy(dst + j * j_stride + i * i_stride, &tile[i][j], sizeof(T));
  }

  // All i of one strip of at most kSide j.
  static void strip(char *dst, const char *src, const Axis &I, const Axis &J, i64 ni, i64 nj) {
    T tile[kSide][kSide];
    for (i64 i = 0; i < ni; i += kSide) {
      const i64 count = std::min(kSide, ni - i);
      load(tile, src + i * I.b, I.b, J.b, count, nj);
      store(tile, dst + i * I.a, I.a, J.a, count, nj);
    }
  }
};

struct Wide {
  char bytes[16];
};

i64 tile_side(i64 item) { return std::max<i64>(8, 64 / item); }

void transpose_strip(char *dst, const char *src, const Axis &I, const Axis &J, i64 ni, i64 nj, i64 item) {
  switch (item) {
    case 1: return Tile<uint8_t>::strip(dst, src, I, J, ni, nj);
    case 2: return Tile<uint16_t>::strip(dst, src, I, J, ni, nj);
    case 4: return Tile<uint32_t>::strip(dst, src, I, J, ni, nj);
    case 8: return Tile<uint64_t>::strip(dst, src, I, J, ni, nj);
    default: return Tile<Wide>::strip(dst, src, I, J, ni, nj);
  }
}

// Runs body(lo, hi) over [0, count), cut in one piece per thread.
template <typename Body>
void split(i64 count, int threads, const Body &body) {
#ifdef _OPENMP
  if (threads > 1 && count > 1) {
#pragma omp parallel for schedule(static, 1) num_threads(threads)
    for (int t = 0; t < threads; ++t) body(count * t / threads, count * (t + 1) / threads);
    return;
  }
#endif
  (void)threads;
  body(i64{0}, count);
}

// How many pieces each of `count` units is cut in, so that all threads have work.
i64 pieces_for(i64 count, i64 length, int threads) {
  if (threads <= 1 || count >= 4 * threads) return 1;
  return std::max<i64>(1, std::min<i64>(length, ceil_div(4 * threads, count)));
}

// The axis along which src moves least, when that is another axis than dst's innermost and
// blocking over the two saves cache lines; else -1.
int transposed_axis(const Walk &w) {
  if (w.rank < 2 || w.item > 16 || (w.item & (w.item - 1))) return -1;
  int best = w.rank - 1;
  for (int i = 0; i < w.rank; ++i)
    if (std::abs(w.ax[i].b) < std::abs(w.ax[best].b)) best = i;
  return best != w.rank - 1 && std::abs(w.ax[best].b) < 64 ? best : -1;
}

void copy_transposed(Walk w, int j_axis, int threads) {
  const Axis I = w.ax[w.rank - 1], J = w.ax[j_axis];
  w.rank -= 2;
  for (int i = j_axis; i < w.rank; ++i) w.ax[i] = w.ax[i + 1];
  const i64 side = tile_side(w.item), strips = ceil_div(J.n, side), lines = w.steps() * strips;
  const i64 pieces = pieces_for(lines, ceil_div(I.n, side), threads);
  split(lines * pieces, threads, [&](i64 lo, i64 hi) {
    Cursor at(w, w.rank);
    for (i64 u = lo; u < hi; ++u) {
      const i64 piece = u % pieces, j = u / pieces % strips * side;
      at.seek(u / pieces / strips);
      const i64 i0 = I.n * piece / pieces, i1 = I.n * (piece + 1) / pieces;
      transpose_strip(address(at.a + i0 * I.a + j * J.a), address(at.b + i0 * I.b + j * J.b), I, J, i1 - i0,
                      std::min(side, J.n - j), w.item);
    }
  });
}

void copy_lines(const Walk &w, int threads) {
  const Axis line = w.rank ? w.ax[w.rank - 1] : Axis{1, 0, 0};
  const int outer = std::max(0, w.rank - 1);
  const i64 lines = w.rank ? w.steps() / line.n : 1;
  const i64 pieces = pieces_for(lines, line.n, threads);
  split(lines * pieces, threads, [&](i64 lo, i64 hi) {
    Cursor at(w, outer);
    at.seek(lo / pieces);
    if (pieces == 1) {  // the common case, without divisions
      for (i64 u = lo; u < hi; ++u, at.next()) copy_line(address(at.a), address(at.b), line, line.n, w.item);
      return;
    }
    for (i64 u = lo; u < hi; ++u) {
      at.seek(u / pieces);
      const i64 i0 = line.n * (u % pieces) / pieces, i1 = line.n * (u % pieces + 1) / pieces;
      copy_line(address(at.a + i0 * line.a), address(at.b + i0 * line.b), line, i1 - i0, w.item);
    }
  });
}

// Few but long items leave threads idle: their bytes become one more axis, the rest a second copy.
void copy_long_items(Walk w, int threads) {
  const i64 piece = page_ceil(ceil_div(w.item, threads)), whole = w.item / piece;
  Walk tail = w;
  tail.a += whole * piece;
  tail.b += whole * piece;
  tail.item = w.item - whole * piece;
  w.ax[w.rank++] = Axis{whole, piece, piece};
  w.item = piece;
  copy_lines(w, threads);
  if (tail.item > 0) copy_lines(tail, 1);
}

void copy_walk(Walk w, int threads) {
  if (!normalise(w)) return;
  const i64 steps = w.steps();
  if (steps * w.item <= kThreadedBytes) threads = 1;
  const int j_axis = transposed_axis(w);
  if (j_axis >= 0)
    copy_transposed(w, j_axis, threads);
  else if (threads > 1 && steps < 4 * threads && w.item > kStraightMin && w.rank < kMaxAxes)
    copy_long_items(w, threads);
  else
    copy_lines(w, threads);
}

void copy_strided(uintptr_t dst, const std::vector<i64> &dst_strides, uintptr_t src,
                  const std::vector<i64> &src_strides, const std::vector<i64> &shape, i64 itemsize, int threads) {
  const Walk w = make_walk(static_cast<i64>(dst), dst_strides, static_cast<i64>(src), src_strides, shape, itemsize);
  py::gil_scoped_release release;
  copy_walk(w, std::max(1, threads));
}

// ---------------------------------------------------------------------------------------------
// Errors: thrown without the GIL, turned into Python exceptions by `guarded`
// ---------------------------------------------------------------------------------------------

struct IoFailure {
  int error;
  const char *call;
  i64 offset;
};

struct EndOfFile {
  const char *what;
  i64 offset, expected, got;
};

[[noreturn]] void raise_os_error(const IoFailure &e) {
  const std::string where = std::string(" (") + e.call + " at " + std::to_string(e.offset) + ")";
  const std::string text = std::strerror(e.error) + where;
  // OSError(errno, text) picks the subclass that belongs to errno.
  const py::object error = py::reinterpret_borrow<py::object>(PyExc_OSError)(e.error, text);
  PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
  throw py::error_already_set();
}

[[noreturn]] void raise_eof_error(const EndOfFile &e) {
  const std::string text = std::string(e.what) + ": offset " + std::to_string(e.offset) + ", expected " +
                           std::to_string(e.expected) + " bytes, got " + std::to_string(e.got);
  const py::object error = py::reinterpret_borrow<py::object>(PyExc_EOFError)(text);
  error.attr("offset") = e.offset;
  error.attr("expected") = e.expected;
  error.attr("got") = e.got;
  PyErr_SetObject(PyExc_EOFError, error.ptr());
  throw py::error_already_set();
}

template <typename Body>
void guarded(const Body &body) {
  try {
    py::gil_scoped_release release;
    body();
  } catch (const IoFailure &e) {
    raise_os_error(e);
  } catch (const EndOfFile &e) {
    raise_eof_error(e);
  }
}

// ---------------------------------------------------------------------------------------------
// File regions. Side A is the file, side B the memory.
// ---------------------------------------------------------------------------------------------

struct Traffic {
  i64 plain = 0, direct = 0, calls = 0;  // bytes through the page cache, bytes past it, system calls
};

using Result = std::tuple<i64, i64, i64>;

// The caller's bounce buffer, or a page of stack where none was given. A file byte x is
// kept at an address congruent to x modulo the page size if direct requests are to use it.
struct Bounce {
  char *base;
  i64 size;
  bool direct;  // large enough for direct requests, and there is a descriptor for them

  Bounce(uintptr_t given, i64 given_size, char *spare, int fd_direct) {
    base = given ? reinterpret_cast<char *>(given) : spare;
    size = given ? given_size : kPage;
    direct = given && fd_direct >= 0 && size >= kDirectMin + 2 * kPage;
  }

  i64 capacity() const { return direct ? size - kPage : size; }

  // Runs this long are moved without gathering several in here.
  bool skipped_by(i64 run) const { return run >= kStraightMin || run > capacity() || (!direct && run >= size / 2); }
};

void check_bounce(uintptr_t bounce, i64 bytes) {
  if (bounce && (bounce % kPage || bytes < kPage || bytes % kPage))
    throw std::invalid_argument("bounce must be aligned to 4096 and a multiple of 4096 long");
}

// The part of a walk that one extent holds: axes [level, rank) whole, and `step` indices of
// axis level - 1 at a time.
struct Block {
  int level;
  i64 step;
  i64 span;     // file bytes from the first to the last byte of axes [level, rank)
  i64 payload;  // bytes of the region in them
};

// Grows the block outwards as long as it fits and `worth(gap, stride, payload)` holds.
template <typename Worth>
Block choose_block(const Walk &w, i64 capacity, const Worth &worth) {
  Block k{w.rank, 1, w.item, w.item};
  while (k.level > 0) {
    const Axis &x = w.ax[k.level - 1];
    if (!worth(x.a - k.span, x.a, k.payload)) return k;
    const i64 whole = k.span + (x.n - 1) * x.a;
    if (whole > capacity) {
      const i64 fit = 1 + (capacity - k.span) / x.a;
      k.step = ceil_div(x.n, ceil_div(x.n, fit));  // equal extents rather than a small last one
      return k;
    }
    k.span = whole;
    k.payload *= x.n;
    --k.level;
  }
  return k;
}

// Calls body(part, file offset, span) for the blocks of w in file order; `part` is the walk of one block.
template <typename Body>
void for_blocks(const Walk &w, const Block &k, const Body &body) {
  Walk part;
  part.item = w.item;
  const bool stepped = k.level > 0;
  const Axis x = stepped ? w.ax[k.level - 1] : Axis{1, 0, 0};
  if (stepped) part.ax[part.rank++] = x;
  for (int i = k.level; i < w.rank; ++i) part.ax[part.rank++] = w.ax[i];
  Cursor at(w, stepped ? k.level - 1 : 0);
  do {
    for (i64 i = 0; i < x.n; i += k.step) {
      const i64 count = std::min(k.step, x.n - i);
      if (stepped) part.ax[0].n = count;
      part.a = at.a + i * x.a;
      part.b = at.b + i * x.b;
      body(part, part.a, k.span + (count - 1) * x.a);
    }
  } while (at.next());
}

// First and one past the last file byte of the region.
std::pair<i64, i64> file_range(const Walk &w) {
  i64 last = w.a + w.item;
  for (int i = 0; i < w.rank; ++i) last += (w.ax[i].n - 1) * w.ax[i].a;
  return {w.a, last};
}

void check_offset(const Walk &w) {
  if (w.a < 0) throw std::invalid_argument("the region begins before the file does");
}

#if defined(__linux__) && defined(RWF_NOWAIT)
#if !defined(SYS_cachestat) && !defined(__alpha__)
#define SYS_cachestat 451
#endif

// Pages of [offset, offset + size) in the page cache; -1 if the kernel (before 6.5) cannot tell.
i64 cached_pages(int fd, i64 offset, i64 size) {
#ifdef SYS_cachestat
  uint64_t range[2] = {static_cast<uint64_t>(offset), static_cast<uint64_t>(size)};
  uint64_t stat[5] = {};
  if (syscall(SYS_cachestat, fd, range, stat, 0u) == 0) return static_cast<i64>(stat[0]);
#endif
  return -1;
}
#endif

// Whether a direct request could move file bytes at `offset` to or from `mem` itself.
bool congruent(i64 offset, const char *mem) {
  return (reinterpret_cast<uintptr_t>(mem) - static_cast<uintptr_t>(offset)) % kPage == 0;
}

// What is read of the file at once: single runs, or several with the gaps between them.
Block extents_to_read(const Walk &w, const Bounce &bounce) {
  if (bounce.skipped_by(w.item)) return Block{w.rank, 1, w.item, w.item};
  return choose_block(w, bounce.capacity(), [](i64 gap, i64 stride, i64 payload) {
    // Within a page a gap is free: the page has to come anyway.
    return gap < kPage || (gap < kGapMax && stride <= kGapRatio * payload);
  });
}

class Reader {
 public:
  Reader(int fd, int fd_direct, Bounce bounce) : fd_(fd), fd_direct_(fd_direct), bounce_(bounce) {}

  Traffic traffic;

  void read(const Walk &w) {
    const Block block = extents_to_read(w, bounce_);
    if (bounce_.skipped_by(w.item))
      for_blocks(w, block, [&](const Walk &part, i64 offset, i64) { read_run(offset, w.item, address(part.b)); });
    else
      for_blocks(w, block, [&](const Walk &part, i64 offset, i64 span) { scatter(part, fetch(offset, span)); });
  }

 private:
  int fd_, fd_direct_;
  Bounce bounce_;
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

Result read_region(int fd, int fd_direct, i64 offset, const std::vector<i64> &src_strides,
                   const std::vector<i64> &shape, i64 itemsize, uintptr_t dst, const std::vector<i64> &dst_strides,
                   uintptr_t bounce, i64 bounce_bytes) {
  Walk w = make_walk(offset, src_strides, static_cast<i64>(dst), dst_strides, shape, itemsize);
  check_bounce(bounce, bounce_bytes);
  if (!normalise(w)) return {0, 0, 0};
  check_offset(w);
  alignas(64) char spare[kPage];
  Reader reader(fd, fd_direct, Bounce(bounce, bounce_bytes, spare, fd_direct));
  guarded([&] { reader.read(w); });
  return {reader.traffic.plain, reader.traffic.direct, reader.traffic.calls};
}

class Writer {
 public:
  Writer(int fd, int fd_direct, Bounce bounce) : fd_(fd), fd_direct_(fd_direct), bounce_(bounce) {}

  Traffic traffic;

  void write(const Walk &w) {
    check_size(w);
    if (w.item >= kStraightMin || w.item > bounce_.capacity() || (!bounce_.direct && w.item >= bounce_.size / 2))
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

Result write_region(int fd, int fd_direct, i64 offset, const std::vector<i64> &dst_strides,
                    const std::vector<i64> &shape, i64 itemsize, uintptr_t src, const std::vector<i64> &src_strides,
                    uintptr_t bounce, i64 bounce_bytes) {
  Walk w = make_walk(offset, dst_strides, static_cast<i64>(src), src_strides, shape, itemsize);
  check_bounce(bounce, bounce_bytes);
  if (!normalise(w)) return {0, 0, 0};
  check_offset(w);
  for (int i = 0; i < w.rank; ++i)
    if (w.ax[i].a == 0) throw std::invalid_argument("several elements share one place in the file");
  alignas(64) char spare[kPage];
  Writer writer(fd, fd_direct, Bounce(bounce, bounce_bytes, spare, fd_direct));
  guarded([&] { writer.write(w); });
  return {writer.traffic.plain, writer.traffic.direct, writer.traffic.calls};
}

// Has the system fetch regions into the page cache meanwhile, as they will be read with such a bounce buffer; but for what
// is read past the cache anyway. Neighbours become one request. A hint, so refusal is no error.
void fetch_regions(int fd, int fd_direct, const std::vector<i64> &offsets, const std::vector<i64> &strides,
                   const std::vector<std::vector<i64>> &shapes, i64 itemsize, i64 bounce_bytes) {
#ifdef POSIX_FADV_WILLNEED
  const Bounce bounce(static_cast<uintptr_t>(bounce_bytes ? kPage : 0), bounce_bytes, nullptr, fd_direct);  // never touched
  std::vector<std::pair<i64, i64>> ranges;
  for (size_t i = 0; i < offsets.size(); ++i) {
    Walk w = make_walk(offsets[i], strides, offsets[i], strides, shapes.at(i), itemsize);
    if (!normalise(w)) continue;
    check_offset(w);
    for_blocks(w, extents_to_read(w, bounce), [&](const Walk &, i64 at, i64 span) {
      if (!bounce.direct || span < kDirectMin) ranges.emplace_back(at, at + span);
    });
  }
  guarded([&] {
    std::sort(ranges.begin(), ranges.end());
    for (size_t i = 0; i < ranges.size();) {
      auto [begin, end] = ranges[i];
      while (++i < ranges.size() && ranges[i].first < end + kPage) end = std::max(end, ranges[i].second);
      for (i64 at = begin; at < end; at += kFetched)
        (void)posix_fadvise(fd, at, std::min(kFetched, end - at), POSIX_FADV_WILLNEED);
    }
  });
#else
  (void)fd, (void)fd_direct, (void)offsets, (void)strides, (void)shapes, (void)itemsize, (void)bounce_bytes;
#endif
}

}  // namespace

void bind_staging(py::module_ &m) {
  m.def("copy_strided", &copy_strided, py::arg("dst"), py::arg("dst_strides"), py::arg("src"), py::arg("src_strides"),
        py::arg("shape"), py::arg("itemsize"), py::arg("threads") = 1,
        "Copies between strided views that do not overlap; strides in bytes.");
  m.def("read_region", &read_region, py::arg("fd"), py::arg("fd_direct"), py::arg("offset"), py::arg("src_strides"),
        py::arg("shape"), py::arg("itemsize"), py::arg("dst"), py::arg("dst_strides"), py::arg("bounce") = 0,
        py::arg("bounce_bytes") = 0,
        "Reads a strided region of a file; returns (bytes_from_cache, bytes_direct, syscalls).");
  m.def("write_region", &write_region, py::arg("fd"), py::arg("fd_direct"), py::arg("offset"), py::arg("dst_strides"),
        py::arg("shape"), py::arg("itemsize"), py::arg("src"), py::arg("src_strides"), py::arg("bounce") = 0,
        py::arg("bounce_bytes") = 0,
        "Writes a strided region of a file, gaps untouched; returns (bytes_buffered, bytes_direct, syscalls).");
  m.def("fetch_regions", &fetch_regions, py::arg("fd"), py::arg("fd_direct"), py::arg("offsets"), py::arg("strides"),
        py::arg("shapes"), py::arg("itemsize"), py::arg("bounce_bytes") = 0,
        "Has the system fetch regions of a file ahead of their reads by read_region with such a bounce buffer.");
}

}  // namespace ooc
