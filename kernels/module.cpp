// The extension module ooc._kernels: every kernel file binds its own functions.
#include <pybind11/pybind11.h>

namespace ooc {
void bind_staging(pybind11::module_ &m);
void bind_pointwise(pybind11::module_ &m);
void bind_backward(pybind11::module_ &m);
void bind_reduce(pybind11::module_ &m);
void bind_direct(pybind11::module_ &m);
void bind_onednn(pybind11::module_ &m);
void bind_cudnn(pybind11::module_ &m);
}  // namespace ooc

PYBIND11_MODULE(_kernels, m) {
  m.doc() = "Native copies, file regions, direct convolution, pooling, activations, sums, batch normalisation, the bindings of oneDNN and cuDNN.";
  ooc::bind_staging(m);
  ooc::bind_pointwise(m);
  ooc::bind_backward(m);
  ooc::bind_reduce(m);
  ooc::bind_direct(m);
  ooc::bind_onednn(m);
  ooc::bind_cudnn(m);
}
