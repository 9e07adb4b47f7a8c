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

// Tasks to whom the cluster gives port 0 listen at one that the system chooses. They tell it to the chief, at
// the chief's own address, and whoever calls them asks there.
namespace tutti::ps {

// InvalidArgument where the chief's own port is 0: then there is nobody to ask.
bool chooses_its_port(const ClusterSpec& cluster, const Task& task);

// What the chief knows. What a task has said holds as long as its connection.
//
// announce: {task, port}: of the caller
// find: {task}: {port}, 0 where it is not known yet
class AddressBook final : public rpc::Service {
 public:
  explicit AddressBook(const ClusterSpec& cluster);

  rpc::Message serve(const rpc::Caller& caller, const std::string& method,
                     const rpc::Message& request) override;
  void gone(const rpc::Caller& caller) override;

 private:
  struct Entry {
    std::optional<rpc::Caller> caller;  // nothing: nobody has made it yet
    int port = 0;
  };

  std::mutex mutex_;
  std::map<std::string, Entry> entries_;  // of all that choose their ports, by "ps/0"; guarded by mutex_
};

// At the chief: the book, open to all as long as it lives.
class OpenAddressBook {
 public:
  explicit OpenAddressBook(const Context& context);

 private:
  AddressBook book_;
  rpc::Host host_;  // last, so that it ends first
};

// Of this task, where it chooses its port: told to the chief every second, so that a chief who comes back
// hears it again. Else nothing.
class Announcement {
 public:
  // The context outlives it.
  Announcement(const Context& context, int port);
  // InvalidArgument: the chief has refused it for --start-timeout seconds. There is another task of this
  // name, which the chief takes for alive, or the two have not one secret, or not one cluster.
  void check() const;

 private:
  void tell(const std::stop_token& stop);

  const Context& context_;
  const int port_;
  mutable std::mutex mutex_;
  std::exception_ptr refused_;  // guarded by mutex_
  std::jthread thread_;         // last, so that it ends first
};

// HOST:PORT of a task that chooses its port. Timeout: it has not told the chief within so long, or the chief
// is not there.
std::string find_address(const ClusterSpec& cluster, const Task& task, const rpc::ChannelOptions& options,
                         std::chrono::milliseconds patience);

}  // namespace tutti::ps
