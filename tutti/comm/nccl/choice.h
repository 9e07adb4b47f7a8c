#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

namespace tutti::comm {

// What a rank tells the others of its device, before it is known whether NCCL can do anything for them: one
// word.
std::string device_word(torch::Device device);

// What all ranks know of one another then, by rank.
struct RankDevice {
  std::string who;
  std::string host;
  std::string device;  // its device_word()
};

// Why these cannot use NCCL, for people; "" where they can.
std::string why_not_nccl(const std::vector<RankDevice>& ranks);

}  // namespace tutti::comm
