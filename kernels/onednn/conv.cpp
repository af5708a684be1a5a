#include "conv.hpp"

#include <algorithm>

namespace ooc::onednn {

Conv::Conv(std::shared_ptr<const Library> lib, Problem problem) : lib_(std::move(lib)), p_(prepared(std::move(problem))) {
  const Alone alone(lib_->api);  // scratchpads and the choice of code depend on it
  const dnnl::Api &api = lib_->api;
  stream_ = dnnl::make(api.stream_create, api.stream_destroy, lib_->engine.get(), dnnl::stream_in_order);
  x_.outer_desc = lib_->strided("x", p_.x);
  w_.outer_desc = lib_->strided("w", p_.w);
  y_.outer_desc = lib_->strided("y", p_.y);
  if (p_.bias) bias_desc_ = lib_->strided("bias", {{p_.y.shape[1]}, {1}});
  describe_primitive();
  connect_operands();
  lay_out();
}

// Chooses the implementation and with it the layouts, and who accumulates: a reorder that adds saves that of the old values.
void Conv::describe_primitive() {
  desc_ = primitive_desc(false);
  if (p_.accumulate && p_.pass == Pass::fprop && lib_->api.desc_equal(chosen_layout(Query::dst_md).get(), y_.outer_desc.get())) {
    sum_in_conv_ = true;  // there is no copy to reorder from
    desc_ = primitive_desc(true);
  }
  const char *impl = nullptr;
  lib_->api.primitive_desc_query(desc_.get(), Query::impl_info_str, 0, &impl);
  impl_ = impl ? impl : "";
}

Handle<dnnl::PrimitiveDesc> Conv::primitive_desc(bool sum) const {
  const dnnl::Api &api = lib_->api;
  const auto attr = lib_->attributes(sum);
  const auto x = lib_->any(p_.x.shape), w = lib_->any(p_.w.shape), y = lib_->any(p_.y.shape);
  // Direct only: Winograd would be inexact even on small integers.
  const auto algorithm = dnnl::Algorithm::convolution_direct;
  const bool fprop = p_.pass == Pass::fprop;
  auto forward = dnnl::make(api.convolution_forward, api.primitive_desc_destroy, lib_->engine.get(),
                            fprop ? dnnl::Propagation::forward_inference : dnnl::Propagation::forward_training, algorithm, x.get(),
                            w.get(), bias_desc_.get(), y.get(), p_.stride.data(), p_.dilation.data(), p_.pad_lo.data(),
                            p_.pad_hi.data(), attr.get());
  if (fprop) return forward;
  // The backward pass asks for the forward convolution that it belongs to.
  return dnnl::make(api.convolution_backward_data, api.primitive_desc_destroy, lib_->engine.get(), algorithm, x.get(), w.get(),
                    y.get(), p_.stride.data(), p_.dilation.data(), p_.pad_lo.data(), p_.pad_hi.data(), forward.get(), attr.get());
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
  if (!is_output) operand.in = reorder(operand.outer_desc, outer, operand.inner_desc, buffer, false);
  if (is_output) operand.out = reorder(operand.inner_desc, buffer, operand.outer_desc, outer, sum_in_reorder);
}

void Conv::connect_operands() {
  const bool fprop = p_.pass == Pass::fprop;
  connect(w_, Query::weights_md, false);
  connect(x_, fprop ? Query::src_md : Query::diff_src_md, !fprop);
  connect(y_, fprop ? Query::dst_md : Query::diff_dst_md, fprop);
  std::vector<dnnl::Arg> args = {{fprop ? ArgKind::src : ArgKind::diff_src, x_.inner()},
                                 {ArgKind::weights, w_.inner()},
                                 {fprop ? ArgKind::dst : ArgKind::diff_dst, y_.inner()}};
  if (bias_desc_) {
    bias_ = lib_->memory(bias_desc_.get());
    args.push_back({ArgKind::bias, bias_.get()});
  }
  compute_ = Step(*lib_, desc_.get(), std::move(args));
  if (w_.buffer) weights_key_ = layout_key(lib_->api, w_.inner_desc.get());
}

// The steps run one after the other and share one scratchpad.
void Conv::lay_out() {
  size_t scratchpad = compute_.scratchpad_bytes();
  for (const Operand *operand : {&w_, &x_, &y_})
    for (const Step *step : {&operand->in, &operand->out}) scratchpad = std::max(scratchpad, step->scratchpad_bytes());
  x_.offset = 0;
  y_.offset = whole_lines(x_.buffer_bytes);
  scratchpad_offset_ = y_.offset + whole_lines(y_.buffer_bytes);
  own_bytes_ = scratchpad_offset_ + whole_lines(scratchpad);
}

void Conv::copy_weights(const float *w, char *weights, char *own) const {
  if (!w_.buffer) return;
  const Alone alone(lib_->api);
  lib_->api.memory_set_data_handle(w_.outer.get(), const_cast<float *>(w));
  lib_->api.memory_set_data_handle(w_.buffer.get(), weights);
  w_.in.run(lib_->api, stream_.get(), own + scratchpad_offset_);
  lib_->api.stream_wait(stream_.get());
}

void Conv::run(const float *x, const float *w, const float *bias, float *y, char *weights, char *own) const {
  const Alone alone(lib_->api);
  const dnnl::Api &api = lib_->api;
  api.memory_set_data_handle(x_.outer.get(), const_cast<float *>(x) + p_.x_offset);
  api.memory_set_data_handle(w_.outer.get(), const_cast<float *>(w));
  api.memory_set_data_handle(y_.outer.get(), y);
  if (bias_) api.memory_set_data_handle(bias_.get(), const_cast<float *>(bias));
  if (w_.buffer) api.memory_set_data_handle(w_.buffer.get(), weights);
  for (const Operand *operand : {&x_, &y_})
    if (operand->buffer) api.memory_set_data_handle(operand->buffer.get(), own + operand->offset);
  for (const Step *step : {&x_.in, &y_.in, &compute_, &x_.out, &y_.out})
    if (*step) step->run(api, stream_.get(), own + scratchpad_offset_);
  api.stream_wait(stream_.get());
}

}  // namespace ooc::onednn
