// Memory to regions of files.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "writer.hpp"

namespace py = pybind11;

namespace ooc::staging {
namespace {

Result write_region(int fd, int fd_direct, i64 offset, const std::vector<i64> &dst_strides,
                    const std::vector<i64> &shape, i64 itemsize, uintptr_t src, const std::vector<i64> &src_strides,
                    uintptr_t bounce, i64 bounce_bytes) {
  Walk w = make_walk(offset, dst_strides, static_cast<i64>(src), src_strides, shape, itemsize);
  check_bounce(bounce, bounce_bytes);
  if (!normalise(w)) return {0, 0, 0};
  check_offset(w);
  check_apart(w);
  alignas(64) char spare[kPage];
  Writer writer(fd, fd_direct, Bounce(bounce, bounce_bytes, spare, fd_direct));
  guarded([&] { writer.write(w); });
  return {writer.traffic.plain, writer.traffic.direct, writer.traffic.calls};
}

}  // namespace
}  // namespace ooc::staging

namespace ooc {

void bind_writes(py::module_ &m) {
  using namespace staging;
  m.def("write_region", &write_region, py::arg("fd"), py::arg("fd_direct"), py::arg("offset"), py::arg("dst_strides"),
        py::arg("shape"), py::arg("itemsize"), py::arg("src"), py::arg("src_strides"), py::arg("bounce") = 0,
        py::arg("bounce_bytes") = 0,
        "Writes a strided region of a file, gaps untouched; returns (bytes_buffered, bytes_direct, syscalls).");
}

}  // namespace ooc
