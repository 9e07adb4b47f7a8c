#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace tutti::rpc {

// A reused buffer is larger than requested by at most one part in this number.
inline constexpr size_t kSpareOfBuffer = 8;

// Memory for incoming messages, from one budget for all callers. Returned buffers are reused, because fresh
// memory costs more than what is then done with it. Thread-safe.
class Buffers {
 public:
  explicit Buffers(size_t budget);

  // Returns uninitialised memory that lives as long as a copy of the pointer, which may outlive this object.
  // If there is no room, waits in order of arrival and calls `keep_waiting`, which must not throw, ten times
  // a second; returns null once it returns false. Throws Overloaded if the request can never fit.
  std::shared_ptr<std::byte> allocate(size_t bytes, const std::function<bool()>& keep_waiting);
  // The same, but throws Overloaded if there is no room within a tenth of a second.
  std::shared_ptr<std::byte> allocate(size_t bytes);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // shared with the buffers in use
};

}  // namespace tutti::rpc
