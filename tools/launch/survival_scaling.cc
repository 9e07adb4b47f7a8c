// How a SurvivalKeeper changes the number of workers (`tutti scale`).
#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/launch/survival_keeper.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

std::string counted_workers(int count) { return fmt::format("{} worker{}", count, count == 1 ? "" : "s"); }

std::string names_of(const std::set<int>& workers) {
  std::vector<std::string> names;
  for (const int worker : workers) names.push_back(fmt::format("worker/{}", worker));
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

void SurvivalKeeper::look_for_scaling(const Say& say) {
  const std::string request = served_.board->peek(kScaleKey).value_or("");
  if (request != scale_request_) begin_scaling(request, say);
  if (scaling_) follow_scaling();
}

void SurvivalKeeper::begin_scaling(const std::string& text, const Say& say) {
  scale_request_ = text;
  const ScaleRequest request = scale_request_of(text);
  if (scaling_)
    answer_scaling("another request has taken the place of this one", exit_code(ErrorKind::InvalidArgument));
  scaling_ = {.request = request};
  if (const std::string why = why_not_scale(request.workers); !why.empty())
    return answer_scaling(why, exit_code(ErrorKind::InvalidArgument));
  std::set<int> staying;
  std::set_intersection(wanted_.begin(), wanted_.end(), running_.begin(), running_.end(),
                        std::inserter(staying, staying.end()));
  const int now = static_cast<int>(staying.size());
  const std::string obstacles = call_workers(request.workers - now);
  dismiss_workers(now - request.workers);
  if (now == request.workers) return;
  std::vector<std::string> what;
  if (!scaling_->coming.empty()) what.push_back("starting " + names_of(scaling_->coming));
  if (!scaling_->leaving.empty())
    what.push_back(fmt::format("ending {} after a step", names_of(scaling_->leaving)));
  if (!obstacles.empty()) what.push_back(obstacles);
  const std::string line =
      fmt::format("scaling from {} to {}: {}", now, counted_workers(request.workers), fmt::join(what, "; "));
  answer_scaling(line);
  say(line);
}

// Returns "" if the job may have so many workers.
std::string SurvivalKeeper::why_not_scale(int workers) const {
  const int most = keeper_.most();
  if (end_ || fails_ || keeper_.ended()) return "the job ends";
  if (job_is_done()) return "the training is over";
  if (const auto fixed = served_.board->peek(comm::kFixedKey))
    return "the workers of this job stay the same: " + *fixed;
  if (workers < options_.min)
    return fmt::format("the job needs {}: it was started with --min {}", counted_workers(options_.min),
                       options_.min);
  if (workers > most)
    return fmt::format("the job has room for {}; start it with a larger --max", counted_workers(most));
  return "";
}

// Returns "" if nothing prevents it.
std::string SurvivalKeeper::why_not_start(int worker) const {
  const size_t at = host_of(worker);
  const Host& host = hosts_[at];
  if (running_.contains(worker)) return "about to leave";
  if (host.name.empty() && at != options_.own) return "no listed host is free";
  if (!is_connected(at)) return fmt::format("no launcher on {} is connected", host.name);
  if (at == options_.own && own_host_leaves_) return fmt::format("{} is about to be taken away", host.name);
  if (worker - first_worker_of(at) >= host.slots)
    return fmt::format("{} has {} slot{}", host.name, host.slots, host.slots == 1 ? "" : "s");
  return keeper_.is_there(worker) ? "it has ended" : "";
}

// Starts workers with the lowest numbers that are free. Returns why there are too few, or "".
std::string SurvivalKeeper::call_workers(int count) {
  std::map<std::string, std::set<int>> obstacles;
  for (int worker = 0; worker < keeper_.most() && count > 0; ++worker) {
    if (running_.contains(worker) && wanted_.contains(worker)) continue;
    const std::string why = why_not_start(worker);
    if (!why.empty()) obstacles[why].insert(worker);
    if (!why.empty() || !keeper_.returns(worker)) continue;
    wanted_.insert(worker);
    running_.insert(worker);
    scaling_->coming.insert(worker);
    give({.what = WorkerOrder::What::Start, .worker = worker, .life = keeper_.life_of(worker)});
    --count;
  }
  if (count <= 0) return "";
  std::vector<std::string> all;
  for (const auto& [why, workers] : obstacles)
    all.push_back(fmt::format("{} cannot be started ({})", names_of(workers), why));
  return fmt::format("{}", fmt::join(all, "; "));
}

// The workers with the highest numbers leave.
void SurvivalKeeper::dismiss_workers(int count) {
  for (int worker = keeper_.most() - 1; worker >= 0 && count > 0; --worker) {
    if (!running_.contains(worker) || !wanted_.contains(worker)) continue;
    scaling_->leaving.insert(worker);
    dismiss(worker);
    --count;
  }
}

void SurvivalKeeper::dismiss(int worker) {
  if (wanted_.erase(worker) == 0 || !running_.contains(worker)) return;
  give({.what = WorkerOrder::What::Leave, .worker = worker, .life = keeper_.life_of(worker)});
}

void SurvivalKeeper::set_host(size_t host, const std::string& name, int workers) {
  hosts_[host].name = name;
  hosts_[host].slots = workers;
  const int first = first_worker_of(host);
  for (int i = 0; i < options_.hosts[host].workers; ++i) {
    wanted_.erase(first + i);
    if (i < workers) wanted_.insert(first + i);
  }
}

bool SurvivalKeeper::dismiss_own_workers() {
  if (!options_.own || end_ || job_is_done()) return false;
  const int first = first_worker();
  const int end = first_worker_of(*options_.own + 1);
  int others = keeper_.left();
  for (int worker = first; worker < end; ++worker) others -= keeper_.is_member(worker) ? 1 : 0;
  if (others < options_.min) return false;
  for (int worker = first; worker < end; ++worker) {
    if (wanted_.contains(worker)) leave_with_host_.insert(worker);
    dismiss(worker);
  }
  own_host_leaves_ = true;
  return true;
}

bool SurvivalKeeper::can_do_without(const std::vector<size_t>& hosts, int other_slots) const {
  if (end_ || job_is_done() || other_slots < options_.min) return true;
  int others = keeper_.left();
  for (int worker = 0; worker < keeper_.most(); ++worker) {
    const bool is_there = std::find(hosts.begin(), hosts.end(), host_of(worker)) != hosts.end();
    if (is_there && keeper_.is_member(worker)) --others;
  }
  return others >= options_.min;
}

// Tells what has happened to the workers.
void SurvivalKeeper::follow_scaling() {
  for (const int worker : std::set<int>(scaling_->coming)) {
    const bool is_member = keeper_.is_member(worker);
    if (!is_member && running_.contains(worker)) continue;
    scaling_->coming.erase(worker);
    answer_scaling(
        fmt::format("worker/{} has {}", worker, is_member ? "come" : "ended" + why_outside(worker)));
  }
  for (const int worker : std::set<int>(scaling_->leaving)) {
    if (running_.contains(worker)) continue;
    scaling_->leaving.erase(worker);
    answer_scaling(fmt::format("worker/{} has left", worker));
  }
  const bool is_over = end_ || keeper_.finished() || keeper_.ended();
  if (!is_over && !(scaling_->coming.empty() && scaling_->leaving.empty())) return;
  if (is_over) return answer_scaling("the job ends", exit_code(ErrorKind::PeerLost));
  const int now = keeper_.left();
  const bool is_right = now == scaling_->request.workers;
  answer_scaling(fmt::format("the job has {}{}", counted_workers(now),
                             is_right ? "" : fmt::format(", not {}", scaling_->request.workers)),
                 is_right ? 0 : exit_code(ErrorKind::PeerLost));
}

// The request is done with an exit code.
void SurvivalKeeper::answer_scaling(const std::string& line, std::optional<int> exit_code) {
  scaling_->answer.lines.push_back(line);
  scaling_->answer.exit_code = exit_code;
  served_.board->set(scaled_key(scaling_->request.id), to_text(scaling_->answer));
  if (exit_code) scaling_.reset();
}

}  // namespace tutti
