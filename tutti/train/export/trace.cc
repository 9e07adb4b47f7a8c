#include "tutti/train/export/trace.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/params/parameters.h"

namespace tutti {
namespace {

namespace jit = torch::jit;
using Tensors = std::vector<torch::Tensor>;

std::string kind_of(const jit::Node& node) { return node.kind().toQualString(); }

// Returns the next operator that computes something, for errors.
std::string operator_from(jit::graph_node_list_iterator node, jit::graph_node_list_iterator end) {
  for (; node != end; ++node) {
    const std::string kind = kind_of(**node);
    if (kind.starts_with("aten::")) return kind;
  }
  return "nothing more";
}

// Returns the operator that the value is an argument of, for errors.
std::string user_of(const jit::Value& value) {
  if (value.uses().empty()) return "nothing";
  const jit::Node& user = *value.uses().front().user;
  return user.kind() == jit::prim::ListConstruct ? user_of(*user.output()) : kind_of(user);
}

std::string text_of_constant(const jit::IValue& value) {
  if (value.isTensor()) return "a tensor " + describe(value.toTensor());
  std::ostringstream text;
  text << value;
  return text.str();
}

bool are_same(const jit::IValue& one, const jit::IValue& other) {
  if (one.tagKind() != other.tagKind()) return false;
  if (one.isTensor()) {
    const torch::Tensor& a = one.toTensor();
    const torch::Tensor& b = other.toTensor();
    if (!a.defined() || !b.defined()) return a.defined() == b.defined();
    return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
           a.allclose(b, /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true);
  }
  if (one.isDouble() && std::isnan(one.toDouble()) && std::isnan(other.toDouble())) return true;
  return one == other;
}

// A size of the arguments, with its two values in the traces, and the input of the first graph that has it.
struct TracedSize {
  std::string name;
  int64_t first = 0;
  int64_t second = 0;
  jit::Value* input = nullptr;
  int64_t dimension = 0;
};

// The first of several traces of a function, which becomes that for all sizes. The others are told apart by
// the sizes that have their second value: a bit for each.
class Generalization {
 public:
  Generalization(jit::Graph& graph, std::vector<TracedSize> sizes)
      : graph_(graph), sizes_(std::move(sizes)) {}

  // Compares a trace with the first one, which has the same inputs.
  void add(jit::Graph& other, size_t which) {
    which_ = which;
    same_as_.clear();
    compare(*graph_.block(), *other.block());
  }

  // Replaces the numbers that differ.
  void finish() {
    for (jit::Node* constant : differing_) {
      const auto factors = factors_of(numbers_.at(constant));
      if (!factors) fail_number(*constant);
      constant->output()->replaceAllUsesWith(value_of(*factors));
    }
  }

 private:
  // A number in each trace; and the factors of the products of sizes whose sum it is, by the sizes in a
  // product.
  using Numbers = std::vector<int64_t>;

  // NOLINTNEXTLINE(misc-no-recursion): blocks contain nodes, which contain blocks
  void compare(jit::Block& one, jit::Block& other) {
    map_values(one.inputs(), other.inputs(), "the arguments");
    auto theirs = other.nodes().begin();
    for (auto ours = one.nodes().begin(); ours != one.nodes().end(); ++ours, ++theirs) {
      if (theirs == other.nodes().end() || ours->kind() != theirs->kind())
        fail_differs(operator_from(ours, one.nodes().end()), operator_from(theirs, other.nodes().end()));
      compare(**ours, **theirs);
    }
    if (theirs != other.nodes().end())
      fail_differs("nothing more", operator_from(theirs, other.nodes().end()));
    require_same_values(one.outputs(), other.outputs(), "the results");
  }

