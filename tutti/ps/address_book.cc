#include "tutti/ps/address_book.h"

#include <algorithm>
#include <condition_variable>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/address.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/waiting.h"
#include "tutti/cluster/roles.h"
#include "tutti/ps/peers.h"
#include "tutti/ps/wire.h"

namespace tutti::ps {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kBetweenAnnouncements{1000};
constexpr milliseconds kBetweenQuestions{50};
constexpr milliseconds kToConnect{1000};
// The chief does not wait before it answers.
constexpr milliseconds kForAnAnswer{5000};

int port_of(const ClusterSpec& cluster, const Task& task) {
  return parse_address(cluster.address(task.job, task.index)).port;
}

}  // namespace

std::unique_ptr<rpc::Channel> channel_to_chief(const ClusterSpec& cluster, rpc::ChannelOptions options) {
  const Task chief = workers_of(cluster).front();
  options.who = name_with_address(cluster, chief);
  options.arena = nullptr;
  return std::make_unique<rpc::Channel>(cluster.address(chief.job, chief.index), options);
}

bool chooses_its_port(const ClusterSpec& cluster, const Task& task) {
  if (port_of(cluster, task) != 0) return false;
  const std::vector<Task> workers = workers_of(cluster);
  if (workers.empty() || port_of(cluster, workers.front()) == 0) {
    fail(ErrorKind::InvalidArgument,
         "{} has port 0, and so has {}: tasks report their ports to the chief, whose own port has to be "
         "fixed. Give {} a port, or let `tutti run` choose all ports",
         task.short_name(), workers.empty() ? "every task" : workers.front().short_name(),
         workers.empty() ? "the chief" : workers.front().short_name());
  }
  return true;
}

AddressBook::AddressBook(const ClusterSpec& cluster) {
  for (const std::string& job : cluster.jobs()) {
    for (const int index : cluster.task_indices(job)) {
      const Task task{.job = job, .index = index};
      if (port_of(cluster, task) == 0) entries_.emplace(task.short_name(), Entry{});
    }
  }
}

rpc::Message AddressBook::serve(const rpc::Caller& caller, const std::string& method,
                                const rpc::Message& request) {
  const std::string task = text_in(request.head, "task");
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(task);
  if (found == entries_.end()) {
    fail(ErrorKind::InvalidArgument, "{}: the chief's cluster has no {} with port 0", method, task);
  }
  Entry& entry = found->second;
  if (method == "find") return {{{"port", entry.port}}, {}};
  if (method != "announce")
    fail(ErrorKind::InvalidArgument,
         "the chief only serves addresses and has no parameters: '{}' is for parameter servers", method);
  const auto port = static_cast<int>(number_within(request.head, "port", 1, 65535));
  if (entry.caller && entry.caller->id != caller.id)
    fail(ErrorKind::InvalidArgument, "{} is already registered: {}", task, name_of(*entry.caller));
  entry = {caller, port};
  return {};
}

void AddressBook::gone(const rpc::Caller& caller) {
  const std::lock_guard lock(mutex_);
  for (auto& [task, entry] : entries_) {
    if (entry.caller && entry.caller->id == caller.id) entry = {};
  }
}

OpenAddressBook::OpenAddressBook(const Context& context)
    : book_(context.cluster()), host_(host_at_own_address(context), book_) {}

Announcement::Announcement(const Context& context, int port) : context_(context), port_(port) {
  if (!chooses_its_port(context.cluster(), context.task())) return;
  context.log().info("listening on port {}, which is reported to the chief", port);
  thread_ = std::jthread([this](const std::stop_token& stop) { tell(stop); });
}

void Announcement::check() const {
  const std::lock_guard lock(mutex_);
  if (refused_) std::rethrow_exception(refused_);
}

// Runs until it is asked to stop, or until the chief has refused it for --start-timeout.
void Announcement::tell(const std::stop_token& stop) {
  const auto chief =
      channel_to_chief(context_.cluster(),
                       {.credentials = net::credentials_of(context_.config()), .hello = hello_of(context_)});
  const rpc::Message text{{{"task", context_.task().short_name()}, {"port", port_}}, {}};
  std::condition_variable_any stopped;
  Reminder reminder(context_.log());
  auto last_not_refused = Clock::now();
  while (!stop.stop_requested()) {
    try {
      const milliseconds timeout = chief->is_connected() ? kForAnAnswer : kToConnect;
      chief->call("announce", text, {.timeout = timeout, .what = "report of the port"});
      last_not_refused = Clock::now();
      static_cast<void>(reminder.nobody_is_missing());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::InvalidArgument) last_not_refused = Clock::now();
      if (Clock::now() >= last_not_refused + milliseconds_of(context_.config().network.start_timeout)) {
        const std::lock_guard lock(mutex_);
        refused_ = std::current_exception();
        return;
      }
      reminder.still_missing(
          {fmt::format("the chief, to which port {} is to be reported: {}", port_, error.what())});
    }
    std::unique_lock lock(mutex_);
    stopped.wait_for(lock, stop, kBetweenAnnouncements, [] { return false; });
  }
}

std::string find_address(rpc::Channel& chief, const ClusterSpec& cluster, const Task& task,
                         milliseconds patience) {
  const auto deadline = deadline_after(patience);
  const auto left = [&] { return std::max(until(deadline), milliseconds(1)); };
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
  fail(ErrorKind::Timeout, "{} has not reported its port to {}, the chief", name_with_address(cluster, task),
       name_with_address(cluster, workers_of(cluster).front()));
}

}  // namespace tutti::ps
