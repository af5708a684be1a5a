// Problems in oneDNN's terms: padding on both sides, no idle axes, groups as an axis of the weights, strides that fit.
#include "problem.hpp"

#include <algorithm>

namespace ooc::onednn {

Pass pass_of(const std::string &name) {
  if (name == "fprop") return Pass::fprop;
  if (name == "dgrad") return Pass::dgrad;
  refuse("unknown pass '" + name + "'");
}

namespace {

void check_tensor(const std::string &name, const Tensor &tensor) {
  const size_t ndims = 2 + spatial_axes;
  if (tensor.shape.size() != ndims || tensor.strides.size() != ndims) refuse(name + " needs 5 extents and strides");
  for (size_t axis = 0; axis < ndims; ++axis) {
    if (tensor.shape[axis] < 1) refuse(name + " is empty");
    if (tensor.shape[axis] > 1 && tensor.strides[axis] < 1) refuse(name + " has a stride that is not positive");
  }
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

}  // namespace

void check(const Problem &p) {
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
}

Problem prepared(Problem p) {
  p.pad_hi.assign(spatial_axes, 0);
  for (int axis = 0; axis < spatial_axes; ++axis) fit_axis(p, axis);
  drop_leading_unit_axes(p);
  if (p.groups > 1) split_groups(p.w, p.groups);
  for (Tensor *tensor : {&p.x, &p.w, &p.y}) settle_unit_strides(*tensor);
  for (i64 &step : p.dilation) --step;  // oneDNN counts the gaps between taps
  return p;
}

}  // namespace ooc::onednn
