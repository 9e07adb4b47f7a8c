#include "tools/launch/meeting.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <poll.h>
#include <set>
#include <signal.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/launch/host_link.h"
#include "tutti/base/address.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/net.h"
#include "tutti/base/secret.h"
#include "tutti/base/this_host.h"
#include "tutti/comm/board/tcp_rendezvous.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The pause between two reads of the board, or attempts to connect to it.
constexpr milliseconds kPause{50};
constexpr milliseconds kShortPause{5};
constexpr milliseconds kBetweenReports{10000};
// The time for one attempt to connect. Signals wait for its end.
constexpr milliseconds kAttempt{1000};
// The time that the other launchers have to read the answer and to disconnect.
constexpr milliseconds kFarewell{5000};
constexpr size_t kMostNamed = 20;
constexpr const char* kPurpose = "launchers";

// The keys of the board. The first launcher sets the terms, and the answer, which is "" if it ends without an
// answer; the others hold their offers.
constexpr const char* kTerms = "terms";
constexpr const char* kAnswer = "answer";
constexpr const char* kRefused = "refused";  // the last launcher that was refused, and why
std::string offer_key(size_t host) { return fmt::format("offer/{}", host); }

// Identifies this process in messages.
std::string this_launcher() { return fmt::format("{} (pid {})", host_name(), getpid()); }

Json to_json(const HostOffer& offer) {
  return {{"address", offer.address},
          {"ports", offer.ports},
          {"workers", offer.workers},
          {"members_port", offer.members_port},
          {"launcher", offer.launcher}};
}

