// A cuDNN handle: a device, and the stream that calls are enqueued on.
#pragma once
#include <memory>
#include <mutex>
#include <utility>

#include "arguments.hpp"

namespace ooc {
namespace {

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

 private:
  std::shared_ptr<const Api> api_;
  std::mutex mutex_;
  cudnn::Owned<cudnn::Context> context_;
};

}  // namespace
}  // namespace ooc
