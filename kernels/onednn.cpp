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

#include "common.hpp"
#include "onednn_api.hpp"

namespace py = pybind11;

namespace ooc {
namespace {

using dnnl::ArgKind;
using dnnl::Handle;
using dnnl::Query;
using Extents = std::vector<i64>;

constexpr size_t alignment = 64;  // of the workspace and of each part of it
constexpr int spatial_axes = 3;

enum class Pass { fprop, dgrad, wgrad };

struct Tensor {
  Extents shape, strides;  // strides in elements
};

struct Problem {
  Pass pass;
  Tensor x, w, y;
  Extents stride, dilation, pad_lo, pad_hi;
  i64 groups;
  bool bias;
  Act act;
  float coef;
  bool accumulate;
  int threads;
  i64 x_offset = 0;  // elements from the caller's x to the first row described to oneDNN
};

[[noreturn]] void refuse(const std::string &reason) { throw std::runtime_error("oneDNN: " + reason); }

// ---- the problem in oneDNN's terms ------------------------------------------------------------

Pass pass_of(const std::string &name) {
  if (name == "fprop") return Pass::fprop;
  if (name == "dgrad") return Pass::dgrad;
  if (name == "wgrad") return Pass::wgrad;
  refuse("unknown pass '" + name + "'");
}

void check_tensor(const std::string &name, const Tensor &tensor) {
  const size_t ndims = 2 + spatial_axes;
  if (tensor.shape.size() != ndims || tensor.strides.size() != ndims) refuse(name + " needs 5 extents and strides");
  for (size_t axis = 0; axis < ndims; ++axis) {
    if (tensor.shape[axis] < 1) refuse(name + " is empty");
    if (tensor.shape[axis] > 1 && tensor.strides[axis] < 1) refuse(name + " has a stride that is not positive");
  }
}

void check_problem(const Problem &p) {
  check_tensor("x", p.x);
  check_tensor("w", p.w);
  check_tensor("y", p.y);
  for (const Extents *list : {&p.stride, &p.dilation, &p.pad_lo}) {
    if (list->size() != spatial_axes) refuse("stride, dilation and pad_lo need 3 entries");
  }
  for (int axis = 0; axis < spatial_axes; ++axis) {
    if (p.stride[axis] < 1 || p.dilation[axis] < 1) refuse("stride and dilation must be at least 1");
  }
  const i64 n = p.x.shape[0], c = p.x.shape[1], k = p.w.shape[0];
  if (p.groups < 1 || c % p.groups || k % p.groups) refuse("groups do not divide the channels");
  if (p.w.shape[1] * p.groups != c || p.y.shape[1] != k || p.y.shape[0] != n) refuse("shapes do not match");
  if (p.pass != Pass::fprop && p.bias) refuse("bias belongs to fprop");
  if (p.pass != Pass::fprop && p.act != Act::identity) refuse("activations belong to fprop");
  if (p.threads < 1) refuse("at least one thread is needed");
}

// Derives the padding after x, and leaves out rows of x that no output row reads: oneDNN takes no
// negative padding, but a smaller x described by the same strides says the same.
void fit_axis(Problem &p, int axis) {
  const i64 stride = p.stride[axis], filter = p.w.shape[2 + axis], outputs = p.y.shape[2 + axis];
  i64 &rows = p.x.shape[2 + axis], &lo = p.pad_lo[axis], &hi = p.pad_hi[axis];
  const i64 reach = (outputs - 1) * stride + (filter - 1) * p.dilation[axis] + 1;
  hi = reach - rows - lo;
  if (p.pass == Pass::dgrad) {
    // The gradient of unread rows is zero, and oneDNN writes it only where they come from rounding the
    // output extent down, that is, when they are fewer than one step.
    if (lo < 0) refuse("negative padding in dgrad");
    if (hi <= -stride) refuse("dgrad of an x with unread rows at its end");
    hi = std::max<i64>(hi, 0);
    return;
  }
  if (lo < 0) {
    rows += lo;
    p.x_offset -= lo * p.x.strides[2 + axis];
    lo = 0;
  }
  if (hi < 0) {
    rows += hi;
    hi = 0;
  }
  if (rows < 1) refuse("no row of x is read");
}

// oneDNN has faster code for 1-D and 2-D convolutions than for 3-D ones of extent 1.
void drop_leading_unit_axes(Problem &p) {
  const auto unit = [](const Tensor &tensor) { return tensor.shape[2] == 1; };
  const auto drop = [](Tensor &tensor) {
    tensor.shape.erase(tensor.shape.begin() + 2);
    tensor.strides.erase(tensor.strides.begin() + 2);
  };
  while (p.stride.size() > 1 && unit(p.x) && unit(p.w) && unit(p.y) && p.pad_lo[0] == 0 && p.pad_hi[0] == 0) {
    for (Tensor *tensor : {&p.x, &p.w, &p.y}) drop(*tensor);
    for (Extents *list : {&p.stride, &p.dilation, &p.pad_lo, &p.pad_hi}) list->erase(list->begin());
  }
}

// oneDNN's weights of a grouped convolution have the groups as an axis of their own.
void split_groups(Tensor &w, i64 groups) {
  const i64 per_group = w.shape[0] / groups;
  w.shape[0] = per_group;
  w.shape.insert(w.shape.begin(), groups);
  w.strides.insert(w.strides.begin(), per_group * w.strides[0]);
}

// The stride of an axis of extent 1 has no meaning and may be anything; oneDNN nevertheless demands
// that it fit the others. The outermost position always does.
void settle_unit_strides(Tensor &tensor) {
  i64 outermost = 1;
  for (size_t axis = 0; axis < tensor.shape.size(); ++axis) {
    if (tensor.shape[axis] > 1) outermost = std::max(outermost, tensor.shape[axis] * tensor.strides[axis]);
  }
  for (size_t axis = 0; axis < tensor.shape.size(); ++axis) {
    if (tensor.shape[axis] == 1) tensor.strides[axis] = outermost;
  }
}

Problem prepared(Problem p) {
  check_problem(p);
  p.pad_hi.assign(spatial_axes, 0);
  for (int axis = 0; axis < spatial_axes; ++axis) fit_axis(p, axis);
  drop_leading_unit_axes(p);
  if (p.groups > 1) split_groups(p.w, p.groups);
  for (Tensor *tensor : {&p.x, &p.w, &p.y}) settle_unit_strides(*tensor);
  for (i64 &step : p.dilation) --step;  // oneDNN counts the gaps between taps
  return p;
}

// ---- oneDNN objects ---------------------------------------------------------------------------

struct Library {
  explicit Library(const std::string &path) : api(path) {
    engine = dnnl::make(api.engine_create, api.engine_destroy, dnnl::EngineKind::cpu, size_t{0});
  }