HostOffer offer_in(const Json& json) {
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

// The last client that was not a launcher. Thread-safe.
class UnknownClient {
 public:
  void note(const std::string& text) {
    const std::lock_guard lock(mutex_);
    text_ = "; " + text;
  }
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

// One launcher at a meeting. All launchers use the same board, and poll it.
class Participant {
 public:
  Participant(const Meeting& meeting, const HostOffer& own, const MeetingOptions& options,
              SignalPipe& signals, const Log& log)
      : meeting_(meeting),
        options_(options),
        signals_(signals),
        log_(log),
        entry_(Json{{"offer", to_json(own)}, {"from", this_launcher()}, {"id", random_key()}}.dump()) {}

  MeetingResult host();
  MeetingResult visit();

 private:
  const std::string& name(size_t host) const { return meeting_.hosts.at(host); }
  std::optional<int> pause() { return await_signal(signals_, std::min(deadline_, Clock::now() + kPause)); }
  bool is_late() const { return Clock::now() >= deadline_; }
  void report_wait(const std::string& what);
  comm::ServedRendezvous serve();
  void take_notice(comm::Rendezvous& board);
  std::shared_ptr<comm::Rendezvous> try_to_find();
  std::optional<MeetingResult> take_part(comm::Rendezvous& board);
  void require_to_fit(comm::Rendezvous& board);
  void await_departure(comm::Rendezvous& board) const;
  MeetingResult result_in(const std::string& answer);
  std::string missing(comm::Rendezvous& board) const;
  [[noreturn]] void fail_late(const std::string& missing);

  const Meeting& meeting_;
  const MeetingOptions& options_;
  SignalPipe& signals_;
  const Log& log_;
  const std::string entry_;  // this launcher's entry on the board, with a unique id
  const Clock::time_point deadline_ = Clock::now() + options_.timeout;
  Clock::time_point next_report_ = Clock::now() + kBetweenReports;

  std::set<size_t> noticed_ = {};  // the hosts that have come
  std::string refused_;            // the value of kRefused that was reported
  std::string trouble_;            // why the last attempt to connect to the board has failed
  bool failed_ = false;            // for good
  const std::shared_ptr<UnknownClient> unknown_client_ = std::make_shared<UnknownClient>();
};

comm::ServedRendezvous Participant::serve() {
  const Address address = parse_address(meeting_.address);
  comm::ServeOptions serve{.port = static_cast<uint16_t>(address.port),
                           .credentials = {.secret = options_.secret},
                           .purpose = kPurpose,
                           .report =
                               [log = log_, unknown = unknown_client_](const std::string& text) {
                                 log.warning("{}", text);
                                 unknown->note(text);
                               },
                           .farewell = kFarewell};
  serve.host = is_loopback(address.host) ? address.host : "";
  try {
    return comm::serve_tcp_rendezvous(serve);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Overloaded) throw;
    fail(error.kind(), "{}. If another launcher of this job has the port, {}", error.what(),
         meeting_.if_index_is_taken);
  }
}

void Participant::report_wait(const std::string& what) {
  if (Clock::now() < next_report_) return;
  log_.info("waits for {}", what);
  next_report_ = Clock::now() + kBetweenReports;
}

MeetingResult Participant::host() {
  const comm::ServedRendezvous served = serve();
  comm::ServedBoard& board = *served.board;
  board.set(offer_key(0), entry_);
  board.set(kTerms, meeting_.terms);
  for (take_notice(board); !missing(board).empty(); take_notice(board)) {
    if (is_late()) {
      const std::string who = missing(board);
      board.set(kAnswer, Json{{"missing", who}}.dump());
      fail_late(who);
    }
    report_wait(missing(board));
    if (const auto signal = pause()) {
      board.set(kAnswer, "");
      return {.signal = signal};
    }
  }
  // As soon as the other launchers have their answer, workers may connect to this port. By then nothing but
  // the chief may listen there.
  if (!options_.stays_open) board.stop_listening();
  if (const std::string left = missing(board); !left.empty()) {
    board.set(kAnswer, "");
    fail(ErrorKind::PeerLost,
         "tutti run: the launcher of {} disconnected after all launchers had connected; start all of them "
         "again",
         left);
  }
  Json answer = {{"launch", random_key()}, {"offers", Json::array()}};
  for (size_t host = 0; host < meeting_.hosts.size(); ++host)
    answer["offers"].push_back(
        parse_message(*board.peek(offer_key(host)), [](const Json& json) { return json.at("offer"); }));
  board.set(kAnswer, answer.dump());
  // The side that closes a TCP connection first keeps its port for a minute. This port is needed at once, so
  // the destructor of the board waits until the other launchers have disconnected.
  MeetingResult result = result_in(answer.dump());
  if (options_.stays_open) {
    await_departure(board);
    result.open = std::make_shared<OpenMeeting>(served.board);
  }
  return result;
}

// The launchers that have come leave when they have the answer.
void Participant::await_departure(comm::Rendezvous& board) const {
  const auto anybody_is_there = [&] {
    for (size_t host = 1; host < meeting_.hosts.size(); ++host) {
      if (board.peek(offer_key(host))) return true;
    }
    return false;
  };
  const auto deadline = deadline_after(kFarewell);
  while (anybody_is_there() && Clock::now() < deadline) std::this_thread::sleep_for(kShortPause);
}

// Logs which launchers have come, and which were refused.
void Participant::take_notice(comm::Rendezvous& board) {
  for (size_t host = 1; host < meeting_.hosts.size(); ++host) {
    const auto entry = board.peek(offer_key(host));
    if (!entry) noticed_.erase(host);
    if (!entry || !noticed_.insert(host).second) continue;
    log_.debug("{} connected from {}", name(host),
               parse_message(*entry, [](const Json& json) { return json.at("from").get<std::string>(); }));
  }
  const std::string refused = board.peek(kRefused).value_or("");
  if (refused != refused_) log_.warning("refused the launcher at {}", refused);
  refused_ = refused;
}

MeetingResult Participant::visit() {
  while (!is_late()) {
    try {
      if (const auto board = try_to_find()) {
        if (auto result = take_part(*board)) return *std::move(result);
      }
    } catch (const Error& error) {
      const bool may_come_again = error.kind() == ErrorKind::PeerLost || error.kind() == ErrorKind::Timeout;
      if (failed_ || !may_come_again) throw;
      trouble_ = "it answered, but then disconnected";
    }
    report_wait(fmt::format("{} at {} ({})", name(0), meeting_.address, trouble_));
    if (const auto signal = pause()) return {.signal = signal};
  }
  fail(ErrorKind::Timeout,
       "tutti run: the launcher of {}, to which all others connect, did not answer within {:g} s ({}). Start "
       "tutti run there too, or raise --start-timeout",
       name(0), seconds(options_.timeout), trouble_);
}

std::shared_ptr<comm::Rendezvous> Participant::try_to_find() {
  const Address address = parse_address(meeting_.address);
  const comm::FindAttempt attempt =
      comm::try_tcp_rendezvous({.hosts = {address.host},
                                .port = static_cast<uint16_t>(address.port),
                                .credentials = {.secret = options_.secret},
                                .purpose = kPurpose,
                                .timeout = std::min(until(deadline_), kAttempt)});
  if (attempt.board) return attempt.board;
  if (attempt.refused)
    fail(ErrorKind::InvalidArgument,
         "tutti run: the launcher of {} has another secret; set the same TUTTI_SECRET on all hosts ({})",
         name(0), attempt.obstacle);
  trouble_ = attempt.obstacle;
  if (attempt.listens)
    trouble_ = "a program listens there, but does not answer as a launcher of this version: " + trouble_;
  return nullptr;
}

// Returns nullopt if the board ends without an answer.
std::optional<MeetingResult> Participant::take_part(comm::Rendezvous& board) {
  while (true) {
    require_to_fit(board);
    const auto answer = board.peek(kAnswer);
    if (answer && answer->empty()) return std::nullopt;
    if (answer) return result_in(*answer);
    if (is_late()) fail_late(missing(board));
    report_wait(missing(board));
    if (const auto signal = pause()) return MeetingResult{.signal = signal};
  }
}

// Puts this host's offer on the board. It stays there as long as this launcher is connected.
void Participant::require_to_fit(comm::Rendezvous& board) {
  const auto refuse = [&](const std::string& why) {
    board.set(kRefused, fmt::format("{}: {}", this_launcher(), why));
    fail(ErrorKind::InvalidArgument, "tutti run: the launcher of {} refused this one: {}", name(0), why);
  };
  if (board.get(kTerms, kFarewell) != meeting_.terms) refuse(meeting_.if_terms_differ);
  const std::string there = board.hold(offer_key(meeting_.own), entry_);
  if (there == entry_) return;
  refuse(
      fmt::format("{} is already running, at {}; {}", name(meeting_.own),
                  parse_message(there, [](const Json& json) { return json.at("from").get<std::string>(); }),
                  meeting_.if_index_is_taken));
}

MeetingResult Participant::result_in(const std::string& answer) {
  return parse_message(answer, [&](const Json& json) {
    if (json.contains("missing")) fail_late(json.at("missing").get<std::string>());
    MeetingResult result{.launch = json.at("launch").get<std::string>()};
    for (const Json& offer : json.at("offers")) result.hosts.push_back(offer_in(offer));
    if (result.hosts.size() != meeting_.hosts.size())
      fail(ErrorKind::DataLoss, "the launcher of {} answers for {} hosts, not {}", name(0),
           result.hosts.size(), meeting_.hosts.size());
    return result;
  });
}

// Returns the names of the hosts whose launchers are missing: "worker/1 (b:2222), worker/3 (d:2222)".
std::string Participant::missing(comm::Rendezvous& board) const {
  std::vector<std::string> names;
  for (size_t host = 1; host < meeting_.hosts.size(); ++host) {
    if (!board.peek(offer_key(host))) names.push_back(name(host));
  }
  const size_t more = names.size() - std::min(names.size(), kMostNamed);
  names.resize(names.size() - more);
  return fmt::format("{}{}", fmt::join(names, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

void Participant::fail_late(const std::string& missing) {
  failed_ = true;
  const std::string refused =
      refused_.empty() ? unknown_client_->text() : fmt::format("; refused was the launcher at {}", refused_);
  fail(ErrorKind::Timeout,
       "tutti run: after {:g} s not all launchers have connected to {}; missing: {}. Start tutti run there "
       "too, or raise --start-timeout{}",
       seconds(options_.timeout), meeting_.address, missing, refused);
}

}  // namespace

void OpenMeeting::close() {
  board_->set(kAnswer, "");
  board_->stop_listening();
}

MeetingResult meet(const Meeting& meeting, const HostOffer& own, const MeetingOptions& options,
                   SignalPipe& signals, const Log& log) {
  if (meeting.hosts.size() == 1) return {.hosts = {own}, .launch = random_key()};
  log.info("{} starts {} and waits up to {:g} s for the launchers of the other {} at {}",
           meeting.hosts[meeting.own], own.workers == 1 ? "1 worker" : fmt::format("{} workers", own.workers),
           seconds(options.timeout),
           meeting.hosts.size() == 2 ? "host" : fmt::format("{} hosts", meeting.hosts.size() - 1),
           meeting.address);
  Participant participant(meeting, own, options, signals, log);
  return meeting.own == 0 ? participant.host() : participant.visit();
}

std::optional<MeetingResult> find_meeting(const std::string& address, const std::string& secret) {
  const Address at = parse_address(address);
  const comm::FindAttempt attempt = comm::try_tcp_rendezvous({.hosts = {at.host},
                                                              .port = static_cast<uint16_t>(at.port),
                                                              .credentials = {.secret = secret},
                                                              .purpose = kPurpose,
                                                              .timeout = kFarewell});
  if (attempt.refused)
    fail(ErrorKind::InvalidArgument, "{}: another secret is needed; set its TUTTI_SECRET ({})", address,
         attempt.obstacle);
  const auto answer = attempt.board ? attempt.board->peek(kAnswer) : std::nullopt;
  if (!answer || answer->empty()) return std::nullopt;
  return parse_message(*answer, [](const Json& json) -> std::optional<MeetingResult> {
    if (json.contains("missing")) return std::nullopt;
    MeetingResult result{.launch = json.at("launch").get<std::string>()};
    for (const Json& offer : json.at("offers")) result.hosts.push_back(offer_in(offer));
    return result;
  });
}

std::optional<int> next_stop_signal(SignalPipe& signals) {
  while (const std::optional<int> signal = signals.next()) {
    if (*signal != SIGCHLD) return *signal == signals.preempt() ? SIGTERM : *signal;
  }
  return std::nullopt;
}

std::optional<int> await_signal(SignalPipe& signals, Clock::time_point deadline) {
  do {
    pollfd event{signals.descriptor(), POLLIN, 0};
    poll(&event, 1, poll_time(deadline));
    if (const auto signal = next_stop_signal(signals)) return signal;
  } while (Clock::now() < deadline);
  return std::nullopt;
}

}  // namespace tutti
