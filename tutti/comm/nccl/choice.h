#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

namespace tutti::comm {

// Returns one word that describes a rank's device. The ranks exchange these words to find out whether they
// can use NCCL.
std::string device_word(torch::Device device);

// A rank, its host and its device, as all ranks know them after they have met.
struct RankDevice {
  std::string who;
  std::string host;
  std::string device;  // its device_word()
};

// Returns why these ranks cannot use NCCL, as text for messages, or "" if they can.
std::string why_not_nccl(const std::vector<RankDevice>& ranks);

}  // namespace tutti::comm
