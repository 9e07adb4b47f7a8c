#pragma once

// Hides the differences between LibTorch 1.13 and 2.x, and nothing else. Tested versions: docs/libtorch.md.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

#include <ATen/autocast_mode.h>
#include <c10/core/Allocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/optim.h>
#include <torch/version.h>

#define TUTTI_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace tutti::compat {

// Returns the key of a parameter in torch::optim::Optimizer::state(): the address as text in older versions,
// the address itself in newer ones.
template <class Optimizer>
auto optimizer_state_key(Optimizer& optimizer, const torch::Tensor& parameter) {
  using Key = typename std::decay_t<decltype(optimizer.state())>::key_type;
  if constexpr (std::is_same_v<Key, std::string>) {
    std::ostringstream text;
    text << parameter.unsafeGetTensorImpl();
    return text.str();
  } else {
    return static_cast<Key>(parameter.unsafeGetTensorImpl());
  }
}

// Creates a node of a Tutti type in autograd's graph: a shared_ptr in older versions, later an intrusive_ptr.
template <class Node, class... Args>
auto make_node(Args&&... args) {
  using Pointer = std::decay_t<decltype(std::declval<const torch::Tensor&>().grad_fn())>;
  if constexpr (std::is_constructible_v<Pointer, std::shared_ptr<Node>>) {
    return std::shared_ptr<Node>(new Node(std::forward<Args>(args)...), [](Node* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<Node>(std::forward<Args>(args)...);
  }
}

// Enables autocast for one device type until the end of the scope; then clears its cache, and sets it back to
// the state before, so that scopes can be nested. Does nothing if no type is given.
class AutocastScope {
 public:
  AutocastScope(torch::DeviceType device, std::optional<torch::ScalarType> lower) : device_(device) {
    if (!lower) return;
    before_ = {is_enabled(), lower_type()};
    set(true, *lower);
  }

  ~AutocastScope() {
    if (!before_) return;
    at::autocast::clear_cache();
    set(before_->first, before_->second);
  }

  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
#if TUTTI_TORCH_AT_LEAST(2, 4)
  bool is_enabled() const { return at::autocast::is_autocast_enabled(device_); }
  torch::ScalarType lower_type() const { return at::autocast::get_autocast_dtype(device_); }
  void set(bool enabled, torch::ScalarType type) const {
    at::autocast::set_autocast_dtype(device_, type);
    at::autocast::set_autocast_enabled(device_, enabled);
  }
#else
  bool is_enabled() const {
    return device_ == torch::kCUDA ? at::autocast::is_enabled() : at::autocast::is_cpu_enabled();
  }
  torch::ScalarType lower_type() const {
    return device_ == torch::kCUDA ? at::autocast::get_autocast_gpu_dtype()
                                   : at::autocast::get_autocast_cpu_dtype();
  }
  void set(bool enabled, torch::ScalarType type) const {
    if (device_ == torch::kCUDA) {
      at::autocast::set_autocast_gpu_dtype(type);
      at::autocast::set_enabled(enabled);
    } else {
      at::autocast::set_autocast_cpu_dtype(type);
      at::autocast::set_cpu_enabled(enabled);
    }
  }
#endif

  torch::DeviceType device_;
  std::optional<std::pair<bool, torch::ScalarType>> before_;  // empty: this scope changes nothing
};

// While it lives, LibTorch's warnings are dropped, also those that come once in a process, which then may
// still come later. Of this thread alone; in older versions of the whole process.
class DroppedWarnings {
 public:
  DroppedWarnings() : guard_(&handler_) {}
  DroppedWarnings(const DroppedWarnings&) = delete;
  DroppedWarnings& operator=(const DroppedWarnings&) = delete;

 private:
#if TUTTI_TORCH_AT_LEAST(2, 0)
  struct Handler final : c10::WarningHandler {
    void process(const c10::Warning& /*warning*/) override {}
  };
  using Guard = c10::WarningUtils::WarningHandlerGuard;
  using NotOnlyOnce = c10::WarningUtils::WarnAlways;
#else
  struct Handler final : c10::WarningHandler {
    void process(const c10::SourceLocation& /*place*/, const std::string& /*text*/,
                 bool /*verbatim*/) override {}
  };
  using Guard = c10::Warning::WarningHandlerGuard;
  using NotOnlyOnce = c10::Warning::WarnAlways;
#endif
  Handler handler_;
  Guard guard_;
  NotOnlyOnce not_only_once_;
};

// Returns the type to which autocast lowers on the CPU in this thread, or nullopt if it is off.
inline std::optional<torch::ScalarType> cpu_autocast() {
#if TUTTI_TORCH_AT_LEAST(2, 4)
  if (!at::autocast::is_autocast_enabled(torch::kCPU)) return std::nullopt;
  return at::autocast::get_autocast_dtype(torch::kCPU);
#else
  if (!at::autocast::is_cpu_enabled()) return std::nullopt;
  return at::autocast::get_autocast_cpu_dtype();
#endif
}

// While it lives, counts the bytes that this thread allocates for tensors on the CPU, less those it frees.
class CountedAllocations {
 public:
  CountedAllocations()
      : count_(std::make_shared<Count>()), guard_(c10::DebugInfoKind::PROFILER_STATE, count_) {}
  int64_t bytes() const { return count_->bytes; }

 private:
  // The totals are int64_t in older versions, size_t in newer ones.
  template <class>
  struct TotalIn;
  template <class Total>
  struct TotalIn<void (c10::MemoryReportingInfoBase::*)(void*, int64_t, Total, Total, c10::Device)> {
    using type = Total;
  };
  using Total = TotalIn<decltype(&c10::MemoryReportingInfoBase::reportMemoryUsage)>::type;

  struct Count final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*place*/, int64_t size, Total /*allocated*/, Total /*reserved*/,
                           c10::Device /*device*/) override {
      bytes += size;
    }
    bool memoryProfilingEnabled() const override { return true; }

    std::atomic<int64_t> bytes = 0;  // threads that it starts may be counted too
  };

  std::shared_ptr<Count> count_;  // shared with LibTorch's list of this thread
  c10::DebugInfoGuard guard_;
};

// An event on a device's current stream. Times can be read since LibTorch 2.4; before that,
// milliseconds_until() returns nullopt.
class TimedEvent {
 public:
  explicit TimedEvent(torch::Device device)
#if TUTTI_TORCH_AT_LEAST(2, 4)
      : event_(device.type(), c10::EventFlag::BACKEND_DEFAULT) {
    event_.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  bool passed() const { return event_.query(); }
  void wait() const { event_.synchronize(); }
  // Requires that both events have passed.
  std::optional<double> milliseconds_until(const TimedEvent& later) const {
    return event_.elapsedTime(later.event_);
  }

 private:
  c10::Event event_;
#else
  {
    static_cast<void>(device);
  }
  bool passed() const { return true; }
  void wait() const {}
  std::optional<double> milliseconds_until(const TimedEvent&) const { return std::nullopt; }
#endif
};

}  // namespace tutti::compat
