// The extension module ooc._kernels: bindings.cpp binds what calls.hpp declares; what has objects of Python's, or is made of
// classes, binds itself.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "common.hpp"

namespace ooc {
double worth_waking = 100;
void bind_calls(pybind11::module_ &m);
void bind_moves(pybind11::module_ &m);
void bind_reads(pybind11::module_ &m);
void bind_writes(pybind11::module_ &m);
void bind_onednn(pybind11::module_ &m);
void bind_cudnn(pybind11::module_ &m);
}  // namespace ooc

PYBIND11_MODULE(_kernels, m) {
  m.doc() = "Native copies, file regions, layouts, direct convolution, conversions, pooling, activations, optimizers, sums, batch normalisation, the bindings of oneDNN and cuDNN.";
  // A call asks this of every array several times; NumPy's own answers take a microsecond each.
  m.def(
      "address",
      [](const pybind11::array &array) -> std::uintptr_t {
        return array.size() ? reinterpret_cast<std::uintptr_t>(array.data()) : 0;
      },
      pybind11::arg("array").noconvert(), "Address of an array's first element, 0 for an empty one.");
  m.def(
      "trim",
      [] {
#ifdef __GLIBC__
        malloc_trim(0);  // else it keeps what is free below what is in use
#endif
      },
      "Give memory that is free back to the system.");
  m.def("team_of", &ooc::team_of, pybind11::arg("microseconds"), pybind11::arg("threads"),
        "How many of so many threads share work that takes one alone so long.");
  m.def(
      "share_from", [](double microseconds) { ooc::worth_waking = microseconds; }, pybind11::arg("microseconds"),
      "Work that each thread has at least. For tests: with less than 100 threads share small problems too.");
  ooc::bind_calls(m);
  ooc::bind_moves(m);
  ooc::bind_reads(m);
  ooc::bind_writes(m);
  ooc::bind_onednn(m);
  ooc::bind_cudnn(m);
}
