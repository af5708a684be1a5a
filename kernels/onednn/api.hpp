// The part of oneDNN's C interface (version 3) that ooc uses. The library is opened at run time, so
// building ooc needs neither its headers nor its import library: the types, the numbers and the
// prototypes below are our own statement of that interface, whose numbers are fixed for all of version 3.
#pragma once
#include <dlfcn.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace ooc::dnnl {

// Opaque objects of the library.
struct Engine;
struct Stream;
struct Desc;  // memory descriptor: shape and layout
struct Memory;
struct Attr;
struct PostOps;
struct PrimitiveDesc;
struct Primitive;

enum class Status : int { success = 0 };
enum class EngineKind : int { cpu = 1 };
enum class DataType : int { undefined = 0, f32 = 3 };
enum class FormatTag : int { any = 1 };
enum class Propagation : int { forward_training = 64, forward_inference = 96 };
enum class Scratchpad : int { user = 1 };
enum class Algorithm : int { convolution_direct = 1 };
enum class Query : int {
  impl_info_str = 8,
  strides = 14,
  src_md = 129,
  diff_src_md = 130,
  weights_md = 131,
  dst_md = 133,
  diff_dst_md = 134,
  scratchpad_md = 136,
  ndims_s32 = 256,
  dims = 257,
  padded_dims = 260,
  inner_nblks_s32 = 263,
  inner_blks = 264,
  inner_idxs = 265
};

enum class ArgKind : int {
  src = 1,
  dst = 17,
  weights = 33,
  bias = 41,
  scratchpad = 80,
  diff_src = 129,
  diff_dst = 145
};
struct Arg {
  ArgKind kind;
  Memory *memory;
};

struct Version {
  int major, minor, patch;
  const char *hash;
  unsigned cpu_runtime, gpu_runtime;
};

constexpr unsigned stream_in_order = 1;

inline const char *status_text(Status status) {
  static const char *const texts[] = {"success",           "out of memory",     "invalid arguments", "unimplemented",
                                      "no implementation", "run-time error",    "not required",      "invalid graph",
                                      "invalid graph op",  "invalid shape",     "invalid data type"};
  const auto code = static_cast<size_t>(status);
  return code < sizeof texts / sizeof *texts ? texts[code] : "unknown status";
}

// One entry point. Calls that answer with a status throw unless it is success.
template <class Signature>
class Entry;

template <class Result, class... Params>
class Entry<Result(Params...)> {
 public:
  using Function = Result (*)(Params...);

  Entry(void *library, const char *name) : name_(name), function_(reinterpret_cast<Function>(dlsym(library, name))) {
    if (!function_) throw std::runtime_error(std::string("oneDNN: the library has no ") + name);
  }

  auto operator()(Params... params) const {
    if constexpr (std::is_same_v<Result, Status>) {
      const Status status = function_(params...);
      if (status != Status::success) {
        throw std::runtime_error(std::string("oneDNN: ") + name_ + ": " + status_text(status));
      }
    } else {
      return function_(params...);
    }
  }

  Function function() const { return function_; }

 private:
  const char *name_;
  Function function_;
};

// Opens the library and makes sure that it speaks version 3 of the interface, before any symbol that
// an older one lacks is asked for. It is never closed again: its threads and its cache of generated
// code outlive the objects made with it.
inline void *open_library(const std::string &path) {
  void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *reason = dlerror();
    throw std::runtime_error("oneDNN: cannot open " + path + ": " + (reason ? reason : "unknown reason"));
  }
  try {
    const Version *version = Entry<const Version *()>(library, "dnnl_version")();
    if (version->major != 3) {
      throw std::runtime_error("oneDNN: version 3 is needed, " + path + " is version " +
                               std::to_string(version->major));
    }
  } catch (...) {
    dlclose(library);
    throw;
  }
  return library;
}

struct Api {
  explicit Api(const std::string &path) : library(open_library(path)) {}

  void *library;  // first: the entries below are looked up in it

  Entry<const Version *()> version{library, "dnnl_version"};
  // Of the OpenMP that the library brings: ooc has threads of its own (team.hpp), each of which computes alone.
  Entry<void(int)> set_threads{library, "omp_set_num_threads"};
  Entry<int()> threads{library, "omp_get_max_threads"};

  Entry<int()> effective_cpu_isa{library, "dnnl_get_effective_cpu_isa"};

  Entry<Status(Engine **, EngineKind, size_t)> engine_create{library, "dnnl_engine_create"};
  Entry<Status(Engine *)> engine_destroy{library, "dnnl_engine_destroy"};
  Entry<Status(Stream **, Engine *, unsigned)> stream_create{library, "dnnl_stream_create"};
  Entry<Status(Stream *)> stream_wait{library, "dnnl_stream_wait"};
  Entry<Status(Stream *)> stream_destroy{library, "dnnl_stream_destroy"};

