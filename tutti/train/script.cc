#include "tutti/train/script.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/resource_guard.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/jit.h>
#include <torch/script.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/store/named_tensors.h"

namespace tutti {
namespace {

using torch::jit::IValue;

constexpr const char* kLossName = "loss";
constexpr const char* kPredictName = "predict";
constexpr const char* kForward = "forward";

// LibTorch's error messages end with a stack trace.
std::string without_frames(const std::string& text) {
  return text.substr(0, text.find("\nException raised from"));
}

template <class Body>
auto or_invalid(const char* what, Body body) {
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    fail(ErrorKind::InvalidArgument, "{}: {}", what, without_frames(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    // An exception of the compiler, whose type is not visible outside of LibTorch.
    fail(ErrorKind::InvalidArgument, "{}: {}", what, error.what());
  }
}

// A function of a program, with the values of its arguments.
class Call {
 public:
  // For a method of a module, `self` is the module, which is passed as the first argument.
  Call(torch::jit::Function& function, std::shared_ptr<const void> owner, std::optional<IValue> self,
       std::map<std::string, torch::Tensor> parameters)
      : function_(function),
        owner_(std::move(owner)),
        self_(std::move(self)),
        parameters_(std::move(parameters)) {
    const auto& arguments = function.getSchema().arguments();
    arguments_.assign(arguments.begin() + (self_ ? 1 : 0), arguments.end());
  }

  IValue operator()(const Batch& batch) const {
    torch::jit::Stack stack;
    if (self_) stack.push_back(*self_);
    for (const c10::Argument& argument : arguments_) stack.push_back(value_of(argument, batch));
    // Disables the optimiser of TorchScript, whose result has other bits.
    const torch::jit::GraphOptimizerEnabledGuard as_it_is(false);
    const bool is_traced = torch::jit::tracer::isTracing() && !self_;
    return or_invalid("the program failed",
                      [&] { return is_traced ? traced(std::move(stack)) : function_(std::move(stack)); });
  }

 private:
  // Puts the function into the trace as it is, with its decisions and loops, and not the operators that it
  // happens to call for this batch.
  IValue traced(torch::jit::Stack stack) const {
    std::vector<torch::jit::Value*> arguments;
    for (const IValue& value : stack) arguments.push_back(torch::jit::tracer::getValueTrace(value));
    const auto body = torch::jit::toGraphFunction(function_).graph()->copy();
    torch::jit::Inline(*body);
    const auto results =
        torch::jit::insertGraph(*torch::jit::tracer::getTracingState()->graph, *body, arguments);
    const IValue result = [&] {
      const torch::jit::ResourceGuard paused(torch::jit::tracer::pauseTracing());
      return function_(std::move(stack));
    }();
    torch::jit::tracer::setValueTrace(result, results.at(0));
    return result;
  }

  IValue value_of(const c10::Argument& argument, const Batch& batch) const {
    const std::string& name = argument.name();
    if (const auto found = parameters_.find(name); found != parameters_.end()) return found->second;
    if (batch.has(name)) return batch[name];
    if (argument.default_value()) return *argument.default_value();
    std::vector<std::string> known;
    for (const auto& [parameter, tensor] : parameters_) known.push_back(parameter);
    for (const auto& [column, tensor] : batch.tensors()) known.push_back(column);
    fail(ErrorKind::InvalidArgument,
         "{}() of the program has the argument '{}', which is neither a parameter nor a tensor of the "
         "batch{}; available: {}",
         function_.name(), name, did_you_mean(name, known), fmt::join(known, ", "));
  }

  torch::jit::Function& function_;
  const std::shared_ptr<const void> owner_;  // keeps the function alive
  const std::optional<IValue> self_;
  const std::map<std::string, torch::Tensor> parameters_;
  std::vector<c10::Argument> arguments_;
};

LossOutput loss_output(const IValue& value) {
  if (value.isTensor()) return value.toTensor();
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    if (elements.size() == 2 && elements[0].isTensor() && elements[1].isTensor())
      return {elements[0].toTensor(), elements[1].toTensor()};
  }
  fail(ErrorKind::InvalidArgument,
       "loss() of the program has to return the mean loss, or (loss, predictions), but returns a {}",
       value.tagKind());
}

torch::Tensor prediction(const IValue& value) {
  if (value.isTensor()) return value.toTensor();
  fail(ErrorKind::InvalidArgument, "the program's prediction is a {}, not a tensor", value.tagKind());
}

void fill(Trainable& model, const Call& loss, const std::optional<Call>& predict) {
  model.loss = [loss](const Batch& batch) { return loss_output(loss(batch)); };
  if (predict) model.predict = [predict](const Batch& batch) { return prediction((*predict)(batch)); };
}

// A TorchScript module as a LibTorch module: the same tensors under the same names.
class ScriptedModule final : public torch::nn::Module {
 public:
  explicit ScriptedModule(const torch::jit::Module& module) : module_(module) {
    for (const auto& parameter : module_.named_parameters(false))
      register_parameter(parameter.name, parameter.value, parameter.value.requires_grad());
    for (const auto& buffer : module_.named_buffers(false)) register_buffer(buffer.name, buffer.value);
    for (const auto& child : module_.named_children())
      register_module(child.name, std::make_shared<ScriptedModule>(child.value));
    torch::nn::Module::train(module_.is_training());
  }
  void train(bool on) override {
    torch::nn::Module::train(on);
    if (module_.hasattr("training")) module_.setattr("training", on);
  }

