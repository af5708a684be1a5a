// Convolution by Fourier transforms of blocks (overlap-save), at stride 1: for filters of many taps. One source (impl.inl) is compiled
// for several instruction sets; the transforms are PocketFFT's (pocketfft.hpp, its licence in LICENSE.md).
//
// A block of outputs needs a segment of inputs that is longer by the reach of the filters. Segments, filters and results are
// transformed once each; for every frequency a matrix product sums over channels (fprop, dgrad) or blocks (wgrad), whose results go
// back once. Spectra lie in rows: of the frequencies of a line, all rows, so that a product reads what is together.
//
// A long line is folded into a plane, of which neighbouring numbers are a column: its lines are transformed, turned, and transformed
// across. So several lanes share one segment, and what a thread works in is short.
//
// Room: for spectra of all filters, and of as many blocks of all channels in and out as it holds; what each thread transforms. Where
// each channel has one filter, the spectrum of a block becomes that of its result where it is.
// Filters keep their place between calls: with `packed` a call uses the spectra that an earlier one left there.
#pragma once
#include <memory>

#include "../direct/direct.hpp"
#include "../isa.hpp"

namespace ooc {
namespace fft {

struct Lengths {
  i64 axis[3];  // of a segment
  i64 folded;   // lines into which a segment is folded that is one; 1: none
};

// What PocketFFT prepares for some lengths: once for all tiles of a plan, whose workspace counts it.
struct Tables {
  Lengths lengths;
  Dtype dtype;
  std::shared_ptr<const void> plans;
};

struct Kernels {
  std::shared_ptr<const void> (*prepare)(Dtype, const Lengths &);
  // False, and nothing written, where there is too little room, or numbers are not finite or so large that sums may not be.
  bool (*run)(const direct::Problem &, const direct::Operands &, const Tables &);
};

// Null when the compiler lacks the instruction set.
const Kernels *kernels_avx512();
const Kernels *kernels_avx2();
const Kernels *kernels_base();

}  // namespace fft
}  // namespace ooc
