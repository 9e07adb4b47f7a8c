#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "tutti/base/address.h"

namespace tutti::comm {

// Sends a text from rank 0 to all ranks through the board that their launcher serves: the TCPStore of
// torchrun's agent, since PyTorch 2.1. Only rank 0 passes `text`; every rank returns it. Throws Timeout if
// the launcher or rank 0 does not answer in time.
std::string share_through_launcher(const Address& launcher, const std::string& key,
                                   const std::optional<std::string>& text, std::chrono::milliseconds timeout);

}  // namespace tutti::comm
