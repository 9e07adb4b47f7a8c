#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
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

// What the chief knows. An entry ends with the connection of the task that has made it.
//
// announce: {task, port}: of the caller
// find: {task}: {port}, 0 where it is not known yet
class AddressBook final : public rpc::Service {
 public:
  rpc::Message serve(const rpc::Caller& caller, const std::string& method,
                     const rpc::Message& request) override;
  void gone(const rpc::Caller& caller) override;

 private:
  struct Entry {
    rpc::Caller caller;
    int port;
  };
  void announce(const rpc::Caller& caller, const std::string& task, int port);

  std::mutex mutex_;
  std::map<std::string, Entry> entries_;  // by "ps/0"; guarded by mutex_
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
  Announcement(const Context& context, int port);

 private:
  std::jthread thread_;
};

// HOST:PORT of a task that chooses its port. Timeout: it has not told the chief within so long, or the chief
// is not there.
std::string find_address(const ClusterSpec& cluster, const Task& task, const rpc::ChannelOptions& options,
                         std::chrono::milliseconds patience);

}  // namespace tutti::ps
