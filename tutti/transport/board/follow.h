#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "tutti/transport/rendezvous.h"

namespace tutti::comm {

struct FollowOptions {
  std::string address;  // HOST:PORT of the board of this worker's launcher
  std::string secret;
  std::chrono::milliseconds timeout{60'000};
};

// Finds the board with the list of the members (comm/members.h). The board of this worker's launcher says
// which launcher serves it. reconnect() waits up to the timeout for another launcher that keeps the list.
// Throws as find_tcp_rendezvous(). Thread-safe.
std::shared_ptr<Rendezvous> follow_members_board(const FollowOptions& options);

}  // namespace tutti::comm
