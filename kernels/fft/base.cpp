// Convolution by transforms compiled for base. Standard headers come before the target pragma: inline functions of the standard library
// must never be emitted with instructions the processor may lack, because the linker may keep this copy for the whole program.
#include "headers.hpp"

#define pocketfft pocketfft_base
#include "pocketfft.hpp"

namespace ooc {
namespace fft_base {
namespace {
constexpr int VEC_BYTES = 16, HIGH = 2, WIDE = 2;
#define OOC_FMA_F32(a, b, c) ((a) * (b) + (c))
#define OOC_FMA_F64(a, b, c) ((a) * (b) + (c))
#include "impl.inl"
}  // namespace
}  // namespace fft_base
}  // namespace ooc

const ooc::fft::Kernels *ooc::fft::kernels_base() {
  static const Kernels kernels = {ooc::fft_base::prepare, ooc::fft_base::run};
  return &kernels;
}
