#pragma once

#include <chrono>
#include <string>

#include "tutti/base/json.h"
#include "tutti/cluster/context.h"
#include "tutti/cluster/identity.h"
#include "tutti/rpc/host.h"

// Who tasks are for one another when they call.
namespace tutti::ps {

// As every connection of this task begins (rpc::ChannelOptions): its name, host and process.
Json hello_of(const Context& context);
// "worker/1 (host b, pid 4711)", as it has said.
std::string name_of(const rpc::Caller& caller);

// HOST:PORT of a task that others call; port 0 where it chooses one (address_book.h). InvalidArgument: the
// cluster does not say.
std::string address_of(const Context& context, const Task& task);
// The same, of a task that nobody looks up: port 0 is an InvalidArgument too.
std::string fixed_address_of(const Context& context, const Task& task);
// What listens at this task's own address, as its flags say.
rpc::HostOptions host_at_own_address(const Context& context);

// Who waits says so as often.
inline constexpr std::chrono::milliseconds kBetweenReminders{10000};

// Of a flag in seconds.
std::chrono::milliseconds milliseconds_of(double seconds);

}  // namespace tutti::ps
