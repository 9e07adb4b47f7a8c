#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/base/torch_compat.h"
#include "tutti/base/waiting.h"
#include "tutti/params/random_scope.h"
#include "tutti/ps/peers.h"
#include "tutti/ps/wire.h"
#include "tutti/remote/module_service.h"

namespace tutti::ps {
namespace {

using std::chrono::milliseconds;
using Tensors = ServedModule::Tensors;

std::vector<bool> flags_in(const Json& head, const char* name, size_t size) {
  auto flags = head.at(name).get<std::vector<bool>>();
  if (flags.size() != size)
    fail(ErrorKind::InvalidArgument, "'{}' has {} values, expected {}", name, flags.size(), size);
  return flags;
}

std::optional<torch::ScalarType> autocast_in(const Json& head) {
  const std::string type = head.value("autocast", "");
  if (type.empty()) return std::nullopt;
  if (type == "bfloat16") return torch::kBFloat16;
  fail(ErrorKind::InvalidArgument, "autocast on the CPU supports only bfloat16, not {}", type);
}

void require_on_cpu(const std::string& name, const ServedModule& module) {
  if (!module.module || !module.forward)
    fail(ErrorKind::InvalidArgument, "'{}' needs a module and a forward function", name);
  for (const torch::Tensor& tensor : module.module->parameters()) {
    if (!tensor.device().is_cpu())
      fail(ErrorKind::Unimplemented,
           "'{}' is on {}, but only modules on the CPU can be served: move it there with to(torch::kCPU)",
           name, tensor.device().str());
  }
}

struct Roots {
  Tensors outputs;
  Tensors gradients;
};

// Selects the outputs for which a gradient was received.
Roots roots_of(const Tensors& outputs, const Tensors& gradients) {
  if (gradients.size() != outputs.size())
    fail(ErrorKind::InvalidArgument, "{} gradients were received for {} outputs that need one",
         gradients.size(), outputs.size());
  Roots roots;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!gradients[i].defined()) continue;
    roots.outputs.push_back(outputs[i]);
    roots.gradients.push_back(gradients[i]);
  }
  return roots;
}

// Also accumulates into the parameters' gradients. Returns the gradients of the inputs.
Tensors backward_to_all(const Roots& roots, const Tensors& inputs, bool retain) {
  torch::autograd::backward(roots.outputs, roots.gradients, retain);
  Tensors gradients;
  for (const torch::Tensor& input : inputs) {
    gradients.push_back(input.grad());
    if (input.grad().defined()) torch::Tensor(input).mutable_grad().reset();
  }
  return gradients;
}

Tensors backward_to_inputs(const Roots& roots, const Tensors& inputs, const std::vector<bool>& wanted,
                           bool retain) {
  Tensors leaves;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (wanted[i] && inputs[i].requires_grad()) leaves.push_back(inputs[i]);
  }
  Tensors found;
  if (!leaves.empty())
    found = torch::autograd::grad(roots.outputs, leaves, roots.gradients, retain, /*create_graph=*/false,
                                  /*allow_unused=*/true);
  Tensors gradients;
  auto next = found.begin();
  for (size_t i = 0; i < inputs.size(); ++i)
    gradients.push_back(wanted[i] && inputs[i].requires_grad() ? *next++ : torch::Tensor());
  return gradients;
}

}  // namespace

ModuleService::Served::Served(std::string called, const ServedModule& served, const OptimizerOptions& options)
    : name(std::move(called)),
      module(served),
      parameters(*served.module),
      optimizer(parameters, freeze(parameters, options.groups).blocks(), options) {
  require_no_sharded_tables(parameters, "on a server of modules");
}

ModuleService::ModuleService(Agreement kernels, const GraphLimits& limits)
    : kernels_(std::move(kernels)), limits_(limits) {}

void ModuleService::add(const std::string& name, const ServedModule& module,
                        const OptimizerOptions& optimizer) {
  require_on_cpu(name, module);
  require_elementwise(optimizer, "a module server");
  const Lock lock(mutex_);
  if (open_) fail(ErrorKind::InvalidArgument, "'{}' was added too late: add modules before join()", name);
  if (modules_.contains(name))
    fail(ErrorKind::InvalidArgument, "a module '{}' already exists: give each module its own name", name);
  modules_.emplace(name, std::make_unique<Served>(name, module, optimizer));
}

void ModuleService::open() {
  const Lock lock(mutex_);
  open_ = true;
  changed_.notify_all();
}

