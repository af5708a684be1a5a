// Reads, writes and fetches of files, done at once by all threads.
//
// Reads are cut in pieces. A write is one piece: the system lets one thread at a time write to a file.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>

#include "../team.hpp"
#include "fetches.hpp"
#include "writer.hpp"

namespace py = pybind11;

namespace ooc::staging {
namespace {

constexpr i64 kPiece = 128 << 10;   // bytes of a read that repay being taken by a thread of its own
constexpr i64 kAtOnce = 256 << 10;  // bytes below which no other thread is woken
constexpr i64 kBounce = 16 << 10;   // of a bounce buffer, the least that a thread is given
constexpr i64 kRequests = 4;        // that are made by one thread in a row

using Clock = std::chrono::steady_clock;

struct Move {
  bool writes;
  int fd, fd_direct;
  Walk walk;
  uintptr_t bounce;
  i64 bounce_bytes;
  bool cached = false;

  i64 nbytes() const { return walk.steps() * walk.item; }

  // The bounce buffer of one of so many threads.
  Bounce bounce_of(int member, int team, char *spare) const {
    const i64 share = team > 1 ? page_floor(bounce_bytes / team) : bounce_bytes;
    return Bounce(bounce ? bounce + static_cast<uintptr_t>(member * share) : 0, share, spare, fd_direct);
  }
};

// A part of a move.
struct Piece {
  size_t move;
  Walk walk;
};

struct Request {
  int fd;
  Range range;
};

using MoveTuple = std::tuple<int, int, i64, std::vector<i64>, std::vector<i64>, i64, uintptr_t, std::vector<i64>, uintptr_t, i64>;
using FetchTuple = std::tuple<int, int, std::vector<i64>, std::vector<i64>, std::vector<std::vector<i64>>, i64, i64>;

Move move_of(bool writes, const MoveTuple &t) {
  const auto &[fd, fd_direct, offset, strides, shape, item, memory, memory_strides, bounce, bounce_bytes] = t;
  Move m{writes, fd, fd_direct, make_walk(offset, strides, static_cast<i64>(memory), memory_strides, shape, item), bounce,
         bounce_bytes};
  check_bounce(bounce, bounce_bytes);
  if (!normalise(m.walk)) {
    m.walk = Walk{};
    m.walk.item = 0;
    return m;
  }
  check_offset(m.walk);
  if (writes) check_apart(m.walk);
  return m;
}

// Cuts a walk in about `wanted` parts, along its outermost axes, then along what is contiguous.
void cut(const Walk &w, i64 wanted, size_t move, std::vector<Piece> &out) {
  if (wanted < 2) {
    out.push_back({move, w});
    return;
  }
  if (!w.rank) {
    const i64 each = page_ceil(ceil_div(w.item, wanted));
    for (i64 at = 0, next; at < w.item; at = next) {
      next = std::min(w.item, page_floor(w.a + at) + each - w.a);  // no page is read twice
      Walk part = w;
      part.a += at;
      part.b += at;
      part.item = next - at;
      out.push_back({move, part});
    }
    return;
  }
  const Axis x = w.ax[0];
  const i64 parts = std::min(wanted, x.n);
  for (i64 i = 0; i < parts; ++i) {
    const i64 lo = x.n * i / parts, hi = x.n * (i + 1) / parts;
    Walk part = w;
    part.a += lo * x.a;
    part.b += lo * x.b;
    part.ax[0].n = hi - lo;
    normalise(part);
    cut(part, parts < wanted ? ceil_div(wanted, parts) : 1, move, out);
  }
}

class Together {
 public:
  Together(std::vector<Move> moves, int threads) : moves_(std::move(moves)), spent_(new std::atomic<i64>[moves_.size()]()) {
    i64 total = 0;
    team_ = threads;
    for (Move &m : moves_) {
      total += m.nbytes();
      if (!m.writes && m.fd_direct >= 0 && cached(m.fd, m.walk)) m.fd_direct = -1, m.cached = true;
      const Bounce whole(m.bounce, m.bounce_bytes, nullptr, m.fd_direct);
      if (whole.direct) team_ = 1;  // the disk is what is waited for
      if (m.bounce) team_ = static_cast<int>(std::min<i64>(team_, std::max<i64>(1, m.bounce_bytes / kBounce)));
    }
    if (total < kAtOnce) team_ = 1;
    for (const bool writes : {true, false})
      for (size_t i = 0; i < moves_.size(); ++i)
        if (moves_[i].writes == writes && moves_[i].walk.item > 0) add(i);
  }

