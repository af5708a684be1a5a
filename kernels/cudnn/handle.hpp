// A cuDNN handle, and every call of the library but the convolutions.
#pragma once
#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include "arguments.hpp"

namespace ooc {
namespace {

using Tensor = std::tuple<Extents, Extents, Address>;  // extents, strides and the address of the first element

// Several threads may use one: a stream is set and used under a lock. Every call is made without Python's lock.
class CudnnHandle {
 public:
  explicit CudnnHandle(std::shared_ptr<const Api> api) : api_(std::move(api)), context_(api_->context.make()) {}

  template <class Entry, class... Args>
  void call(Address stream, const Entry &entry, Args... args) {
    const std::lock_guard<std::mutex> lock(mutex_);
    api_->set_stream(context_.get(), at(stream));
    entry(context_.get(), args...);
  }

  // For questions: the stream plays no part.
  template <class Entry, class... Args>
  void ask(const Entry &entry, Args... args) {
    const std::lock_guard<std::mutex> lock(mutex_);
    entry(context_.get(), args...);
  }

  void conv_bias_backward(Address stream, int dtype, const Tensor &dy, const Tensor &db, double alpha, double beta) {
    apply(stream, dtype, api_->conv_bias_backward, std::tuple(), alpha, beta, db, dy);
  }

  void add_tensor(Address stream, int dtype, const Tensor &a, const Tensor &c, double alpha, double beta) {
    apply(stream, dtype, api_->add_tensor, std::tuple(), alpha, beta, c, a);
  }

  void scale_tensor(Address stream, int dtype, const Tensor &y, double alpha) {
    const auto [desc, data] = place(dtype, y);
    call(stream, api_->scale_tensor, desc.get(), data, Scale(dtype, alpha));
  }

  void pooling(Address stream, int dtype, const std::string &mode, const Extents &window, const Extents &pad,
               const Extents &step, const Tensor &x, const Tensor &y, double alpha, double beta) {
    const Descriptor pool = ooc::pooling(*api_, mode, window, pad, step);
    apply(stream, dtype, api_->pooling, std::tuple(pool.get()), alpha, beta, y, x);
  }

  void pooling_backward(Address stream, int dtype, const std::string &mode, const Extents &window, const Extents &pad,
                        const Extents &step, const Tensor &y, const Tensor &dy, const Tensor &x, const Tensor &dx,
                        double alpha, double beta) {
    const Descriptor pool = ooc::pooling(*api_, mode, window, pad, step);
    apply(stream, dtype, api_->pooling_backward, std::tuple(pool.get()), alpha, beta, dx, y, dy, x);
  }

  void activation(Address stream, int dtype, const std::string &act, double coef, const Tensor &x, const Tensor &y,
                  double alpha, double beta) {
    const Descriptor function = ooc::activation(*api_, act, coef);
    apply(stream, dtype, api_->activation, std::tuple(function.get()), alpha, beta, y, x);
  }

  void activation_backward(Address stream, int dtype, const std::string &act, double coef, const Tensor &y,
                           const Tensor &dy, const Tensor &x, const Tensor &dx, double alpha, double beta) {
    const Descriptor function = ooc::activation(*api_, act, coef);
    apply(stream, dtype, api_->activation_backward, std::tuple(function.get()), alpha, beta, dx, y, dy, x);
  }

  void softmax(Address stream, int dtype, const std::string &algorithm, const Tensor &x, const Tensor &y,
               double alpha, double beta) {
    const std::tuple what(softmax_of(algorithm), cudnn::SoftmaxOver::channels);
    apply(stream, dtype, api_->softmax, what, alpha, beta, y, x);
  }

  void softmax_backward(Address stream, int dtype, const std::string &algorithm, const Tensor &y, const Tensor &dy,
                        const Tensor &dx, double alpha, double beta) {
    const std::tuple what(softmax_of(algorithm), cudnn::SoftmaxOver::channels);
    apply(stream, dtype, api_->softmax_backward, what, alpha, beta, dx, y, dy);
  }

  void lrn(Address stream, int dtype, unsigned window, double lrn_alpha, double lrn_beta, double lrn_k,
           const Tensor &x, const Tensor &y, double alpha, double beta) {
    const Descriptor norm = described(api_->norm, api_->set_norm, window, lrn_alpha, lrn_beta, lrn_k);
    apply(stream, dtype, api_->lrn, std::tuple(norm.get(), cudnn::Lrn::across_channels), alpha, beta, y, x);
  }

