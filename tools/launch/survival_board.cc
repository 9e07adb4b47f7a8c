#include "tools/launch/survival_board.h"

#include <optional>
#include <string>

#include <fmt/format.h>

#include "tools/launch/host_link.h"
#include "tutti/base/address.h"
#include "tutti/base/secret.h"

namespace tutti {
namespace {

constexpr int kLastOrder = static_cast<int>(WorkerOrder::What::Refuse);

Json to_json(const WorkerOrder& order) {
  return {static_cast<int>(order.what), order.worker, order.life, order.pause.count()};
}

WorkerOrder order_in(const Json& json) {
  const int what = json.at(0).get<int>();
  if (what < 0 || what > kLastOrder) fail(ErrorKind::DataLoss, "there is no order {} for a worker", what);
  return {.what = static_cast<WorkerOrder::What>(what),
          .worker = json.at(1).get<int>(),
          .life = json.at(2).get<int>(),
          .pause = std::chrono::seconds(json.at(3).get<int64_t>())};
}

Json to_json(const JobEnd& end) {
  return {{"exit_code", end.exit_code},
          {"signal", end.signal},
          {"grace", end.grace.count()},
          {"interrupted", end.interrupted},
          {"restarts", end.restarts}};
}

JobEnd end_in(const Json& json) {
  return {.exit_code = json.at("exit_code").get<int>(),
          .signal = json.at("signal").get<int>(),
          .grace = std::chrono::milliseconds(json.at("grace").get<int64_t>()),
          .interrupted = json.at("interrupted").get<bool>(),
          .restarts = json.at("restarts").get<int>()};
}

Json to_json(const EpochDecision& decision) {
  return {{"members", comm::to_text(decision.members)},
          {"keeper", decision.keeper},
          {"launchers", decision.launchers}};
}

EpochDecision decision_in(const Json& json) {
  return {.members = comm::members_of(json.at("members").get<std::string>()),
          .keeper = json.at("keeper").get<size_t>(),
          .launchers = json.at("launchers").get<std::vector<std::string>>()};
}

Json to_json(const EpochProposal& proposal) {
  return {{"term", proposal.term},
          {"base", to_json(proposal.base)},
          {"next", to_json(proposal.next)},
          {"chosen", proposal.is_chosen}};
}

EpochProposal proposal_in(const Json& json) {
  return {.term = json.at("term").get<uint64_t>(),
          .base = decision_in(json.at("base")),
          .next = decision_in(json.at("next")),
          .is_chosen = json.at("chosen").get<bool>()};
}

}  // namespace

std::string to_text(const EndedWorker& ended) {
  return Json{{"worker", ended.worker},
              {"status", ended.outcome.status()},
              {"text", ended.text},
              {"seconds", ended.seconds}}
      .dump();
}

EndedWorker ended_worker_of(const std::string& text) {
  return parse_message(text, [](const Json& json) {
    return EndedWorker{.worker = json.at("worker").get<int>(),
                       .outcome = Outcome(json.at("status").get<int>()),
                       .text = json.at("text").get<std::string>(),
                       .seconds = json.at("seconds").get<double>()};
  });
}

std::string to_text(const HostOrders& orders) {
  Json list = Json::array();
  for (const WorkerOrder& order : orders.orders) list.push_back(to_json(order));
  return Json{{"orders", list},         {"done", orders.job_is_done},
              {"lost", orders.is_lost}, {"restarts", orders.restarts},
              {"away", orders.away},    {"end", orders.end ? to_json(*orders.end) : Json()}}
      .dump();
}

HostOrders host_orders_of(const std::string& text) {
  return parse_message(text, [](const Json& json) {
    HostOrders orders{.job_is_done = json.at("done").get<bool>(),
                      .is_lost = json.at("lost").get<bool>(),
                      .restarts = json.at("restarts").get<int>(),
                      .away = json.at("away").get<std::vector<int>>()};
    for (const Json& order : json.at("orders")) orders.orders.push_back(order_in(order));
    if (!json.at("end").is_null()) orders.end = end_in(json.at("end"));
    return orders;
  });
}

std::string to_text(const std::vector<int>& lives) { return Json(lives).dump(); }

std::vector<int> lives_of(const std::string& text) {
  return parse_message(text, [](const Json& json) { return json.get<std::vector<int>>(); });
}

std::string to_text(const HostStanding& standing) {
  Json workers = Json::array();
  for (const HostStanding::Worker& worker : standing.workers)
    workers.push_back(Json{worker.life, worker.runs});
  return Json{{"workers", workers},
              {"done", standing.job_is_done},
              {"restarts", standing.restarts},
              {"away", standing.away}}
      .dump();
}

HostStanding host_standing_of(const std::string& text) {
  return parse_message(text, [](const Json& json) {
    HostStanding standing{.job_is_done = json.at("done").get<bool>(),
                          .restarts = json.at("restarts").get<int>(),
                          .away = json.at("away").get<std::vector<int>>()};
    for (const Json& worker : json.at("workers"))
      standing.workers.push_back({worker.at(0).get<int>(), worker.at(1).get<bool>()});
    return standing;
  });
}

std::string to_text(const EpochVote& vote) {
  return Json{{"host", vote.host},
              {"token", vote.token},
              {"term", vote.term},
              {"chosen", to_json(vote.chosen)},
              {"accepted", vote.accepted ? to_json(*vote.accepted) : Json()}}
      .dump();
}

EpochVote epoch_vote_of(const std::string& text) {
  return parse_message(text, [](const Json& json) {
    EpochVote vote{.host = json.at("host").get<size_t>(),
                   .token = json.at("token").get<std::string>(),
                   .term = json.at("term").get<uint64_t>(),
                   .chosen = decision_in(json.at("chosen"))};
    if (!json.at("accepted").is_null()) vote.accepted = proposal_in(json.at("accepted"));
    return vote;
  });
}

std::string to_text(const EpochProposal& proposal) { return to_json(proposal).dump(); }

EpochProposal epoch_proposal_of(const std::string& text) {
  return parse_message(text, [](const Json& json) { return proposal_in(json); });
}

std::string standing_key(size_t host) { return fmt::format("standing/{}", host); }
std::string vote_key(size_t host) { return fmt::format("vote/{}", host); }
std::string launcher_token(const Address& board) {
  return fmt::format("{}@{}", random_key(), to_string(board));
}

std::optional<Address> board_address_in(const std::string& token) {
  const size_t at = token.find('@');
  if (at == std::string::npos) return std::nullopt;
  return parse_address(token.substr(at + 1));
}

std::string host_key(size_t host) { return fmt::format("host/{}", host); }
std::string welcome_key(const std::string& token) { return "welcome/" + token; }
std::string ended_key(const comm::Member& member) {
  return fmt::format("ended/{}/{}", member.worker, member.life);
}
std::string orders_key(const std::string& token) { return "orders/" + token; }

}  // namespace tutti
