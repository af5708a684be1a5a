// Compiling a part of a file for instructions that not every processor has: from OOC_TARGET to OOC_TARGET_END, where OOC_WIDER is defined.
//
// Standard headers come before: inline functions of the standard library must never be emitted with instructions the processor may
// lack, because the linker may keep this copy for the whole program.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)  // clang says so too
#define OOC_WIDER
#define OOC_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define OOC_TARGET(isa) OOC_PRAGMA(clang attribute push(__attribute__((target(isa))), apply_to = function))
#define OOC_TARGET_END _Pragma("clang attribute pop")
#else
#define OOC_TARGET(isa) _Pragma("GCC push_options") OOC_PRAGMA(GCC target(isa))
#define OOC_TARGET_END _Pragma("GCC pop_options")
#endif
#define OOC_TARGET_AVX2 OOC_TARGET("avx2,fma")
#define OOC_TARGET_AVX512 OOC_TARGET("avx512f,avx512vl,avx512dq,avx512bw,fma,avx2")
#endif