  // NOLINTNEXTLINE(misc-no-recursion)
  void compare(jit::Node& one, jit::Node& other) {
    require_same_values(one.inputs(), other.inputs(), kind_of(one));
    map_values(one.outputs(), other.outputs(), kind_of(one));
    if (one.kind() == jit::prim::Constant) return compare_constants(one, other);
    if (one.kind() == jit::prim::GetAttr && one.s(jit::attr::name) != other.s(jit::attr::name))
      fail_differs("a use of " + one.s(jit::attr::name), "one of " + other.s(jit::attr::name));
    if (one.blocks().size() != other.blocks().size()) fail_differs(kind_of(one), kind_of(other));
    for (size_t i = 0; i < one.blocks().size(); ++i) compare(*one.blocks()[i], *other.blocks()[i]);
  }

  void compare_constants(jit::Node& one, const jit::Node& other) {
    const auto here = jit::toIValue(one.output());
    const auto there = jit::toIValue(other.output());
    if (!here || !there || are_same(*here, *there) || !one.hasUses()) return;
    if (!here->isInt() || !there->isInt())
      fail_constant(one, text_of_constant(*here), text_of_constant(*there), which_);
    const auto [numbers, is_new] = numbers_.try_emplace(&one, size_t{1} << sizes_.size(), here->toInt());
    if (is_new) differing_.push_back(&one);
    numbers->second[which_] = there->toInt();
  }

  template <class Values>
  void map_values(const Values& ones, const Values& others, const std::string& what) {
    if (ones.size() != others.size()) fail_differs(what, "another number of results");
    for (size_t i = 0; i < ones.size(); ++i) same_as_.emplace(others[i], ones[i]);
  }

  template <class Values>
  void require_same_values(const Values& ones, const Values& others, const std::string& what) {
    if (ones.size() != others.size()) fail_differs(what, what + " with other arguments");
    for (size_t i = 0; i < ones.size(); ++i) {
      if (same_as_.at(others[i]) != ones[i]) fail_differs(what, what + " with other arguments");
    }
  }

  // "32 examples, length 16".
  std::string sizes_in(size_t which) const {
    std::string text;
    for (size_t k = 0; k < sizes_.size(); ++k) {
      const int64_t size = has_second(which, k) ? sizes_[k].second : sizes_[k].first;
      text +=
          k == 0 ? fmt::format("{} {}", size, sizes_[k].name) : fmt::format(", {} {}", sizes_[k].name, size);
    }
    return text;
  }

  [[noreturn]] void fail_differs(const std::string& here, const std::string& there) const {
    fail(ErrorKind::InvalidArgument,
         "the model cannot be exported: it calls other operators for a batch of {} than for one of {} ({}, "
         "{}). Its forward() must not decide by the sizes of a batch or by its values",
         sizes_in(0), sizes_in(which_), here, there);
  }

  [[noreturn]] void fail_constant(const jit::Node& constant, const std::string& here,
                                  const std::string& there, size_t which) const {
    fail(ErrorKind::InvalidArgument,
         "the model cannot be exported: {} is called with {} for a batch of {} and with {} for one of {}, "
         "and this is neither computed by operators of LibTorch nor a multiple of a size of the batch. "
         "Compute it by operators, from the tensors of the batch",
         user_of(*constant.output()), here, sizes_in(0), there, sizes_in(which));
  }

  [[noreturn]] void fail_number(jit::Node& constant) const {
    const Numbers& numbers = numbers_.at(&constant);
    const auto other =
        std::find_if(numbers.begin(), numbers.end(), [&](int64_t n) { return n != numbers[0]; });
    fail_constant(constant, std::to_string(numbers[0]), std::to_string(*other),
                  static_cast<size_t>(other - numbers.begin()));
  }

  static bool has_second(size_t which, size_t size) { return (which >> size & 1) != 0; }

  // Interpolates the numbers of all traces along one size after the other. Returns nullopt if a factor is not
  // whole.
  std::optional<Numbers> factors_of(Numbers numbers) const {
    for (size_t k = 0; k < sizes_.size(); ++k) {
      const auto& [name, first, second, input, dimension] = sizes_[k];
      for (size_t i = 0; i < numbers.size(); ++i) {
        if (has_second(i, k)) continue;
        const int64_t difference = numbers[i | size_t{1} << k] - numbers[i];
        if (difference % (second - first) != 0) return std::nullopt;
        const int64_t factor = difference / (second - first);
        numbers[i | size_t{1} << k] = factor;
        numbers[i] -= factor * first;
      }
    }
    return numbers;
  }

