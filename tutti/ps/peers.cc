#include "tutti/ps/peers.h"

#include <algorithm>
#include <iterator>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tutti/base/address.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/this_host.h"

namespace tutti::ps {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The minimum duration of an attempt.
constexpr milliseconds kLeast{50};

}  // namespace

Json hello_of(const Context& context) {
  return {{"task", context.task().short_name()}, {"host", host_name()}, {"pid", ::getpid()}};
}

std::string name_of(const rpc::Caller& caller) {
  // The content comes from the caller and may be of any type.
  const auto said = [&](const char* key, const char* otherwise) {
    const auto found = caller.hello.find(key);
    if (found == caller.hello.end()) return std::string(otherwise);
    return found->is_string() ? found->get<std::string>() : found->dump();
  };
  return fmt::format("{} (host {}, pid {})", said("task", "somebody"), said("host", "?"), said("pid", "0"));
}

std::string address_of(const Context& context, const Task& task) {
  if (context.cluster().empty())
    fail(ErrorKind::InvalidArgument,
         "{} has no address: the cluster (found through {}) names none. Give --cluster_spec "
         "'worker|a:2222;b:2222', --job_name and --task_index, or a TF_CONFIG",
         task.short_name(), context.identity().source);
  return context.cluster().address(task.job, task.index);
}

std::string fixed_address_of(const Context& context, const Task& task) {
  std::string address = address_of(context, task);
  if (parse_address(address).port == 0) {
    fail(ErrorKind::InvalidArgument,
         "{} serves modules but has port 0 ({} in the cluster), so clients cannot find it: give it a port",
         task.short_name(), address);
  }
  return address;
}

rpc::HostOptions host_at_own_address(const Context& context) {
  return {.address = address_of(context, context.task()),
          .credentials = rpc::credentials_of(context.config()),
          .insecure = context.config().security.insecure,
          .report = [log = context.log()](const std::string& text) { log.warning("{}", text); }};
}

Peers::Peers(const Context& context, const std::vector<Task>& tasks, std::string_view what,
             std::shared_ptr<rpc::Arena> arena)
    : context_(context),
      what_(what),
      options_({.credentials = rpc::credentials_of(context.config()),
                .hello = hello_of(context),
                .who = {},
                .arena = std::move(arena)}) {
  for (const Task& task : tasks) {
    const std::string address = address_of(context, task);
    Peer& peer = peers_.emplace_back(Peer{.task = task,
                                          .name = fmt::format("{} ({})", task.short_name(), address),
                                          .chooses_its_port = chooses_its_port(context.cluster(), task),
                                          .address = {},
                                          .channel = {},
                                          .thread = std::make_unique<comm::Executor>()});
    if (!peer.chooses_its_port)
      lead(peer, address);
    else if (context.is_chief() && !book_)
      book_.emplace(context);
  }
}

void Peers::lead(Peer& peer, const std::string& address) {
  if (peer.address == address) return;
  peer.address = address;
  rpc::ChannelOptions options = options_;
  options.who = fmt::format("{} ({})", peer.task.short_name(), address);
  peer.channel = std::make_unique<rpc::Channel>(address, options);
}

milliseconds Peers::timeout() const { return milliseconds_of(context_.config().network.timeout); }

milliseconds Peers::start_timeout() const { return milliseconds_of(context_.config().network.start_timeout); }

rpc::CallOptions Peers::patience(const char* what, int64_t step) const {
  constexpr milliseconds kOnItsWay{5000};
  return {.timeout = timeout() + kOnItsWay,
          .into = {},
          .give_up = [this, since = Clock::now()] { return one_is_lost_.load() || gives_up(since); },
          .what = what,
          .step = step};
}

void Peers::connect() {
  const auto deadline = deadline_after(start_timeout());
  std::vector<std::string> missing(peers_.size());
  for (bool reminded = false;; reminded = true) {
    const auto patience = std::min(kBetweenReminders, until(deadline));
    for_all([&](size_t i) { missing[i] = attempt(i, patience); });
    std::vector<std::string> lines;
    std::copy_if(missing.begin(), missing.end(), std::back_inserter(lines),
                 [](const std::string& line) { return !line.empty(); });
    if (lines.empty()) {
      if (reminded) context_.log().info("all {} are connected", what_);
      return;
    }
    if (Clock::now() + kLeast >= deadline) give_up(lines);
    context_.log().info("still waiting for {}", fmt::join(lines, "; "));
  }
}

void Peers::connect(size_t peer) {
  const auto deadline = deadline_after(start_timeout());
  for (;;) {
    const auto patience = std::min(kBetweenReminders, until(deadline));
    const std::string missing = attempt(peer, patience);
    if (missing.empty()) return;
    if (Clock::now() + kLeast >= deadline) give_up({missing});
    context_.log().info("still waiting for {}", missing);
  }
}

// Tries to connect. Returns "" if connected, else the reason why not.
std::string Peers::attempt(size_t index, milliseconds patience) {
  Peer& peer = peers_[index];
  const auto deadline = Clock::now() + std::max(patience, kLeast);
  try {
    if (peer.chooses_its_port)
      lead(peer, find_address(context_.cluster(), peer.task, options_, std::max(patience, kLeast)));
    peer.channel->connect(std::max(until(deadline), kLeast));
    return "";
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Timeout && error.kind() != ErrorKind::PeerLost) throw;
    return error.what();
  }
}

void Peers::give_up(const std::vector<std::string>& missing) const {
  fail(ErrorKind::Timeout, "{} of {} {} did not connect within {:g} s (--start-timeout):\n  {}",
       missing.size(), peers_.size(), what_, context_.config().network.start_timeout,
       fmt::join(missing, "\n  "));
}

}  // namespace tutti::ps