 private:
  torch::jit::Module module_;
};

std::map<std::string, torch::Tensor> arguments_of(const torch::nn::Module& module) {
  std::map<std::string, torch::Tensor> arguments;
  const auto add = [&](const auto& named) {
    for (const auto& entry : named) {
      std::string name = entry.key();
      std::replace(name.begin(), name.end(), '.', '_');
      if (!arguments.emplace(name, entry.value()).second)
        fail(ErrorKind::InvalidArgument, "two parameters would have the same name '{}' in a program", name);
    }
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return arguments;
}

template <class Named>
Json outline_of_tensors(const Named& named, std::map<const void*, std::string>& first_names) {
  Json all = Json::array();
  for (const auto& entry : named) {
    const torch::Tensor& tensor = entry.value();
    const std::string& first = first_names.emplace(tensor.unsafeGetTensorImpl(), entry.key()).first->second;
    // The elements do not follow, so their order in memory does not matter.
    Json outline = store::outline_of({{entry.key(), torch::empty(tensor.sizes(), tensor.scalar_type())}});
    outline[0].update({{"first", first}, {"trained", tensor.requires_grad()}});
    all.push_back(std::move(outline[0]));
  }
  return all;
}

}  // namespace

Script Script::from_text(const std::string& text) {
  Script script;
  script.content_ = text;
  script.functions_ = or_invalid("the program does not compile", [&] { return torch::jit::compile(text); });
  if (script.functions_->find_function(c10::QualifiedName(kLossName)) == nullptr)
    fail(ErrorKind::InvalidArgument, "the program has no function loss(...)");
  return script;
}

Script Script::from_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf())) fail(ErrorKind::InvalidArgument, "{} cannot be read", path);
  return from_bytes(content.str());
}

Script Script::from_bytes(const std::string& bytes) {
  Script script;
  script.content_ = bytes;
  std::istringstream in(bytes);
  script.module_ = or_invalid("this file was not written by torch.jit.save",
                              [&] { return std::make_shared<torch::jit::Module>(torch::jit::load(in)); });
  if (!script.module_->find_method(kLossName))
    fail(ErrorKind::InvalidArgument,
         "the module has no method loss(self, ...): add one and mark it with @torch.jit.export");
  return script;
}