  void lrn_backward(Address stream, int dtype, unsigned window, double lrn_alpha, double lrn_beta, double lrn_k,
                    const Tensor &y, const Tensor &dy, const Tensor &x, const Tensor &dx, double alpha, double beta) {
    const Descriptor norm = described(api_->norm, api_->set_norm, window, lrn_alpha, lrn_beta, lrn_k);
    const std::tuple what(norm.get(), cudnn::Lrn::across_channels);
    apply(stream, dtype, api_->lrn_backward, what, alpha, beta, dx, y, dy, x);
  }

  void bn_training(Address stream, int dtype, const std::string &mode, const Tensor &x, const Tensor &y, Address scale,
                   Address bias, double factor, Address running_mean, Address running_var, double epsilon,
                   Address saved_mean, Address saved_inv_std, double alpha, double beta) {
    const auto [x_desc, x_data] = place(dtype, x);
    const auto [y_desc, y_data] = place(dtype, y);
    const Descriptor parameters = bn_parameters(x_desc, mode);
    call(stream, api_->bn_training, batch_norm_of(mode), Scale(dtype, alpha), Scale(dtype, beta), x_desc.get(), x_data,
         y_desc.get(), y_data, parameters.get(), at(scale), at(bias), factor, at(running_mean), at(running_var),
         epsilon, at(saved_mean), at(saved_inv_std));
  }

  void bn_inference(Address stream, int dtype, const std::string &mode, const Tensor &x, const Tensor &y,
                    Address scale, Address bias, Address mean, Address var, double epsilon, double alpha,
                    double beta) {
    const auto [x_desc, x_data] = place(dtype, x);
    const auto [y_desc, y_data] = place(dtype, y);
    const Descriptor parameters = bn_parameters(x_desc, mode);
    call(stream, api_->bn_inference, batch_norm_of(mode), Scale(dtype, alpha), Scale(dtype, beta), x_desc.get(),
         x_data, y_desc.get(), y_data, parameters.get(), at(scale), at(bias), at(mean), at(var), epsilon);
  }

  // alpha and beta are those of dx; dscale and dbias are overwritten.
  void bn_backward(Address stream, int dtype, const std::string &mode, const Tensor &x, const Tensor &dy,
                   const Tensor &dx, Address scale, Address dscale, Address dbias, double epsilon, Address saved_mean,
                   Address saved_inv_std, double alpha, double beta) {
    const auto [x_desc, x_data] = place(dtype, x);
    const auto [dy_desc, dy_data] = place(dtype, dy);
    const auto [dx_desc, dx_data] = place(dtype, dx);
    const Descriptor parameters = bn_parameters(x_desc, mode);
    call(stream, api_->bn_backward, batch_norm_of(mode), Scale(dtype, alpha), Scale(dtype, beta), Scale(dtype, 1),
         Scale(dtype, 0), x_desc.get(), x_data, dy_desc.get(), dy_data, dx_desc.get(), dx_data, parameters.get(),
         at(scale), at(dscale), at(dbias), epsilon, at(saved_mean), at(saved_inv_std));
  }

 private:
  std::pair<Descriptor, void *> place(int dtype, const Tensor &t) const {
    return {tensor(*api_, dtype, std::get<0>(t), std::get<1>(t)), at(std::get<2>(t))};
  }

  Descriptor bn_parameters(const Descriptor &x, const std::string &mode) const {
    return described(api_->tensor, api_->derive_bn, x.get(), batch_norm_of(mode));
  }

  // out = alpha op(inputs) + beta out. Most of cuDNN's functions take, after what says which op: alpha, each input's
  // descriptor and data, beta, and those of the output.
  template <class Entry, class What, class... Inputs>
  void apply(Address stream, int dtype, const Entry &entry, const What &what, double alpha, double beta,
             const Tensor &out, const Inputs &...inputs) {
    const std::array<std::pair<Descriptor, void *>, sizeof...(Inputs)> sources{place(dtype, inputs)...};
    const auto [desc, data] = place(dtype, out);
    const auto operands = std::apply(
        [](const auto &...source) {
          return std::tuple_cat(std::tuple<cudnn::In, cudnn::Data>(source.first.get(), source.second)...);
        },
        sources);
    const std::tuple result(Scale(dtype, beta), static_cast<cudnn::In>(desc.get()), data);
    std::apply([&](const auto &...args) { call(stream, entry, args...); },
               std::tuple_cat(what, std::tuple(Scale(dtype, alpha)), operands, result));
  }

  std::shared_ptr<const Api> api_;
  std::mutex mutex_;
  cudnn::Owned<cudnn::Context> context_;
};

}  // namespace
}  // namespace ooc