  void fetch(int fd, const std::vector<Range> &requests) {
    for (const Range &range : requests) requests_.push_back({fd, range});
  }

  void run() {
    const i64 pieces = static_cast<i64>(pieces_.size()), requests = static_cast<i64>(requests_.size());
    share(pieces + ceil_div(requests, kRequests), team_, [&](i64 i, int member) {
      if (i < pieces) return take(pieces_[static_cast<size_t>(i)], member);
      const i64 first = (i - pieces) * kRequests;
      for (i64 j = first; j < std::min(requests, first + kRequests); ++j)
        request(requests_[static_cast<size_t>(j)].fd, requests_[static_cast<size_t>(j)].range);
    });
  }

  // The move that failed, if one did, and how.
  std::pair<size_t, std::exception_ptr> failure() const { return {failed_, error_}; }

  // Seconds that threads have spent on a move.
  double seconds(size_t i) const { return 1e-9 * static_cast<double>(spent_[i].load()); }

 private:
  std::vector<Move> moves_;
  std::unique_ptr<std::atomic<i64>[]> spent_;
  std::vector<Piece> pieces_;
  std::vector<Request> requests_;
  int team_;
  std::mutex lock_;
  std::atomic<bool> stop_{false};
  size_t failed_ = 0;
  std::exception_ptr error_;

  void add(size_t i) {
    const Move &m = moves_[i];
    const i64 wanted = m.writes || team_ < 2 ? 1 : std::min<i64>(4 * team_, m.nbytes() / kPiece);
    cut(m.walk, wanted, i, pieces_);
  }

  void take(const Piece &piece, int member) {
    if (stop_) return;
    const auto begin = Clock::now();
    try {
      move(moves_[piece.move], piece.walk, member);
    } catch (...) {
      const std::lock_guard<std::mutex> hold(lock_);
      if (!error_) failed_ = piece.move, error_ = std::current_exception();
      stop_ = true;
    }
    spent_[piece.move] += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
  }

  void move(const Move &m, const Walk &part, int member) const {
    alignas(64) char spare[kPage];
    const Bounce bounce = m.bounce_of(member, team_, spare);
    if (m.writes)
      Writer(m.fd, m.fd_direct, bounce).write(part);
    else
      Reader(m.fd, m.fd_direct, bounce, m.cached ? kGapCached : kGapMax).read(part);
  }
};

// The error of move `index`, which it names as its attribute `move`.
[[noreturn]] void raise_of(size_t index, const std::exception_ptr &failure) {
  try {
    guarded([&] { std::rethrow_exception(failure); });
  } catch (py::error_already_set &error) {
    error.value().attr("move") = index;
    throw;
  }
  throw std::logic_error("no failure");
}

std::vector<double> move_regions(const std::vector<std::pair<bool, MoveTuple>> &moves, const std::vector<FetchTuple> &fetches,
                                 int threads) {
  std::vector<Move> made;
  for (const auto &[writes, tuple] : moves) made.push_back(move_of(writes, tuple));
  const size_t count = made.size();
  Together all(std::move(made), std::max(1, threads));
  for (const auto &[fd, fd_direct, offsets, strides, shapes, item, bounce_bytes] : fetches)
    all.fetch(fd, requests_for(fd_direct, offsets, strides, shapes, item, bounce_bytes));
  {
    py::gil_scoped_release release;
    all.run();
  }
  const auto [index, error] = all.failure();
  if (error) raise_of(index, error);
  std::vector<double> seconds;
  for (size_t i = 0; i < count; ++i) seconds.push_back(all.seconds(i));
  return seconds;
}

}  // namespace
}  // namespace ooc::staging

namespace ooc {

void bind_moves(py::module_ &m) {
  using namespace staging;
  m.def("move_regions", &move_regions, py::arg("moves"), py::arg("fetches"), py::arg("threads"),
        "Reads and writes strided regions of files at once: (whether it writes, the arguments of read_region or write_region), "
        "each apart from the others; and fetches, given as the arguments of fetch_regions. Returns the seconds that threads "
        "spent on each move. An error has the number of its move as attribute `move`.");
}

}  // namespace ooc
