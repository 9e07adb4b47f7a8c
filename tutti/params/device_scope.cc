#include "tutti/params/device_scope.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/base/this_host.h"
#include "tutti/cluster/device_spec.h"
#include "tutti/cluster/roles.h"

namespace tutti {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;

// Maps tensors to the devices they are pinned to. The only global state of this folder: a model is built
// before there is an object to pass to its constructors, and tensors have no field for it. Holds tensors
// weakly, so that an address identifies one tensor for as long as it is in the map. Thread-safe.
class Pins {
 public:
  static Pins& of_process() {
    static Pins pins;
    return pins;
  }

  // If the tensor has a device already, that one counts as the inner scope.
  void add(const torch::Tensor& tensor, const DeviceSpec& device) {
    const std::lock_guard lock(mutex_);
    if (pins_.size() >= full_) prune();
    const auto [found, is_new] =
        pins_.try_emplace(tensor.unsafeGetTensorImpl(), Pin{WeakTensor(tensor.getIntrusivePtr()), device});
    if (!is_new) found->second.device = merge(device, found->second.device);
  }

  std::optional<DeviceSpec> find(const torch::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    const auto found = pins_.find(tensor.unsafeGetTensorImpl());
    return found == pins_.end() ? std::nullopt : std::optional(found->second.device);
  }

  // Removes the entries of destroyed tensors. Most tensors that are created in a scope are gone when it ends.
  void forget_the_dead() {
    const std::lock_guard lock(mutex_);
    prune();
  }

 private:
  struct Pin {
    WeakTensor tensor;
    DeviceSpec device;
  };

  void prune() {
    constexpr size_t kFew = 1024;
    std::erase_if(pins_, [](const auto& entry) { return entry.second.tensor.expired(); });
    full_ = std::max(kFew, 2 * pins_.size());
  }

  std::mutex mutex_;
  std::unordered_map<const at::TensorImpl*, Pin> pins_;  // this and all members below: guarded by mutex_
  size_t full_ = 0;                                      // the size at which to look for destroyed tensors
};

template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit_tensor) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit_tensor(value.toTensor());
  } else if (value.isTensorList()) {
    for (const torch::Tensor& tensor : value.toTensorVector()) visit_tensor(tensor);
  }
}

// The tensors passed to an operator: an output that is among them was not created by the operator.
struct Given final : at::ObserverContext {
  std::vector<const at::TensorImpl*> tensors;
};

// The scopes of this thread, outermost first, each merged with those around it.
std::vector<DeviceSpec>& scopes_of_thread() {
  thread_local std::vector<DeviceSpec> scopes;
  return scopes;
}

std::unique_ptr<at::ObserverContext> before_operator(const at::RecordFunction& call) {
  auto given = std::make_unique<Given>();
  for (const c10::IValue& input : call.inputs())
    for_each_tensor(input,
                    [&](const torch::Tensor& t) { given->tensors.push_back(t.unsafeGetTensorImpl()); });
  return given;
}

void after_operator(const at::RecordFunction& call, at::ObserverContext* context) {
  if (scopes_of_thread().empty()) return;
  const auto& given = static_cast<const Given*>(context)->tensors;
  for (const c10::IValue& output : call.outputs()) {
    for_each_tensor(output, [&](const torch::Tensor& tensor) {
      if (std::find(given.begin(), given.end(), tensor.unsafeGetTensorImpl()) == given.end())
        Pins::of_process().add(tensor, scopes_of_thread().back());
    });
  }
}

// The callback handle that the outermost scope of this thread has registered.
at::CallbackHandle& watch_of_thread() {
  thread_local at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
  return handle;
}

DeviceSpec parse_scope(std::string_view device) {
  const DeviceSpec spec = DeviceSpec::parse(device);
  return scopes_of_thread().empty() ? spec : merge(scopes_of_thread().back(), spec);
}

DeviceSpec require_job(const DeviceSpec& spec) {
  if (!spec.job && (spec.task || spec.replica)) {
    fail(ErrorKind::InvalidArgument,
         "the device scope {} names a task, but neither it nor an enclosing scope names the job: use, for "
         "example, /job:ps/task:0",
         spec.to_string());
  }
  return spec;
}

// Returns true if a scope without a job matches this device.
bool is_on(const DeviceSpec& spec, torch::Device device) {
  if (spec.device_type && *spec.device_type != (device.is_cpu() ? "CPU" : "GPU")) return false;
  return !spec.device_index || *spec.device_index == (device.has_index() ? device.index() : 0);
}

// "worker (tasks 0, 1), ps (task 0)"
std::string jobs_in(const ClusterSpec& cluster) {
  std::vector<std::string> jobs;
  for (const std::string& job : cluster.jobs()) {
    const std::vector<int> tasks = cluster.task_indices(job);
    jobs.push_back(fmt::format("{} (task{} {})", job, tasks.size() == 1 ? "" : "s", fmt::join(tasks, ", ")));
  }
  return jobs.empty() ? "names no jobs" : fmt::format("has {}", fmt::join(jobs, ", "));
}

