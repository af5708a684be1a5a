// float32 convolutions by oneDNN, opened at run time, in pieces that threads share.
//
// A piece is some images, or some rows of one: computed by one thread, from the caller's x to the caller's y, while its copies
// are in cache. The activation is ours, since oneDNN's turn NaN into a number.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../activate.hpp"
#include "../team.hpp"
#include "conv.hpp"

namespace py = pybind11;

namespace ooc {
namespace onednn {
namespace {

constexpr double MICROSECOND = 100e3;   // multiply-adds that one thread does in it
constexpr i64 EACH = 4;                 // pieces for each thread, where there is work for them
constexpr i64 PIECE_BYTES = 2 << 20;    // of x and y of a piece, to stay in the second cache and what is behind it

double products(const Problem &p) {
  double n = static_cast<double>(p.w.shape[1]);
  for (i64 e : p.y.shape) n *= static_cast<double>(e);
  for (int axis = 0; axis < spatial_axes; ++axis) n *= static_cast<double>(p.w.shape[2 + axis]);
  return n;
}

i64 elements(const Tensor &t) {
  i64 n = 1;
  for (i64 e : t.shape) n *= e;
  return n;
}

i64 up(i64 a, i64 b) { return (a + b - 1) / b; }

// A piece of a problem: where its operands begin, as elements from those of the whole.
struct Cut {
  Problem p;
  i64 x = 0, y = 0;
};

// Images [lo, hi).
Cut images(const Problem &whole, i64 lo, i64 hi) {
  Cut cut{whole, lo * whole.x.strides[0], lo * whole.y.strides[0]};
  cut.p.x.shape[0] = cut.p.y.shape[0] = hi - lo;
  return cut;
}

// Rows [lo, hi) of what is written, along a spatial axis, and the rows of the other that belong to them.
Cut rows(Cut cut, int axis, i64 lo, i64 hi) {
  Problem &p = cut.p;
  const bool fprop = p.pass == Pass::fprop;
  const i64 at = 2 + axis, stride = p.stride[axis], reach = (p.w.shape[at] - 1) * p.dilation[axis];
  Tensor &made = fprop ? p.y : p.x, &met = fprop ? p.x : p.y;
  i64 first, end;  // in `met`
  if (fprop)
    first = lo * stride - p.pad_lo[axis], end = (hi - 1) * stride - p.pad_lo[axis] + reach + 1;
  else
    first = up(std::max<i64>(0, lo + p.pad_lo[axis] - reach), stride), end = (hi - 1 + p.pad_lo[axis]) / stride + 1;
  const i64 from = std::max<i64>(0, first), to = std::min(met.shape[at], end);
  if (from >= to) refuse("a piece of its rows meets none of the others");
  p.pad_lo[axis] = fprop ? from - first : p.pad_lo[axis] + lo - from * stride;
  cut.x += (fprop ? from : lo) * p.x.strides[at];
  cut.y += (fprop ? lo : from) * p.y.strides[at];
  made.shape[at] = hi - lo, met.shape[at] = to - from;
  return cut;
}

// How a problem is cut for so many threads: in memory's interest, and to have some pieces for each.
std::vector<Cut> cuts_of(const Problem &p, int threads) {
  const i64 n = p.y.shape[0], bytes = 4 * (elements(p.x) + elements(p.y));
  const double most = std::max(1.0, products(p) / MICROSECOND / worth_waking);
  const i64 sharing = threads > 1 ? static_cast<i64>(std::min<double>(EACH * threads, most)) : 1;
  const i64 wanted = std::max(sharing, up(bytes, PIECE_BYTES));
  std::vector<Cut> found;
  if (wanted <= n) {
    for (i64 i = 0; i < wanted; ++i) found.push_back(images(p, n * i / wanted, n * (i + 1) / wanted));
    return found;
  }
  const Tensor &made = p.pass == Pass::fprop ? p.y : p.x;
  int axis = 0;  // the first of those with rows to cut
  while (axis < spatial_axes - 1 && made.shape[2 + axis] < 2) ++axis;
  const i64 step = p.pass == Pass::fprop ? 1 : p.stride[axis], steps = up(made.shape[2 + axis], step);
  // Thin pieces copy much of x twice: only where threads would have nothing to do.
  const i64 thick = steps / std::max<i64>(1, 2 * p.w.shape[2 + axis] / step), thin = sharing > 1 ? std::min<i64>(up(threads, n), steps) : 1;
  const i64 parts = std::min(up(wanted, n), std::max({i64{1}, thick, thin}));
  for (i64 i = 0; i < n; ++i)
    for (i64 j = 0; j < parts; ++j)
      found.push_back(rows(images(p, i, i + 1), axis, steps * j / parts * step,
                           std::min(made.shape[2 + axis], steps * (j + 1) / parts * step)));
  return found;
}

using Key = std::vector<i64>;

Key shape_key(const Problem &p) {
  Key key = p.x.shape;
  for (const Extents *more : {&p.y.shape, &p.pad_lo}) key.insert(key.end(), more->begin(), more->end());
  return key;
}

class Tiled {
 public:
  Tiled(std::shared_ptr<const Library> lib, const Problem &p, Act act, float coef, int threads)
      : lib_(std::move(lib)), act_(act), coef_(coef), pieces_(cuts_of(p, threads)),
        team_(static_cast<int>(std::min<i64>(threads, static_cast<i64>(pieces_.size())))) {
    std::map<Key, size_t> met;
    for (const Cut &cut : pieces_) {
      const auto [at, fresh] = met.emplace(shape_key(cut.p), shapes_.size());
      shape_of_.push_back(at->second);
      if (fresh) shapes_.push_back(made_for(cut.p));
    }
    for (const auto &shape : shapes_) {
      const Conv &conv = *shape[0];
      if (conv.weights_key() != weights_key()) refuse("its pieces want weights in several layouts");
      own_bytes_ = std::max(own_bytes_, whole_lines(conv.own_bytes()));
    }
  }

