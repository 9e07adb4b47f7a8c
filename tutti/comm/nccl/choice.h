#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/failure_board.h"
#include "tutti/comm/rendezvous.h"
#include "tutti/comm/transport.h"

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

// A carrier between devices, or why the ranks must not use it.
struct TriedDevice {
  std::unique_ptr<OnDevice> carrier;
  std::string why_not;
};

// Makes a carrier of tensors on this device, and lets it add a few numbers over the ranks, which takes
// milliseconds. Every rank calls this with the same table, which nothing else may use. All ranks get the same
// result: the carrier if no rank had an error and all sums have the bits of the sum that each rank computes
// in its own memory.
TriedDevice try_device(const std::function<std::unique_ptr<OnDevice>()>& make, torch::Device device,
                       Rendezvous& table, const BoardOptions& options, std::chrono::milliseconds timeout);

}  // namespace tutti::comm
