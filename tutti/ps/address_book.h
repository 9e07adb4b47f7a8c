#pragma once

#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "tutti/cluster/context.h"
#include "tutti/rpc/channel.h"
#include "tutti/rpc/host.h"

// A task whose port in the cluster is 0 listens on a port that the system chooses. It announces that port to
// the chief at the chief's own address, and other tasks ask the chief for it before they connect.
namespace tutti::ps {

// Throws InvalidArgument if the chief's own port is 0, because then no task could be asked.
bool chooses_its_port(const ClusterSpec& cluster, const Task& task);

// The chief's table of announced ports. An entry is valid as long as the connection that announced it.
//
// announce: {task, port} registers the port of the calling task
// find: {task} returns {port}, which is 0 while it is not known
class AddressBook final : public rpc::Service {
 public:
  explicit AddressBook(const ClusterSpec& cluster);

  rpc::Message serve(const rpc::Caller& caller, const std::string& method,
                     const rpc::Message& request) override;
  void gone(const rpc::Caller& caller) override;

 private:
  struct Entry {
    std::optional<rpc::Caller> caller;  // nullopt: no task has announced it yet
    int port = 0;
  };

  std::mutex mutex_;
  std::map<std::string, Entry> entries_;  // every task with port 0, by "ps/0"; guarded by mutex_
};

// Used by the chief. Serves the address book to all tasks for the lifetime of this object.
class OpenAddressBook {
 public:
  explicit OpenAddressBook(const Context& context);

 private:
  AddressBook book_;
  rpc::Host host_;  // last, so that it ends first
};

// If this task chooses its port, announces it to the chief every second, so that a restarted chief learns it
// again. Otherwise does nothing.
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

// Returns a channel to the chief with these options, but another `who` and no arena.
std::unique_ptr<rpc::Channel> channel_to_chief(const ClusterSpec& cluster, rpc::ChannelOptions options);

// Returns HOST:PORT of a task that chooses its port; asks the chief for it. Throws Timeout if the task has
// not announced it within `patience`, or if the chief cannot be reached.
std::string find_address(rpc::Channel& chief, const ClusterSpec& cluster, const Task& task,
                         std::chrono::milliseconds patience);

}  // namespace tutti::ps
