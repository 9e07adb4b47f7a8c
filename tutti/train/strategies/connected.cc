#include "tutti/train/strategies/connected.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/agreement.h"
#include "tutti/base/deadline.h"
#include "tutti/base/json.h"
#include "tutti/comm/gather_all.h"
#include "tutti/train/change.h"
#include "tutti/transport/members.h"
#include "tutti/transport/roster.h"

namespace tutti {
namespace {

Json to_json(const Wishes& wishes) {
  return {{"stop", wishes.stop}, {"save", wishes.save}, {"signal", wishes.signal}};
}

// The standing without its snapshots, of which it has the names.
Json to_json(const Strategy::Standing& standing, int64_t lanes) {
  Json json = to_json(standing.progress);
  json["lanes"] = lanes;
  json["is_told"] = standing.is_told;
  json["hooks_told"] = standing.hooks_told;
  json["last"] = {{"made", standing.last.made},
                  {"examples", standing.last.examples},
                  {"wishes", to_json(standing.last.wishes)}};
  if (standing.last.loss_sum.defined())
    json["last"]["loss"] = json_of_number(standing.last.loss_sum.item<double>());
  json["metrics"] = Json::object();
  for (const auto& [name, value] : standing.metrics)
    json["metrics"][name] = value ? json_of_number(*value) : Json();
  json["changes"] = standing.changes;
  json["more"] = Json::array();
  for (const auto& [name, part] : standing.more) json["more"].push_back(name);
  return json;
}

Strategy::Standing standing_of(const Json& json) {
  Strategy::Standing standing{.progress = progress_of(json),
                              .is_told = json.at("is_told").get<bool>(),
                              .hooks_told = json.at("hooks_told").get<int64_t>()};
  const Json& last = json.at("last");
  const Json& wishes = last.at("wishes");
  standing.last = {.step = standing.progress.step,
                   .made = last.at("made").get<bool>(),
                   .examples = last.at("examples").get<int64_t>(),
                   .wishes = {.stop = wishes.at("stop").get<bool>(),
                              .save = wishes.at("save").get<bool>(),
                              .signal = wishes.at("signal").get<int>()}};
  if (last.contains("loss"))
    standing.last.loss_sum = torch::full({}, number_of_json(last.at("loss"), "the loss"), torch::kDouble);
  for (const auto& [name, value] : json.at("metrics").items())
    standing.metrics[name] = value.is_null() ? std::nullopt : std::optional(number_of_json(value, name));
  standing.changes = json.at("changes");
  return standing;
}

}  // namespace

void on_chief(const Context& context, comm::Communicator& comm, const comm::Options& options,
              const std::function<void()>& body) {
  constexpr int kTimeouts = 10;
  if (comm.rank() == 0) {
    try {
      body();
    } catch (const std::exception& error) {
      comm.abandon(fmt::format("{} gave up: {}", context.task().short_name(), error.what()));
      throw;
    }
  }
  comm::Options waiting = options;
  waiting.timeout = milliseconds_of(context.config().network.timeout * kTimeouts);
  comm.barrier(waiting).wait();
}

void keep_workers(const Context& context, const Group& group, const std::string& why) {
  if (context.identity().members_board.empty() || context.identity().is_evaluator) return;
  if (group.chief < 0)
    fail(ErrorKind::PeerLost, "this worker was started while the others train, and cannot join them: {}",
         why);
  if (!group.is_chief()) return;
  const auto board = comm::find_members_board(context);
  if (board->peek(comm::kFixedKey)) return;
  board->set(comm::kFixedKey, why);
  context.log().warning("if a worker is lost, the others cannot go on without it: {}", why);
}

void require_newcomers_to_fit(const Context& context, comm::Communicator& comm,
                              const std::vector<std::string>& plan, bool joins) {
  const auto join = comm::gather_all(comm, int64_t{joins}, "which workers join");
  const auto old = std::find(join.begin(), join.end(), 0);
  if (old == join.end() || std::count(join.begin(), join.end(), 0) == std::ssize(join)) return;
  const Agreement own{context.task().short_name(), plan};
  const auto all = comm::gather_all(comm, comm::to_text(own), "the plans of workers that join");
  const Agreement theirs = comm::facts_of(all.at(static_cast<size_t>(old - join.begin())));
  if (joins) return require_same(theirs, own);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string found = join[rank] != 0 ? difference(theirs, comm::facts_of(all[rank])) : "";
    if (!found.empty()) fail(ErrorKind::PeerLost, "a worker that was to join does not fit: {}", found);
  }
}

void tell_fit(const Context& context, const std::vector<std::string>& plan) noexcept {
  try {
    comm::find_members_board(context)->set(comm::plan_key(plan.front()),
                                           comm::to_text(Agreement{context.task().short_name(), plan}));
  } catch (const std::exception&) {
    // the list is lost: the chief tells the plan again when the workers have come together
  }
}