  jit::Value* value_of(const Numbers& factors) {
    const auto [known, is_new] = values_.try_emplace(factors, nullptr);
    if (!is_new) return known->second;
    const jit::WithInsertPoint at_the_start(*graph_.nodes().begin());
    const auto call = [&](const char* name, jit::Value* value, const jit::NamedValue& argument) {
      return graph_.insert(c10::Symbol::fromQualString(name), {value, argument});
    };
    jit::Value* sum = nullptr;
    for (size_t i = factors.size() - 1; i > 0; --i) {
      if (factors[i] == 0) continue;
      jit::Value* product = nullptr;
      for (size_t k = 0; k < sizes_.size(); ++k) {
        if (!has_second(i, k)) continue;
        jit::Value* const size = call("aten::size", sizes_[k].input, sizes_[k].dimension);
        product = product == nullptr ? size : call("aten::mul", product, size);
      }
      if (factors[i] != 1) product = call("aten::mul", product, factors[i]);
      sum = sum == nullptr ? product : call("aten::add", sum, product);
    }
    if (factors[0] != 0) sum = call("aten::add", sum, factors[0]);
    return known->second = sum;
  }

  jit::Graph& graph_;
  const std::vector<TracedSize> sizes_;
  size_t which_ = 0;                                                  // the trace that is being compared
  std::unordered_map<const jit::Value*, const jit::Value*> same_as_;  // of its values to those of `graph_`
  std::vector<jit::Node*> differing_;                                 // constants
  std::unordered_map<const jit::Node*, Numbers> numbers_;
  std::map<Numbers, jit::Value*> values_;
};

struct Trace {
  std::shared_ptr<jit::Graph> graph;
  std::set<std::string> reads;
};

// The operators by which the program itself, and not another operator, reads values of tensors in this
// thread. The tracer ignores them.
class Reads {
 public:
  Reads()
      : found_(std::make_shared<Found>()),
        guard_(kind(), found_),
        callback_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::FUNCTION}))) {}
  ~Reads() { at::removeCallback(callback_); }
  Reads(const Reads&) = delete;
  Reads& operator=(const Reads&) = delete;

  const std::set<std::string>& names() const { return found_->names; }

 private:
  // The callbacks of LibTorch are plain functions, which find this object by the thread.
  static c10::DebugInfoKind kind() { return c10::DebugInfoKind::TEST_INFO; }
  struct Found final : c10::DebugInfoBase {
    int depth = 0;
    std::set<std::string> names;
  };
  static Found* of_thread() { return static_cast<Found*>(c10::ThreadLocalDebugInfo::get(kind())); }

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    static const std::set<std::string_view> kReads = {"aten::item", "aten::_local_scalar_dense",
                                                      "aten::equal", "aten::is_nonzero", "aten::allclose"};
    if (Found* const found = of_thread(); found != nullptr && found->depth++ == 0) {
      const std::string name = function.name();
      if (kReads.contains(name)) found->names.insert(name);
    }
    return nullptr;
  }
  static void end(const at::RecordFunction&, at::ObserverContext*) {
    if (Found* const found = of_thread(); found != nullptr) --found->depth;
  }

  const std::shared_ptr<Found> found_;
  const c10::DebugInfoGuard guard_;
  const at::CallbackHandle callback_;
};

Trace trace_once(jit::Module& self, const std::vector<std::string>& arguments, const Tensors& inputs,
                 const std::function<Tensors(const Tensors&)>& function) {
  Trace trace;
  const auto traced = [&](const jit::Stack& stack) -> jit::Stack {
    Tensors tensors;
    for (const jit::IValue& value : stack) tensors.push_back(value.toTensor());
    const Reads reads;
    const Tensors results = function(tensors);
    trace.reads = reads.names();
    if (results.size() == 1) return {results.front()};
    return {c10::ivalue::Tuple::create(std::vector<jit::IValue>(results.begin(), results.end()))};
  };
  const auto no_names = [](const torch::Tensor&) { return std::string(); };
  or_fail(ErrorKind::InvalidArgument, "the model cannot be exported", [&] {
    trace.graph = jit::tracer::trace(jit::Stack(inputs.begin(), inputs.end()), traced, no_names,
                                     /*strict=*/true, /*force_outplace=*/false, &self, arguments)
                      .first->graph;
  });
  return trace;
}

