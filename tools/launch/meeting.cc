#include "tools/launch/meeting.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <fmt/format.h>

#include "tools/launch/line_socket.h"
#include "tools/launch/meeting_host.h"
#include "tools/launch/meeting_words.h"
#include "tutti/base/error.h"
#include "tutti/cluster/address.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Between two tries to connect. Nothing tells when somebody begins to listen, or a name becomes known.
constexpr milliseconds kPause{100};
// For one address of several; a packet to a host that is down gets no answer.
constexpr milliseconds kConnectTime{3000};
// So much longer is waited for the first host's word on who is late.
constexpr milliseconds kLastWord{2000};
constexpr milliseconds kSendTime{5000};
constexpr size_t kLongestQuote = 60;

double seconds(milliseconds time) { return std::chrono::duration<double>(time).count(); }

struct AddressList {
  addrinfo* first = nullptr;
  AddressList() = default;
  ~AddressList() {
    if (first != nullptr) freeaddrinfo(first);
  }
  AddressList(const AddressList&) = delete;
  AddressList& operator=(const AddressList&) = delete;
};

// A launcher that goes to the first host.
class MeetingGuest {
 public:
  MeetingGuest(const Hosts& hosts, int workers, milliseconds timeout, SignalPipe& signals)
      : hosts_(hosts), workers_(workers), timeout_(timeout), signals_(signals) {}

  MeetingResult run() {
    while (!signal_) {
      if (auto workers = talk(connect())) return {std::move(*workers), std::nullopt};
      wait_for(-1, POLLIN, std::min(deadline_, Clock::now() + kPause));
      if (!signal_ && Clock::now() >= deadline_) give_up();
    }
    return {{}, signal_};
  }

 private:
  // True where the socket is ready; false when the time is up or a signal has come.
  bool wait_for(int socket, int16_t event, Clock::time_point until) {
    while (!signal_ && Clock::now() < until) {
      std::vector<pollfd> events = {{socket, event, 0}, {signals_.descriptor(), POLLIN, 0}};
      const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
      poll(events.data(), events.size(), static_cast<int>(std::max(left, milliseconds(0)).count()));
      if (events[1].revents != 0) signal_ = next_stop_signal(signals_);
      if (events[0].revents != 0) return true;
    }
    return false;
  }

  LineSocket connect() {
    const Address address = parse_address(hosts_.first_address());
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    AddressList found;
    const int error =
        getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found.first);
    if (error != 0) trouble_ = gai_strerror(error);
    for (const addrinfo* place = found.first; place != nullptr && !signal_; place = place->ai_next) {
      LineSocket socket = connect_to(*place);
      if (socket.is_open()) return socket;
    }
    return {FileDescriptor(), ""};
  }

  LineSocket connect_to(const addrinfo& place) {
    FileDescriptor socket(
        ::socket(place.ai_family, place.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, place.ai_protocol));
    if (socket.get() < 0) return refused(errno);
    if (::connect(socket.get(), place.ai_addr, place.ai_addrlen) != 0) {
      if (errno != EINPROGRESS) return refused(errno);
      if (!wait_for(socket.get(), POLLOUT, std::min(deadline_, Clock::now() + kConnectTime)))
        return refused(ETIMEDOUT);
      int error = 0;
      socklen_t size = sizeof error;
      getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) return refused(error);
    }
    return {std::move(socket), hosts_.name_of(0)};
  }

  LineSocket refused(int error) {
    trouble_ = errno_text(error);
    return {FileDescriptor(), ""};
  }

  // The workers of all; nothing where that was not to be had, and another try may help.
  std::optional<std::vector<int>> talk(LineSocket socket) {
    const auto patience = std::chrono::duration_cast<milliseconds>(deadline_ - Clock::now());
    const Hello hello{*hosts_.own(), workers_, std::max(patience, milliseconds(0)), hosts_.fingerprint()};
    if (!socket.is_open() || !socket.send(to_line(hello), kSendTime)) return std::nullopt;
    trouble_ = "somebody listens there, but says nothing";
    while (socket.is_open()) {
      if (!wait_for(socket.descriptor(), POLLIN, deadline_ + kLastWord)) return std::nullopt;
      const auto line = socket.read_line(Answer::kLongest);
      if (line) return take_answer(*line);
    }
    trouble_ = "the connection was closed";
    return std::nullopt;
  }

  std::optional<std::vector<int>> take_answer(const std::string& line) {
    const std::optional<Answer> answer = read_answer(line);
    if (answer && answer->kind == Answer::Kind::No)
      fail(ErrorKind::InvalidArgument, "tutti run: {} sends this launcher away: {}", hosts_.name_of(0),
           answer->text);
    if (answer && answer->kind == Answer::Kind::Late)
      fail(
          ErrorKind::Timeout,
          "tutti run: within {:g} s the launchers have not all come to {}: {} missing. Start tutti run there "
          "too, or raise --start-timeout",
          seconds(timeout_), hosts_.first_address(), answer->text);
    if (answer && fits(answer->workers)) return answer->workers;
    trouble_ = fmt::format("what came from there is no launcher's word: '{}'",
                           harmless(line.substr(0, kLongestQuote)));
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
    fail(
        ErrorKind::Timeout,
        "tutti run: the launcher of {}, where all meet, has not answered within {:g} s ({}). Start tutti run "
        "there too, or raise --start-timeout",
        hosts_.name_of(0), seconds(timeout_), trouble_);
  }

  const Hosts& hosts_;
  const int workers_;
  const milliseconds timeout_;
  const Clock::time_point deadline_ = Clock::now() + timeout_;
  SignalPipe& signals_;

  std::optional<int> signal_;
  std::string trouble_;  // why the last try was in vain
};

}  // namespace

MeetingResult meet(const Hosts& hosts, int workers, milliseconds timeout, SignalPipe& signals,
                   const Log& log) {
  if (hosts.row().size() == 1) return {{workers}, std::nullopt};
  log.info("{} starts {} and waits up to {:g} s for the launchers of the other {} at {}",
           hosts.name_of(*hosts.own()), workers == 1 ? "1 worker" : fmt::format("{} workers", workers),
           seconds(timeout),
           hosts.row().size() == 2 ? "host" : fmt::format("{} hosts", hosts.row().size() - 1),
           hosts.first_address());
  if (*hosts.own() == 0) return MeetingHost(hosts, workers, timeout, signals, log).run();
  return MeetingGuest(hosts, workers, timeout, signals).run();
}

std::optional<int> next_stop_signal(SignalPipe& signals) {
  while (const std::optional<int> signal = signals.next()) {
    if (*signal != SIGCHLD) return signal;
  }
  return std::nullopt;
}

}  // namespace tutti
