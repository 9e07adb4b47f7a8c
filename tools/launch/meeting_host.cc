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

// From connecting to the hello, which a launcher says at once.
constexpr milliseconds kHelloTime{10'000};
// For a line to leave, and for a guest to go once it has its answer.
constexpr milliseconds kFarewell{5000};
constexpr size_t kMostStrangers = 64;
constexpr size_t kMostNamed = 20;

}  // namespace

MeetingHost::MeetingHost(const Hosts& hosts, int workers, milliseconds timeout, SignalPipe& signals,
                         const Log& log)
    : hosts_(hosts),
      workers_(workers),
      timeout_(timeout),
      signals_(signals),
      log_(log),
      listener_(listen_at(parse_address(hosts.first_address()).port,
                          fmt::format("where TF_CONFIG lets the launchers meet, {}", hosts.name_of(0)))) {}

MeetingResult MeetingHost::run() {
  while (!all_here()) {
    if (Clock::now() >= deadline_) give_up();
    wait_for_events();
    if (const auto signal = next_stop_signal(signals_)) return {{}, "", signal};
    accept_guests();
    for (Guest& guest : guests_) listen_to(guest);
    for (Guest& guest : guests_) dismiss_late(guest);
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
    guests_.push_back({std::move(*socket), std::nullopt, Clock::now() + kHelloTime});
    make_room();
  }
}

// Those who say nothing keep no launcher out: the oldest of them goes.
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
  // Whatever a launcher says after its hello: nobody asked for it.
  if (line && !guest.hello) take_hello(guest, *line);
}

void MeetingHost::take_hello(Guest& guest, const std::string& line) {
  const std::optional<Hello> hello = read_hello(line);
  if (!hello || hello->host >= hosts_.row().size()) {
    stranger_ = fmt::format("; what {} said is no launcher's word: '{}'", guest.socket.peer(),
                            harmless(line.substr(0, kLongestQuote)));
    guest.socket.close();
    return;
  }
  if (const std::string reason = why_not(*hello); !reason.empty()) {
    log_.warning("sends away the launcher at {}: {}", guest.socket.peer(), reason);
    guest.socket.send(to_line(Answer{.kind = Answer::Kind::No, .text = reason}), kFarewell);
    guest.socket.close();
    return;
  }
  log_.debug("{} has come, from {}", hosts_.name_of(hello->host), guest.socket.peer());
  guest.hello = hello;
  guest.deadline = Clock::now() + hello->patience;
}

// "" where the guest belongs here.
std::string MeetingHost::why_not(const Hello& hello) const {
  if (hello.fingerprint != hosts_.fingerprint())
    return fmt::format("its TF_CONFIG does not name the hosts that {}'s does: give all the same \"cluster\"",
                       hosts_.name_of(0));
  const auto other = std::find_if(guests_.begin(), guests_.end(), [&](const Guest& g) {
    return g.hello && g.hello->host == hello.host && g.socket.is_open();
  });
  if (hello.host != 0 && other == guests_.end()) return "";
  return fmt::format("{} is here already{}: give each host an \"index\" of its own in TF_CONFIG",
                     hosts_.name_of(hello.host),
                     other == guests_.end() ? "" : ", from " + other->socket.peer());
}

void MeetingHost::dismiss_late(Guest& guest) {
  if (Clock::now() < guest.deadline || !guest.socket.is_open()) return;
  if (guest.hello)
    guest.socket.send(to_line(Answer{.kind = Answer::Kind::Late, .text = missing()}), kFarewell);
  guest.socket.close();
}

// One that is gone has not come.
void MeetingHost::forget_closed() {
  std::erase_if(guests_, [](const Guest& guest) { return !guest.socket.is_open(); });
}

// As soon as they are told, workers of other hosts come to this port: they are to find the first worker's
// table, or nobody.
MeetingResult MeetingHost::tell_all() {
  listener_ = FileDescriptor();
  Answer answer{.workers = std::vector<int>(hosts_.row().size(), 1), .launch = random_key()};
  answer.workers[0] = workers_;
  std::erase_if(guests_, [](const Guest& guest) { return !guest.hello; });
  for (const Guest& guest : guests_) {
    if (!hosts_.is_server(guest.hello->host)) answer.workers[guest.hello->host] = guest.hello->workers;
  }
  for (Guest& guest : guests_) {
    if (guest.socket.send(to_line(answer), kFarewell)) continue;
    fail(ErrorKind::PeerLost, "tutti run: the launcher of {} went away when all had come: start all again",
         hosts_.name_of(guest.hello->host));
  }
  see_off();
  return {std::move(answer.workers), std::move(answer.launch), std::nullopt};
}

// Who closes a connection first keeps its port for a minute, and this one's is wanted now: they go first.
void MeetingHost::see_off() {
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
    if (guest.hello)
      guest.socket.send(to_line(Answer{.kind = Answer::Kind::Late, .text = missing()}), kFarewell);
  }
  fail(ErrorKind::Timeout, "tutti run: within {:g} s the launchers have not all come to {}: {} {}{}",
       seconds(timeout_), hosts_.first_address(), missing(),
       "missing. Start tutti run there too, or raise --start-timeout", stranger_);
}

// "worker/1 (b:2222), worker/3 (d:2222)".
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
