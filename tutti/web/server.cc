#include "tutti/web/server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <poll.h>
#include <sys/socket.h>
#include <utility>

#include "tutti/base/deadline.h"
#include "tutti/base/file.h"
#include "tutti/base/start_thread.h"

namespace tutti::web {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPauseWithoutDescriptors{100};

}  // namespace

// Reads a request, sends the answer, and then waits until the caller has closed the connection: if it were
// closed while the caller still sends, the caller might not get the answer.
class Server::Connection {
 public:
  Connection(FileDescriptor socket, Clock::time_point deadline)
      : socket_(std::move(socket)), deadline_(deadline) {}

  pollfd event() const {
    return {socket_.get(), static_cast<short>(state_ == State::Sends ? POLLOUT : POLLIN), 0};
  }
  Clock::time_point deadline() const { return deadline_; }
  bool is_done() const { return state_ == State::Done || Clock::now() >= deadline_; }

  // Does what is possible without waiting. `answer` makes the bytes of an answer.
  template <class MakeAnswer>
  void go_on(const MakeAnswer& answer) {
    if (state_ == State::Sends) return send();
    std::array<char, 4096> bytes{};
    const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) state_ = State::Done;
    if (state_ != State::Reads) return;
    received_.append(bytes.data(), static_cast<size_t>(got));
    if (const auto request = parse_request(received_)) {
      answer_ = answer(*request);
      state_ = State::Sends;
      send();
    }
  }

 private:
  enum class State { Reads, Sends, Drains, Done };

  void send() {
    const ssize_t sent =
        ::send(socket_.get(), answer_.data() + sent_, answer_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) state_ = State::Done;
    if (sent < 0) return;
    sent_ += static_cast<size_t>(sent);
    if (sent_ < answer_.size()) return;
    ::shutdown(socket_.get(), SHUT_WR);
    state_ = State::Drains;
  }

  FileDescriptor socket_;
  Clock::time_point deadline_;
  State state_ = State::Reads;
  std::string received_;
  std::string answer_;
  size_t sent_ = 0;
};

Server::Server(const std::string& address, Handler handler, ServerOptions options)
    : listener_(address),
      handler_(std::move(handler)),
      options_(std::move(options)),
      thread_(start_thread("serving the page of the run", [this] { serve(); })) {}

Server::~Server() {
  stops_ = true;
  listener_.stop();
  thread_.join();
}

void Server::serve() {
  const std::vector<int> listening = listener_.descriptors();
  std::vector<Connection> connections;
  while (!stops_) {
    std::vector<pollfd> events;
    auto next = Clock::now() + kLongestWait;
    for (const int descriptor : listening) events.push_back({descriptor, POLLIN, 0});
    for (const Connection& connection : connections) {
      events.push_back(connection.event());
      next = std::min(next, connection.deadline());
    }
    if (poll(events.data(), events.size(), poll_time(next)) < 0) continue;
    for (size_t i = 0; i < connections.size(); ++i) {
      if (events[listening.size() + i].revents != 0)
        connections[i].go_on([this](const Request& request) { return answer(request); });
    }
    std::erase_if(connections, [](const Connection& connection) { return connection.is_done(); });
    const bool calls = std::any_of(events.begin(), events.begin() + static_cast<ptrdiff_t>(listening.size()),
                                   [](const pollfd& event) { return event.revents != 0; });
    if (calls && !stops_) accept_one(connections);
  }
}

void Server::accept_one(std::vector<Connection>& connections) const {
  FileDescriptor socket = listener_.accept(kPauseWithoutDescriptors);
  if (socket.get() < 0) return;
  if (connections.size() == options_.most_connections) connections.erase(connections.begin());
  connections.emplace_back(std::move(socket), deadline_after(options_.patience));
}

std::string Server::answer(const Request& request) const {
  Answer made;
  try {
    const auto refusal = refusal_of(request, options_.admission);
    made = refusal ? *refusal : handler_(request);
  } catch (const std::exception& error) {
    made = {.status = 500, .body = std::string(error.what()) + "\n"};
  }
  return to_bytes(made, request.method);
}

}  // namespace tutti::web
