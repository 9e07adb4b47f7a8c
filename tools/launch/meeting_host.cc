#include "tools/launch/meeting_host.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/address.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/random_key.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

// The time from connecting to the hello, which a launcher sends at once.
constexpr milliseconds kHelloTime{10'000};
// The time for sending a line, and for a guest to close its connection after the answer.
constexpr milliseconds kFarewell{5000};
constexpr size_t kMostStrangers = 64;
constexpr size_t kMostNamed = 20;

}  // namespace

MeetingHost::MeetingHost(const JobHosts& hosts, int workers, const MeetingOptions& options,
                         SignalPipe& signals, const Log& log)
    : hosts_(hosts),
      workers_(workers),
      options_(options),
      signals_(signals),
      log_(log),
      listener_(listen_at(
          parse_address(hosts.first_address()),
          fmt::format("the launchers, which connect to the address of {} in TF_CONFIG", hosts.name_of(0)))) {}

MeetingResult MeetingHost::run() {
  while (!all_here()) {
    // A guest whose time is up later than ours is here until then, and not missing.
    const auto now = Clock::now();
    if (now >= deadline_) give_up();
    for (Guest& guest : guests_) dismiss_late(guest, now);
    forget_closed();
    wait_for_events();
    if (const auto signal = next_stop_signal(signals_)) return {{}, "", signal};
    accept_guests();
    for (Guest& guest : guests_) listen_to(guest);
    forget_closed();
  }
  return tell_all();
}

bool MeetingHost::all_here() const {
  const auto here = std::count_if(guests_.begin(), guests_.end(), [](const Guest& g) { return g.hello; });
  return static_cast<size_t>(here) + 1 == hosts_.row().size();
}

void MeetingHost::wait_for_events() {
  std::vector<pollfd> events = {{listener_.get(), POLLIN, 0}, {signals_.descriptor(), POLLIN, 0}};
  Clock::time_point next = deadline_;
  for (const Guest& guest : guests_) {
    events.push_back({guest.socket.descriptor(), POLLIN, 0});
    next = std::min(next, guest.deadline);
  }
  poll(events.data(), events.size(), poll_time(next));
}

void MeetingHost::accept_guests() {
  while (auto socket = accept_at(listener_)) {
    MeetingProof proof(options_.secret);
    // It fits into the connection's buffer.
    socket->send(proof.challenge(), milliseconds(0));
    guests_.push_back({std::move(*socket), std::move(proof), std::nullopt, Clock::now() + kHelloTime});
    make_room();
  }
}

// Closes the oldest connections that have sent nothing if there are too many, so that launchers can connect.
void MeetingHost::make_room() {
  const auto is_stranger = [](const Guest& g) { return !g.hello && g.socket.is_open(); };
  while (static_cast<size_t>(std::count_if(guests_.begin(), guests_.end(), is_stranger)) > kMostStrangers) {
    Guest& oldest = *std::find_if(guests_.begin(), guests_.end(), is_stranger);
    listen_to(oldest);
    if (!oldest.hello) oldest.socket.close();
  }
}

void MeetingHost::listen_to(Guest& guest) {
  const std::optional<std::string> line = guest.socket.read_line(Hello::kLongest);
  // Anything that a launcher sends after its hello is ignored.
  if (line && !guest.hello) take_hello(guest, *line);
}

void MeetingHost::take_hello(Guest& guest, const std::string& line) {
  const auto said = guest.proof.read(Side::Caller, line);
  if (said && !said->proved)
    return refuse(guest, "it has another secret; set the same TUTTI_SECRET on all hosts",
                  MeetingProof::refusal());
  const std::optional<Hello> hello = said ? read_hello(said->text) : std::nullopt;
  if (!hello || hello->host >= hosts_.row().size()) {
    stranger_ = fmt::format("; {} is not a launcher: it sent '{}'", guest.socket.peer(),
                            harmless(line.substr(0, kLongestQuote)));
    guest.socket.close();
    return;
  }
  if (const std::string reason = why_not(*hello); !reason.empty()) {
    const Answer no{.kind = Answer::Kind::No, .text = reason};
    return refuse(guest, reason, guest.proof.line(Side::Listener, to_text(no)));
  }
  log_.debug("{} connected from {}", hosts_.name_of(hello->host), guest.socket.peer());
  guest.hello = hello;
  guest.deadline = Clock::now() + hello->patience;
}

