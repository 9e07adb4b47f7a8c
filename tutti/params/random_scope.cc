#include "tutti/params/random_scope.h"

#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

namespace tutti {

RandomScope::RandomScope(torch::Device device) {
  saved_.push_back({at::detail::getDefaultCPUGenerator(), {}});
  if (!device.is_cpu()) saved_.push_back({at::globalContext().defaultGenerator(device), {}});
  for (Saved& saved : saved_) {
    const std::lock_guard lock(saved.generator.mutex());
    saved.state = saved.generator.get_state();
  }
}

RandomScope::~RandomScope() {
  for (Saved& saved : saved_) {
    const std::lock_guard lock(saved.generator.mutex());
    saved.generator.set_state(saved.state);
  }
}

void RandomScope::seed(uint64_t seed) {
  for (Saved& saved : saved_) {
    const std::lock_guard lock(saved.generator.mutex());
    saved.generator.set_current_seed(seed);
  }
}

}  // namespace tutti
