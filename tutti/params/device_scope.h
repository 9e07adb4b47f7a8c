#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/context.h"
#include "tutti/cluster/device_spec.h"
#include "tutti/lanes/lanes.h"
#include "tutti/params/parameters.h"

namespace tutti {

// Pins the parameters that this thread creates during the lifetime of the scope to a server of the cluster:
//   auto hidden = [&] {
//     const tutti::DeviceScope on("/job:ps/task:1");
//     return register_module("hidden", torch::nn::Linear(784, 500));
//   }();
// A scope without a job ("/gpu:0") moves nothing. It states on which device the program expects to train;
// training on another device is an error (require_created_on).
//
// Scopes nest and are merged as described in DeviceSpec. They apply to tensors that are made by LibTorch's
// operators, which is how modules create their parameters, but not to tensors filled by C++ itself
// (torch::tensor({1, 2}), from_blob): use pin() for those. A pin belongs to the tensor, and is kept if the
// tensor is moved to other memory or registered under another name.
class DeviceScope {
 public:
  // Throws InvalidArgument if the name is not a valid device, or cannot be a server in any cluster (a task
  // without its job).
  explicit DeviceScope(std::string_view device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
};

// const auto on = tutti::device("/job:ps/task:1");
[[nodiscard]] inline DeviceScope device(std::string_view name) { return DeviceScope(name); }

// Pins the parameters that the module has now, as if they had been created in such a scope. For parameters
// that were created in a scope, that scope counts as the inner one. May be called from any thread.
void pin(torch::nn::Module& module, std::string_view device);

// Returns the merged scopes in which the parameter was created; nullopt if there were none.
std::optional<DeviceSpec> pin_of(const torch::Tensor& parameter);

// Throws InvalidArgument if a parameter or buffer was created in a scope without a job, such as /gpu:0, that
// names a device other than `device`. The whole model is on one device.
void require_created_on(const Parameters& parameters, torch::Device device);

// If --log-placement is set and no servers hold the parameters, logs where this task holds each parameter and
// buffer, one line each: "conv1.weight: (Parameter float32[32,1,5,5]):
// /job:worker/replica:0/task:0/device:CPU:0 on host node7"; and one line for each of its lanes.
void say_placement(const Context& context, const Parameters& parameters, const LaneRange& lanes);

// For clusters without servers: throws InvalidArgument if a parameter is pinned to a job.
void require_unpinned(const Parameters& parameters, const ClusterSpec& cluster);

// Returns, for each trained parameter, the index in servers_of(cluster) of the server that it is pinned to. A
// device type alone, or a job of servers without a task, does not pin. Throws InvalidArgument, which names
// the parameter, the scope and the valid choices, if the cluster does not have the job or task, if the task
// does not hold parameters, or if servers do not have the device.
std::vector<std::optional<int>> pinned_servers(const Parameters& parameters, const ClusterSpec& cluster);

}  // namespace tutti