  std::string version() const {
    const dnnl::Version &v = *api.version();
    return std::to_string(v.major) + "." + std::to_string(v.minor) + "." + std::to_string(v.patch);
  }

  std::string isa() const {
    switch (const int code = api.effective_cpu_isa()) {
      case 0x0: return "default";
      case 0x1: return "sse41";
      case 0x3: return "avx";
      case 0x7: return "avx2";
      case 0xf: return "avx2_vnni";
      case 0x1f: return "avx2_vnni_2";
      case 0x27: return "avx512_core";
      case 0x67: return "avx512_core_vnni";
      case 0xe7: return "avx512_core_bf16";
      case 0x1ef: return "avx512_core_fp16";
      case 0xfef: return "avx512_core_amx";
      case 0x1fef: return "avx512_core_amx_fp16";
      default: return "isa " + std::to_string(code);
    }
  }

  Handle<dnnl::Desc> strided(const std::string &name, const Tensor &tensor) const {
    try {
      return dnnl::make(api.desc_create_with_strides, api.desc_destroy, static_cast<int>(tensor.shape.size()),
                        tensor.shape.data(), dnnl::DataType::f32, tensor.strides.data());
    } catch (const std::runtime_error &) {
      // It wants each stride to be a whole extent of the axis inside it or more: of a row of 5, every
      // second element (3 x 2 > 5) is too much.
      refuse("the axes of " + name + " interleave");
    }
  }

  // A descriptor that leaves the layout to the primitive.
  Handle<dnnl::Desc> any(const Extents &shape) const {
    return dnnl::make(api.desc_create_with_tag, api.desc_destroy, static_cast<int>(shape.size()), shape.data(),
                      dnnl::DataType::f32, dnnl::FormatTag::any);
  }

  Handle<dnnl::Desc> clone(const dnnl::Desc *desc) const {
    return dnnl::make(api.desc_clone, api.desc_destroy, desc);
  }

  // Without data: it is set for each run.
  Handle<dnnl::Memory> memory(const dnnl::Desc *desc) const {
    return dnnl::make(api.memory_create, api.memory_destroy, desc, engine.get(), nullptr);
  }

  // sum: the result is added to what the destination holds; then the activation is applied.
  Handle<dnnl::Attr> attributes(bool sum, Act act = Act::identity, float coef = 0) const {
    auto attr = dnnl::make(api.attr_create, api.attr_destroy);
    api.attr_set_scratchpad_mode(attr.get(), dnnl::Scratchpad::user);
    auto post_ops = dnnl::make(api.post_ops_create, api.post_ops_destroy);
    if (sum) api.post_ops_append_sum(post_ops.get(), 1.0f, 0, dnnl::DataType::undefined);
    append_activation(post_ops.get(), act, coef);
    api.attr_set_post_ops(attr.get(), post_ops.get());
    return attr;
  }