  Entry<Status(Desc **, int, const int64_t *, DataType, const int64_t *)> desc_create_with_strides{
      library, "dnnl_memory_desc_create_with_strides"};
  Entry<Status(Desc **, int, const int64_t *, DataType, FormatTag)> desc_create_with_tag{
      library, "dnnl_memory_desc_create_with_tag"};
  Entry<Status(Desc **, const Desc *)> desc_clone{library, "dnnl_memory_desc_clone"};
  Entry<Status(Desc *)> desc_destroy{library, "dnnl_memory_desc_destroy"};
  Entry<Status(const Desc *, Query, void *)> desc_query{library, "dnnl_memory_desc_query"};
  Entry<int(const Desc *, const Desc *)> desc_equal{library, "dnnl_memory_desc_equal"};
  Entry<size_t(const Desc *)> desc_get_size{library, "dnnl_memory_desc_get_size"};

  Entry<Status(Memory **, const Desc *, Engine *, void *)> memory_create{library, "dnnl_memory_create"};
  Entry<Status(Memory *, void *)> memory_set_data_handle{library, "dnnl_memory_set_data_handle"};
  Entry<Status(Memory *)> memory_destroy{library, "dnnl_memory_destroy"};

  Entry<Status(Attr **)> attr_create{library, "dnnl_primitive_attr_create"};
  Entry<Status(Attr *)> attr_destroy{library, "dnnl_primitive_attr_destroy"};
  Entry<Status(Attr *, Scratchpad)> attr_set_scratchpad_mode{library, "dnnl_primitive_attr_set_scratchpad_mode"};
  Entry<Status(Attr *, const PostOps *)> attr_set_post_ops{library, "dnnl_primitive_attr_set_post_ops"};
  Entry<Status(PostOps **)> post_ops_create{library, "dnnl_post_ops_create"};
  Entry<Status(PostOps *)> post_ops_destroy{library, "dnnl_post_ops_destroy"};
  Entry<Status(PostOps *, float, int32_t, DataType)> post_ops_append_sum{library, "dnnl_post_ops_append_sum"};

  // Descriptors in the order x, w, bias, y; then stride, dilation - 1, padding before, padding after.
  Entry<Status(PrimitiveDesc **, Engine *, Propagation, Algorithm, const Desc *, const Desc *, const Desc *,
               const Desc *, const int64_t *, const int64_t *, const int64_t *, const int64_t *, const Attr *)>
      convolution_forward{library, "dnnl_convolution_forward_primitive_desc_create"};
  Entry<Status(PrimitiveDesc **, Engine *, Algorithm, const Desc *, const Desc *, const Desc *, const int64_t *,
               const int64_t *, const int64_t *, const int64_t *, const PrimitiveDesc *, const Attr *)>
      convolution_backward_data{library, "dnnl_convolution_backward_data_primitive_desc_create"};
  Entry<Status(PrimitiveDesc **, const Desc *, Engine *, const Desc *, Engine *, const Attr *)> reorder{
      library, "dnnl_reorder_primitive_desc_create"};

  Entry<Status(const PrimitiveDesc *, Query, int, void *)> primitive_desc_query{library,
                                                                                "dnnl_primitive_desc_query"};
  Entry<const Desc *(const PrimitiveDesc *, Query, int)> primitive_desc_query_md{library,
                                                                                "dnnl_primitive_desc_query_md"};
  Entry<Status(PrimitiveDesc *)> primitive_desc_destroy{library, "dnnl_primitive_desc_destroy"};
  Entry<Status(Primitive **, const PrimitiveDesc *)> primitive_create{library, "dnnl_primitive_create"};
  Entry<Status(Primitive *)> primitive_destroy{library, "dnnl_primitive_destroy"};
  Entry<Status(const Primitive *, Stream *, int, const Arg *)> primitive_execute{library, "dnnl_primitive_execute"};
};

// Owner of one object of the library.
template <class T>
struct Destroy {
  Status (*function)(T *) = nullptr;
  void operator()(T *object) const { function(object); }
};
template <class T>
using Handle = std::unique_ptr<T, Destroy<T>>;

template <class T, class... Params, class... Args>
Handle<T> make(const Entry<Status(T **, Params...)> &create, const Entry<Status(T *)> &destroy, Args... args) {
  T *object = nullptr;
  create(&object, args...);
  return Handle<T>(object, Destroy<T>{destroy.function()});
}

}  // namespace ooc::dnnl
