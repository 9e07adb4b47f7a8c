#include "tutti/params/random_scope.h"

#include <algorithm>
#include <mutex>
#include <string>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include "tutti/base/error.h"

namespace tutti {
namespace {

std::vector<at::Generator> generators_of(torch::Device device) {
  std::vector<at::Generator> generators = {at::detail::getDefaultCPUGenerator()};
  if (!device.is_cpu()) generators.push_back(at::globalContext().defaultGenerator(device));
  return generators;
}

}  // namespace

std::mutex& generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

std::vector<torch::Tensor> generator_states(torch::Device device) {
  std::vector<torch::Tensor> states;
  for (at::Generator& generator : generators_of(device)) {
    const std::lock_guard lock(generator.mutex());
    states.push_back(generator.get_state());
  }
  return states;
}

void set_generator_states(torch::Device device, const std::vector<torch::Tensor>& states) {
  std::vector<at::Generator> generators = generators_of(device);
  for (size_t i = 0; i < std::min(states.size(), generators.size()); ++i) {
    const std::lock_guard lock(generators[i].mutex());
    try {
      generators[i].set_state(states[i]);
    } catch (const c10::Error&) {
      fail(ErrorKind::InvalidArgument, "this is not the state of a random generator: {}",
           states[i].toString() + " of " + std::to_string(states[i].numel()) + " elements");
    }
  }
}

void RandomScope::seed(uint64_t seed) {
  for (at::Generator& generator : generators_of(device_)) {
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(seed);
  }
}

}  // namespace tutti