  dnnl::Api api;
  Handle<dnnl::Engine> engine;

 private:
  void append_activation(dnnl::PostOps *post_ops, Act act, float coef) const {
    using dnnl::Algorithm;
    const auto append = [&](Algorithm algorithm, float alpha, float beta) {
      api.post_ops_append_eltwise(post_ops, algorithm, alpha, beta);
    };
    switch (act) {
      case Act::identity: return;
      case Act::relu: return append(Algorithm::eltwise_relu, 0, 0);
      case Act::clipped_relu: return append(Algorithm::eltwise_clip, 0, coef);
      case Act::elu: return append(Algorithm::eltwise_elu, coef, 0);
      case Act::leaky_relu: return append(Algorithm::eltwise_relu, coef, 0);
      case Act::sigmoid: return append(Algorithm::eltwise_logistic, 0, 0);
      case Act::tanh: return append(Algorithm::eltwise_tanh, 0, 0);
    }
    refuse("unknown activation");
  }
};

// A primitive with its arguments.
class Step {
 public:
  Step() = default;
  Step(const Library &lib, const dnnl::PrimitiveDesc *desc, std::vector<dnnl::Arg> args) : args_(std::move(args)) {
    primitive_ = dnnl::make(lib.api.primitive_create, lib.api.primitive_destroy, desc);
    const dnnl::Desc *scratchpad = lib.api.primitive_desc_query_md(desc, Query::scratchpad_md, 0);
    scratchpad_bytes_ = scratchpad ? lib.api.desc_get_size(scratchpad) : 0;
    if (scratchpad_bytes_ == 0) return;
    scratchpad_ = lib.memory(scratchpad);
    args_.push_back({ArgKind::scratchpad, scratchpad_.get()});
  }

  explicit operator bool() const { return primitive_ != nullptr; }
  size_t scratchpad_bytes() const { return scratchpad_bytes_; }

  void run(const dnnl::Api &api, dnnl::Stream *stream, char *scratchpad) const {
    if (scratchpad_) api.memory_set_data_handle(scratchpad_.get(), scratchpad);
    api.primitive_execute(primitive_.get(), stream, static_cast<int>(args_.size()), args_.data());
  }

 private:
  Handle<dnnl::Primitive> primitive_;
  Handle<dnnl::Memory> scratchpad_;
  std::vector<dnnl::Arg> args_;
  size_t scratchpad_bytes_ = 0;
};

// An array of the caller and, where oneDNN wants another layout, its copy in the workspace.
struct Operand {
  Handle<dnnl::Desc> outer_desc, inner_desc;
  Handle<dnnl::Memory> outer, buffer;
  size_t buffer_bytes = 0, offset = 0;  // of the copy, in the workspace
  Step in, out;                         // reorders: to the copy, from the copy

  dnnl::Memory *inner() const { return buffer ? buffer.get() : outer.get(); }
};

// The thread count of OpenMP belongs to the calling thread, and Python may call from any.
class ThreadCount {
 public:
  explicit ThreadCount(int count) : before_(max_threads()) { set(count); }
  ~ThreadCount() { set(before_); }
  ThreadCount(const ThreadCount &) = delete;
  ThreadCount &operator=(const ThreadCount &) = delete;

 private:
  static void set(int count) {
#ifdef _OPENMP
    omp_set_num_threads(count);
#else
    (void)count;
#endif
  }
  int before_;
};

// Everything about a layout, in words that are equal for equal layouts.
std::string layout_key(const dnnl::Api &api, const dnnl::Desc *desc) {
  int ndims = 0, blocks = 0;
  api.desc_query(desc, Query::ndims_s32, &ndims);
  api.desc_query(desc, Query::inner_nblks_s32, &blocks);
  const auto list = [&](const char *name, Query query, int count) {
    const i64 *values = nullptr;
    api.desc_query(desc, query, &values);
    std::string text = name;
    for (int i = 0; i < count; ++i) text += (i ? "," : "") + std::to_string(values[i]);
    return text;
  };
  return list("dims ", Query::dims, ndims) + list(" padded ", Query::padded_dims, ndims) +
         list(" strides ", Query::strides, ndims) + list(" blocks ", Query::inner_blks, blocks) +
         list(" of ", Query::inner_idxs, blocks);
}

// ---- one convolution --------------------------------------------------------------------------

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

void bind_onednn(py::module_ &m) {
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