[[noreturn]] void refuse(const std::string& parameter, const DeviceSpec& device, const std::string& why) {
  fail(ErrorKind::InvalidArgument, "the parameter {} is pinned to {}, but {}", parameter, device.to_string(),
       why);
}

std::optional<int> server_of(const std::string& parameter, const DeviceSpec& device,
                             const ClusterSpec& cluster) {
  if (!device.job) return std::nullopt;
  if (!cluster.has_job(*device.job)) {
    refuse(
        parameter, device,
        fmt::format("the cluster {}: start it with such servers (tutti run --ps P), or name another device",
                    jobs_in(cluster)));
  }
  if (!is_server_job(*device.job))
    refuse(parameter, device,
           fmt::format("the job {} cannot hold parameters; only servers can, and the cluster {}", *device.job,
                       jobs_in(cluster)));
  if (device.replica.value_or(0) != 0)
    refuse(parameter, device, "every task has only one replica, /replica:0");
  if (device.device_type.value_or("CPU") != "CPU" || device.device_index.value_or(0) != 0)
    refuse(parameter, device, "servers hold parameters only on /cpu:0");
  if (!device.task) return std::nullopt;
  const std::vector<Task> servers = servers_of(cluster);
  const auto found =
      std::find(servers.begin(), servers.end(), Task{.job = *device.job, .index = *device.task});
  if (found == servers.end())
    refuse(parameter, device, fmt::format("the cluster {}: name one of these", jobs_in(cluster)));
  return static_cast<int>(found - servers.begin());
}

}  // namespace

DeviceScope::DeviceScope(std::string_view device) {
  const DeviceSpec spec = require_job(parse_scope(device));
  if (scopes_of_thread().empty()) {
    watch_of_thread() = at::addThreadLocalCallback(at::RecordFunctionCallback(before_operator, after_operator)
                                                       .needsInputs(true)
                                                       .needsOutputs(true)
                                                       .scopes({at::RecordScope::FUNCTION}));
  }
  scopes_of_thread().push_back(spec);
}

DeviceScope::~DeviceScope() {
  scopes_of_thread().pop_back();
  if (scopes_of_thread().empty())
    at::removeCallback(std::exchange(watch_of_thread(), at::INVALID_CALLBACK_HANDLE));
  Pins::of_process().forget_the_dead();
}

void pin(torch::nn::Module& module, std::string_view device) {
  const DeviceSpec spec = require_job(parse_scope(device));
  for (const torch::Tensor& parameter : module.parameters()) Pins::of_process().add(parameter, spec);
}

std::optional<DeviceSpec> pin_of(const torch::Tensor& parameter) {
  return Pins::of_process().find(parameter);
}

void require_created_on(const Parameters& parameters, torch::Device device) {
  for (const Parameters::View* view : parameters.all()) {
    const std::optional<DeviceSpec> pin = pin_of(view->tensor);
    if (!pin || pin->job || is_on(*pin, device)) continue;
    const bool no_gpu = pin->device_type == "GPU" && count_gpus() == 0;
    refuse(view->name, *pin,
           fmt::format("this task trains on {}, and the whole model has to be on one device{}. Remove the "
                       "device scope, or choose the device of the model with --device",
                       device.str(), no_gpu ? "; LibTorch finds no GPU here" : ""));
  }
}

void say_placement(const Context& context, const Parameters& parameters, const LaneRange& lanes) {
  if (!context.config().output.log_placement) return;
  const std::string task = fmt::format("/job:{}/replica:0/task:{}", context.task().job, context.task().index);
  const auto say = [&](const std::string& what, torch::Device device) {
    context.log().info("{}: {}/device:{}:{} on host {}", what, task, device.is_cpu() ? "CPU" : "GPU",
                       device.has_index() ? device.index() : 0, host_name());
  };
  for (const auto views : {parameters.trained(), parameters.frozen()}) {
    for (const Parameters::View& view : views)
      say(fmt::format("{}: (Parameter {})", view.name, describe(view.tensor)), view.tensor.device());
  }
  for (const Parameters::View& view : parameters.buffers())
    say(fmt::format("{}: (Buffer {})", view.name, describe(view.tensor)), view.tensor.device());
  for (int64_t lane = lanes.begin; lane < lanes.end; ++lane)
    say(fmt::format("lane {}: (Lane)", lane), parameters.device());
}

void require_unpinned(const Parameters& parameters, const ClusterSpec& cluster) {
  pinned_servers(parameters, cluster);
  for (const Parameters::View& view : parameters.trained()) {
    const std::optional<DeviceSpec> device = pin_of(view.tensor);
    if (device && device->job)
      refuse(view.name, *device,
             "without servers every worker holds all parameters: use --strategy ps-async or ps-sync, or "
             "remove the device scope");
  }
}

std::vector<std::optional<int>> pinned_servers(const Parameters& parameters, const ClusterSpec& cluster) {
  std::vector<std::optional<int>> servers;
  for (const Parameters::View& view : parameters.trained()) {
    const std::optional<DeviceSpec> device = pin_of(view.tensor);
    servers.push_back(device ? server_of(view.name, *device, cluster) : std::nullopt);
  }
  return servers;
}

}  // namespace tutti
