// Python's arguments in cuDNN's terms: names, types and extents, and the descriptors made of them.
#pragma once
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../common.hpp"
#include "api.hpp"

namespace ooc {
namespace {

using cudnn::Api;
using cudnn::Desc;
using Extents = std::vector<i64>;
using Ints = std::vector<int>;
using Address = uintptr_t;
using Descriptor = cudnn::Owned<Desc>;

inline void *at(Address address) { return reinterpret_cast<void *>(address); }

template <class Value>
Value named(const char *what, const std::string &name, std::initializer_list<std::pair<const char *, Value>> values) {
  for (const auto &[known, value] : values) {
    if (name == known) return value;
  }
  throw std::invalid_argument(std::string("cuDNN: unknown ") + what + " '" + name + "'");
}

inline cudnn::Math math_of(const std::string &name) {
  using M = cudnn::Math;
  return named<M>("math", name, {{"fma", M::fma}, {"tf32", M::standard}, {"tensor", M::tensor_op}});
}

inline const cudnn::Pass &pass_of(const Api &api, const std::string &direction) {
  return *named<const cudnn::Pass *>("direction", direction,
                                     {{"fprop", &api.fprop}, {"dgrad", &api.dgrad}, {"wgrad", &api.wgrad}});
}

inline cudnn::DataType type_of(int dtype) {
  using cudnn::DataType;
  switch (static_cast<Dtype>(dtype)) {
    case Dtype::f64: return DataType::f64;
    case Dtype::f32: return DataType::f32;
    case Dtype::f16: return DataType::f16;
    case Dtype::bf16: return DataType::bf16;
  }
  throw std::invalid_argument("cuDNN: unknown dtype code " + std::to_string(dtype));
}

// What cuDNN computes in: never less than f32.
inline cudnn::DataType compute_type_of(int dtype) {
  return type_of(dtype) == cudnn::DataType::f64 ? cudnn::DataType::f64 : cudnn::DataType::f32;
}

inline Ints narrow(const char *what, const Extents &values) {
  Ints ints;
  for (const i64 value : values) {
    if (value > std::numeric_limits<int>::max() || value < std::numeric_limits<int>::min()) {
      throw cudnn::Failure(std::string(what) + " of " + std::to_string(value) + " exceeds its 32 bits",
                           cudnn::Status::not_supported);
    }
    ints.push_back(static_cast<int>(value));
  }
  return ints;
}

inline std::string text_of(const Extents &values) {
  std::string text;
  for (const i64 value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return "(" + text + ")";
}

inline void check_lengths(const char *what, size_t length, std::initializer_list<const Extents *> lists) {
  for (const Extents *list : lists) {
    if (list->size() == length) continue;
    throw std::invalid_argument(std::string("cuDNN: ") + what + " need " + std::to_string(length) + " entries, got " +
                                text_of(*list));
  }
}

// The number that alpha and beta point to.
class Scale {
 public:
  Scale(int dtype, double value) : wide_(value), narrow_(static_cast<float>(value)), is_wide_(dtype == 0) {}
  operator const void *() const { return is_wide_ ? static_cast<const void *>(&wide_) : &narrow_; }

 private:
  double wide_;
  float narrow_;
  bool is_wide_;
};

// ---- descriptors

template <class Set, class... Args>
inline Descriptor described(const cudnn::Kind<Desc> &kind, const Set &set, Args... args) {
  Descriptor desc = kind.make();
  set(desc.get(), args...);
  return desc;
}

inline int axes_of(const Ints &list) { return static_cast<int>(list.size()); }

inline Descriptor tensor(const Api &api, int dtype, const Extents &shape, const Extents &strides) {
  check_lengths("strides", shape.size(), {&strides});
  const Ints extents = narrow("an extent", shape), steps = narrow("a stride", strides);
  return described(api.tensor, api.set_tensor, type_of(dtype), axes_of(extents), extents.data(), steps.data());
}

inline Descriptor filter(const Api &api, int dtype, const Extents &shape, bool channels_last) {
  const auto format = channels_last ? cudnn::Format::channels_last : cudnn::Format::channels_first;
  const Ints extents = narrow("an extent", shape);
  return described(api.filter, api.set_filter, type_of(dtype), format, axes_of(extents), extents.data());
}

struct Geometry {
  Extents pad, stride, dilation;
  int groups;
};

inline Descriptor convolution(const Api &api, int dtype, const Geometry &g, cudnn::Math math) {
  const Ints pad = narrow("a pad", g.pad), stride = narrow("a stride", g.stride);
  const Ints dilation = narrow("a dilation", g.dilation);
  Descriptor desc = described(api.convolution, api.set_convolution, axes_of(pad), pad.data(), stride.data(),
                              dilation.data(), cudnn::Mode::cross_correlation, compute_type_of(dtype));
  api.set_groups(desc.get(), g.groups);
  api.set_math(desc.get(), math);
  return desc;
}

}  // namespace
}  // namespace ooc
