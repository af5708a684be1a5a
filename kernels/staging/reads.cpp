// Regions of files to memory, and their fetching ahead into the page cache.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "fetches.hpp"
#include "reader.hpp"

namespace py = pybind11;

namespace ooc::staging {
namespace {

Result read_region(int fd, int fd_direct, i64 offset, const std::vector<i64> &src_strides,
                   const std::vector<i64> &shape, i64 itemsize, uintptr_t dst, const std::vector<i64> &dst_strides,
                   uintptr_t bounce, i64 bounce_bytes) {
  Walk w = make_walk(offset, src_strides, static_cast<i64>(dst), dst_strides, shape, itemsize);
  check_bounce(bounce, bounce_bytes);
  if (!normalise(w)) return {0, 0, 0};
  check_offset(w);
  alignas(64) char spare[kPage];
  Reader reader(fd, fd_direct, Bounce(bounce, bounce_bytes, spare, fd_direct));
  guarded([&] { reader.read(w); });
  return {reader.traffic.plain, reader.traffic.direct, reader.traffic.calls};
}

// Has the system fetch regions into the page cache meanwhile, as they will be read with such a bounce buffer; but for what
// is read past the cache anyway. Neighbours become one request. A hint, so refusal is no error.
void fetch_regions(int fd, int fd_direct, const std::vector<i64> &offsets, const std::vector<i64> &strides,
                   const std::vector<std::vector<i64>> &shapes, i64 itemsize, i64 bounce_bytes) {
  const std::vector<Range> requests = requests_for(fd_direct, offsets, strides, shapes, itemsize, bounce_bytes);
  py::gil_scoped_release release;
  for (const Range &range : requests) request(fd, range);
}

}  // namespace
}  // namespace ooc::staging

namespace ooc {

void bind_reads(py::module_ &m) {
  using namespace staging;
  m.def("read_region", &read_region, py::arg("fd"), py::arg("fd_direct"), py::arg("offset"), py::arg("src_strides"),
        py::arg("shape"), py::arg("itemsize"), py::arg("dst"), py::arg("dst_strides"), py::arg("bounce") = 0,
        py::arg("bounce_bytes") = 0,
        "Reads a strided region of a file; returns (bytes_from_cache, bytes_direct, syscalls).");
  m.def("fetch_regions", &fetch_regions, py::arg("fd"), py::arg("fd_direct"), py::arg("offsets"), py::arg("strides"),
        py::arg("shapes"), py::arg("itemsize"), py::arg("bounce_bytes") = 0,
        "Has the system fetch regions of a file ahead of their reads by read_region with such a bounce buffer.");
}

}  // namespace ooc
