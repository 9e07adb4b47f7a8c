#include "tutti/remote/remote_module.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/utils.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/torch_compat.h"
#include "tutti/base/type_name.h"
#include "tutti/base/waiting.h"
#include "tutti/cluster/device_spec.h"
#include "tutti/params/plan.h"
#include "tutti/params/random_scope.h"
#include "tutti/ps/peers.h"
#include "tutti/ps/wire.h"
#include "tutti/rpc/channel.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
using Tensors = RemoteModule::Tensors;

Task task_of(std::string_view device) {
  const DeviceSpec spec = DeviceSpec::parse(device);
  if (!spec.job || !spec.task)
    fail(ErrorKind::InvalidArgument, "{} does not name a single task: use, for example, /job:worker/task:1",
         spec.to_string());
  if (spec.replica.value_or(0) != 0 || spec.device_type.value_or("CPU") != "CPU" ||
      spec.device_index.value_or(0) != 0)
    fail(ErrorKind::InvalidArgument,
         "{}: modules are only served from the CPU of replica 0: give only the job and the task",
         spec.to_string());
  return {.job = *spec.job, .index = *spec.task};
}

rpc::ChannelOptions channel_options(const Context& context, const std::string& who) {
  return {.credentials = net::credentials_of(context.config()), .hello = ps::hello_of(context), .who = who};
}

// Moves the tensor to the device of `of`, if both are defined.
torch::Tensor on_device_of(const torch::Tensor& tensor, const torch::Tensor& of) {
  return tensor.defined() && of.defined() ? tensor.to(of.device()) : tensor;
}

}  // namespace

// The connection to one module of one task. A lost connection stays lost, because the graphs that the other
// end kept for it are gone.
class RemoteModule::Connection {
 public:
  Connection(const Context& context, const Task& task, const std::string& name)
      : address_(ps::fixed_address_of(context, task)),
        who_(fmt::format("{} ({})", task.short_name(), address_)),
        name_(name),
        timeout_(milliseconds_of(context.config().network.timeout)),
        channel_(address_, channel_options(context, who_)) {
    attach(context);
  }

  rpc::Message call(const std::string& method, rpc::Message request);
  // May be called from any thread and in any context; the graph is dropped there with the next call.
  void forget(int64_t graph) {
    const std::lock_guard lock(forgotten_mutex_);
    forgotten_.push_back(graph);
  }

  const std::string& name() const { return name_; }
  const std::string& who() const { return who_; }
  const std::vector<std::string>& plan() const { return plan_; }
  std::atomic<bool>& training() { return training_; }

 private:
  void attach(const Context& context);
  rpc::Message exchange(const std::string& method, const rpc::Message& request, milliseconds timeout);

  const std::string address_;
  const std::string who_;
  const std::string name_;
  const milliseconds timeout_;
  std::vector<std::string> plan_;  // constant once attached
  std::atomic<bool> training_ = true;

  std::mutex mutex_;
  rpc::Channel channel_;  // all below: guarded by mutex_
  std::string lost_;      // the reason; "": not lost

  std::mutex forgotten_mutex_;
  std::vector<int64_t> forgotten_;  // guarded by forgotten_mutex_
};

void RemoteModule::Connection::attach(const Context& context) {
  for (Waiting waiting(context.log(), milliseconds_of(context.config().network.start_timeout),
                       "--start-timeout");
       ;) {
    try {
      channel_.connect(waiting.patience());
      const milliseconds patience = waiting.patience();
      const rpc::Message answer =
          exchange("attach", {{{"module", name_}, {"patience", patience.count()}}, {}}, timeout_ + patience);
      plan_ = answer.head.at("plan").get<std::vector<std::string>>();
      if (context.kernels().on_cpu())
        refuse_or_warn_of_mix(context, mix_of({context.task().short_name(), context.kernels().lines()},
                                              ps::agreement_in(answer.head, "kernels")));
      lost_.clear();
      return waiting.end(fmt::format("{} serves the module '{}'", who_, name_));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Timeout && error.kind() != ErrorKind::PeerLost) throw;
      waiting.go_on({fmt::format("the module '{}': {}", name_, error.what())});
    }
  }
}

rpc::Message RemoteModule::Connection::exchange(const std::string& method, const rpc::Message& request,
                                                milliseconds timeout) {
  try {
    return channel_.call(method, request, {.timeout = timeout, .into = {}, .what = name_.c_str()});
  } catch (const Error& error) {
    if (!channel_.is_connected()) lost_ = error.what();
    throw;
  }
}

rpc::Message RemoteModule::Connection::call(const std::string& method, rpc::Message request) {
  const std::lock_guard lock(mutex_);
  if (!lost_.empty()) {
    fail(ErrorKind::PeerLost,
         "the module '{}' of {} is lost, together with its graphs and gradients; create another RemoteModule "
         "and load() the state of a checkpoint. The cause: {}",
         name_, who_, lost_);
  }
  {
    const std::lock_guard forgotten_lock(forgotten_mutex_);
    if (!forgotten_.empty()) request.head["forget"] = std::exchange(forgotten_, {});
  }
  return exchange(method, request, timeout_);
}

// The autograd node of the outputs of one forward. Beside the edges of the inputs it has one more, which
// stands for the remote parameters: it tells whether they need gradients too.
struct RemoteModule::Backward final : torch::autograd::Node {
  Backward(std::shared_ptr<Connection> to, int64_t graph, Tensors from)
      : connection(std::move(to)), id(graph), inputs(std::move(from)) {}
  ~Backward() override {
    if (!done) connection->forget(id);
  }
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;

