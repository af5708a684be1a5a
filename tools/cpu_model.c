// What the processor has, for __builtin_cpu_supports and target_clones: zig's runtime library has a stub in its place that says "nothing",
// and the kernels would never use a wide vector. Bits and names are those that GCC's and LLVM's runtime libraries share.
#include <cpuid.h>

#define HIDDEN __attribute__((visibility("hidden")))

enum { SSE2 = 4, AVX = 9, AVX2 = 10, FMA = 14, AVX512F = 15, AVX512VL = 20, AVX512BW = 21, AVX512DQ = 22 };

HIDDEN struct {
  unsigned vendor, type, subtype, features[1];
} __cpu_model;
HIDDEN unsigned __cpu_features2[4];

// Called by the loader before anything else of the library is, maybe more than once.
HIDDEN int __cpu_indicator_init(void) {
  unsigned a, b, c, d, ymm = 0, zmm = 0, found = 1u << SSE2;
  if (__cpu_model.features[0]) return 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return -1;
  if (c & bit_OSXSAVE) {  // the system must keep the registers, too
    __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    ymm = (a & 0x06) == 0x06;
    zmm = (a & 0xe6) == 0xe6;
  }
  if (ymm) found |= (c & bit_AVX ? 1u << AVX : 0) | (c & bit_FMA ? 1u << FMA : 0);
  if (ymm && __get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    if (b & bit_AVX2) found |= 1u << AVX2;
    if (zmm)
      found |= (b & bit_AVX512F ? 1u << AVX512F : 0) | (b & bit_AVX512VL ? 1u << AVX512VL : 0) |
               (b & bit_AVX512BW ? 1u << AVX512BW : 0) | (b & bit_AVX512DQ ? 1u << AVX512DQ : 0);
  }
  __cpu_model.features[0] = found;
  return 0;
}
