// How a SurvivalKeeper sees the launchers of other hosts come, come again, and be lost.
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "tools/launch/survival_keeper.h"

namespace tutti {

void SurvivalKeeper::take_over(const Say& say) {
  say("the launcher that has kept the list of the workers is lost: this one keeps it from here on");
  read_reports(*options_.own);
  for (size_t host = 0; host < hosts_.size(); ++host) {
    if (!is_connected(host)) lose_host(host, say);
  }
}

// By host: the launchers that can be reached, or are to come for the first time.
std::vector<std::string> SurvivalKeeper::launchers() const {
  std::vector<std::string> all;
  for (size_t host = 0; host < options_.launchers.size(); ++host) {
    const Host& entry = hosts_[host];
    all.push_back(host == options_.own ? elected_.token_of(host)
                  : entry.has_come     ? entry.token
                                       : options_.launchers[host]);
  }
  return all;
}

// Reads the reports first: a launcher that has ended may have left some.
void SurvivalKeeper::look_at_host(size_t host, const Say& say) {
  const std::string token = served_.board->peek(host_key(host)).value_or("");
  if (!is_connected(host)) {
    const bool is_late =
        !hosts_[host].has_come && token.empty() && std::chrono::steady_clock::now() > come_by_;
    return is_late ? lose_host(host, say) : void();
  }
  read_reports(host);
  if (token != hosts_[host].token) lose_host(host, say);
}

void SurvivalKeeper::welcome_hosts() {
  for (size_t host = 0; host < hosts_.size(); ++host) {
    if (is_connected(host)) continue;
    const auto token = served_.board->peek(host_key(host));
    if (token && !is_too_late(host, *token)) welcome(host, *token);
  }
}

// A launcher that has voted after this one was elected has workers without which the others have gone on. It
// ends when it sees that it has no orders.
bool SurvivalKeeper::is_too_late(size_t host, const std::string& token) const {
  const auto vote = served_.board->peek(vote_key(host));
  return hosts_[host].has_come && vote && epoch_vote_of(*vote).token == token;
}

void SurvivalKeeper::read_reports(size_t host) {
  const int first = first_worker_of(host);
  for (int worker = first; worker < first + options_.hosts[host].workers; ++worker) {
    if (!running_.contains(worker)) continue;
    const auto text = served_.board->peek(ended_key({worker, keeper_.life_of(worker)}));
    if (!text) continue;
    EndedWorker reported = ended_worker_of(*text);
    reported.text += " on " + hosts_[host].name;
    ended(reported);
  }
}

// A launcher that comes again starts its workers in their next lives. It gets no lives if it comes too late.
void SurvivalKeeper::welcome(size_t host, const std::string& token) {
  Host& entry = hosts_[host];
  const int first = first_worker_of(host);
  std::vector<int> lives;
  for (int worker = first; worker < first + options_.hosts[host].workers; ++worker) {
    const bool is_wanted = wanted_.contains(worker);
    if (is_wanted && !keeper_.is_there(worker) && !keeper_.returns(worker)) continue;
    if (is_wanted) running_.insert(worker);
    lives.push_back(is_wanted ? keeper_.life_of(worker) : kAway);
  }
  entry = {.name = entry.name,
           .slots = entry.slots,
           .token = token,
           .has_come = true,
           .is_refused = entry.has_come};
  served_.board->set(welcome_key(token), to_text(lives));
}

// Its workers are lost, whatever they do: no other worker hears them any more.
void SurvivalKeeper::lose_host(size_t host, const Say& say) {
  Host& entry = hosts_[host];
  entry.orders.is_lost = true;
  publish_orders();
  entry.token.clear();
  entry.has_come = true;  // a launcher that comes now comes again
  const int first = first_worker_of(host);
  bool any = false;
  for (int worker = first; worker < first + options_.hosts[host].workers; ++worker) {
    if (running_.erase(worker) == 0) continue;
    any = true;
    const std::string text =
        fmt::format("worker/{} was on {}, whose launcher is gone", worker, hosts_[host].name);
    if (end_ || job_is_done())
      keeper_.lost(worker, MembersKeeper::Then::StaysAway);
    else
      lost_.push_back({.worker = worker, .outcome = Outcome(SIGKILL), .text = text});
  }
  // After a stop of this launcher, the others may have gone on.
  if (any && !end_ && !was_stopped()) say(fmt::format("the launcher of {} is gone", hosts_[host].name));
}

bool SurvivalKeeper::goes_on_without_host(size_t host) {
  if (!hosts_[host].has_come) return false;
  if (is_connected(host)) read_reports(host);
  return !end_ && (!keeper_.ended() || job_is_done());
}

}  // namespace tutti
