#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <ucontext.h>

namespace tutti::simulation {

// A function with a stack of its own, which runs in the caller's thread until it pauses or ends. Blocking
// production code runs in it unchanged while others in the same thread take their turns. No exception may
// leave the function, which has to have ended before the fiber is destroyed, if it has begun. Not
// thread-safe.
class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber() = default;

  // Runs until the function pauses or ends. Called from outside.
  void resume();
  // Goes back to resume(). Called from inside.
  void pause();
  bool ended() const { return ended_; }

 private:
  // The exceptions that are being handled: each stack has others.
  struct Exceptions {
    void* caught = nullptr;
    unsigned uncaught = 0;
  };
  static void enter(unsigned high, unsigned low);
  void run();
  void swap(ucontext_t& from, ucontext_t& to);

  const std::function<void()> body_;
  const std::unique_ptr<std::byte[]> stack_;
  ucontext_t outside_ = {};
  ucontext_t inside_ = {};
  Exceptions exceptions_;  // of the stack that does not run
  bool ended_ = false;
  // For the address sanitizer.
  void* fake_stack_ = nullptr;
  const void* outside_stack_ = nullptr;
  size_t outside_size_ = 0;
};

}  // namespace tutti::simulation
