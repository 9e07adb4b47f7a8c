#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/on_device.h"
#include "tutti/transport/rendezvous.h"
#include "tutti/transport/roster.h"

namespace tutti::comm {

// Returns one word that describes a rank's device. The ranks exchange these words to find out whether they
// can use NCCL.
std::string device_word(torch::Device device);

// Returns why these ranks cannot use NCCL, as text for messages, or "" if they can.
std::string why_not_nccl(const std::vector<RankDevice>& ranks);

// The connection between devices, if it gives the right sum on all ranks; else null, on all of them.
struct CheckedDevice {
  std::unique_ptr<OnDevice> on_device;
  std::string failure = {};  // of the first rank that has one, with its name; the same on all ranks
};

// How long the ranks wait for each other in the check. The sum itself takes milliseconds.
inline constexpr std::chrono::milliseconds kCheckTimeout{10000};

// Connects the devices by `make`, and compares a small sum over all ranks with the sum of the transport.
// Every rank calls this. `board` is for this call alone; `who` are the names of the ranks. Whatever the
// devices do is no error; throws only if the transport or the board fails.
CheckedDevice check_on_device(const std::function<std::unique_ptr<OnDevice>()>& make, torch::Device device,
                              Transport& transport, Rendezvous& board, const std::vector<std::string>& who,
                              std::chrono::milliseconds timeout,
                              std::chrono::milliseconds check_timeout = kCheckTimeout);

}  // namespace tutti::comm
