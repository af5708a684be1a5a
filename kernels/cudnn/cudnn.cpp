// cuDNN, opened at run time, and its Python binding: only this folder speaks to it. Tensors are described by extents and
// strides in elements, data and streams are addresses, and nothing is allocated on the device: the caller owns all of it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>

#include "conv.hpp"

namespace py = pybind11;

namespace ooc {
namespace {

class Cudnn {
 public:
  explicit Cudnn(const std::string &path) : api_(std::make_shared<const Api>(path)) {}

  size_t version() const { return api_->library.version; }
  const std::string &path() const { return api_->library.path; }
  std::unique_ptr<CudnnHandle> handle() const { return std::make_unique<CudnnHandle>(api_); }
  std::unique_ptr<CudnnConv> conv(const std::string &direction, int dtype, const Extents &x_shape,
                                  const Extents &x_strides, const Extents &w_shape, bool w_channels_last,
                                  const Extents &y_shape, const Extents &y_strides, const Extents &pad,
                                  const Extents &stride, const Extents &dilation, int groups,
                                  const std::string &math) const {
    const ConvTensors tensors{x_shape, x_strides, w_shape, y_shape, y_strides, w_channels_last};
    return std::make_unique<CudnnConv>(api_, direction, dtype, tensors, Geometry{pad, stride, dilation, groups}, math);
  }

 private:
  std::shared_ptr<const Api> api_;
};

// ---- bindings

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const cudnn::Failure &failure) {
    const char *const name = failure.unsupported() ? "UnsupportedError" : "BackendError";
    PyErr_SetString(py::module_::import("ooc.errors").attr(name).ptr(), failure.what());
  }
}

// Binds a method by the names of its arguments; it runs without Python's lock.
template <class T, class Method, class... Names>
void bind(py::class_<T> &type, const char *name, Method method, Names... names) {
  type.def(name, method, py::arg(names)..., py::call_guard<py::gil_scoped_release>());
}

void bind_conv(py::module_ &m) {
  py::class_<CudnnConv> conv(m, "CudnnConv");
  bind(conv, "heuristics", &CudnnConv::heuristics, "handle");
  bind(conv, "measure", &CudnnConv::measure, "handle", "stream", "first", "second", "out", "workspace",
       "workspace_bytes");
  conv.def("workspace", &CudnnConv::workspace, py::arg("handle"), py::arg("algorithm"), py::arg("math") = py::none(),
           py::call_guard<py::gil_scoped_release>());
  bind(conv, "run", &CudnnConv::run, "handle", "stream", "algorithm", "math", "alpha", "first", "second", "beta",
       "out", "workspace", "workspace_bytes");
}

}  // namespace

void bind_cudnn(py::module_ &m) {
  py::register_local_exception_translator(&translate);
  py::class_<CudnnHandle>(m, "CudnnHandle");
  bind_conv(m);
  py::class_<Cudnn> library(m, "Cudnn");
  library.def(py::init<const std::string &>(), py::arg("path"))
      .def_property_readonly("version", &Cudnn::version)
      .def_property_readonly("path", &Cudnn::path);
  bind(library, "handle", &Cudnn::handle);
  bind(library, "conv", &Cudnn::conv, "direction", "dtype", "x_shape", "x_strides", "w_shape", "w_channels_last",
       "y_shape", "y_strides", "pad", "stride", "dilation", "groups", "math");
}

}  // namespace ooc
