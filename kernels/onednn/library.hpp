// oneDNN's objects: the library itself, descriptors of arrays, primitives with their arguments, operands.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "../common.hpp"
#include "api.hpp"
#include "problem.hpp"

namespace ooc::onednn {

using dnnl::ArgKind;
using dnnl::Handle;
using dnnl::Query;

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

  // sum: the result is added to what the destination holds.
  Handle<dnnl::Attr> attributes(bool sum) const {
    auto attr = dnnl::make(api.attr_create, api.attr_destroy);
    api.attr_set_scratchpad_mode(attr.get(), dnnl::Scratchpad::user);
    auto post_ops = dnnl::make(api.post_ops_create, api.post_ops_destroy);
    if (sum) api.post_ops_append_sum(post_ops.get(), 1.0f, 0, dnnl::DataType::undefined);
    api.attr_set_post_ops(attr.get(), post_ops.get());
    return attr;
  }

  dnnl::Api api;
  Handle<dnnl::Engine> engine;
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

// The calling thread computes alone: a thread of OpenMP's that others hold up would hold up all (see team.hpp). The count
// belongs to the thread, which may be anybody's, so it is set back.
class Alone {
 public:
  explicit Alone(const dnnl::Api &api) : api_(api), before_(api.threads()) { api_.set_threads(1); }
  ~Alone() { api_.set_threads(before_); }
  Alone(const Alone &) = delete;
  Alone &operator=(const Alone &) = delete;

 private:
  const dnnl::Api &api_;
  int before_;
};

constexpr size_t LINE = 64;  // bytes: the workspace and each part of it begin on one

inline size_t whole_lines(size_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

// Everything about a layout, in words that are equal for equal layouts.
inline std::string layout_key(const dnnl::Api &api, const dnnl::Desc *desc) {
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

}  // namespace ooc::onednn
