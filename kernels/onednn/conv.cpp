// float32 convolutions by oneDNN, opened at run time.
//
// oneDNN is fast only in the blocked layouts that it chooses itself, so each operand is reordered from
// the caller's strided array into such a layout and the result back out of it. All buffers for that,
// and the scratchpads of the primitives, lie in one workspace that the caller owns and counts.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "library.hpp"

namespace py = pybind11;

namespace ooc {
namespace onednn {
namespace {

constexpr size_t alignment = 64;  // of the workspace and of each part of it

class Conv {
 public:
  // x_from: x is the y of that convolution in the layout in which `y_blocked` left it there.
  Conv(std::shared_ptr<const Library> lib, Problem problem, const Conv *x_from, bool y_blocked);

  size_t workspace_bytes() const { return workspace_bytes_; }
  size_t y_bytes() const { return lib_->api.desc_get_size(y_.outer_desc.get()); }
  const std::string &impl() const { return impl_; }
  const std::string &weights_key() const { return weights_key_; }

  void run(uintptr_t x, uintptr_t w, uintptr_t bias, uintptr_t y, uintptr_t workspace, bool reuse_weights,
           bool reuse_x);

 private:
  void describe_outer_x(const Conv *x_from);
  void describe_primitive();
  Handle<dnnl::PrimitiveDesc> primitive_desc(bool sum) const;
  Handle<dnnl::PrimitiveDesc> forward_desc(dnnl::Propagation propagation, const dnnl::Attr *attr) const;
  void connect(Operand &operand, Query layout, bool is_output);
  void connect_operands();
  void lay_out_workspace();
  void set_pointers(uintptr_t x, uintptr_t w, uintptr_t bias, uintptr_t y, char *workspace);

  Handle<dnnl::Desc> chosen_layout(Query query) const;

