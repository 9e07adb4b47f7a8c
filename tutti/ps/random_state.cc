#include "tutti/ps/random_state.h"

#include <mutex>

#include <ATen/CPUGeneratorImpl.h>

#include "tutti/base/error.h"

namespace tutti::ps {
namespace {

at::Generator generator() { return at::detail::getDefaultCPUGenerator(); }

}  // namespace

torch::Tensor random_state() {
  at::Generator cpu = generator();
  const std::lock_guard lock(cpu.mutex());
  return cpu.get_state();
}

void set_random_state(const torch::Tensor& state) {
  at::Generator cpu = generator();
  const std::lock_guard lock(cpu.mutex());
  try {
    cpu.set_state(state);
  } catch (const c10::Error& error) {
    fail(ErrorKind::InvalidArgument, "not a valid state of a random generator: {}",
         error.what_without_backtrace());
  }
}

}  // namespace tutti::ps