rpc::Message ModuleService::serve(const rpc::Caller& caller, const std::string& method,
                                  const rpc::Message& request) {
  try {
    return dispatch(caller, method, request);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}: {}", kernels_.who, method, error.what()));
  } catch (const Json::exception& error) {
    fail(ErrorKind::InvalidArgument, "{}: {}: the message is malformed: {}", kernels_.who, method,
         error.what());
  } catch (const c10::Error& error) {
    fail(ErrorKind::InvalidArgument, "{}: {}: {}", kernels_.who, method,
         first_line(error.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    fail(ErrorKind::Overloaded, "{}: {}: out of memory", kernels_.who, method);
  } catch (const std::exception& error) {
    fail(ErrorKind::InvalidArgument, "{}: {}: {}", kernels_.who, method, first_line(error.what()));
  }
}

rpc::Message ModuleService::dispatch(const rpc::Caller& caller, const std::string& method,
                                     const rpc::Message& request) {
  static const std::map<std::string, Method> kMethods = {
      {"forward", &ModuleService::forward},     {"backward", &ModuleService::backward},
      {"zero_grad", &ModuleService::zero_grad}, {"step", &ModuleService::step},
      {"sha256", &ModuleService::sha256},       {"state", &ModuleService::state},
      {"load", &ModuleService::load},           {"end", &ModuleService::end}};
  if (method == "attach") return attach(caller, request.head);
  const auto found = kMethods.find(method);
  if (found == kMethods.end())
    fail(ErrorKind::InvalidArgument, "the module server does not support this request");
  Served& served = module_of(caller);
  forget(caller, request.head);
  const std::lock_guard lock(compute_);
  // A thread that is new to LibTorch does not know the number of threads that the program has set.
  at::init_num_threads();
  return (this->*found->second)({caller.id, served, request});
}

rpc::Message ModuleService::attach(const rpc::Caller& caller, const Json& head) {
  constexpr int64_t kLongest = int64_t{24} * 3600 * 1000;
  const std::string name = text_in(head, "module");
  const milliseconds patience(std::clamp<int64_t>(number_in(head, "patience"), 0, kLongest));
  Lock lock(mutex_);
  callers_[caller.id] = nullptr;
  changed_.notify_all();
  changed_.wait_for(lock, patience, [&] { return open_ || !callers_.contains(caller.id); });
  if (!open_) {
    callers_.erase(caller.id);
    fail(ErrorKind::Timeout, "the task has not added its modules yet: look at its log");
  }
  const auto found = modules_.find(name);
  if (found == modules_.end()) {
    callers_.erase(caller.id);
    changed_.notify_all();
    std::vector<std::string> names;
    for (const auto& [each, served] : modules_) names.push_back(each);
    fail(ErrorKind::InvalidArgument, "the task has no module '{}'; it has {}{}", name,
         names.empty() ? "none" : fmt::format("'{}'", fmt::join(names, "', '")), did_you_mean(name, names));
  }
  Served& served = *found->second;
  callers_[caller.id] = &served;
  last_ = name_of(caller);
  return {{{"plan", served.parameters.plan()},
           {"optimizer", served.optimizer.name()},
           {"kernels", to_json(kernels_)}},
          {}};
}

ModuleService::Served& ModuleService::module_of(const rpc::Caller& caller) const {
  const Lock lock(mutex_);
  const auto found = callers_.find(caller.id);
  if (found == callers_.end() || found->second == nullptr)
    fail(ErrorKind::InvalidArgument, "{} has not attached to a module", name_of(caller));
  return *found->second;
}

rpc::Message ModuleService::forward(const Call& call) {
  const Json& head = call.request.head;
  const bool wants_graph = head.at("graph").get<bool>();
  if (wants_graph) require_room();
  Reader reader(call.request);
  const Tensors random = unpack(head.at("random"), reader);
  if (random.size() != 1 || !random.front().defined())
    fail(ErrorKind::InvalidArgument, "a forward request needs the state of one random generator");
  const RandomScope as_before(torch::kCPU);
  set_generator_states(torch::kCPU, random);

  const auto graph = std::make_shared<Graph>();
  const Tensors outputs = run(call, *graph, wants_graph, reader);
  rpc::Message answer;
  answer.head["outputs"] = pack(outputs, answer.pieces);
  std::vector<bool> have_gradients;
  for (const torch::Tensor& output : outputs) {
    have_gradients.push_back(output.defined() && output.requires_grad());
    if (have_gradients.back()) graph->outputs.push_back(output);
  }
  answer.head["gradients"] = have_gradients;
  answer.head["random"] = pack({generator_states(torch::kCPU).front()}, answer.pieces);
  if (!graph->outputs.empty()) answer.head["of"] = keep(graph);
  return answer;
}

// Runs the module's forward. Stores the inputs and the memory of the graph in `graph`.
ModuleService::Tensors ModuleService::run(const Call& call, Graph& graph, bool wants_graph, Reader& reader) {
  const Json& head = call.request.head;
  const compat::CountedAllocations allocations;
  const Tensors inputs = unpack(head.at("inputs"), reader);
  reader.end();
  const std::vector<bool> gradients = flags_in(head, "gradients", inputs.size());
  call.served.module.module->train(head.at("training").get<bool>());
  const compat::AutocastScope autocast(torch::kCPU, autocast_in(head));
  const torch::AutoGradMode grad_mode(wants_graph);
  Tensors arguments = inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!wants_graph || !gradients[i]) continue;
    inputs[i].set_requires_grad(true);
    // The module may change its input in place, which a leaf does not allow.
    arguments[i] = inputs[i].clone();
  }
  const Tensors outputs = call.served.module.forward(arguments);
  arguments.clear();
  graph.caller = call.caller;
  graph.inputs = inputs;
  graph.bytes = std::max<int64_t>(0, allocations.bytes());
  return outputs;
}

