#include "tutti/kernels/coverage.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_set>

#include <ATen/record_function.h>

#include "tutti/kernels/operator_list.h"

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

// Grows when a check begins, since the operators that are replaced may be others then.
std::atomic<uint64_t> checks = 0;

// Called by LibTorch for each operator. A thread looks each one up once: the address of its name in
// LibTorch's table tells operators apart, overloads too.
std::unique_ptr<at::ObserverContext> look_up(const at::RecordFunction& function) {
  struct Seen {
    std::unordered_set<const char*> names;
    uint64_t check = 0;
  };
  thread_local Seen seen;
  const uint64_t check = checks.load(std::memory_order_relaxed);
  if (seen.check != check) seen = {{}, check};
  if (seen.names.contains(function.name())) return nullptr;
  const auto name = function.operator_name();
  if (!name.has_value()) return nullptr;  // no operator, but a range that a program has named
  if (kind_of(*name) == OperatorKind::NotCovered) not_covered(c10::toString(*name), why_not_covered(*name));
  seen.names.insert(function.name());
  return nullptr;
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

CoverageCheck::CoverageCheck()
    : callback_(
          at::addGlobalCallback(at::RecordFunctionCallback(look_up).scopes({at::RecordScope::FUNCTION}))) {
  ++checks;
}

CoverageCheck::~CoverageCheck() { at::removeCallback(callback_); }

}  // namespace tutti::kernels
