// The part of cuDNN's C interface (version 9) that ooc uses. The library is opened at run time, so building
// ooc needs neither CUDA nor cuDNN: the types, the numbers and the prototypes below are our own statement of
// that interface. Functions that version 9 calls deprecated are exported by all of it.
#pragma once
#include <dlfcn.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace ooc::cudnn {

struct Context;  // what cuDNN calls a handle: a device, and the stream that it enqueues on
struct Desc;     // a descriptor of any kind: so the three passes of a convolution have the same prototypes

enum class Status : int { success = 0, not_supported = 3000, internal_error = 4000 };
enum class DataType : int { f32 = 0, f64 = 1, f16 = 2, bf16 = 9 };
enum class Format : int { channels_first = 0, channels_last = 1 };
enum class Math : int { standard = 0, tensor_op = 1, tensor_op_conversion = 2, fma = 3 };
enum class Mode : int { cross_correlation = 1 };

constexpr int math_types = 4;

// One algorithm of a convolution, as the search functions of all three passes return it.
struct Perf {
  int algorithm;
  Status status;
  float milliseconds;
  size_t workspace_bytes;
  int deterministic;
  Math math;
  int reserved[3];
};

// A call that cuDNN refused. It becomes one of Python's errors in cudnn.cpp.
struct Failure : std::runtime_error {
  Failure(const std::string &text, Status status) : std::runtime_error("cuDNN: " + text), status(status) {}
  bool unsupported() const { return status >= Status::not_supported && status < Status::internal_error; }
  Status status;
};

// The opened library. It is never closed again: its threads and the code on the device outlive our objects.
class Library {
 public:
  explicit Library(const std::string &path) : path(path), handle_(open(path)) {
    open_parts();
    version = function<size_t()>("cudnnGetVersion")();
    const size_t major = version < 90000 ? version / 1000 : version / 10000;  // 8 and before: 4 digits
    if (major != 9) fail("version 9 is needed, " + path + " is version " + std::to_string(major));
    error_string_ = function<const char *(Status)>("cudnnGetErrorString");
    last_error_ = function<void(char *, size_t)>("cudnnGetLastErrorString");
  }
  Library(const Library &) = delete;
  Library &operator=(const Library &) = delete;

  template <class Signature>
  Signature *function(const char *name) const {
    void *const address = dlsym(handle_, name);
    if (!address) fail(path + " has no " + name);
    return reinterpret_cast<Signature *>(address);
  }

  // "function: status: what cuDNN has to say about the last call of this thread", in one line.
  std::string describe(const char *name, Status status) const {
    char buffer[2048] = "";
    last_error_(buffer, sizeof buffer);
    std::string detail = buffer;
    while (!detail.empty() && (detail.back() == '\n' || detail.back() == ' ')) detail.pop_back();
    for (char &letter : detail) letter = letter == '\n' ? ' ' : letter;
    return std::string(name) + ": " + error_string_(status) + (detail.empty() ? "" : ": " + detail);
  }

  const std::string path;
  size_t version = 0;

 private:
  [[noreturn]] static void fail(const std::string &reason) { throw std::runtime_error("cuDNN: " + reason); }

  static void *open(const std::string &path) {
    void *const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle) return handle;
    const char *const error = dlerror();
    std::string reason = error ? error : "unknown reason";
    if (reason.rfind(path + ": ", 0) == 0) reason.erase(0, path.size() + 2);
    fail("cannot open " + path + ": " + reason);
  }

  // The library forwards to others beside it, which it opens at first use, and aborts the process where one of
  // them is missing. So they are opened here, where their absence is only a reason.
  void open_parts() const {
    if (!dlsym(handle_, "cudnnGetVersion")) fail(path + " has no cudnnGetVersion");
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
    for (const char *part : {"graph", "ops", "cnn"}) open(folder + "libcudnn_" + part + ".so.9");
  }

  void *handle_;
  const char *(*error_string_)(Status) = nullptr;
  void (*last_error_)(char *, size_t) = nullptr;
};

// One entry point. A status that is not success throws.
template <class... Params>
class Entry {
 public:
  Entry(const Library &library, const char *name)
      : library_(library), name_(name), function_(library.function<Status(Params...)>(name)) {}