void require_told_fit(const Context& context, comm::Epochs& epochs, const std::vector<std::string>& plan) {
  constexpr std::chrono::milliseconds kBetweenLooks{10};
  constexpr std::chrono::milliseconds kPatience{5000};
  const auto deadline = deadline_after(kPatience);
  std::optional<std::string> told;
  try {
    const auto board = comm::find_members_board(context);
    while (!(told = board->peek(comm::plan_key(plan.front()))) && !epochs.change_is_due()) {
      if (std::chrono::steady_clock::now() > deadline) break;
      comm::sleep_in_this_thread(kBetweenLooks);
    }
  } catch (const Error& error) {
    if (!comm::is_loss(error)) throw;
  }
  if (told) return require_same(comm::facts_of(*told), {context.task().short_name(), plan});
  context.log().warning("the workers change again: this one cannot compare its data with that of the others");
}

void tell_refusal(const Context& context, const std::string& why) noexcept {
  try {
    comm::find_members_board(context)->set_once(
        comm::refused_key({context.task().index, context.identity().life}), why);
  } catch (const std::exception&) {
    // the launcher is lost as well
  }
}

// The barrier in on_chief() waits longer than the exchange of the result.
Json share(const Context& context, comm::Communicator& comm, const std::string& what,
           const Strategy::MakeValue& make) {
  std::string outcome;
  on_chief(context, comm, {.what = what.c_str()}, [&] { outcome = outcome_of(make).dump(); });
  const auto all = gather_all(comm, outcome, what.c_str());
  return result_of(parse_json(all[0], what, ErrorKind::DataLoss));
}

Session::Start start_together(const Context& context, comm::Communicator& comm, Session& session) {
  Session::Start start;
  on_chief(context, comm, {.what = "the checkpoint"}, [&] { start = session.start(); });
  if (comm.world() == 1) return start;
  Json told = to_json(start.progress);
  told["lanes"] = session.lanes();
  for (const auto& [name, part] : start.more) told["more"].push_back(name);
  const auto all = gather_all(comm, comm.rank() == 0 ? told.dump() : std::string(), "the progress");
  const Json chiefs = Json::parse(all[0]);
  start.progress = progress_of(chiefs);
  session.follow(chiefs.at("lanes").get<int64_t>());
  for (const Json& name : chiefs.value("more", Json::array())) {
    Snapshot& part = start.more[name.get<std::string>()];
    part = broadcast(comm, part, 0, "the state of the run");
  }
  return start;
}

Together come_together(comm::Communicator& comm, Session& session, const Strategy::Standing* mine) {
  const int64_t own =
      mine == nullptr    ? kNowhere
      : !mine->has_begun ? kUnbegun
                         : place_of(mine->progress.step, mine->is_told, mine->hooks_told, mine->progress.fit);
  const Farthest farthest = farthest_of(gather_all(comm, own, "the step of each worker"));
  if (farthest.place == kUnbegun) return {.has_begun = false};
  Together together{.all_are_there = farthest.all_are_there, .leader = farthest.rank};
  if (together.all_are_there) return together;
  const bool is_behind = own != farthest.place;
  Strategy::Standing standing;
  std::string text;
  if (comm.rank() == together.leader) {
    standing = *mine;
    standing.more = session.state();
    text = to_json(standing, session.lanes()).dump();
  }
  const auto texts = gather_all(comm, text, "the progress");
  const Json told =
      parse_json(texts.at(static_cast<size_t>(together.leader)), "the progress", ErrorKind::DataLoss);
  if (is_behind) standing = standing_of(told);
  for (const Json& name : told.at("more")) {
    Snapshot& part = standing.more[name.get<std::string>()];
    part = comm::broadcast(comm, part, together.leader, "the state of the run");
  }
  if (!is_behind) return together;
  session.follow(told.at("lanes").get<int64_t>());
  together.standing = std::move(standing);
  return together;
}

void merge(comm::Communicator& comm, const metrics::List& list) {
  if (comm.world() == 1 || list.empty()) return;
  const auto all = gather_all(comm, torch::tensor(metrics::counters_of(list), torch::kDouble), "metrics");
  for (const auto& metric : list) metric->reset();
  for (const torch::Tensor& theirs : all)
    metrics::merge(list,
                   {static_cast<const double*>(theirs.data_ptr()), static_cast<size_t>(theirs.numel())});
}

Snapshots gather_generators(comm::Communicator& comm, Snapshots parts) {
  const auto found = parts.find(kGenerators);
  if (comm.world() == 1 || found == parts.end()) return parts;
  store::NamedTensors all;
  gather(comm, found->second, "the random generators", [&](const Snapshot& theirs) {
    all.insert(all.end(), theirs.tensors.begin(), theirs.tensors.end());
  });
  found->second.tensors = std::move(all);
  return parts;
}

}  // namespace tutti
