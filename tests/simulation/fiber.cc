#include "tests/simulation/fiber.h"

#include <cstdint>
#include <cstring>
#include <cxxabi.h>
#include <utility>

#include "tutti/base/check.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if (defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)) && \
    __has_include(<sanitizer/common_interface_defs.h>)
#define TUTTI_ASAN_FIBERS 1
#include <sanitizer/common_interface_defs.h>
#endif

namespace tutti::simulation {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;

}  // namespace

Fiber::Fiber(std::function<void()> body)
    : body_(std::move(body)), stack_(std::make_unique_for_overwrite<std::byte[]>(kStackBytes)) {
  TUTTI_CHECK(getcontext(&inside_) == 0, "getcontext failed");
  inside_.uc_stack.ss_sp = stack_.get();
  inside_.uc_stack.ss_size = kStackBytes;
  inside_.uc_link = nullptr;
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&inside_, reinterpret_cast<void (*)()>(&Fiber::enter), 2,
              static_cast<unsigned>(uint64_t{self} >> 32), static_cast<unsigned>(self));
}

// makecontext() passes ints.
void Fiber::enter(unsigned high, unsigned low) {
  const uint64_t self = (uint64_t{high} << 32) | low;
  reinterpret_cast<Fiber*>(static_cast<uintptr_t>(self))->run();
}

void Fiber::run() {
#ifdef TUTTI_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(nullptr, &outside_stack_, &outside_size_);
#endif
  body_();
  ended_ = true;
  pause();
}

void Fiber::resume() {
  TUTTI_CHECK(!ended_, "a fiber that has ended was resumed");
#ifdef TUTTI_ASAN_FIBERS
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, stack_.get(), kStackBytes);
#endif
  swap(outside_, inside_);
#ifdef TUTTI_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

void Fiber::pause() {
#ifdef TUTTI_ASAN_FIBERS
  __sanitizer_start_switch_fiber(ended_ ? nullptr : &fake_stack_, outside_stack_, outside_size_);
#endif
  swap(inside_, outside_);
#ifdef TUTTI_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(fake_stack_, &outside_stack_, &outside_size_);
#endif
}

// The other stack's exceptions are put in the place of those of this one: a fiber may pause in a handler.
void Fiber::swap(ucontext_t& from, ucontext_t& to) {
  void* const globals = static_cast<void*>(abi::__cxa_get_globals());
  Exceptions ours;
  std::memcpy(&ours, globals, sizeof(ours));
  std::memcpy(globals, &exceptions_, sizeof(exceptions_));
  exceptions_ = ours;
  TUTTI_CHECK(swapcontext(&from, &to) == 0, "swapcontext failed");
}

}  // namespace tutti::simulation