bool MeetingHost::answer(Guest& guest, const Answer& answer) {
  return guest.socket.send(guest.proof.line(Side::Listener, to_text(answer)), kFarewell);
}

void MeetingHost::refuse(Guest& guest, const std::string& reason, const std::string& line) {
  log_.warning("refused the launcher at {}: {}", guest.socket.peer(), reason);
  guest.socket.send(line, kFarewell);
  guest.socket.close();
}

// Returns the reason to refuse a guest, or "".
std::string MeetingHost::why_not(const Hello& hello) const {
  if (hello.fingerprint != hosts_.fingerprint())
    return fmt::format(
        "its TF_CONFIG lists different hosts than that of {}; give all hosts "
        "the same \"cluster\"",
        hosts_.name_of(0));
  const auto other = std::find_if(guests_.begin(), guests_.end(), [&](const Guest& g) {
    return g.hello && g.hello->host == hello.host && g.socket.is_open();
  });
  if (hello.host != 0 && other == guests_.end()) return "";
  return fmt::format("{} is already running{}; give each host its own \"index\" in TF_CONFIG",
                     hosts_.name_of(hello.host),
                     other == guests_.end() ? "" : ", at " + other->socket.peer());
}

void MeetingHost::dismiss_late(Guest& guest, Clock::time_point now) {
  if (now < guest.deadline || !guest.socket.is_open()) return;
  if (guest.hello) answer(guest, Answer{.kind = Answer::Kind::Late, .text = missing()});
  guest.socket.close();
}

// A launcher that has disconnected counts as missing.
void MeetingHost::forget_closed() {
  std::erase_if(guests_, [](const Guest& guest) { return !guest.socket.is_open(); });
}

// As soon as the guests have their answer, workers of other hosts connect to this port. They must find the
// first worker there or nothing; therefore the listener is closed first.
MeetingResult MeetingHost::tell_all() {
  listener_ = FileDescriptor();
  Answer all{.workers = std::vector<int>(hosts_.row().size(), 1), .launch = random_key()};
  all.workers[0] = workers_;
  std::erase_if(guests_, [](const Guest& guest) { return !guest.hello; });
  for (const Guest& guest : guests_) {
    if (!hosts_.is_server(guest.hello->host)) all.workers[guest.hello->host] = guest.hello->workers;
  }
  for (Guest& guest : guests_) {
    if (answer(guest, all)) continue;
    fail(ErrorKind::PeerLost,
         "tutti run: the launcher of {} disconnected after all launchers had connected; start "
         "all of them again",
         hosts_.name_of(guest.hello->host));
  }
  await_guests_leaving();
  return {std::move(all.workers), std::move(all.launch), std::nullopt};
}

// The side that closes a TCP connection first keeps its port for a minute. This port is needed at once, so
// the guests must close first.
void MeetingHost::await_guests_leaving() {
  const auto end = Clock::now() + kFarewell;
  forget_closed();
  while (!guests_.empty() && Clock::now() < end) {
    std::vector<pollfd> events;
    for (const Guest& guest : guests_) events.push_back({guest.socket.descriptor(), POLLIN, 0});
    poll(events.data(), events.size(), poll_time(end));
    for (Guest& guest : guests_) listen_to(guest);
    forget_closed();
  }
}

void MeetingHost::give_up() {
  for (Guest& guest : guests_) {
    if (guest.hello) answer(guest, Answer{.kind = Answer::Kind::Late, .text = missing()});
  }
  fail(ErrorKind::Timeout,
       "tutti run: after {:g} s not all launchers have connected to {}; missing: {}. Start tutti run there "
       "too, or raise --start-timeout{}",
       seconds(options_.timeout), hosts_.first_address(), missing(), stranger_);
}

// Returns the names of the missing launchers: "worker/1 (b:2222), worker/3 (d:2222)".
std::string MeetingHost::missing() const {
  std::vector<std::string> names;
  size_t more = 0;
  for (size_t host = 1; host < hosts_.row().size(); ++host) {
    const bool here = std::any_of(guests_.begin(), guests_.end(),
                                  [&](const Guest& g) { return g.hello && g.hello->host == host; });
    if (here) continue;
    if (names.size() < kMostNamed) {
      names.push_back(hosts_.name_of(host));
    } else {
      ++more;
    }
  }
  const std::string others = more > 0 ? fmt::format(" and {} more", more) : "";
  return fmt::format("{}{}", fmt::join(names, ", "), others);
}

}  // namespace tutti
