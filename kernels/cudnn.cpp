// cuDNN, opened at run time: the only file that speaks to it. Tensors are described by extents and strides in
// elements, data and streams are addresses, and nothing is allocated on the device: the caller owns all of it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common.hpp"
#include "cudnn_api.hpp"

namespace py = pybind11;

namespace ooc {
namespace {

using cudnn::Api;
using cudnn::Desc;
using Extents = std::vector<i64>;
using Ints = std::vector<int>;
using Address = uintptr_t;
using Descriptor = cudnn::Owned<Desc>;

constexpr int most_algorithms = 32;  // of one pass; version 9 knows at most 10

// ---- arguments in cuDNN's terms ----------------------------------------------------------------

void *at(Address address) { return reinterpret_cast<void *>(address); }

template <class Value>
Value named(const char *what, const std::string &name, std::initializer_list<std::pair<const char *, Value>> values) {
  for (const auto &[known, value] : values) {
    if (name == known) return value;
  }
  throw std::invalid_argument(std::string("cuDNN: unknown ") + what + " '" + name + "'");
}

cudnn::Activation activation_of(const std::string &name) {
  using A = cudnn::Activation;
  return named<A>("activation", name,
                  {{"identity", A::identity}, {"relu", A::relu}, {"clipped_relu", A::clipped_relu}, {"elu", A::elu},
                   {"sigmoid", A::sigmoid}, {"tanh", A::tanh}});
}

cudnn::Pooling pooling_of(const std::string &name) {
  using P = cudnn::Pooling;
  return named<P>("pooling", name,
                  {{"max", P::max}, {"max_deterministic", P::max_deterministic}, {"average", P::average},
                   {"average_valid", P::average_valid}});
}

cudnn::Softmax softmax_of(const std::string &name) {
  using S = cudnn::Softmax;
  return named<S>("softmax", name, {{"accurate", S::accurate}, {"log", S::log}, {"fast", S::fast}});
}

cudnn::BatchNorm batch_norm_of(const std::string &name) {
  using B = cudnn::BatchNorm;
  return named<B>("batch normalisation", name, {{"spatial", B::spatial}, {"per_activation", B::per_activation}});
}

cudnn::Math math_of(const std::string &name) {
  using M = cudnn::Math;
  return named<M>("math", name, {{"fma", M::fma}, {"tf32", M::standard}, {"tensor", M::tensor_op}});
}

const cudnn::Pass &pass_of(const Api &api, const std::string &direction) {
  return *named<const cudnn::Pass *>("direction", direction,
                                     {{"fprop", &api.fprop}, {"dgrad", &api.dgrad}, {"wgrad", &api.wgrad}});
}

cudnn::DataType type_of(int dtype) {
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
cudnn::DataType compute_type_of(int dtype) {
  return type_of(dtype) == cudnn::DataType::f64 ? cudnn::DataType::f64 : cudnn::DataType::f32;
}

Ints narrow(const char *what, const Extents &values) {
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

std::string text_of(const Extents &values) {
  std::string text;
  for (const i64 value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return "(" + text + ")";
}

void check_lengths(const char *what, size_t length, std::initializer_list<const Extents *> lists) {
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

// ---- descriptors -------------------------------------------------------------------------------

template <class Set, class... Args>
Descriptor described(const cudnn::Kind<Desc> &kind, const Set &set, Args... args) {
  Descriptor desc = kind.make();
  set(desc.get(), args...);
  return desc;
}

int axes_of(const Ints &list) { return static_cast<int>(list.size()); }

Descriptor tensor(const Api &api, int dtype, const Extents &shape, const Extents &strides) {
  check_lengths("strides", shape.size(), {&strides});
  const Ints extents = narrow("an extent", shape), steps = narrow("a stride", strides);
  return described(api.tensor, api.set_tensor, type_of(dtype), axes_of(extents), extents.data(), steps.data());
}

Descriptor filter(const Api &api, int dtype, const Extents &shape, bool channels_last) {
  const auto format = channels_last ? cudnn::Format::channels_last : cudnn::Format::channels_first;
  const Ints extents = narrow("an extent", shape);
  return described(api.filter, api.set_filter, type_of(dtype), format, axes_of(extents), extents.data());
}

Descriptor activation(const Api &api, const std::string &name, double coef) {
  return described(api.act, api.set_act, activation_of(name), cudnn::Nan::propagate, coef);
}

Descriptor pooling(const Api &api, const std::string &mode, const Extents &window, const Extents &pad,
                   const Extents &step) {
  check_lengths("pad and step", window.size(), {&pad, &step});
  const Ints extents = narrow("an extent", window), pads = narrow("a pad", pad), steps = narrow("a step", step);
  return described(api.pool, api.set_pool, pooling_of(mode), cudnn::Nan::propagate, axes_of(extents), extents.data(),
                   pads.data(), steps.data());
}

struct Geometry {
  Extents pad, stride, dilation;
  int groups;
};

Descriptor convolution(const Api &api, int dtype, const Geometry &g, cudnn::Math math) {
  const Ints pad = narrow("a pad", g.pad), stride = narrow("a stride", g.stride);
  const Ints dilation = narrow("a dilation", g.dilation);
  Descriptor desc = described(api.convolution, api.set_convolution, axes_of(pad), pad.data(), stride.data(),
                              dilation.data(), cudnn::Mode::cross_correlation, compute_type_of(dtype));
  api.set_groups(desc.get(), g.groups);
  api.set_math(desc.get(), math);
  return desc;
}

// ---- a handle ----------------------------------------------------------------------------------

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

// ---- one convolution ---------------------------------------------------------------------------

// Nothing in it changes once it is made, so any thread may use it with a handle of its own.
class CudnnConv {
 public:
  using Choice = std::tuple<int, int, size_t, bool>;  // algorithm, math, bytes of workspace, deterministic
  using Timed = std::tuple<double, int, int, size_t, bool>;

  CudnnConv(std::shared_ptr<const Api> api, const std::string &direction, int dtype, const Extents &x_shape,
            const Extents &x_strides, const Extents &w_shape, bool w_channels_last, const Extents &y_shape,
            const Extents &y_strides, const Geometry &geometry, const std::string &math)
      : api_(std::move(api)), pass_(pass_of(*api_, direction)), dtype_(dtype), math_(math_of(math)) {
    if (x_shape.size() < 3) throw std::invalid_argument("cuDNN: x needs a batch, channels and spatial axes");
    check_lengths("w and y", x_shape.size(), {&w_shape, &y_shape});
    check_lengths("pad, stride and dilation", x_shape.size() - 2,
                  {&geometry.pad, &geometry.stride, &geometry.dilation});
    for (int code = 0; code < cudnn::math_types; ++code) {
      convolutions_.push_back(convolution(*api_, dtype, geometry, static_cast<cudnn::Math>(code)));
    }
    x_ = tensor(*api_, dtype, x_shape, x_strides);
    w_ = filter(*api_, dtype, w_shape, w_channels_last);
    check_output(y_shape);
    y_ = tensor(*api_, dtype, y_shape, y_strides);
    bias_ = per_channel(y_shape[1], y_shape.size());
    first_ = is(api_->dgrad) ? w_.get() : x_.get();
    second_ = is(api_->fprop) ? w_.get() : y_.get();
    out_ = is(api_->fprop) ? y_.get() : is(api_->dgrad) ? x_.get() : w_.get();
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

  // y = act(alpha conv(x, w) + beta z + bias), z laid out as y.
  void run_bias_act(CudnnHandle &handle, Address stream, int algorithm, int math, double alpha, Address x, Address w,
                    double beta, Address z, Address bias, const std::string &act, Address y, Address workspace,
                    size_t workspace_bytes) const {
    if (!is(api_->fprop)) throw std::invalid_argument("cuDNN: bias and activation belong to fprop");
    if (act != "identity" && act != "relu") throw std::invalid_argument("cuDNN: no convolution with " + act);
    const Descriptor function = activation(*api_, act, 0);
    if (!z && beta == 0) z = y;  // it must not be null even where it counts for nothing
    handle.call(stream, api_->conv_bias_act, Scale(dtype_, alpha), x_.get(), at(x), w_.get(), at(w), with(math),
                algorithm, at(workspace), workspace_bytes, Scale(dtype_, beta), y_.get(), at(z), bias_.get(), at(bias),
                function.get(), y_.get(), at(y));
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

  Descriptor per_channel(i64 channels, size_t axes) const {
    Extents shape(axes, 1), strides(axes, 1);
    shape[1] = strides[0] = channels;
    return tensor(*api_, dtype_, shape, strides);
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
  Descriptor x_, w_, y_, bias_;
  const Desc *first_ = nullptr, *second_ = nullptr, *out_ = nullptr;
};

class Cudnn {
 public:
  explicit Cudnn(const std::string &path) : api_(std::make_shared<const Api>(path)) {}

  size_t version() const { return api_->library.version; }
  const std::string &path() const { return api_->library.path; }
  const std::vector<std::string> &symbols() const { return api_->library.names; }

  void check_tensor(int dtype, const Extents &shape, const Extents &strides) const {
    tensor(*api_, dtype, shape, strides);
  }
  void check_filter(int dtype, const Extents &shape, bool channels_last) const {
    filter(*api_, dtype, shape, channels_last);
  }
  std::unique_ptr<CudnnHandle> handle() const { return std::make_unique<CudnnHandle>(api_); }
  std::unique_ptr<CudnnConv> conv(const std::string &direction, int dtype, const Extents &x_shape,
                                  const Extents &x_strides, const Extents &w_shape, bool w_channels_last,
                                  const Extents &y_shape, const Extents &y_strides, const Extents &pad,
                                  const Extents &stride, const Extents &dilation, int groups,
                                  const std::string &math) const {
    return std::make_unique<CudnnConv>(api_, direction, dtype, x_shape, x_strides, w_shape, w_channels_last, y_shape,
                                       y_strides, Geometry{pad, stride, dilation, groups}, math);
  }

 private:
  std::shared_ptr<const Api> api_;
};

// ---- bindings ----------------------------------------------------------------------------------

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const cudnn::Failure &failure) {
    const char *const name = failure.unsupported() ? "UnsupportedError" : "BackendError";
    PyErr_SetString(py::module_::import("ooc.errors").attr(name).ptr(), failure.what());
  }
}

// Binds a method by the names of its arguments; it runs without Python's lock.
template <class T, class Method, class... Names>
void bind(py::class_<T> &type, const char *name, Method method, Names... names) {
  type.def(name, method, py::arg(names)..., py::call_guard<py::gil_scoped_release>());
}

template <class Method, class... Names>
void bind_scaled(py::class_<CudnnHandle> &type, const char *name, Method method, Names... names) {
  type.def(name, method, py::arg("stream"), py::arg("dtype"), py::arg(names)..., py::arg("alpha") = 1.0,
           py::arg("beta") = 0.0, py::call_guard<py::gil_scoped_release>());
}

void bind_conv(py::module_ &m) {
  py::class_<CudnnConv> conv(m, "CudnnConv");
  bind(conv, "heuristics", &CudnnConv::heuristics, "handle");
  bind(conv, "measure", &CudnnConv::measure, "handle", "stream", "first", "second", "out", "workspace",
       "workspace_bytes");
  conv.def("workspace", &CudnnConv::workspace, py::arg("handle"), py::arg("algorithm"), py::arg("math") = py::none(),
           py::call_guard<py::gil_scoped_release>());
  bind(conv, "run", &CudnnConv::run, "handle", "stream", "algorithm", "math", "alpha", "first", "second", "beta",
       "out", "workspace", "workspace_bytes");
  bind(conv, "run_bias_act", &CudnnConv::run_bias_act, "handle", "stream", "algorithm", "math", "alpha", "x", "w",
       "beta", "z", "bias", "act", "y", "workspace", "workspace_bytes");
}

void bind_handle(py::module_ &m) {
  using H = CudnnHandle;
  py::class_<H> handle(m, "CudnnHandle");
  bind_scaled(handle, "conv_bias_backward", &H::conv_bias_backward, "dy", "db");
  bind_scaled(handle, "add_tensor", &H::add_tensor, "a", "c");
  bind(handle, "scale_tensor", &H::scale_tensor, "stream", "dtype", "y", "alpha");
  bind_scaled(handle, "pooling", &H::pooling, "mode", "window", "pad", "stride", "x", "y");
  bind_scaled(handle, "pooling_backward", &H::pooling_backward, "mode", "window", "pad", "stride", "y", "dy", "x",
              "dx");
  bind_scaled(handle, "activation", &H::activation, "act", "coef", "x", "y");
  bind_scaled(handle, "activation_backward", &H::activation_backward, "act", "coef", "y", "dy", "x", "dx");
  bind_scaled(handle, "softmax", &H::softmax, "algorithm", "x", "y");
  bind_scaled(handle, "softmax_backward", &H::softmax_backward, "algorithm", "y", "dy", "dx");
  bind_scaled(handle, "lrn", &H::lrn, "window", "lrn_alpha", "lrn_beta", "lrn_k", "x", "y");
  bind_scaled(handle, "lrn_backward", &H::lrn_backward, "window", "lrn_alpha", "lrn_beta", "lrn_k", "y", "dy", "x",
              "dx");
  bind_scaled(handle, "bn_training", &H::bn_training, "mode", "x", "y", "scale", "bias", "factor", "running_mean",
              "running_var", "epsilon", "saved_mean", "saved_inv_std");
  bind_scaled(handle, "bn_inference", &H::bn_inference, "mode", "x", "y", "scale", "bias", "mean", "var", "epsilon");
  bind_scaled(handle, "bn_backward", &H::bn_backward, "mode", "x", "dy", "dx", "scale", "dscale", "dbias", "epsilon",
              "saved_mean", "saved_inv_std");
}

}  // namespace

void bind_cudnn(py::module_ &m) {
  py::register_local_exception_translator(&translate);
  bind_handle(m);
  bind_conv(m);
  py::class_<Cudnn> library(m, "Cudnn");
  library.def(py::init<const std::string &>(), py::arg("path"))
      .def_property_readonly("version", &Cudnn::version)
      .def_property_readonly("path", &Cudnn::path);
  bind(library, "symbols", &Cudnn::symbols);
  bind(library, "check_tensor", &Cudnn::check_tensor, "dtype", "shape", "strides");
  bind(library, "check_filter", &Cudnn::check_filter, "dtype", "shape", "channels_last");
  bind(library, "handle", &Cudnn::handle);
  bind(library, "conv", &Cudnn::conv, "direction", "dtype", "x_shape", "x_strides", "w_shape", "w_channels_last",
       "y_shape", "y_strides", "pad", "stride", "dilation", "groups", "math");
}

}  // namespace ooc
