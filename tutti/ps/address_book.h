#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "tutti/cluster/context.h"
#include "tutti/net/credentials.h"
#include "tutti/transport/board/tcp_rendezvous.h"

// A task whose port in the cluster is 0 listens on a port that the system chooses. It announces that port in
// a board at the chief's own address, where other tasks look before they connect.
namespace tutti::ps {

// Throws InvalidArgument if the chief's own port is 0, because then no task could be asked.
bool chooses_its_port(const ClusterSpec& cluster, const Task& task);

// Used by the chief. Serves the board to all tasks as long as the result exists.
comm::ServedRendezvous open_address_book(const Context& context);

// If this task chooses its port, holds the port on the board of the chief, and does so again if the chief is
// restarted. Otherwise does nothing.
class Announcement {
 public:
  // The context must outlive this object.
  Announcement(const Context& context, int port);
  // Throws InvalidArgument if the chief has refused the announcement for --start-timeout seconds: a task with
  // this name is already registered, or the chief has another secret or another cluster.
  void check() const;

 private:
  void tell(const std::stop_token& stop);

  const Context& context_;
  const int port_;
  mutable std::mutex mutex_;
  std::exception_ptr refused_;  // guarded by mutex_
  std::jthread thread_;         // last, so that it ends first
};

// Returns HOST:PORT of a task that chooses its port; asks the chief for it. Throws Timeout if the task has
// not announced it within `patience`, or if the chief cannot be reached.
std::string find_address(const ClusterSpec& cluster, const Task& task, const net::Credentials& credentials,
                         std::chrono::milliseconds patience);

}  // namespace tutti::ps
