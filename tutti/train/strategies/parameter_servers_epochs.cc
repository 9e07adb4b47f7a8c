#include <algorithm>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/comm/gather_all.h"
#include "tutti/train/strategies/connected.h"
#include "tutti/train/strategies/parameter_servers.h"

// The part of ParameterServers in which its workers change while they train: some are lost, others come.
namespace tutti {

bool ParameterServers::joins() const { return connected() != nullptr && connected()->epochs()->is_joining(); }

// A server that is lost as well is awaited first: without it no worker goes on.
void ParameterServers::regroup(const std::optional<Error>& why) {
  if (connected() == nullptr) return;
  if (client_) {
    if (why) client_->abandon(why->what());
    client_->connect();
  }
  connected()->reconfigure(why);
  group_.refresh();
  context_.set_chief(group_.is_chief());
  know_part_of_evaluations();
  if (client_) client_->enter_epoch(group_);
}

void ParameterServers::abandon(const std::string& why) noexcept {
  if (connected() != nullptr) connected()->abandon(why);
}

// Any worker may know the run that the servers have: the chief may have lost its place while it joined.
bool ParameterServers::has_run() {
  if (connected() == nullptr) return false;
  if (!client_) make_client();
  client_->connect();
  const auto joined = comm::gather_all(*connected(), client_->run(), "the run of each worker");
  const std::string of_servers = group_.is_chief() && !has_lost_checkpoint_ ? client_->common_run() : "";
  if (group_.is_chief()) mark_lost_writers();
  const std::string run = comm::gather_all(*connected(), of_servers, "the run of the servers").front();
  return !run.empty() && std::find(joined.begin(), joined.end(), run) != joined.end();
}

// Begins the run on all servers, from the newest checkpoint if there is one.
void ParameterServers::begin_connected(Session& session, const std::vector<std::string>& plan) {
  const auto on_chief = [&](const std::function<void()>& body) {
    tutti::on_chief(context_, *connected(), {.what = "the start of the run"}, body);
  };
  on_chief([&] {
    static_cast<void>(client_->standing());
    mark_lost_writers();
    await_writers(session);
  });
  Session::Start found = start_together(context_, *connected(), session);
  on_chief([&] { begin_from(session, found, plan); });
  has_lost_checkpoint_ = false;
  found_ = std::move(found.more);
}

// The workers make the step again that follows the state of the farthest of them. Every server is at this
// step or has just made it, and then has the values before it as well (ps::Service::regroup).
std::optional<Strategy::Standing> ParameterServers::go_on(Session& session,
                                                          const std::vector<std::string>& plan,
                                                          const Standing* mine) {
  require_same(plan);
  Together together = come_together(*connected(), session, mine);
  if (!together.has_begun) return Standing{.has_begun = false};
  on_chief(context_, *connected(), {.what = "the next epoch"},
           [&] { client_->regroup(client_->common_run()); });
  static_cast<void>(client_->join(whole_plan(plan)));
  client_->pull_frozen();
  know_lanes(session.lanes());
  make_vectors(lanes_);
  last_step_ = client_->pull_at((together.standing ? *together.standing : *mine).progress.step);
  vectors_->take_over_buffers();
  begun_ = at_work_ = true;
  make_steps(lanes_);
  rows_->at_step(last_step_);
  return std::move(together.standing);
}

}  // namespace tutti