  void operator()(Params... params) const {
    const Status status = function_(params...);
    if (status != Status::success) throw Failure(library_.describe(name_, status), status);
  }

  auto function() const { return function_; }

 private:
  const Library &library_;
  const char *name_;
  Status (*function_)(Params...);
};

// Owner of one object of the library.
template <class T>
struct Destroy {
  Status (*function)(T *) = nullptr;
  void operator()(T *object) const { function(object); }
};
template <class T>
using Owned = std::unique_ptr<T, Destroy<T>>;

// A kind of object: how it is made and how it ends.
template <class T>
struct Kind {
  Kind(const Library &library, const char *create, const char *destroy)
      : create(library, create), destroy(library, destroy) {}

  Owned<T> make() const {
    T *object = nullptr;
    create(&object);
    return Owned<T>(object, Destroy<T>{destroy.function()});
  }

  Entry<T **> create;
  Entry<T *> destroy;
};

using In = const Desc *;
using Scale = const void *;    // of alpha and beta: a double for f64, else a float
using Data = const void *;     // on the device
using Result = void *;         // on the device
using Ints = const int *;

// One pass of a convolution: (first, second, out) is (x, w, y) of fprop, (w, dy, dx) of dgrad, (x, dy, dw) of wgrad.
struct Pass {
  Entry<Context *, In, In, In, In, int, int *, Perf *> heuristics;
  Entry<Context *, In, Data, In, Data, In, In, Result, int, int *, Perf *, void *, size_t> measure;
  Entry<Context *, In, In, In, In, int, size_t *> workspace;
  Entry<Context *, Scale, In, Data, In, Data, In, int, void *, size_t, Scale, In, Result> run;
};

struct Api {
  explicit Api(const std::string &path) : library(path) {}

  Library library;  // first: the entries below are looked up in it

  Kind<Context> context{library, "cudnnCreate", "cudnnDestroy"};
  Entry<Context *, void *> set_stream{library, "cudnnSetStream"};

  Kind<Desc> tensor{library, "cudnnCreateTensorDescriptor", "cudnnDestroyTensorDescriptor"};
  Kind<Desc> filter{library, "cudnnCreateFilterDescriptor", "cudnnDestroyFilterDescriptor"};
  Kind<Desc> convolution{library, "cudnnCreateConvolutionDescriptor", "cudnnDestroyConvolutionDescriptor"};

  Entry<Desc *, DataType, int, Ints, Ints> set_tensor{library, "cudnnSetTensorNdDescriptor"};
  Entry<Desc *, DataType, Format, int, Ints> set_filter{library, "cudnnSetFilterNdDescriptor"};
  Entry<Desc *, int, Ints, Ints, Ints, Mode, DataType> set_convolution{library, "cudnnSetConvolutionNdDescriptor"};
  Entry<Desc *, int> set_groups{library, "cudnnSetConvolutionGroupCount"};
  Entry<Desc *, Math> set_math{library, "cudnnSetConvolutionMathType"};

  Entry<In, In, In, int, int *> conv_extents{library, "cudnnGetConvolutionNdForwardOutputDim"};
  Pass fprop{{library, "cudnnGetConvolutionForwardAlgorithm_v7"},
             {library, "cudnnFindConvolutionForwardAlgorithmEx"},
             {library, "cudnnGetConvolutionForwardWorkspaceSize"},
             {library, "cudnnConvolutionForward"}};
  Pass dgrad{{library, "cudnnGetConvolutionBackwardDataAlgorithm_v7"},
             {library, "cudnnFindConvolutionBackwardDataAlgorithmEx"},
             {library, "cudnnGetConvolutionBackwardDataWorkspaceSize"},
             {library, "cudnnConvolutionBackwardData"}};
  Pass wgrad{{library, "cudnnGetConvolutionBackwardFilterAlgorithm_v7"},
             {library, "cudnnFindConvolutionBackwardFilterAlgorithmEx"},
             {library, "cudnnGetConvolutionBackwardFilterWorkspaceSize"},
             {library, "cudnnConvolutionBackwardFilter"}};
};

}  // namespace ooc::cudnn
