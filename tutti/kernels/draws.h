#pragma once

#include <mutex>

#include <ATen/CPUGeneratorImpl.h>

#include "tutti/kernels/random.h"

namespace tutti::kernels {

// The key is the generator's seed, all 64 bits of it, and the number of the draw are the generator's next two
// words. So the operators leave the generator in a state that depends on how many draws were made, and on
// nothing else.
inline Draw next_draw(at::CPUGeneratorImpl* generator) {
  const std::lock_guard lock(generator->mutex_);
  const uint64_t key = generator->current_seed();
  return {key, generator->random64()};
}

}  // namespace tutti::kernels
