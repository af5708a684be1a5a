// One convolution: its descriptors, the algorithms that cuDNN has for it, and its runs.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "handle.hpp"

namespace ooc {
namespace {

constexpr int most_algorithms = 32;  // of one pass; version 9 knows at most 10

struct ConvTensors {
  Extents x_shape, x_strides, w_shape, y_shape, y_strides;
  bool w_channels_last;
};

// Nothing in it changes once it is made, so any thread may use it with a handle of its own.
class CudnnConv {
 public:
  using Choice = std::tuple<int, int, size_t, bool>;  // algorithm, math, bytes of workspace, deterministic
  using Timed = std::tuple<double, int, int, size_t, bool>;

  CudnnConv(std::shared_ptr<const Api> api, const std::string &direction, int dtype, const ConvTensors &t,
            const Geometry &geometry, const std::string &math)
      : api_(std::move(api)), pass_(pass_of(*api_, direction)), dtype_(dtype), math_(math_of(math)) {
    const size_t axes = t.x_shape.size();
    if (axes < 3) throw std::invalid_argument("cuDNN: x needs a batch, channels and spatial axes");
    check_lengths("w and y", axes, {&t.w_shape, &t.y_shape});
    check_lengths("pad, stride and dilation", axes - 2, {&geometry.pad, &geometry.stride, &geometry.dilation});
    for (int code = 0; code < cudnn::math_types; ++code) {
      convolutions_.push_back(convolution(*api_, dtype, geometry, static_cast<cudnn::Math>(code)));
    }
    x_ = tensor(*api_, dtype, t.x_shape, t.x_strides);
    w_ = filter(*api_, dtype, t.w_shape, t.w_channels_last);
    check_output(t.y_shape);
    y_ = tensor(*api_, dtype, t.y_shape, t.y_strides);
    first_ = is(api_->dgrad) ? w_.get() : x_.get();
    second_ = is(api_->fprop) ? w_.get() : y_.get();
    out_ = w_.get();
    if (is(api_->fprop)) out_ = y_.get();
    if (is(api_->dgrad)) out_ = x_.get();
  }

  std::vector<Choice> heuristics(CudnnHandle &handle) const {
    cudnn::Perf found[most_algorithms];
    int count = 0;
    handle.ask(pass_.heuristics, first_, second_, with(math_), out_, most_algorithms, &count, found);
    std::vector<Choice> choices;
    for (const cudnn::Perf *perf = found; perf < found + count; ++perf) {
      if (perf->status == cudnn::Status::success) choices.push_back(choice(*perf));
    }
    return choices;
  }

  std::vector<Timed> measure(CudnnHandle &handle, Address stream, Address first, Address second, Address out,
                             Address workspace, size_t workspace_bytes) const {
    cudnn::Perf found[most_algorithms];
    int count = 0;
    handle.call(stream, pass_.measure, first_, at(first), second_, at(second), with(math_), out_, at(out),
                most_algorithms, &count, found, at(workspace), workspace_bytes);
    std::vector<Timed> timed;
    for (const cudnn::Perf *perf = found; perf < found + count; ++perf) {
      if (perf->status != cudnn::Status::success) continue;
      timed.push_back(std::tuple_cat(std::make_tuple(perf->milliseconds * 1e-3), choice(*perf)));
    }
    return timed;
  }

  size_t workspace(CudnnHandle &handle, int algorithm, std::optional<int> math) const {
    size_t bytes = 0;
    handle.ask(pass_.workspace, first_, second_, math ? with(*math) : with(math_), out_, algorithm, &bytes);
    return bytes;
  }

  void run(CudnnHandle &handle, Address stream, int algorithm, int math, double alpha, Address first, Address second,
           double beta, Address out, Address workspace, size_t workspace_bytes) const {
    handle.call(stream, pass_.run, Scale(dtype_, alpha), first_, at(first), second_, at(second), with(math),
                algorithm, at(workspace), workspace_bytes, Scale(dtype_, beta), out_, at(out));
  }

 private:
  bool is(const cudnn::Pass &pass) const { return &pass_ == &pass; }

  void check_output(const Extents &y_shape) const {
    Ints extents(y_shape.size());
    api_->conv_extents(convolutions_[0].get(), x_.get(), w_.get(), static_cast<int>(extents.size()), extents.data());
    const Extents expected(extents.begin(), extents.end());
    if (expected == y_shape) return;
    throw std::invalid_argument("cuDNN: y has the shape " + text_of(expected) + ", not " + text_of(y_shape));
  }

  const Desc *with(cudnn::Math math) const { return convolutions_[static_cast<size_t>(math)].get(); }
  const Desc *with(int math) const {
    if (math < 0 || math >= cudnn::math_types) throw std::invalid_argument("cuDNN: no math " + std::to_string(math));
    return with(static_cast<cudnn::Math>(math));
  }

  static Choice choice(const cudnn::Perf &perf) {
    return {perf.algorithm, static_cast<int>(perf.math), perf.workspace_bytes, perf.deterministic != 0};
  }

  std::shared_ptr<const Api> api_;
  const cudnn::Pass &pass_;
  int dtype_;
  cudnn::Math math_;
  std::vector<Descriptor> convolutions_;  // one per math, so that none has to be changed for a call
  Descriptor x_, w_, y_;
  const Desc *first_ = nullptr, *second_ = nullptr, *out_ = nullptr;
};

}  // namespace
}  // namespace ooc
