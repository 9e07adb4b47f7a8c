#include "tutti/train/export/trace.h"

#include <cmath>
#include <map>
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

// The traces of a function for two batches, in which the first becomes that of a batch of any size.
class Comparison {
 public:
  // Both graphs have the same inputs. `sizes` are the numbers of examples; `batch` is an input of the first
  // graph whose first dimension is that number.
  Comparison(jit::Graph& graph, jit::Graph& other, std::pair<int64_t, int64_t> sizes, jit::Value* batch)
      : graph_(graph), other_(other), sizes_(std::move(sizes)), batch_(batch) {}

  void run() {
    compare(*graph_.block(), *other_.block());
    for (const auto& [constant, number] : found_) constant->output()->replaceAllUsesWith(value_of(number));
  }

 private:
  // A number of the trace as a function of the number of examples: factor * examples + rest.
  using Number = std::pair<int64_t, int64_t>;

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
    if (here->isInt() && there->isInt()) {
      const int64_t factor = (there->toInt() - here->toInt()) / (sizes_.second - sizes_.first);
      if (here->toInt() + factor * (sizes_.second - sizes_.first) == there->toInt())
        return found_.emplace_back(&one, Number(factor, here->toInt() - factor * sizes_.first)), void();
    }
    fail(
        ErrorKind::InvalidArgument,
        "the model cannot be exported: {} is called with {} for a batch of {} examples and with {} for one "
        "of "
        "{}, and this is neither computed by operators of LibTorch nor a multiple of the number of examples. "
        "Compute it by operators, from the tensors of the batch",
        user_of(*one.output()), text_of_constant(*here), sizes_.first, text_of_constant(*there),
        sizes_.second);
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

  [[noreturn]] void fail_differs(const std::string& here, const std::string& there) const {
    fail(ErrorKind::InvalidArgument,
         "the model cannot be exported: it calls other operators for a batch of {} examples than for one of "
         "{} "
         "({}, {}). Its forward() must not decide by the number of examples or by their values",
         sizes_.first, sizes_.second, here, there);
  }

  jit::Value* value_of(const Number& number) {
    const auto [known, is_new] = values_.try_emplace(number, nullptr);
    if (!is_new) return known->second;
    const jit::WithInsertPoint at_the_start(*graph_.nodes().begin());
    const auto call = [&](const char* name, jit::Value* value, int64_t argument) {
      return graph_.insert(c10::Symbol::fromQualString(name), {value, argument});
    };
    jit::Value* value = call("aten::size", batch_, 0);
    if (number.first != 1) value = call("aten::mul", value, number.first);
    if (number.second != 0) value = call("aten::add", value, number.second);
    return known->second = value;
  }

  jit::Graph& graph_;
  jit::Graph& other_;
  const std::pair<int64_t, int64_t> sizes_;
  jit::Value* const batch_;
  std::unordered_map<const jit::Value*, const jit::Value*> same_as_;  // of `other_` to that of `graph_`
  std::vector<std::pair<jit::Node*, Number>> found_;
  std::map<Number, jit::Value*> values_;
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

// Replaces the device of the trace by that of the first tensor of the model, or else of the batch.
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

// Returns the index of the first argument whose rows are the examples.
size_t batch_argument(const std::vector<Tensors>& examples, const std::pair<int64_t, int64_t>& sizes) {
  for (size_t i = 0; i < examples[0].size(); ++i) {
    if (examples[0][i].dim() > 0 && examples[0][i].size(0) == sizes.first &&
        examples[1][i].size(0) == sizes.second)
      return i;
  }
  return 0;
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

Traced trace_for_any_batch(jit::Module& self, const std::vector<std::string>& arguments,
                           const std::vector<Tensors>& examples,
                           const std::function<Tensors(const Tensors&)>& function) {
  const std::pair<int64_t, int64_t> sizes = {examples[0].front().size(0), examples[1].front().size(0)};
  const Trace first = trace_once(self, arguments, examples[0], function);
  const Trace second = trace_once(self, arguments, examples[1], function);
  jit::Graph& graph = *first.graph;
  // The input 0 is `self`.
  jit::Value* const batch = graph.inputs().at(1 + batch_argument(examples, sizes));
  Comparison(graph, *second.graph, sizes, batch).run();
  follow_device(graph, batch, examples[0].front().device().type());
  jit::EliminateDeadCode(first.graph);
  return {first.graph, {first.reads.begin(), first.reads.end()}};
}

}  // namespace tutti