  std::shared_ptr<const Library> lib_;
  Problem p_;
  bool y_blocked_;
  bool sum_in_conv_ = false;  // accumulation by the convolution itself; else by the reorder out of the copy
  Handle<dnnl::Stream> stream_;
  Handle<dnnl::Desc> bias_desc_;
  Handle<dnnl::PrimitiveDesc> desc_;
  Operand x_, w_, y_;
  Handle<dnnl::Memory> bias_;
  Step compute_;
  size_t scratchpad_offset_ = 0, workspace_bytes_ = 0;
  std::string impl_, weights_key_;
};

Conv::Conv(std::shared_ptr<const Library> lib, Problem problem, const Conv *x_from, bool y_blocked)
    : lib_(std::move(lib)), p_(prepared(std::move(problem))), y_blocked_(y_blocked) {
  const ThreadCount threads(p_.threads);  // scratchpads and the choice of code depend on it
  const dnnl::Api &api = lib_->api;
  stream_ = dnnl::make(api.stream_create, api.stream_destroy, lib_->engine.get(), dnnl::stream_in_order);
  if (y_blocked_ && p_.pass != Pass::fprop) refuse("only fprop leaves its y blocked");
  describe_outer_x(x_from);
  w_.outer_desc = lib_->strided("w", p_.w);
  if (!y_blocked_) y_.outer_desc = lib_->strided("y", p_.y);
  if (p_.bias) bias_desc_ = lib_->strided("bias", {{p_.y.shape[1]}, {1}});
  describe_primitive();
  connect_operands();
  lay_out_workspace();
}

void Conv::describe_outer_x(const Conv *x_from) {
  if (!x_from) {
    x_.outer_desc = lib_->strided("x", p_.x);
    return;
  }
  if (p_.pass == Pass::dgrad) refuse("dgrad writes x, it cannot take it from another convolution");
  if (!x_from->y_blocked_) refuse("the y of the other convolution is not blocked");
  // Compared as described to oneDNN: no row can be left out of a blocked array, nor an axis dropped.
  if (x_from->p_.y.shape != p_.x.shape) refuse("the y of the other convolution has another shape than x");
  x_.outer_desc = lib_->clone(x_from->y_.outer_desc.get());
}

// Chooses the implementation and with it the layouts, and who accumulates. A reorder that adds saves
// the reorder of the old values into the copy, but it comes too late when an activation follows.
void Conv::describe_primitive() {
  sum_in_conv_ = p_.accumulate && p_.pass == Pass::fprop && (p_.act != Act::identity || y_blocked_);
  desc_ = primitive_desc(sum_in_conv_);
  if (p_.accumulate && p_.pass == Pass::fprop && !sum_in_conv_) {
    const auto layout = chosen_layout(Query::dst_md);
    if (lib_->api.desc_equal(layout.get(), y_.outer_desc.get())) {
      sum_in_conv_ = true;  // there is no copy to reorder from
      desc_ = primitive_desc(sum_in_conv_);
    }
  }
  const char *impl = nullptr;
  lib_->api.primitive_desc_query(desc_.get(), Query::impl_info_str, 0, &impl);
  impl_ = impl ? impl : "";
}

Handle<dnnl::PrimitiveDesc> Conv::forward_desc(dnnl::Propagation propagation, const dnnl::Attr *attr) const {
  const dnnl::Api &api = lib_->api;
  const auto x = lib_->any(p_.x.shape), w = lib_->any(p_.w.shape), y = lib_->any(p_.y.shape);
  // Direct only: Winograd would be inexact even on small integers.
  return dnnl::make(api.convolution_forward, api.primitive_desc_destroy, lib_->engine.get(), propagation,
                    dnnl::Algorithm::convolution_direct, x.get(), w.get(), bias_desc_.get(), y.get(),
                    p_.stride.data(), p_.dilation.data(), p_.pad_lo.data(), p_.pad_hi.data(), attr);
}

Handle<dnnl::PrimitiveDesc> Conv::primitive_desc(bool sum) const {
  const dnnl::Api &api = lib_->api;
  const auto attr = lib_->attributes(sum, p_.act, p_.coef);
  if (p_.pass == Pass::fprop) return forward_desc(dnnl::Propagation::forward_inference, attr.get());
  // The backward passes ask for the forward convolution that they belong to.
  const auto forward = forward_desc(dnnl::Propagation::forward_training, attr.get());
  const auto x = lib_->any(p_.x.shape), w = lib_->any(p_.w.shape), y = lib_->any(p_.y.shape);
  const auto algorithm = dnnl::Algorithm::convolution_direct;
  if (p_.pass == Pass::dgrad) {
    return dnnl::make(api.convolution_backward_data, api.primitive_desc_destroy, lib_->engine.get(), algorithm,
                      x.get(), w.get(), y.get(), p_.stride.data(), p_.dilation.data(), p_.pad_lo.data(),
                      p_.pad_hi.data(), forward.get(), attr.get());
  }
  const dnnl::Desc *no_bias = nullptr;
  return dnnl::make(api.convolution_backward_weights, api.primitive_desc_destroy, lib_->engine.get(), algorithm,
                    x.get(), w.get(), no_bias, y.get(), p_.stride.data(), p_.dilation.data(), p_.pad_lo.data(),
                    p_.pad_hi.data(), forward.get(), attr.get());
}

Handle<dnnl::Desc> Conv::chosen_layout(Query query) const {
  const dnnl::Desc *layout = lib_->api.primitive_desc_query_md(desc_.get(), query, 0);
  if (!layout) refuse("the convolution does not tell its layout");
  return lib_->clone(layout);
}

// Makes the memories of an operand and the reorders between the caller's layout and the chosen one.
void Conv::connect(Operand &operand, Query layout, bool is_output) {
  const dnnl::Api &api = lib_->api;
  operand.inner_desc = chosen_layout(layout);
  if (!operand.outer_desc) operand.outer_desc = lib_->clone(operand.inner_desc.get());  // y left blocked
  operand.outer = lib_->memory(operand.outer_desc.get());
  const bool sum_in_reorder = is_output && p_.accumulate && !sum_in_conv_;
  if (!sum_in_reorder && api.desc_equal(operand.outer_desc.get(), operand.inner_desc.get())) return;

  operand.buffer = lib_->memory(operand.inner_desc.get());
  operand.buffer_bytes = api.desc_get_size(operand.inner_desc.get());
  dnnl::Engine *engine = lib_->engine.get();
  const auto reorder = [&](const Handle<dnnl::Desc> &from, dnnl::Memory *source, const Handle<dnnl::Desc> &to,
                           dnnl::Memory *target, bool sum) {
    const auto attr = lib_->attributes(sum);
    const auto desc =
        dnnl::make(api.reorder, api.primitive_desc_destroy, from.get(), engine, to.get(), engine, attr.get());
    return Step(*lib_, desc.get(), {{ArgKind::src, source}, {ArgKind::dst, target}});
  };
  dnnl::Memory *outer = operand.outer.get(), *buffer = operand.buffer.get();
  if (!is_output || sum_in_conv_) operand.in = reorder(operand.outer_desc, outer, operand.inner_desc, buffer, false);
  if (is_output) operand.out = reorder(operand.inner_desc, buffer, operand.outer_desc, outer, sum_in_reorder);
}

void Conv::connect_operands() {
  const bool dgrad = p_.pass == Pass::dgrad, wgrad = p_.pass == Pass::wgrad, fprop = p_.pass == Pass::fprop;
  connect(w_, wgrad ? Query::diff_weights_md : Query::weights_md, wgrad);
  connect(x_, dgrad ? Query::diff_src_md : Query::src_md, dgrad);
  connect(y_, fprop ? Query::dst_md : Query::diff_dst_md, fprop);
  std::vector<dnnl::Arg> args = {{dgrad ? ArgKind::diff_src : ArgKind::src, x_.inner()},
                                 {wgrad ? ArgKind::diff_weights : ArgKind::weights, w_.inner()},
                                 {fprop ? ArgKind::dst : ArgKind::diff_dst, y_.inner()}};
  if (bias_desc_) {
    bias_ = lib_->memory(bias_desc_.get());
    args.push_back({ArgKind::bias, bias_.get()});
  }
  compute_ = Step(*lib_, desc_.get(), std::move(args));
  if (w_.buffer && !wgrad) weights_key_ = layout_key(lib_->api, w_.inner_desc.get());
}

// The weights come first, so that convolutions of other extents find them at the same place. The steps
// run one after the other and share one scratchpad.
void Conv::lay_out_workspace() {
  size_t end = 0, scratchpad = compute_.scratchpad_bytes();
  const auto append = [&](size_t bytes) {
    const size_t offset = end;
    end += (bytes + alignment - 1) / alignment * alignment;
    return offset;
  };
  for (Operand *operand : {&w_, &x_, &y_}) {
    operand->offset = append(operand->buffer_bytes);
    for (const Step *step : {&operand->in, &operand->out}) scratchpad = std::max(scratchpad, step->scratchpad_bytes());
  }
  scratchpad_offset_ = append(scratchpad);
  workspace_bytes_ = end;
}

void Conv::set_pointers(uintptr_t x, uintptr_t w, uintptr_t bias, uintptr_t y, char *workspace) {
  const dnnl::Api &api = lib_->api;
  api.memory_set_data_handle(x_.outer.get(), reinterpret_cast<float *>(x) + p_.x_offset);
  api.memory_set_data_handle(w_.outer.get(), reinterpret_cast<void *>(w));
  api.memory_set_data_handle(y_.outer.get(), reinterpret_cast<void *>(y));
  if (bias_) api.memory_set_data_handle(bias_.get(), reinterpret_cast<void *>(bias));
  for (const Operand *operand : {&w_, &x_, &y_}) {
    if (operand->buffer) api.memory_set_data_handle(operand->buffer.get(), workspace + operand->offset);
  }
}

// `reuse_x` promises that this object ran last in this workspace, with the same x.
void Conv::run(uintptr_t x, uintptr_t w, uintptr_t bias, uintptr_t y, uintptr_t workspace, bool reuse_weights,
               bool reuse_x) {
  if (!x || !w || !y || (bias_ && !bias)) refuse("an operand is missing");
  if (workspace_bytes_ && (!workspace || workspace % alignment)) refuse("the workspace is missing or not aligned");
  const ThreadCount threads(p_.threads);
  char *const base = reinterpret_cast<char *>(workspace);
  set_pointers(x, w, bias, y, base);
  const auto run_step = [&](const Step &step) {
    if (step) step.run(lib_->api, stream_.get(), base + scratchpad_offset_);
  };
  if (!reuse_weights || weights_key_.empty()) run_step(w_.in);
  if (!reuse_x) run_step(x_.in);
  run_step(y_.in);
  run_step(compute_);
  for (const Operand *operand : {&w_, &x_, &y_}) run_step(operand->out);
  lib_->api.stream_wait(stream_.get());
}

std::unique_ptr<Conv> make_conv(const std::shared_ptr<Library> &lib, const std::string &pass, const Extents &x_shape,
                                const Extents &x_strides, const Extents &w_shape, const Extents &w_strides,
                                const Extents &y_shape, const Extents &y_strides, const Extents &stride,
                                const Extents &dilation, const Extents &pad_lo, i64 groups, bool bias, int act,
                                float coef, bool accumulate, int threads, const Conv *x_from, bool y_blocked) {
  Problem problem{pass_of(pass),      {x_shape, x_strides}, {w_shape, w_strides}, {y_shape, y_strides}, stride,
                  dilation,           pad_lo,               {},                   groups,               bias,
                  static_cast<Act>(act), coef,              accumulate,           threads};
  return std::make_unique<Conv>(lib, std::move(problem), x_from, y_blocked);
}

}  // namespace
}  // namespace onednn

void bind_onednn(py::module_ &m) {
  using namespace onednn;
  py::class_<Conv>(m, "Conv")
      .def_property_readonly("workspace_bytes", &Conv::workspace_bytes)
      .def_property_readonly("y_bytes", &Conv::y_bytes)
      .def_property_readonly("impl", &Conv::impl)
      .def_property_readonly("weights_key", &Conv::weights_key)
      .def("run", &Conv::run, py::arg("x"), py::arg("w"), py::arg("bias"), py::arg("y"), py::arg("workspace"),
           py::arg("reuse_weights") = false, py::arg("reuse_x") = false, py::call_guard<py::gil_scoped_release>());

  py::class_<Library, std::shared_ptr<Library>>(m, "OneDnn")
      .def(py::init<const std::string &>(), py::arg("path"))
      .def_property_readonly("version", &Library::version)
      .def_property_readonly("isa", &Library::isa)
      .def("conv", &make_conv, py::arg("pass_"), py::arg("x_shape"), py::arg("x_strides"), py::arg("w_shape"),
           py::arg("w_strides"), py::arg("y_shape"), py::arg("y_strides"), py::arg("stride"), py::arg("dilation"),
           py::arg("pad_lo"), py::arg("groups"), py::arg("bias"), py::arg("act"), py::arg("coef"),
           py::arg("accumulate"), py::arg("threads"), py::arg("x_from") = nullptr, py::arg("y_blocked") = false,
           py::call_guard<py::gil_scoped_release>());
}

}  // namespace ooc
