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

torch::Tensor state_of(at::Generator& generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator& generator, const torch::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

RandomScope::RandomScope(torch::Device device) {
  for (at::Generator& generator : generators_of(device)) saved_.push_back({generator, state_of(generator)});
}

RandomScope::~RandomScope() {
  for (Saved& saved : saved_) set_state(saved.generator, saved.state);
}

void RandomScope::seed(uint64_t seed) {
  for (Saved& saved : saved_) {
    const std::lock_guard lock(saved.generator.mutex());
    saved.generator.set_current_seed(seed);
  }
}

std::vector<torch::Tensor> generator_states(torch::Device device) {
  std::vector<torch::Tensor> states;
  for (at::Generator& generator : generators_of(device)) states.push_back(state_of(generator));
  return states;
}

void set_generator_states(torch::Device device, const std::vector<torch::Tensor>& states) {
  std::vector<at::Generator> generators = generators_of(device);
  for (size_t i = 0; i < std::min(states.size(), generators.size()); ++i) {
    try {
      set_state(generators[i], states[i]);
    } catch (const c10::Error&) {
      fail(ErrorKind::InvalidArgument, "this is not the state of a random generator: {}",
           states[i].toString() + " of " + std::to_string(states[i].numel()) + " elements");
    }
  }
}

}  // namespace tutti