rpc::Message ModuleService::backward(const Call& call) {
  const Json& head = call.request.head;
  const bool retain = head.at("retain").get<bool>();
  const auto graph = graph_of(call, number_in(head, "of"), retain);
  Reader reader(call.request);
  const Tensors gradients = unpack(head.at("gradients"), reader);
  reader.end();
  const std::vector<bool> wanted = flags_in(head, "wanted", graph->inputs.size());
  const Roots roots = roots_of(graph->outputs, gradients);
  Tensors found(graph->inputs.size());
  if (!roots.outputs.empty()) {
    found = head.at("parameters").get<bool>() ? backward_to_all(roots, graph->inputs, retain)
                                              : backward_to_inputs(roots, graph->inputs, wanted, retain);
  }
  rpc::Message answer;
  answer.head["gradients"] = pack(found, answer.pieces);
  return answer;
}

rpc::Message ModuleService::zero_grad(const Call& call) {
  call.served.parameters.collect_grads();
  call.served.parameters.zero_grads();
  return {};
}

rpc::Message ModuleService::step(const Call& call) {
  const Json& head = call.request.head;
  if (head.contains("rate")) call.served.optimizer.set_learning_rate(head.at("rate").get<double>());
  call.served.parameters.collect_grads();
  call.served.optimizer.step();
  return {};
}

rpc::Message ModuleService::sha256(const Call& call) {
  rpc::Message answer;
  answer.head["sha256"] = call.served.parameters.sha256();
  return answer;
}

// Clones the tensors, because the answer is sent after the lock on computations is released.
rpc::Message ModuleService::state(const Call& call) {
  std::vector<store::NamedTensor> state = state_of(call.served.parameters, call.served.optimizer);
  for (auto& [name, tensor] : state) tensor = tensor.clone();
  rpc::Message answer;
  answer.head["state"] = pack_named(state, answer.pieces);
  return answer;
}

rpc::Message ModuleService::load(const Call& call) {
  Reader reader(call.request);
  const auto state = unpack_named(call.request.head.at("state"), reader);
  reader.end();
  load_state(call.served.parameters, call.served.optimizer, state);
  return {};
}

rpc::Message ModuleService::end(const Call& /*call*/) {
  const Lock lock(mutex_);
  ended_ = true;
  changed_.notify_all();
  return {};
}

void ModuleService::require_room() const {
  const Lock lock(mutex_);
  if (graphs_.size() < limits_.graphs && graph_bytes_ < limits_.bytes) return;
  fail(ErrorKind::Overloaded,
       "{} forward passes are waiting for their backward pass and use {}, which is the limit: release "
       "outputs that need no backward pass, or call forward under torch::NoGradGuard",
       graphs_.size(), human_bytes(static_cast<uint64_t>(graph_bytes_)));
}

