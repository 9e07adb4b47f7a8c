#include "tutti/kernels/coverage.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_set>

#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include "tutti/kernels/operator_list.h"

namespace tutti::kernels {
namespace {

// The operators belong to the process, as LibTorch's dispatcher does.
struct Remembered {
  std::mutex mutex;
  std::vector<NotCovered> operators;
  std::atomic<bool> has_new = false;  // some were not located yet
};

Remembered& remembered() {
  static Remembered all;
  return all;
}

using torch::autograd::Node;

// Returns the nearest node of a backward pass, from this one on towards the parameters, for which `is_wanted`
// holds; null if there is none.
template <class IsWanted>
const Node* first_node(const Node* from, const IsWanted& is_wanted) {
  std::deque<const Node*> next = {from};
  std::unordered_set<const Node*> seen = {from};
  while (!next.empty()) {
    const Node* const node = next.front();
    next.pop_front();
    if (is_wanted(*node)) return node;
    for (const auto& edge : node->next_edges()) {
      if (edge.function && seen.insert(edge.function.get()).second) next.push_back(edge.function.get());
    }
  }
  return nullptr;
}

// Returns a name in small letters, without what is no letter or digit.
std::string plain(std::string_view name) {
  std::string letters;
  for (const char each : name) {
    const auto letter = static_cast<unsigned char>(each);
    if (std::isalnum(letter) != 0) letters += static_cast<char>(std::tolower(letter));
  }
  return letters;
}

// Returns true if the node is the backward pass of an operator: UpsampleBilinear2DBackward0 of
// aten::upsample_bilinear2d.
bool is_of(const Node& node, std::string_view name) {
  return plain(node.name()).starts_with(plain(listed_name(name)) + "backward");
}

// Returns the layer that has the parameter which is nearest to a node, "" if it has none. LibTorch has a node
// for each parameter, which adds to its gradient.
std::string layer_before(const Node& node, const std::function<std::string(const at::Tensor&)>& name_of) {
  const auto parameter_of = [](const Node& one) {
    return dynamic_cast<const torch::autograd::AccumulateGrad*>(&one);
  };
  const Node* const found = first_node(&node, [&](const Node& one) { return parameter_of(one) != nullptr; });
  if (found == nullptr) return "";
  const std::string name = name_of(parameter_of(*found)->variable);
  return name.substr(0, name.rfind('.'));
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
  if (known) return;
  all.operators.push_back({std::string(name), std::string(why)});
  all.has_new = true;
}

std::vector<NotCovered> not_covered_operators() {
  Remembered& all = remembered();
  const std::lock_guard lock(all.mutex);
  return all.operators;
}

std::vector<NotCovered> name_not_covered(int64_t step) {
  Remembered& all = remembered();
  const std::lock_guard lock(all.mutex);
  std::vector<NotCovered> named;
  for (NotCovered& each : all.operators) {
    if (each.step >= 0) continue;
    each.step = step;
    named.push_back(each);
  }
  return named;
}

void locate_not_covered(const at::Tensor& loss,
                        const std::function<std::string(const at::Tensor&)>& name_of) {
  Remembered& all = remembered();
  if (!all.has_new.load(std::memory_order_relaxed) || !loss.grad_fn()) return;
  const std::lock_guard lock(all.mutex);
  all.has_new = false;
  for (NotCovered& each : all.operators) {
    if (!each.layer.empty()) continue;
    const Node* const node =
        first_node(loss.grad_fn().get(), [&](const Node& one) { return is_of(one, each.name); });
    if (node != nullptr) each.layer = layer_before(*node, name_of);
  }
}

CoverageCheck::CoverageCheck()
    : callback_(
          at::addGlobalCallback(at::RecordFunctionCallback(look_up).scopes({at::RecordScope::FUNCTION}))) {
  ++checks;
}

CoverageCheck::~CoverageCheck() { at::removeCallback(callback_); }

}  // namespace tutti::kernels