Trainable script_model(const Script& script) {
  if (!script.is_module())
    fail(ErrorKind::InvalidArgument,
         "the program consists of functions and has no parameters: also pass a module with the parameters");
  Trainable model;
  model.module = std::make_shared<ScriptedModule>(*script.module_);
  const auto call = [&](const char* name) {
    return Call(script.module_->get_method(name).function(), script.module_,
                IValue(script.module_->_ivalue()), {});
  };
  const bool has_predict = script.module_->find_method(kPredictName).has_value();
  const char* predict = has_predict ? kPredictName : kForward;
  fill(model, call(kLossName),
       script.module_->find_method(predict) ? std::optional(call(predict)) : std::nullopt);
  if (model.predict && !has_predict) model.predict = internal::ForwardPass{std::move(model.predict)};
  model.script = std::make_shared<const Script>(script);
  return model;
}

Trainable script_model(const std::shared_ptr<torch::nn::Module>& module, const Script& script) {
  if (script.is_module())
    fail(ErrorKind::InvalidArgument,
         "the program is a module with its own parameters: do not pass another module");
  const auto parameters = arguments_of(*module);
  Trainable model;
  model.module = module;
  const auto call = [&](const char* name) -> std::optional<Call> {
    auto* function = script.functions_->find_function(c10::QualifiedName(name));
    if (function == nullptr) return std::nullopt;
    return Call(*function, script.functions_, std::nullopt, parameters);
  };
  fill(model, *call(kLossName), call(kPredictName));
  model.script = std::make_shared<const Script>(script);
  return model;
}

Json outline_of(const torch::nn::Module& module) {
  Json modules = Json::array();
  for (const auto& entry : module.named_modules()) modules.push_back(entry.key());
  std::map<const void*, std::string> first_names;
  return {{"modules", modules},
          {"parameters", outline_of_tensors(module.named_parameters(), first_names)},
          {"buffers", outline_of_tensors(module.named_buffers(), first_names)}};
}

// The outline comes from another process, so its names may be invalid.
std::shared_ptr<torch::nn::Module> module_of(const Json& outline) {
  using torch::nn::Module;
  return or_invalid("the outline of the model is invalid", [&] {
    const auto root = std::make_shared<Module>("program");
    std::map<std::string, std::shared_ptr<Module>> modules = {{"", root}};
    std::map<std::string, torch::Tensor> tensors;
    // Splits "a.b.weight" into the module "a.b" and "weight".
    const auto place_of = [&](const std::string& whole) -> std::pair<Module*, std::string> {
      const size_t dot = whole.rfind('.');
      const std::string path = dot == std::string::npos ? "" : whole.substr(0, dot);
      const auto found = modules.find(path);
      if (found == modules.end()) fail(ErrorKind::InvalidArgument, "the outline has no module '{}'", path);
      return {found->second.get(), dot == std::string::npos ? whole : whole.substr(dot + 1)};
    };
    const auto tensor_of = [&](const Json& entry) {
      const auto [found, is_new] = tensors.try_emplace(entry.at("first").get<std::string>());
      if (is_new) found->second = store::empty_tensor(entry).tensor.zero_();
      return found->second;
    };
    for (const Json& path : outline.at("modules")) {
      if (path.get<std::string>().empty()) continue;
      const auto [parent, name] = place_of(path.get<std::string>());
      modules[path.get<std::string>()] = parent->register_module(name, std::make_shared<Module>(name));
    }
    for (const Json& entry : outline.at("parameters")) {
      const auto [module, name] = place_of(entry.at("name").get<std::string>());
      module->register_parameter(name, tensor_of(entry), entry.at("trained").get<bool>());
    }
    for (const Json& entry : outline.at("buffers")) {
      const auto [module, name] = place_of(entry.at("name").get<std::string>());
      module->register_buffer(name, tensor_of(entry));
    }
    return root;
  });
}

}  // namespace tutti
