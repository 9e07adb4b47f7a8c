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
#include "tools/launch/open_meeting.h"
#include "tutti/base/agreement.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/secret.h"
#include "tutti/base/text.h"
#include "tutti/base/this_host.h"
#include "tutti/transport/board/tcp_rendezvous.h"
#include "tutti/transport/members.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The pause between two reads of the board, or attempts to connect to it.
constexpr milliseconds kPause{50};
constexpr milliseconds kShortPause{5};
constexpr milliseconds kBetweenReports{10000};
constexpr milliseconds kBetweenLooks{500};
// The time for one attempt to connect. Signals wait for its end.
constexpr milliseconds kAttempt{1000};
// The time that the other launchers have to read the answer and to disconnect.
constexpr milliseconds kFarewell{5000};
constexpr size_t kMostNamed = 20;

constexpr const char* kRefused = "refused";
std::string offer_key(size_t host) { return fmt::format("offer/{}", host); }

// Identifies this process in messages.
std::string this_launcher() { return fmt::format("{} (pid {})", host_name(), getpid()); }

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
        own_(own),
        entry_(Json{{"offer", to_json(own)}, {"from", this_launcher()}, {"id", random_key()}}.dump()) {}

  MeetingResult take_part();

 private:
  MeetingResult host();
  MeetingResult visit();
  const std::string& name(size_t host) const { return meeting_.hosts.at(host); }
  std::optional<int> pause() { return await_signal(signals_, std::min(deadline_, Clock::now() + kPause)); }
  bool is_late() const { return Clock::now() >= deadline_; }
  void report_wait(const std::string& what);
  comm::ServedRendezvous serve();
  void take_notice(comm::Rendezvous& board);
  std::shared_ptr<comm::Rendezvous> try_to_find();
  std::optional<MeetingResult> wait_for_answer(comm::Rendezvous& board);
  std::optional<MeetingResult> look_elsewhere();
  bool runs_program(comm::Rendezvous& board) const;
  std::shared_ptr<comm::Rendezvous> board_at(const std::string& address) const;
  void require_to_fit(comm::Rendezvous& board, size_t holder);
  [[noreturn]] void refuse_secret(const std::string& holder, const std::string& obstacle) const;
  void await_departure(comm::Rendezvous& board) const;
  MeetingResult result_in(const std::string& answer);
  std::string missing(comm::Rendezvous& board) const;
  [[noreturn]] void fail_late(const std::string& missing);

  const Meeting& meeting_;
  const MeetingOptions& options_;
  SignalPipe& signals_;
  const Log& log_;
  const HostOffer& own_;
  const std::string entry_;  // this launcher's entry on the board, with a unique id
  const Clock::time_point deadline_ = Clock::now() + options_.timeout;
  Clock::time_point next_report_ = Clock::now() + kBetweenReports;
  Clock::time_point next_look_ = Clock::now() + kBetweenLooks;  // elsewhere
  size_t next_place_ = 0;                                       // where to look

  std::set<size_t> noticed_ = {};                  // the hosts that have come
  std::string refused_;                            // the value of kRefused that was reported
  std::string trouble_;                            // why the last attempt to connect to the board has failed
  std::shared_ptr<comm::ServedBoard> open_board_;  // of the first host, if the meeting stays open
  bool failed_ = false;                            // for good
  const std::shared_ptr<UnknownClient> unknown_client_ = std::make_shared<UnknownClient>();
};

MeetingResult Participant::take_part() {
  MeetingResult result = meeting_.own == 0 ? host() : visit();
  if (result.signal || !options_.stays_open) return result;
  MeetingResult told = result;
  told.keeper = meeting_.own;
  told.hosts[meeting_.own] = own_;  // a launcher that comes again may have other ports than before
  result.open = std::make_shared<OpenMeeting>(meeting_, options_.secret, std::move(told), open_board_, log_);
  return result;
}