  size_t workspace_bytes() const { return whole_lines(shapes_[0][0]->weights_bytes()) + team_ * own_bytes_; }
  const std::string &impl() const { return shapes_[0][0]->impl(); }
  const std::string &weights_key() const { return shapes_[0][0]->weights_key(); }

  void run(uintptr_t x, uintptr_t w, uintptr_t bias, uintptr_t y, uintptr_t workspace, bool reuse_weights) {
    if (!x || !w || !y) refuse("an operand is missing");
    if (workspace_bytes() && (!workspace || workspace % LINE)) refuse("the workspace is missing or not aligned");
    char *const weights = reinterpret_cast<char *>(workspace), *const own = weights + whole_lines(shapes_[0][0]->weights_bytes());
    const float *const at_w = reinterpret_cast<const float *>(w);
    if (!reuse_weights) shapes_[0][0]->copy_weights(at_w, weights, own);
    std::exception_ptr failure;
    std::mutex lock;
    share(static_cast<i64>(pieces_.size()), team_, [&](i64 i, int member) {
      try {
        const Cut &cut = pieces_[i];
        float *const to_x = reinterpret_cast<float *>(x) + cut.x, *const to_y = reinterpret_cast<float *>(y) + cut.y;
        conv_of(i, member).run(to_x, at_w, reinterpret_cast<const float *>(bias), to_y, weights, own + member * own_bytes_);
        if (act_ != Act::identity) activate(cut.p.pass == Pass::fprop ? to_y : to_x, cut.p.pass == Pass::fprop ? cut.p.y : cut.p.x);
      } catch (...) {
        const std::lock_guard<std::mutex> hold(lock);
        failure = std::current_exception();
      }
    });
    if (failure) std::rethrow_exception(failure);
  }

 private:
  using Members = std::vector<std::unique_ptr<Conv>>;  // one for each member of the team, made when it first needs it

  Members made_for(const Problem &p) const {
    Members members(team_);
    members[0] = std::make_unique<Conv>(lib_, p);
    return members;
  }

  const Conv &conv_of(i64 piece, int member) {
    std::unique_ptr<Conv> &conv = shapes_[shape_of_[piece]][member];
    if (!conv) conv = std::make_unique<Conv>(lib_, pieces_[piece].p);
    return *conv;
  }

  void activate(float *at, const Tensor &t) const {
    Five shape, strides;
    std::copy(t.shape.begin(), t.shape.end(), shape.begin());
    std::copy(t.strides.begin(), t.strides.end(), strides.begin());
    activate_in_place(at, shape, strides, act_, coef_);
  }

  std::shared_ptr<const Library> lib_;
  Act act_;
  float coef_;
  std::vector<Cut> pieces_;
  int team_;
  std::vector<size_t> shape_of_;  // of each piece, among `shapes_`
  std::vector<Members> shapes_;
  size_t own_bytes_ = 0;
};

std::unique_ptr<Tiled> make_conv(const std::shared_ptr<Library> &lib, const std::string &pass, const Extents &x_shape,
                                 const Extents &x_strides, const Extents &w_shape, const Extents &w_strides,
                                 const Extents &y_shape, const Extents &y_strides, const Extents &stride,
                                 const Extents &dilation, const Extents &pad_lo, i64 groups, bool bias, int act,
                                 float coef, bool accumulate, int threads) {
  const Problem problem{pass_of(pass), {x_shape, x_strides}, {w_shape, w_strides}, {y_shape, y_strides}, stride, dilation,
                        pad_lo,        {},                   groups,               bias,                 accumulate};
  check(problem);
  if (threads < 1) refuse("at least one thread is needed");
  return std::make_unique<Tiled>(lib, problem, act_of(act), coef, threads);
}

}  // namespace
}  // namespace onednn

void bind_onednn(py::module_ &m) {
  using namespace onednn;
  py::class_<Tiled>(m, "Conv")
      .def_property_readonly("workspace_bytes", &Tiled::workspace_bytes)
      .def_property_readonly("impl", &Tiled::impl)
      .def_property_readonly("weights_key", &Tiled::weights_key)
      .def("run", &Tiled::run, py::arg("x"), py::arg("w"), py::arg("bias"), py::arg("y"), py::arg("workspace"),
           py::arg("reuse_weights") = false, py::call_guard<py::gil_scoped_release>());

  py::class_<Library, std::shared_ptr<Library>>(m, "OneDnn")
      .def(py::init<const std::string &>(), py::arg("path"))
      .def_property_readonly("version", &Library::version)
      .def_property_readonly("isa", &Library::isa)
      .def("conv", &make_conv, py::arg("pass_"), py::arg("x_shape"), py::arg("x_strides"), py::arg("w_shape"),
           py::arg("w_strides"), py::arg("y_shape"), py::arg("y_strides"), py::arg("stride"), py::arg("dilation"),
           py::arg("pad_lo"), py::arg("groups"), py::arg("bias"), py::arg("act"), py::arg("coef"),
           py::arg("accumulate"), py::arg("threads"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace ooc
