#include "tools/launch/open_meeting.h"

#include <cstdint>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/launch/host_link.h"
#include "tutti/base/address.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/net.h"
#include "tutti/base/text.h"
#include "tutti/transport/board/follow.h"
#include "tutti/transport/job_board.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

constexpr const char* kPurpose = "launchers";
// The time for one attempt to connect to a launcher that may be gone, and for its answer.
constexpr milliseconds kConnectTime{1000};
constexpr milliseconds kAnswerTime{5000};

}  // namespace

Json to_json(const HostOffer& offer) {
  return {{"address", offer.address},
          {"ports", offer.ports},
          {"workers", offer.workers},
          {"members_port", offer.members_port},
          {"launcher", offer.launcher}};
}

HostOffer host_offer_of(const Json& json) {
  HostOffer offer;
  json.at("address").get_to(offer.address);
  json.at("ports").get_to(offer.ports);
  json.at("workers").get_to(offer.workers);
  json.at("members_port").get_to(offer.members_port);
  json.at("launcher").get_to(offer.launcher);
  if (offer.workers < 1 || offer.workers > kMostWorkersOfAHost)
    fail(ErrorKind::DataLoss, "a launcher offers {} workers", offer.workers);
  return offer;
}

std::string to_text(const MeetingResult& result) {
  Json json = {{"launch", result.launch}, {"keeper", result.keeper}, {"offers", Json::array()}};
  for (const HostOffer& offer : result.hosts) json["offers"].push_back(to_json(offer));
  return json.dump();
}

std::string terms_text(const Meeting& meeting) { return fmt::format("{}", fmt::join(meeting.terms, "\n")); }

std::optional<MeetingResult> meeting_result_of(const std::string& text) {
  if (text.empty()) return std::nullopt;
  return parse_message(text, [](const Json& json) -> std::optional<MeetingResult> {
    if (json.contains("missing")) return std::nullopt;
    MeetingResult result{.launch = json.at("launch").get<std::string>(),
                         .keeper = json.value("keeper", size_t{0})};
    for (const Json& offer : json.at("offers")) result.hosts.push_back(host_offer_of(offer));
    if (result.keeper >= result.hosts.size())
      fail(ErrorKind::DataLoss, "a launcher answers for {} hosts", result.hosts.size());
    return result;
  });
}

comm::ServedRendezvous serve_meeting(const std::string& address, const std::string& secret,
                                     std::function<void(const std::string& text)> report) {
  const Address at = parse_address(address);
  return comm::serve_tcp_rendezvous({.host = is_loopback(at.host) ? at.host : "",
                                     .port = static_cast<uint16_t>(at.port),
                                     .credentials = {.secret = secret},
                                     .purpose = kPurpose,
                                     .report = std::move(report),
                                     .farewell = kAnswerTime});
}

comm::FindAttempt try_to_find_meeting(const std::string& address, const std::string& secret,
                                      milliseconds timeout) {
  const Address at = parse_address(address);
  return comm::try_tcp_rendezvous({.hosts = {at.host},
                                   .port = static_cast<uint16_t>(at.port),
                                   .credentials = {.secret = secret},
                                   .purpose = kPurpose,
                                   .timeout = timeout});
}

OpenMeeting::OpenMeeting(Meeting meeting, std::string secret, MeetingResult result,
                         std::shared_ptr<comm::ServedBoard> board, Log log)
    : meeting_(std::move(meeting)),
      secret_(std::move(secret)),
      result_(std::move(result)),
      log_(std::move(log)),
      board_(std::move(board)) {}

void OpenMeeting::tell(comm::Rendezvous& board) const {
  board.set(kTermsKey, terms_text(meeting_));
  board.set(kAnswerKey, to_text(result_));
}

void OpenMeeting::keep(std::shared_ptr<comm::Rendezvous> members_board) {
  members_board_ = std::move(members_board);
  tell(*members_board_);
  if (board_ || meeting_.own >= meeting_.addresses.size()) return;
  const std::string& address = meeting_.addresses[meeting_.own];
  try {
    board_ = serve_meeting(address, secret_, [log = log_](const std::string& text) {
               log.warning("{}", text);
             }).board;
    tell(*board_);
  } catch (const Error& error) {
    log_.warning("hosts that come again cannot find this launcher at {}: {}", address, error.what());
  }
}

void OpenMeeting::close() {
  if (members_board_) members_board_->set(kAnswerKey, "");
  if (!board_) return;
  board_->set(kAnswerKey, "");
  board_->stop_listening();
}

std::optional<MeetingResult> find_meeting(const std::string& addresses, const std::string& secret) {
  for (const std::string& address : split(addresses, ',')) {
    const comm::FindAttempt attempt = try_to_find_meeting(address, secret, kAnswerTime);
    if (attempt.refused)
      fail(ErrorKind::InvalidArgument, "{}: another secret is needed; set its TUTTI_SECRET ({})", address,
           attempt.obstacle);
    const auto answer = attempt.board ? attempt.board->peek(kAnswerKey) : std::nullopt;
    if (auto result = meeting_result_of(answer.value_or(""))) return result;
  }
  return std::nullopt;
}

std::shared_ptr<comm::Rendezvous> try_to_find_keeper(const std::string& folder) {
  try {
    const auto board = folder.empty() ? std::nullopt : comm::read_job_board(folder);
    if (!board) return nullptr;
    return comm::follow_members_board(
        {.address = comm::address_from_here(*board), .secret = board->secret, .timeout = kConnectTime});
  } catch (const Error&) {
    return nullptr;  // nothing that could help to find the others
  }
}

}  // namespace tutti