  std::string name() const override { return "RemoteModuleBackward"; }
  void will_release_variables() override { retain = false; }
  Tensors apply(Tensors&& gradients) override;

  const std::shared_ptr<Connection> connection;
  const int64_t id;
  const Tensors inputs;  // empty tensors on the devices of the inputs
  std::atomic<bool> retain = true;
  std::atomic<bool> done = false;
};

Tensors RemoteModule::Backward::apply(Tensors&& gradients) {
  if (torch::GradMode::is_enabled())
    fail(ErrorKind::Unimplemented,
         "second derivatives of '{}' are not supported: call backward without create_graph",
         connection->name());
  if (done)
    fail(ErrorKind::InvalidArgument,
         "a second backward pass through the same forward pass of '{}' needs retain_graph in the first one",
         connection->name());
  std::vector<bool> wanted;
  for (size_t i = 0; i < inputs.size(); ++i)
    wanted.push_back(should_compute_output(i) && task_should_compute_output(i));
  done = !retain;
  rpc::Message request;
  request.head = {{"of", id},
                  {"retain", retain.load()},
                  {"wanted", wanted},
                  {"parameters", task_should_compute_output(inputs.size())}};
  request.head["gradients"] = ps::pack(gradients, request.pieces);
  const rpc::Message answer = connection->call("backward", std::move(request));
  ps::Reader reader(answer);
  Tensors found = ps::unpack(answer.head.at("gradients"), reader);
  if (found.size() != inputs.size())
    fail(ErrorKind::DataLoss, "{}: received {} gradients for {} inputs", connection->who(), found.size(),
         inputs.size());
  for (size_t i = 0; i < found.size(); ++i) found[i] = on_device_of(found[i], inputs[i]);
  found.emplace_back();
  return found;
}

RemoteModule::RemoteModule(const Context& context, std::string_view device, const std::string& name)
    : connection_(std::make_shared<Connection>(context, task_of(device), name)) {}

torch::Tensor RemoteModule::forward(const torch::Tensor& input) {
  const Tensors outputs = forward(Tensors{input});
  if (outputs.size() != 1)
    fail(ErrorKind::InvalidArgument,
         "the module '{}' has {} outputs: pass its inputs as a vector to get a vector of outputs",
         connection_->name(), outputs.size());
  return outputs.front();
}

Tensors RemoteModule::forward(const Tensors& inputs) {
  const bool graph = torch::GradMode::is_enabled();
  std::vector<bool> gradients;
  Tensors places;
  for (const torch::Tensor& input : inputs) {
    gradients.push_back(graph && input.defined() && input.requires_grad());
    places.push_back(input.defined() ? torch::empty({0}, input.options().requires_grad(false)) : input);
  }
  rpc::Message request;
  const auto autocast = compat::cpu_autocast();
  request.head = {{"graph", graph},
                  {"training", connection_->training().load()},
                  {"gradients", gradients},
                  {"autocast", autocast ? type_name(*autocast) : ""}};
  request.head["random"] = ps::pack({generator_states(torch::kCPU).front()}, request.pieces);
  request.head["inputs"] = ps::pack(inputs, request.pieces);

  const rpc::Message answer = connection_->call("forward", std::move(request));
  ps::Reader reader(answer);
  Tensors outputs = ps::unpack(answer.head.at("outputs"), reader);
  const Tensors random = ps::unpack(answer.head.at("random"), reader);
  const auto have_gradients = answer.head.at("gradients").get<std::vector<bool>>();
  if (random.size() != 1 || have_gradients.size() != outputs.size())
    fail(ErrorKind::DataLoss, "{}: the answer to a forward request is malformed", connection_->who());
  set_generator_states(torch::kCPU, random);
  for (torch::Tensor& output : outputs)
    output = on_device_of(output, places.empty() ? torch::Tensor() : places.front());
  if (!answer.head.contains("of")) return outputs;

  // compat::make_node makes nodes as autograd does, so that long chains are destroyed without recursion.
  const auto node =
      compat::make_node<Backward>(connection_, answer.head.at("of").get<int64_t>(), std::move(places));
  torch::autograd::edge_list edges = torch::autograd::collect_next_edges(inputs);
  edges.push_back(torch::autograd::impl::gradient_edge(torch::zeros({0}).requires_grad_()));
  node->set_next_edges(std::move(edges));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (have_gradients[i]) torch::autograd::create_gradient_edge(outputs[i], node);
  }
  return outputs;
}

void RemoteModule::train(bool on) { connection_->training() = on; }

void RemoteModule::zero_grad() { connection_->call("zero_grad", {}); }

void RemoteModule::step(std::optional<double> learning_rate) {
  rpc::Message request;
  if (learning_rate) request.head["rate"] = *learning_rate;
  connection_->call("step", std::move(request));
}

std::string RemoteModule::sha256() { return ps::text_in(connection_->call("sha256", {}).head, "sha256"); }

const std::vector<std::string>& RemoteModule::plan() const { return connection_->plan(); }

store::NamedTensors RemoteModule::state() {
  const rpc::Message answer = connection_->call("state", {});
  ps::Reader reader(answer);
  return ps::unpack_named(answer.head.at("state"), reader);
}

void RemoteModule::load(const store::NamedTensors& state) {
  rpc::Message request;
  request.head["state"] = ps::pack_named(state, request.pieces);
  connection_->call("load", std::move(request));
}

void RemoteModule::end() { connection_->call("end", {}); }

}  // namespace tutti