// NOLINTNEXTLINE(misc-no-recursion)
void add_device_constants(jit::Block& block, c10::DeviceType type, std::vector<jit::Node*>& found) {
  for (jit::Node* node : block.nodes()) {
    for (jit::Block* inner : node->blocks()) add_device_constants(*inner, type, found);
    if (node->kind() != jit::prim::Constant) continue;
    const auto value = jit::toIValue(node->output());
    if (value && value->isDevice() && value->toDevice().type() == type) found.push_back(node);
  }
}

// Replaces the device of the trace by the device of the model's first tensor, or else of the batch.
void follow_device(jit::Graph& graph, jit::Value* batch, c10::DeviceType type) {
  std::vector<jit::Node*> constants;
  add_device_constants(*graph.block(), type, constants);
  if (constants.empty()) return;
  jit::Value* anchor = batch;
  jit::Node* after = graph.param_node();
  for (jit::Node* node : graph.nodes()) {
    if (node->kind() != jit::prim::GetAttr || !node->output()->type()->isSubtypeOf(*c10::TensorType::get()))
      continue;
    anchor = node->output();
    after = node;
    break;
  }
  jit::Node* const device = graph.create(c10::Symbol::fromQualString("prim::device"), {anchor}, 1);
  device->output()->setType(c10::DeviceObjType::get());
  if (after == graph.param_node())
    graph.prependNode(device);
  else
    device->insertAfter(after);
  for (jit::Node* constant : constants) constant->output()->replaceAllUsesWith(device->output());
}

// Finds an input of the graph that has the size, if possible one that the results depend on.
TracedSize traced_size(const Computation::Size& size, size_t index, const std::vector<Tensors>& examples,
                       jit::Graph& graph) {
  TracedSize found{.name = size.name};
  for (const auto& [argument, dimension] : size.places) {
    jit::Value* const input = graph.inputs().at(1 + argument);  // the input 0 is `self`
    if (found.input != nullptr && (found.input->hasUses() || !input->hasUses())) continue;
    found.input = input;
    found.dimension = dimension;
    found.first = examples[0][argument].size(dimension);
    found.second = examples[size_t{1} << index][argument].size(dimension);
  }
  TUTTI_CHECK(found.input != nullptr && found.first != found.second, "{} {}", size.name, found.first);
  return found;
}

std::string reason_in(const std::string& text) {
  constexpr std::string_view kMark = "RuntimeError: ";
  std::string reason = text;
  if (const size_t at = text.rfind(kMark); at != std::string::npos) reason = text.substr(at + kMark.size());
  return reason.substr(0, reason.find('\n'));
}

}  // namespace

void or_fail(ErrorKind kind, const std::string& what, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    fail(kind, "{}: {}", what, reason_in(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    fail(kind, "{}: {}", what, reason_in(error.what()));
  }
}

Traced trace_for_any_sizes(jit::Module& self, const Computation::Function& function) {
  const auto trace = [&](size_t which) {
    return trace_once(self, function.arguments, function.examples.at(which), function.body);
  };
  const Trace first = trace(0);
  jit::Graph& graph = *first.graph;
  std::vector<TracedSize> sizes;
  for (size_t k = 0; k < function.sizes.size(); ++k)
    sizes.push_back(traced_size(function.sizes[k], k, function.examples, graph));
  Generalization all(graph, sizes);
  for (size_t which = 1; which < function.examples.size(); ++which) all.add(*trace(which).graph, which);
  all.finish();
  follow_device(graph, sizes.front().input, function.examples[0].front().device().type());
  jit::EliminateDeadCode(first.graph);
  return {first.graph, {first.reads.begin(), first.reads.end()}};
}

}  // namespace tutti
