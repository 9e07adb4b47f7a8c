#include "tutti/kernels/coverage.h"

#include <algorithm>
#include <mutex>

namespace tutti::kernels {
namespace {

// The operators belong to the process, as LibTorch's dispatcher does.
struct Remembered {
  std::mutex mutex;
  std::vector<NotCovered> operators;
};

Remembered& remembered() {
  static Remembered all;
  return all;
}

}  // namespace

void not_covered(std::string_view name, std::string_view why) {
  Remembered& all = remembered();
  const std::lock_guard lock(all.mutex);
  const bool known = std::any_of(all.operators.begin(), all.operators.end(), [&](const NotCovered& each) {
    return each.name == name && each.why == why;
  });
  if (!known) all.operators.push_back({std::string(name), std::string(why)});
}

std::vector<NotCovered> not_covered_operators() {
  Remembered& all = remembered();
  const std::lock_guard lock(all.mutex);
  return all.operators;
}

}  // namespace tutti::kernels
