#pragma once

#include <chrono>
#include <string>

#include "tutti/base/json.h"
#include "tutti/cluster/context.h"
#include "tutti/cluster/identity.h"
#include "tutti/rpc/host.h"

// How tasks identify themselves to one another.
namespace tutti::ps {

// Returns the name, host and process of this task, which it sends on every connection (rpc::ChannelOptions).
Json hello_of(const Context& context);
// Returns "worker/1 (host b, pid 4711)", from what the caller sent.
std::string name_of(const rpc::Caller& caller);

// Returns HOST:PORT of a task; the port is 0 if the task chooses it (address_book.h). Throws InvalidArgument
// if the cluster names no addresses.
std::string address_of(const Context& context, const Task& task);
// Like address_of(), for a server of modules, which has to have a fixed port: throws InvalidArgument if it is
// 0.
std::string fixed_address_of(const Context& context, const Task& task);
// Returns the options for a host at this task's own address, from the flags.
rpc::HostOptions host_at_own_address(const Context& context);

// The interval between log lines of a task that is waiting.
inline constexpr std::chrono::milliseconds kBetweenReminders{10000};

}  // namespace tutti::ps
