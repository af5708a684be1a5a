// The helpers of a process, made when first asked for and never ended.
#include "team.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ooc {
namespace {

constexpr std::chrono::microseconds SPIN{40};  // awake after the last piece, since tiles follow one another

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Spins until `done` says so. False if that takes too long.
template <class Done>
bool spin(const Done &done) {
  const auto end = std::chrono::steady_clock::now() + SPIN;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

// One call of share_pieces, on its caller's stack.
struct Work {
  Task task;
  const void *what;
  i64 pieces;
  int team;
  int members = 1;              // that have joined; under the lock
  std::atomic<int> inside{0};   // helpers that have not left
  std::atomic<i64> next{0};     // the first piece that nobody has taken

  bool over() const { return next.load(std::memory_order_relaxed) >= pieces; }

  void take_part(int member) {
    for (i64 i; (i = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) task(what, i, member);
  }
};

class Helpers {
 public:
  void run(Work &work) {
    open(work);
    work.take_part(0);
    close(work);
  }

 private:
  void open(Work &work) {
    int waking;
    {
      const std::lock_guard<std::mutex> hold(lock_);
      open_.push_back(&work);
      const i64 wanted = std::min<i64>(work.team, work.pieces) - 1;
      while (count_ < wanted && hire()) ++count_;
      waking = static_cast<int>(std::min<i64>(asleep_, wanted));
      ++posted_;
    }
    while (waking-- > 0) wake_.notify_one();
  }

  // Nobody joins any more; those who have are waited for, each at its last piece.
  void close(Work &work) {
    {
      const std::lock_guard<std::mutex> hold(lock_);
      open_.erase(std::find(open_.begin(), open_.end(), &work));
    }
    const auto left = [&] { return work.inside.load() == 0; };
    if (spin(left)) return;
    std::unique_lock<std::mutex> hold(lock_);
    ++waiting_;
    left_.wait(hold, left);
    --waiting_;
  }

  bool hire() {
    try {
      std::thread([this] { help(); }).detach();
      return true;
    } catch (const std::system_error &) {
      return false;  // the others do its pieces
    }
  }

  [[noreturn]] void help() {
    for (;;) {
      const unsigned seen = posted_.load();
      int member = 0;
      if (Work *work = join(member)) {
        work->take_part(member);
        if (work->inside.fetch_sub(1) == 1 && waiting_.load()) {
          const std::lock_guard<std::mutex> hold(lock_);
          left_.notify_all();
        }
        continue;
      }
      if (spin([&] { return posted_.load(std::memory_order_relaxed) != seen; })) continue;
      std::unique_lock<std::mutex> hold(lock_);
      ++asleep_;
      wake_.wait(hold, [&] { return posted_.load() != seen; });
      --asleep_;
    }
  }

  // The oldest work that wants another member.
  Work *join(int &member) {
    const std::lock_guard<std::mutex> hold(lock_);
    for (Work *work : open_)
      if (work->members < work->team && !work->over()) {
        member = work->members++;
        ++work->inside;
        return work;
      }
    return nullptr;
  }

  std::mutex lock_;
  std::condition_variable wake_, left_;
  std::vector<Work *> open_;
  i64 count_ = 0, asleep_ = 0;
  std::atomic<unsigned> posted_{0};
  std::atomic<int> waiting_{0};  // callers that sleep
};

// Never destroyed: its threads outlive whatever ends a process. A forked child has none of them, and begins anew.
Helpers *helpers = nullptr;

void begin() { helpers = new Helpers; }

Helpers &of_process() {
  static const bool begun = [] {
    begin();
#if defined(__unix__) || defined(__APPLE__)
    pthread_atfork(nullptr, nullptr, begin);
#endif
    return true;
  }();
  (void)begun;
  return *helpers;
}

}  // namespace

void share_pieces(i64 pieces, int team, Task task, const void *what) {
  Work work{task, what, pieces, team};
  of_process().run(work);
}

i64 take_number(i64 *next) { return __atomic_fetch_add(next, 1, __ATOMIC_RELAXED); }

}  // namespace ooc