int64_t ModuleService::keep(std::shared_ptr<const Graph> graph) {
  const Lock lock(mutex_);
  if (!callers_.contains(graph->caller)) fail(ErrorKind::PeerLost, "the caller is gone");
  if (graph_bytes_ + graph->bytes > limits_.bytes) {
    fail(ErrorKind::Overloaded,
         "the graph needs {}, but {} of {} are already in use: use smaller batches, release outputs that "
         "need no backward pass, or call forward under torch::NoGradGuard",
         human_bytes(static_cast<uint64_t>(graph->bytes)), human_bytes(static_cast<uint64_t>(graph_bytes_)),
         human_bytes(static_cast<uint64_t>(limits_.bytes)));
  }
  graph_bytes_ += graph->bytes;
  graphs_.emplace(++graphs_so_far_, std::move(graph));
  return graphs_so_far_;
}

std::shared_ptr<const ModuleService::Graph> ModuleService::graph_of(const Call& call, int64_t id,
                                                                    bool retain) {
  const Lock lock(mutex_);
  const auto found = graphs_.find(id);
  if (found == graphs_.end() || found->second->caller != call.caller)
    fail(ErrorKind::InvalidArgument,
         "this client has no forward pass {} that is waiting for its backward pass", id);
  auto graph = found->second;
  if (!retain) drop(lock, id);
  return graph;
}

void ModuleService::drop(const Lock& /*lock*/, int64_t id) {
  const auto found = graphs_.find(id);
  graph_bytes_ -= found->second->bytes;
  graphs_.erase(found);
}

void ModuleService::forget(const rpc::Caller& caller, const Json& head) {
  if (!head.contains("forget")) return;
  std::vector<std::shared_ptr<const Graph>> forgotten;  // destroyed after the lock is released
  const Lock lock(mutex_);
  for (const int64_t id : head.at("forget").get<std::vector<int64_t>>()) {
    const auto found = graphs_.find(id);
    if (found == graphs_.end() || found->second->caller != caller.id) continue;
    forgotten.push_back(found->second);
    drop(lock, id);
  }
}

void ModuleService::gone(const rpc::Caller& caller) {
  std::vector<std::shared_ptr<const Graph>> forgotten;
  const Lock lock(mutex_);
  callers_.erase(caller.id);
  for (auto each = graphs_.begin(); each != graphs_.end();) {
    const auto [id, graph] = *each++;
    if (graph->caller != caller.id) continue;
    forgotten.push_back(graph);
    drop(lock, id);
  }
  changed_.notify_all();
}

void ModuleService::await_end(milliseconds patience, const Log& log) {
  Lock lock(mutex_);
  const auto done = [&] { return ended_ && callers_.empty(); };
  while (!done()) {
    changed_.wait(lock, [&] { return done() || callers_.empty(); });
    Waiting waiting(log, patience, "--start-timeout");
    while (!changed_.wait_for(lock, waiting.patience(), [&] { return done() || !callers_.empty(); })) {
      if (last_.empty()) {
        waiting.go_on({fmt::format("a client of the modules of {}", kernels_.who)});
      } else if (waiting.left() > milliseconds(0)) {
        waiting.go_on({fmt::format("{}, which has left without end()", last_)});
      } else {
        fail(ErrorKind::PeerLost,
             "{}: {} has left without end(), and no client has connected for {:g} s (--start-timeout): look "
             "at the log of that client",
             kernels_.who, last_, seconds(patience));
      }
    }
    waiting.end("a client is connected");
  }
}

size_t ModuleService::callers() const {
  const Lock lock(mutex_);
  return callers_.size();
}

size_t ModuleService::graphs() const {
  const Lock lock(mutex_);
  return graphs_.size();
}

int64_t ModuleService::graph_bytes() const {
  const Lock lock(mutex_);
  return graph_bytes_;
}

}  // namespace tutti::ps

namespace tutti {

ModuleServer::ModuleServer(const Context& context, const ps::GraphLimits& limits)
    : context_(context),
      address_(ps::fixed_address_of(context, context.task())),
      service_(std::make_unique<ps::ModuleService>(
          Agreement{context.task().short_name(), context.kernels().lines()}, limits)),
      host_(std::make_unique<rpc::Host>(ps::host_at_own_address(context), *service_)) {}

ModuleServer::~ModuleServer() = default;

void ModuleServer::add(const std::string& name, const ServedModule& module,
                       const OptimizerOptions& optimizer) {
  service_->add(name, module, optimizer);
}

void ModuleServer::join() {
  context_.log().info("serving modules at {}", address_);
  service_->open();
  service_->await_end(milliseconds_of(context_.config().network.start_timeout), context_.log());
}

}  // namespace tutti