comm::ServedRendezvous Participant::serve() {
  try {
    return serve_meeting(meeting_.addresses.front(), options_.secret,
                         [log = log_, unknown = unknown_client_](const std::string& text) {
                           log.warning("{}", text);
                           unknown->note(text);
                         });
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
  board.set(kTermsKey, terms_text(meeting_));
  for (take_notice(board); !missing(board).empty(); take_notice(board)) {
    if (is_late()) {
      const std::string who = missing(board);
      board.set(kAnswerKey, Json{{"missing", who}}.dump());
      fail_late(who);
    }
    report_wait(missing(board));
    if (auto result = look_elsewhere()) {
      board.set(kAnswerKey, "");
      return *std::move(result);
    }
    if (const auto signal = pause()) {
      board.set(kAnswerKey, "");
      return {.signal = signal};
    }
  }
  // As soon as the other launchers have their answer, workers may connect to this port. By then nothing but
  // the chief may listen there.
  if (!options_.stays_open) board.stop_listening();
  if (const std::string left = missing(board); !left.empty()) {
    board.set(kAnswerKey, "");
    fail(ErrorKind::PeerLost,
         "tutti run: the launcher of {} disconnected after all launchers had connected; start all of them "
         "again",
         left);
  }
  MeetingResult result{.launch = random_key()};
  for (size_t host = 0; host < meeting_.hosts.size(); ++host)
    result.hosts.push_back(parse_message(*board.peek(offer_key(host)),
                                         [](const Json& json) { return host_offer_of(json.at("offer")); }));
  board.set(kAnswerKey, to_text(result));
  // The side that closes a TCP connection first keeps its port for a minute. This port is needed at once, so
  // the destructor of the board waits until the other launchers have disconnected.
  if (options_.stays_open) {
    await_departure(board);
    open_board_ = served.board;
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
        if (auto result = wait_for_answer(*board)) return *std::move(result);
      }
      if (auto result = look_elsewhere()) return *std::move(result);
    } catch (const Error& error) {
      const bool may_come_again = error.kind() == ErrorKind::PeerLost || error.kind() == ErrorKind::Timeout;
      if (failed_ || !may_come_again) throw;
      trouble_ = "it answered, but then disconnected";
    }
    report_wait(fmt::format("{} at {} ({})", name(0), meeting_.addresses.front(), trouble_));
    if (const auto signal = pause()) return {.signal = signal};
  }
  fail(ErrorKind::Timeout,
       "tutti run: the launcher of {}, to which all others connect, did not answer within {:g} s ({}). Start "
       "tutti run there too, or raise --start-timeout",
       name(0), seconds(options_.timeout), trouble_);
}

std::shared_ptr<comm::Rendezvous> Participant::try_to_find() {
  const comm::FindAttempt attempt =
      try_to_find_meeting(meeting_.addresses.front(), options_.secret, std::min(until(deadline_), kAttempt));
  if (attempt.board) return attempt.board;
  if (attempt.refused) refuse_secret("the launcher of " + name(0), attempt.obstacle);
  trouble_ = attempt.obstacle;
  if (attempt.listens)
    trouble_ = "a program listens there, but does not answer as a launcher of this version: " + trouble_;
  return nullptr;
}

void Participant::refuse_secret(const std::string& holder, const std::string& obstacle) const {
  fail(ErrorKind::InvalidArgument,
       "tutti run: {} has another secret; set the same TUTTI_SECRET on all hosts ({})", holder, obstacle);
}

// Returns nullopt if the board ends without an answer.
std::optional<MeetingResult> Participant::wait_for_answer(comm::Rendezvous& board) {
  while (true) {
    require_to_fit(board, 0);
    const auto answer = board.peek(kAnswerKey);
    if (answer && answer->empty()) return std::nullopt;
    if (answer) return result_in(*answer);
    if (is_late()) fail_late(missing(board));
    report_wait(missing(board));
    if (const auto signal = pause()) return MeetingResult{.signal = signal};
  }
}

