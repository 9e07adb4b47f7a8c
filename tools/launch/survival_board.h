#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/survival.h"
#include "tutti/comm/members.h"

// The messages between the launchers of a job with --min, on the board of the launcher that keeps the list of
// members (comm/members.h). Each start of another launcher has a random token. The keys:
//
//   host/HOST           the token of the launcher of this host, which holds it as long as it is connected
//   welcome/TOKEN       the lives of the host's workers, in JSON, once the keeper has noticed the launcher;
//                       kAway for a worker that is started later
//   ended/WORKER/LIFE   EndedWorker, by the launcher of this worker
//   orders/TOKEN        HostOrders, by the keeper
namespace tutti {

inline constexpr int kAway = -1;

// All that the keeper has told the launcher of one host so far.
struct HostOrders {
  std::vector<WorkerOrder> orders = {};  // in their order; the list only grows
  bool job_is_done = false;
  bool is_lost = false;  // the others have gone on without the workers of this host
  std::optional<JobEnd> end = {};

  bool operator==(const HostOrders&) const = default;
};

// To and from the texts on the board. The functions that read throw DataLoss.
std::string to_text(const EndedWorker& ended);
EndedWorker ended_worker_of(const std::string& text);
std::string to_text(const HostOrders& orders);
HostOrders host_orders_of(const std::string& text);
std::string to_text(const std::vector<int>& lives);
std::vector<int> lives_of(const std::string& text);

std::string host_key(size_t host);
std::string welcome_key(const std::string& token);
std::string ended_key(const comm::Member& member);
std::string orders_key(const std::string& token);

}  // namespace tutti
