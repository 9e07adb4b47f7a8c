#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/device_spec.h"
#include "tutti/params/parameters.h"

namespace tutti {

// Parameters that this thread creates while the scope lives are pinned to a place in the cluster:
//   auto hidden = [&] {
//     const tutti::DeviceScope on("/job:ps/task:1");
//     return register_module("hidden", torch::nn::Linear(784, 500));
//   }();
// Scopes nest, and merge as DeviceSpec says. Recognised is what LibTorch's operators make, which is how
// modules create their parameters; what C++ writes itself (torch::tensor({1, 2}), from_blob) is not: pin()
// it. A pin belongs to the tensor, whatever memory it is moved to and whatever name it is registered under.
class DeviceScope {
 public:
  // InvalidArgument: no device, or one of no server whatever the cluster (a task without its job).
  explicit DeviceScope(std::string_view device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
};

// const auto on = tutti::device("/job:ps/task:1");
[[nodiscard]] inline DeviceScope device(std::string_view name) { return DeviceScope(name); }

// The parameters that the module has now, as if created in such a scope; those that were created in one keep
// what it says, being further inside. From any thread.
void pin(torch::nn::Module& module, std::string_view device);

// What the scopes around its creation said; nothing where there were none.
std::optional<DeviceSpec> pin_of(const torch::Tensor& parameter);

// Where no servers hold the parameters: InvalidArgument if one is pinned to any job.
void require_unpinned(const Parameters& parameters, const ClusterSpec& cluster);

// Of each trained parameter, which of servers_of(cluster) it is pinned to. A device type alone, or a job of
// servers without a task, pins to none. InvalidArgument that names parameter, scope and what there is: a job
// or task that the cluster has not, one that holds no parameters, or a device that servers do not have.
std::vector<std::optional<int>> pinned_servers(const Parameters& parameters, const ClusterSpec& cluster);

}  // namespace tutti