// The job may go on where another launcher has taken the place of the first one. Looks at one place with each
// call, since a host that is gone does not answer at once: in the log directory, or at another address.
std::optional<MeetingResult> Participant::look_elsewhere() {
  if (!options_.stays_open || Clock::now() < next_look_) return std::nullopt;
  next_look_ = Clock::now() + kBetweenLooks;
  const size_t place = next_place_++ % meeting_.addresses.size();
  if (place == meeting_.own && place > 0) return std::nullopt;
  try {
    const std::shared_ptr<comm::Rendezvous> board =
        place == 0 ? try_to_find_keeper(meeting_.folder) : board_at(meeting_.addresses[place]);
    const std::string answer = board ? board->peek(kAnswerKey).value_or("") : "";
    const auto told = meeting_result_of(answer);
    if (!told || (place == 0 && !runs_program(*board))) return std::nullopt;
    require_to_fit(*board, told->keeper);
    const MeetingResult result = result_in(answer);
    log_.info("the launcher of {} has the list of the workers: this host joins them", name(result.keeper));
    return result;
  } catch (const Error& error) {
    if (!comm::is_loss(error)) throw;
    return std::nullopt;
  }
}

// A job of another program may use the same log directory.
bool Participant::runs_program(comm::Rendezvous& board) const {
  const std::vector<std::string> theirs = split(board.peek(kTermsKey).value_or(""), '\n');
  return std::find(theirs.begin(), theirs.end(), meeting_.program) != theirs.end();
}

// Returns null if no launcher with the list answers there.
std::shared_ptr<comm::Rendezvous> Participant::board_at(const std::string& address) const {
  const comm::FindAttempt attempt = try_to_find_meeting(address, options_.secret, kAttempt);
  if (attempt.refused) refuse_secret("the launcher at " + address, attempt.obstacle);
  return attempt.board;
}

// Puts this host's offer on the board. It stays there as long as this launcher is connected. `holder`: the
// host that serves the board.
void Participant::require_to_fit(comm::Rendezvous& board, size_t holder) {
  const std::string who = holder < meeting_.hosts.size() ? name(holder) : "another job";
  const auto refuse = [&](const std::string& why) {
    board.set(kRefused, fmt::format("{}: {}", this_launcher(), why));
    fail(ErrorKind::InvalidArgument, "tutti run: the launcher of {} refused this one: {}", who, why);
  };
  const std::vector<std::string> terms = split(board.get(kTermsKey, kFarewell), '\n');
  const std::string found = difference({who, terms}, {name(meeting_.own), meeting_.terms});
  if (!found.empty()) refuse(fmt::format("{}; {}", found, meeting_.if_terms_differ));
  const std::string there = board.hold(offer_key(meeting_.own), entry_);
  if (there == entry_) return;
  refuse(
      fmt::format("{} is already running, at {}; {}", name(meeting_.own),
                  parse_message(there, [](const Json& json) { return json.at("from").get<std::string>(); }),
                  meeting_.if_index_is_taken));
}

MeetingResult Participant::result_in(const std::string& answer) {
  const std::optional<MeetingResult> result = meeting_result_of(answer);
  if (!result)
    fail_late(parse_message(answer, [](const Json& json) { return json.at("missing").get<std::string>(); }));
  if (result->hosts.size() != meeting_.hosts.size())
    fail(ErrorKind::DataLoss, "the launcher of {} answers for {} hosts, not {}", name(0),
         result->hosts.size(), meeting_.hosts.size());
  return *result;
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
       seconds(options_.timeout), meeting_.addresses.front(), missing, refused);
}

}  // namespace

MeetingResult meet(const Meeting& meeting, const HostOffer& own, const MeetingOptions& options,
                   SignalPipe& signals, const Log& log) {
  if (meeting.hosts.size() == 1) return {.hosts = {own}, .launch = random_key()};
  log.info("{} starts {} and waits up to {:g} s for the launchers of the other {} at {}",
           meeting.hosts[meeting.own], own.workers == 1 ? "1 worker" : fmt::format("{} workers", own.workers),
           seconds(options.timeout),
           meeting.hosts.size() == 2 ? "host" : fmt::format("{} hosts", meeting.hosts.size() - 1),
           meeting.addresses.front());
  return Participant(meeting, own, options, signals, log).take_part();
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
