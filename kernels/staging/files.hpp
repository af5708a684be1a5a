// What reading and writing regions of files have in common: errors, the bounce buffer, blocks of neighbouring runs.
//
// Side A of a walk is the file, side B the memory. File traffic goes through the caller's bounce buffer; nothing is allocated
// but lists of what to move.
#pragma once
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "walk.hpp"

namespace ooc::staging {

namespace py = pybind11;

constexpr i64 kDirectMin = 1 << 20;        // below this the page cache is faster: it reads ahead and writes behind
constexpr i64 kMaxRequest = i64{1} << 30;  // one system call (Linux stops at 2 GiB, macOS fails there)

// ---- errors: thrown without the GIL, turned into Python exceptions by `guarded`

struct IoFailure {
  int error;
  const char *call;
  i64 offset;
};

struct EndOfFile {
  const char *what;
  i64 offset, expected, got;
};

[[noreturn]] inline void raise_os_error(const IoFailure &e) {
  const std::string where = std::string(" (") + e.call + " at " + std::to_string(e.offset) + ")";
  const std::string text = std::strerror(e.error) + where;
  // OSError(errno, text) picks the subclass that belongs to errno.
  const py::object error = py::reinterpret_borrow<py::object>(PyExc_OSError)(e.error, text);
  PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
  throw py::error_already_set();
}

[[noreturn]] inline void raise_eof_error(const EndOfFile &e) {
  const std::string text = std::string(e.what) + ": offset " + std::to_string(e.offset) + ", expected " +
                           std::to_string(e.expected) + " bytes, got " + std::to_string(e.got);
  const py::object error = py::reinterpret_borrow<py::object>(PyExc_EOFError)(text);
  error.attr("offset") = e.offset;
  error.attr("expected") = e.expected;
  error.attr("got") = e.got;
  PyErr_SetObject(PyExc_EOFError, error.ptr());
  throw py::error_already_set();
}

template <typename Body> void guarded(const Body &body) {
  try {
    py::gil_scoped_release release;
    body();
  } catch (const IoFailure &e) {
    raise_os_error(e);
  } catch (const EndOfFile &e) {
    raise_eof_error(e);
  }
}

// ---- regions

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

inline void check_bounce(uintptr_t bounce, i64 bytes) {
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
template <typename Body> void for_blocks(const Walk &w, const Block &k, const Body &body) {
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

inline void check_offset(const Walk &w) {
  if (w.a < 0) throw std::invalid_argument("the region begins before the file does");
}

// Whether a direct request could move file bytes at `offset` to or from `mem` itself.
inline bool congruent(i64 offset, const char *mem) {
  return (reinterpret_cast<uintptr_t>(mem) - static_cast<uintptr_t>(offset)) % kPage == 0;
}

}  // namespace ooc::staging
