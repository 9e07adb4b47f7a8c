#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace tutti::rpc {

// Memory for what comes in, from one budget for all who ask. Blocks that are given back are used again: fresh
// memory costs more than what is then done with it. Thread-safe.
class Buffers {
 public:
  explicit Buffers(size_t budget);

  // Bytes of any content, for as long as a copy of the pointer lives (which may be longer than this object).
  // Where there is no room it waits for it, in the order of asking, and asks `keep_waiting` ten times a
  // second whether to, which does not throw: null if not. What can never fit is Overloaded.
  std::shared_ptr<std::byte> take(size_t bytes, const std::function<bool()>& keep_waiting);
  // The same, but Overloaded also where there is no room within a tenth of a second.
  std::shared_ptr<std::byte> take(size_t bytes);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // shared with the blocks that are out
};

}  // namespace tutti::rpc
