#include "tools/launch/meeting.h"

#include <algorithm>
#include <poll.h>
#include <signal.h>

#include <fmt/format.h>

#include "tools/launch/line_socket.h"
#include "tools/launch/meeting_host.h"
#include "tools/launch/meeting_words.h"
#include "tutti/base/address.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/net.h"
#include "tutti/base/random_key.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The pause between two attempts to connect.
constexpr milliseconds kPause{100};
// The time for one of several addresses; a host that is down does not answer.
constexpr milliseconds kConnectTime{3000};
// The time beyond its timeout that a guest waits for the first host to say who is missing.
constexpr milliseconds kLastWord{2000};
constexpr milliseconds kSendTime{5000};

// A launcher that connects to that of the first host.
class MeetingGuest {
 public:
  MeetingGuest(const JobHosts& hosts, int workers, const MeetingOptions& options, SignalPipe& signals)
      : hosts_(hosts), workers_(workers), options_(options), signals_(signals) {}

  MeetingResult run() {
    while (!signal_) {
      if (auto all = talk(connect())) return {std::move(all->workers), std::move(all->launch), std::nullopt};
      wait_for(-1, POLLIN, std::min(deadline_, Clock::now() + kPause));
      if (!signal_ && Clock::now() >= deadline_) give_up();
    }
    return {{}, "", signal_};
  }

 private:
  // Returns true if the socket is ready; false if the time is up or a signal has come.
  bool wait_for(int socket, int16_t event, Clock::time_point time) {
    while (!signal_ && Clock::now() < time) {
      std::vector<pollfd> events = {{socket, event, 0}, {signals_.descriptor(), POLLIN, 0}};
      poll(events.data(), events.size(), poll_time(time));
      if (events[1].revents != 0) signal_ = next_stop_signal(signals_);
      if (events[0].revents != 0) return true;
    }
    return false;
  }

  LineSocket connect() {
    const Address address = parse_address(hosts_.first_address());
    const Resolved found = resolve(address.host, address.port);
    if (found.addresses.empty()) trouble_ = found.trouble;
    for (const SocketAddress& place : found.addresses) {
      if (signal_) break;
      Connected connected = connect_awaiting(place, [this](int socket) {
        return wait_for(socket, POLLOUT, std::min(deadline_, Clock::now() + kConnectTime));
      });
      if (connected.error == 0) return {std::move(connected.socket), hosts_.name_of(0)};
      trouble_ = errno_text(connected.error);
    }
    return {FileDescriptor(), ""};
  }

  // Returns the answer for all launchers, or nullopt if there was none and another attempt may help.
  std::optional<Answer> talk(LineSocket socket) {
    if (!socket.is_open()) return std::nullopt;
    trouble_ = "a program listens there, but does not answer";
    const auto challenge = hear(socket, deadline_);
    auto proof = challenge ? MeetingProof::of_caller(options_.secret, *challenge) : std::nullopt;
    if (challenge && !proof) no_launcher(*challenge);
    if (!proof) return std::nullopt;
    const Hello hello{*hosts_.own(), workers_, until(deadline_), hosts_.fingerprint()};
    if (!socket.send(proof->line(Side::Caller, to_text(hello)), kSendTime)) return std::nullopt;
    const auto line = hear(socket, deadline_ + kLastWord);
    return line ? take_answer(*proof, *line) : std::nullopt;
  }

  std::optional<std::string> hear(LineSocket& socket, Clock::time_point deadline) {
    while (socket.is_open()) {
      if (!wait_for(socket.descriptor(), POLLIN, deadline)) return std::nullopt;
      if (auto line = socket.read_line(Answer::kLongest)) return line;
    }
    trouble_ = "the connection was closed";
    return std::nullopt;
  }

  void no_launcher(const std::string& line) {
    trouble_ = fmt::format("the program there is not a launcher of this version: it sent '{}'",
                           harmless(line.substr(0, kLongestQuote)));
  }

  std::optional<Answer> take_answer(MeetingProof& proof, const std::string& line) {
    const auto said = proof.read(Side::Listener, line);
    if (said && !said->proved)
      fail(ErrorKind::InvalidArgument,
           "tutti run: the launcher of {} has another secret; set the same TUTTI_SECRET on all hosts",
           hosts_.name_of(0));
    std::optional<Answer> answer = said ? read_answer(said->text) : std::nullopt;
    if (answer && answer->kind == Answer::Kind::No)
      fail(ErrorKind::InvalidArgument, "tutti run: {} refused this launcher: {}", hosts_.name_of(0),
           answer->text);
    if (answer && answer->kind == Answer::Kind::Late)
      fail(ErrorKind::Timeout,
           "tutti run: after {:g} s not all launchers have connected to {}; missing: {}. Start tutti run "
           "there too, or raise --start-timeout",
           seconds(options_.timeout), hosts_.first_address(), answer->text);
    if (answer && fits(answer->workers)) return answer;
    no_launcher(line);
    return std::nullopt;
  }

  bool fits(const std::vector<int>& workers) const {
    if (workers.size() != hosts_.row().size()) return false;
    for (size_t host = 0; host < workers.size(); ++host) {
      if (hosts_.is_server(host) && workers[host] != 1) return false;
    }
    return workers[*hosts_.own()] == workers_;
  }

  [[noreturn]] void give_up() const {
    fail(ErrorKind::Timeout,
         "tutti run: the launcher of {}, to which all others connect, did not answer within {:g} s ({}). "
         "Start tutti run there too, or raise --start-timeout",
         hosts_.name_of(0), seconds(options_.timeout), trouble_);
  }

  const JobHosts& hosts_;
  const int workers_;
  const MeetingOptions& options_;
  const Clock::time_point deadline_ = Clock::now() + options_.timeout;
  SignalPipe& signals_;

  std::optional<int> signal_;
  std::string trouble_;  // why the last attempt failed
};

}  // namespace

MeetingResult meet(const JobHosts& hosts, int workers, const MeetingOptions& options, SignalPipe& signals,
                   const Log& log) {
  if (hosts.row().size() == 1) return {{workers}, random_key(), std::nullopt};
  log.info("{} starts {} and waits up to {:g} s for the launchers of the other {} at {}",
           hosts.name_of(*hosts.own()), workers == 1 ? "1 worker" : fmt::format("{} workers", workers),
           seconds(options.timeout),
           hosts.row().size() == 2 ? "host" : fmt::format("{} hosts", hosts.row().size() - 1),
           hosts.first_address());
  if (*hosts.own() == 0) return MeetingHost(hosts, workers, options, signals, log).run();
  return MeetingGuest(hosts, workers, options, signals).run();
}

std::optional<int> next_stop_signal(SignalPipe& signals) {
  while (const std::optional<int> signal = signals.next()) {
    if (*signal != SIGCHLD) return signal;
  }
  return std::nullopt;
}

}  // namespace tutti
