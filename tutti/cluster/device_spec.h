#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tutti {

// The name of a device in a cluster, or of several: a field that is not set means any.
//   /job:worker/replica:0/task:2/device:GPU:0    every field
//   /gpu:0  /cpu:*  /device:GPU                  short forms; "cpu" and "gpu" in either case
//   /job:*/task:1                                '*' is the same as leaving the field out
//   / (or nothing)                               any device
// Fields stand in any order, each at most once. Job names are as in ClusterSpec, in their own case; device
// types are letters, digits and underscores and are kept in capitals.
struct DeviceSpec {
  std::optional<std::string> job;
  std::optional<int> replica;
  std::optional<int> task;
  std::optional<std::string> device_type;
  std::optional<int> device_index;

  // InvalidArgument that quotes the bad piece and the whole.
  static DeviceSpec parse(std::string_view text);

  // Canonical: job, replica, task, device; "/device:GPU:*" without an index; "/" without any field.
  std::string to_string() const;

  bool operator==(const DeviceSpec&) const = default;
};

// Nested scopes: every field that `inner` sets wins, `outer` fills in the rest. Where `inner` changes the
// type of the device, the index of `outer` is dropped: it numbers devices of another type.
DeviceSpec merge(const DeviceSpec& outer, const DeviceSpec& inner);

// Whether `device` has every field that `pattern` sets, with the same value.
bool matches(const DeviceSpec& pattern, const DeviceSpec& device);

// Whether some device can match both.
bool is_compatible(const DeviceSpec& a, const DeviceSpec& b);

}  // namespace tutti
