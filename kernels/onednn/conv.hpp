// A convolution of oneDNN's, as one thread computes it.
#pragma once
#include <memory>
#include <string>

#include "library.hpp"

namespace ooc::onednn {

// oneDNN is fast only in the blocked layouts that it chooses itself, so each operand is reordered from the caller's strided
// array into such a layout and the result back out of it. The copy of the weights is made once for all who share it; the
// others and the scratchpads of the primitives lie in memory of the thread's own.
class Conv {
 public:
  Conv(std::shared_ptr<const Library> lib, Problem problem);

  size_t weights_bytes() const { return w_.buffer_bytes; }
  size_t own_bytes() const { return own_bytes_; }
  const std::string &impl() const { return impl_; }
  const std::string &weights_key() const { return weights_key_; }  // equal where copies of weights are; "" without one

  // `own` serves as scratchpad.
  void copy_weights(const float *w, char *weights, char *own) const;
  void run(const float *x, const float *w, const float *bias, float *y, char *weights, char *own) const;

 private:
  Handle<dnnl::PrimitiveDesc> primitive_desc(bool sum) const;
  void describe_primitive();
  void connect(Operand &operand, Query layout, bool is_output);
  void connect_operands();
  void lay_out();

  Handle<dnnl::Desc> chosen_layout(Query query) const;

  std::shared_ptr<const Library> lib_;
  Problem p_;
  bool sum_in_conv_ = false;  // accumulation by the convolution itself; else by the reorder out of the copy
  Handle<dnnl::Stream> stream_;
  Handle<dnnl::Desc> bias_desc_;
  Handle<dnnl::PrimitiveDesc> desc_;
  Operand x_, w_, y_;
  Handle<dnnl::Memory> bias_;
  Step compute_;
  size_t scratchpad_offset_ = 0, own_bytes_ = 0;
  std::string impl_, weights_key_;
};

}  // namespace ooc::onednn
