#include "tutti/ps/address_book.h"

#include <algorithm>
#include <condition_variable>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/cluster/address.h"
#include "tutti/cluster/roles.h"
#include "tutti/ps/peer.h"
#include "tutti/ps/peers.h"
#include "tutti/ps/wire.h"

namespace tutti::ps {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kBetweenAnnouncements{1000};
constexpr milliseconds kBetweenQuestions{50};
constexpr milliseconds kBetweenReminders{10000};
constexpr milliseconds kToConnect{1000};
// The chief answers at once.
constexpr milliseconds kForAnAnswer{5000};

int port_of(const ClusterSpec& cluster, const Task& task) {
  return parse_address(cluster.address(task.job, task.index)).port;
}

// A channel to the chief, whatever the options were meant for.
rpc::Channel channel_to_chief(const ClusterSpec& cluster, rpc::ChannelOptions options) {
  const Task chief = workers_of(cluster).front();
  const std::string& address = cluster.address(chief.job, chief.index);
  options.who = fmt::format("{} ({})", chief.short_name(), address);
  options.arena = nullptr;
  return rpc::Channel(address, options);
}

// Until it is asked to stop.
void announce(const Context& context, int port, const std::stop_token& stop) {
  rpc::Channel chief = channel_to_chief(
      context.cluster(), {.credentials = rpc::credentials_of(context.flags()), .hello = hello_of(context)});
  const rpc::Message text{{{"task", context.task().short_name()}, {"port", port}}, {}};
  std::mutex mutex;
  std::condition_variable_any stopped;
  auto next_reminder = Clock::now() + kBetweenReminders;
  while (!stop.stop_requested()) {
    try {
      const milliseconds timeout = chief.is_connected() ? kForAnAnswer : kToConnect;
      chief.call("announce", text, {.timeout = timeout, .what = "a place in the address book"});
      next_reminder = Clock::now() + kBetweenReminders;
    } catch (const std::exception& error) {
      if (Clock::now() >= next_reminder) {
        context.log().info("port {} is not known to the others yet: {}", port, error.what());
        next_reminder += kBetweenReminders;
      }
    }
    std::unique_lock lock(mutex);
    stopped.wait_for(lock, stop, kBetweenAnnouncements, [] { return false; });
  }
}

}  // namespace

bool chooses_its_port(const ClusterSpec& cluster, const Task& task) {
  if (port_of(cluster, task) != 0) return false;
  const std::vector<Task> workers = workers_of(cluster);
  if (workers.empty() || port_of(cluster, workers.front()) == 0) {
    fail(ErrorKind::InvalidArgument,
         "{} has port 0, and so has {}, whom the others would ask for it: give {} a port, or let `tutti run` "
         "choose them all",
         task.short_name(), workers.empty() ? "everybody" : workers.front().short_name(),
         workers.empty() ? "one" : workers.front().short_name());
  }
  return true;
}

rpc::Message AddressBook::serve(const rpc::Caller& caller, const std::string& method,
                                const rpc::Message& request) {
  const auto task = text_in(request.head, "task");
  if (method == "announce") {
    announce(caller, task, static_cast<int>(number_within(request.head, "port", 1, 65535)));
    return {};
  }
  if (method != "find")
    fail(ErrorKind::InvalidArgument, "the chief has an address book, no parameters: '{}' is for others",
         method);
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(task);
  return {{{"port", found == entries_.end() ? 0 : found->second.port}}, {}};
}

void AddressBook::announce(const rpc::Caller& caller, const std::string& task, int port) {
  const std::lock_guard lock(mutex_);
  const auto [entry, added] = entries_.try_emplace(task, Entry{caller, port});
  if (!added && entry->second.caller.id != caller.id) {
    fail(ErrorKind::InvalidArgument, "there is a {} already: {}", task, name_of(entry->second.caller));
  }
  entry->second.port = port;
}

void AddressBook::gone(const rpc::Caller& caller) {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const auto& entry) { return entry.second.caller.id == caller.id; });
}

OpenAddressBook::OpenAddressBook(const Context& context) : host_(host_at_own_address(context), book_) {}

Announcement::Announcement(const Context& context, int port) {
  if (!chooses_its_port(context.cluster(), context.task())) return;
  context.log().info("listening at port {}, which the chief is told", port);
  thread_ = std::jthread([&context, port](const std::stop_token& stop) { announce(context, port, stop); });
}

std::string find_address(const ClusterSpec& cluster, const Task& task, const rpc::ChannelOptions& options,
                         milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  const auto left = [&] {
    return std::max(std::chrono::ceil<milliseconds>(deadline - Clock::now()), milliseconds(1));
  };
  rpc::Channel chief = channel_to_chief(cluster, options);
  chief.connect(left());
  const rpc::Message question{{{"task", task.short_name()}}, {}};
  do {
    const rpc::Message answer =
        chief.call("find", question, {.timeout = std::max(left(), kForAnAnswer), .what = "an address"});
    if (const int64_t port = number_in(answer.head, "port"); port != 0) {
      Address address = parse_address(cluster.address(task.job, task.index));
      address.port = static_cast<int>(port);
      return to_string(address);
    }
    std::this_thread::sleep_for(std::min(left(), kBetweenQuestions));
  } while (Clock::now() < deadline);
  fail(ErrorKind::Timeout, "{} ({}) has not told the chief its port", task.short_name(),
       cluster.address(task.job, task.index));
}

}  // namespace tutti::ps
