#include "tutti/ps/peers.h"

#include <algorithm>
#include <map>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/address.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/this_host.h"

namespace tutti::ps {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

}  // namespace

Json hello_of(const Context& context, const Group& group) {
  Json hello = {{"task", context.task().short_name()}, {"host", host_name()}, {"pid", ::getpid()}};
  if (!group.part.empty()) hello["group"] = group.part;
  return hello;
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

rpc::HostOptions host_at_own_address(const Context& context,
                                     const std::shared_ptr<rpc::RefusedCallers>& refused) {
  return {.address = address_of(context, context.task()),
          .credentials = net::credentials_of(context.config()),
          .insecure = context.config().security.insecure,
          .report = [log = context.log(), refused](const std::string& text) {
            log.warning("{}", text);
            if (refused) refused->note(text);
          }};
}

Peers::Peers(const Context& context, const std::vector<Task>& tasks, std::string_view what,
             std::shared_ptr<rpc::Arena> arena, const Group& group, size_t copies)
    : context_(context),
      what_(what),
      options_({.credentials = net::credentials_of(context.config()),
                .hello = hello_of(context, group),
                .who = {},
                .arena = std::move(arena)}) {
  for (const Task& task : tasks) {
    const std::string address = address_of(context, task);
    Peer& peer = peers_.emplace_back(Peer{.task = task,
                                          .name = fmt::format("{} ({})", task.short_name(), address),
                                          .chooses_its_port = chooses_its_port(context.cluster(), task),
                                          .holds_copy = peers_.size() + copies >= tasks.size(),
                                          .address = {},
                                          .channel = {},
                                          .thread = std::make_unique<comm::Executor>()});
    if (!peer.chooses_its_port)
      lead(peer, address);
    else if (context.is_chief() && !book_.board)
      book_ = open_address_book(context);
  }
}

void Peers::lead(Peer& peer, const std::string& address) {
  if (peer.address == address) return;
  peer.address = address;
  rpc::ChannelOptions options = options_;
  options.who = fmt::format("{} ({})", peer.task.short_name(), address);
  if (peer.holds_copy) options.hello["copy"] = true;
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

rpc::Message Peers::call(size_t peer, const std::string& method, const rpc::Message& request,
                         const rpc::CallOptions& options) {
  rpc::Message answer = peers_[peer].channel->call(method, request, options);
  if (const auto news = answer.head.find("news"); peer == 0 && news != answer.head.end()) {
    for (const std::string& line : news->get<std::vector<std::string>>()) context_.log().info("{}", line);
  }
  return answer;
}

Waiting Peers::wait_for_start() const { return {context_.log(), start_timeout(), "--start-timeout"}; }

void Peers::connect() {
  for (Waiting waiting = wait_for_start();;) {
    std::vector<std::string> missing(peers_.size());
    for_all([&, patience = waiting.patience()](size_t i) { missing[i] = attempt(i, patience); });
    std::map<std::string_view, std::string> of_tasks;  // a task may be called as two peers
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (!missing[i].empty()) of_tasks.try_emplace(peers_[i].name, missing[i]);
    }
    if (of_tasks.empty()) return waiting.end(fmt::format("all {} are connected", what_));
    std::vector<std::string> lines;
    for (const auto& [task, line] : of_tasks) lines.push_back(line);
    waiting.go_on(lines);
  }
}

void Peers::connect(size_t peer) {
  for (Waiting waiting = wait_for_start();;) {
    const std::string missing = attempt(peer, waiting.patience());
    if (missing.empty()) return waiting.end(fmt::format("{} is connected", name(peer)));
    waiting.go_on({missing});
  }
}

// Tries to connect. Returns "" if connected, else the reason why not.
std::string Peers::attempt(size_t index, milliseconds patience) {
  Peer& peer = peers_[index];
  const auto deadline = deadline_after(patience);
  try {
    if (peer.chooses_its_port)
      lead(peer, find_address(context_.cluster(), peer.task, options_.credentials, patience));
    peer.channel->connect(std::max(until(deadline), milliseconds(1)));
    return "";
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Timeout && error.kind() != ErrorKind::PeerLost) throw;
    return error.what();
  }
}

}  // namespace tutti::ps
