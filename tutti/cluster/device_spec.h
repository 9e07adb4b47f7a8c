#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <c10/core/Device.h>

namespace tutti {

// The name of one device in a cluster, or a pattern for several: an unset field matches anything.
//   /job:worker/replica:0/task:2/device:GPU:0    all fields
//   /gpu:0  /cpu:*  /device:GPU                  short forms; "cpu" and "gpu" in upper or lower case
//   /job:*/task:1                                '*' is the same as omitting the field
//   / (or nothing)                               any device
// Fields may have any order, each at most once. Job names are as in ClusterSpec, and case-sensitive; device
// types are letters, digits and underscores, and are converted to upper case.
struct DeviceSpec {
  std::optional<std::string> job;
  std::optional<int> replica;
  std::optional<int> task;
  std::optional<std::string> device_type;
  std::optional<int> device_index;

  // Throws an InvalidArgument that quotes the invalid part and the whole text.
  static DeviceSpec parse(std::string_view text);

  // Returns the canonical form: job, replica, task, device; "/device:GPU:*" without an index; "/" without
  // fields.
  std::string to_string() const;

  bool operator==(const DeviceSpec&) const = default;
};

// Merges nested scopes: fields of `inner` take precedence, `outer` fills in the rest. If `inner` changes the
// device type, the index of `outer` is dropped, because it counts devices of another type.
DeviceSpec merge(const DeviceSpec& outer, const DeviceSpec& inner);

// Returns true if `device` has the same value for every field that `pattern` sets.
bool matches(const DeviceSpec& pattern, const DeviceSpec& device);

// Returns true if some device matches both.
bool is_compatible(const DeviceSpec& a, const DeviceSpec& b);

// Returns the device for a value of --device: auto, cpu, cuda, cuda:N, gpu, gpu:N, or a DeviceSpec without
// job and task (/gpu:0). Without an index, GPUs are assigned by local rank, round robin over `gpus`; auto
// without GPUs is the CPU. Throws InvalidArgument if the value is invalid or there is no such device.
c10::Device choose_device(std::string_view asked, int local_rank, int gpus);

// Returns the number of GPUs that LibTorch can use now.
int count_gpus();

}  // namespace tutti
