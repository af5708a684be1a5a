// The kernels of kernels/device/ (joined to one device.cu by emulated.py) for the host: a launch of many threads runs as a
// loop. What a kernel asks of coordinates is checked.

#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include <math.h>

namespace {

thread_local long long thread = 0, threads = 1;

struct Outside {};

using Kernel = void (*)(const void*);

using Key = std::tuple<std::string, int, int>;  // name, element type, bits of coordinates

std::map<Key, Kernel>& kernels() {
  static std::map<Key, Kernel> found;
  return found;
}

bool enroll(const char* name, int type, int index, Kernel kernel) { return kernels()[{name, type, index}] = kernel, true; }

}  // namespace

#define DEVICE static inline
#define KERNEL(name)                                                                                                       \
  static void name(const Args& a);                                                                                         \
  static const bool enrolled_##name = enroll(#name, OOC_TYPE, OOC_INDEX, [](const void* args) { name(*(const Args*)args); }); \
  static void name(const Args& a)
#define THREAD thread
#define THREADS threads
#define VISIT(t, axis, x) \
  if ((t).data && (t).stride[axis] && ((x) < (t).lo[axis] || (x) >= (t).lo[axis] + (t).extent[axis])) throw Outside();
#define TIMES(a, b) ((a) * (b))

#define OOC_INDEX 32
#define OOC_TYPE 0
namespace f64_32 {
#include "device.cu"
}
#undef OOC_TYPE
#define OOC_TYPE 1
namespace f32_32 {
#include "device.cu"
}
#undef OOC_TYPE
#define OOC_TYPE 2
namespace f16_32 {
#include "device.cu"
}
#undef OOC_TYPE
#define OOC_TYPE 3
namespace bf16_32 {
#include "device.cu"
}
#undef OOC_TYPE
#undef OOC_INDEX
#define OOC_INDEX 64
#define OOC_TYPE 0
namespace f64_64 {
#include "device.cu"
}
#undef OOC_TYPE
#define OOC_TYPE 1
namespace f32_64 {
#include "device.cu"
}
#undef OOC_TYPE
#define OOC_TYPE 2
namespace f16_64 {
#include "device.cu"
}
#undef OOC_TYPE
#define OOC_TYPE 3
namespace bf16_64 {
#include "device.cu"
}
#undef OOC_TYPE
#undef OOC_INDEX

// 0, or 1 for a kernel that does not exist, or 2 when an element outside its block was asked for.
extern "C" int launch(const char* name, int dtype, long long threads_in_grid, const void* args, int index) {
  const auto found = kernels().find({name, dtype, index});
  if (found == kernels().end()) return 1;
  threads = threads_in_grid;
  try {
    for (thread = 0; thread < threads; ++thread) found->second(args);
  } catch (const Outside&) {
    return 2;
  }
  return 0;
}
