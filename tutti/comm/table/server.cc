#include "tutti/comm/table/server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <new>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/random_key.h"
#include "tutti/base/start_thread.h"

namespace tutti::comm::table {
namespace {

using std::chrono::milliseconds;

// Time limit between connecting and the proof, which a client sends at once.
constexpr milliseconds kGreeting{5000};
constexpr size_t kMostStrangers = 64;
constexpr int kMostAtOnce = 32;     // connections accepted, or buffers read, before others get their turn
constexpr milliseconds kRest{100};  // pause when the system has no sockets or memory left
constexpr int kMostReports = 5;
constexpr size_t kLongestQuote = 60;
constexpr size_t kMostBytes = size_t{256} << 20;

FileDescriptor make_event() {
  FileDescriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (event.get() < 0) fail_errno(errno, "creating an eventfd for a table");
  return event;
}

bool may_go_on() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

bool is_open(const FileDescriptor& socket) { return socket.get() >= 0; }

}  // namespace

Server::Server(std::vector<Listening> listeners, const ServeOptions& options,
               std::shared_ptr<LocalRendezvous> table)
    : options_(options), table_(std::move(table)), wake_(make_event()), listeners_(std::move(listeners)) {
  thread_ = start_thread("serving the table of the " + options_.purpose, [this] { serve(); });
}

Server::~Server() {
  ending_ = true;
  wake();
  thread_.join();
}

void Server::stop_listening() {
  closing_ = true;
  wake();
  listening_.wait(true);
}

void Server::wake() {
  const uint64_t one = 1;
  static_cast<void>(::write(wake_.get(), &one, sizeof one));
}

void Server::serve() {
  while (!over()) {
    try {
      wait();
      accept_all();
    } catch (const std::bad_alloc&) {
      drop_oldest_stranger();
      std::this_thread::sleep_for(kRest);
    }
    for (Client& client : clients_) {
      try {
        attend(client);
      } catch (const std::exception&) {
        close(client);  // it sent invalid data, or there is no memory for it
      }
    }
    forget_closed();
  }
  say_goodbye();
}

// Returns true when the server should end: after the wake-up, once no known client is left or at ends_at_.
bool Server::over() const {
  if (ends_at_ == Clock::time_point::max()) return false;
  const bool alone = std::none_of(clients_.begin(), clients_.end(), [](const Client& c) { return c.known; });
  return alone || Clock::now() >= ends_at_;
}

void Server::wait() {
  std::vector<pollfd> events = {{wake_.get(), POLLIN, 0}};
  Clock::time_point next = std::min(ends_at_, Clock::now() + std::chrono::hours(1));
  const bool accepts = Clock::now() >= accepts_again_;
  if (!accepts) next = std::min(next, accepts_again_);
  for (const Listening& listener : listeners_) {
    if (accepts) events.push_back({listener.socket.get(), POLLIN, 0});
  }
  for (const Client& client : clients_) {
    // Nothing is read from a client that does not receive the answers to its earlier requests.
    const short what = client.unsent.empty() ? POLLIN : POLLOUT;
    events.push_back({client.socket.get(), what, 0});
    if (!client.known || client.leaving) next = std::min(next, client.deadline);
  }
  poll(events.data(), events.size(), poll_time(next));
  take_orders();
}

void Server::take_orders() {
  uint64_t told = 0;
  static_cast<void>(::read(wake_.get(), &told, sizeof told));
  if (ending_ && ends_at_ == Clock::time_point::max()) ends_at_ = Clock::now() + options_.farewell;
  if (!ending_ && !closing_) return;
  listeners_.clear();
  listening_ = false;
  listening_.notify_all();
}

void Server::accept_all() {
  if (Clock::now() < accepts_again_) return;
  for (const Listening& listener : listeners_) accept_from(listener);
}

void Server::accept_from(const Listening& listener) {
  for (int i = 0; i < kMostAtOnce; ++i) {
    FileDescriptor socket(accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!is_open(socket)) {
      if (!is_shortage(errno)) return;  // no connection is waiting any more
      if (drop_oldest_stranger()) continue;
      accepts_again_ = Clock::now() + kRest;
      return;
    }
    const int on = 1;
    setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    try {
      Client client{std::move(socket), random_key(), Clock::now() + kGreeting};
      client.unsent = opening(options_.purpose) + client.nonce;
      clients_.push_back(std::move(client));
    } catch (const std::exception&) {
      return;  // no memory: the client finds its connection closed, and tries again
    }
    make_room();
  }
}

void Server::make_room() {
  const auto is_stranger = [](const Client& c) { return !c.known && is_open(c.socket); };
  while (static_cast<size_t>(std::count_if(clients_.begin(), clients_.end(), is_stranger)) > kMostStrangers)
    drop_oldest_stranger();
}

// Disconnects the stranger that connected first. Returns false if there is no stranger.
bool Server::drop_oldest_stranger() {
  const auto oldest = std::find_if(clients_.begin(), clients_.end(),
                                   [](const Client& c) { return !c.known && is_open(c.socket); });
  if (oldest == clients_.end()) return false;
  close(*oldest);
  return true;
}

void Server::attend(Client& client) {
  send(client);
  for (int i = 0; i < kMostAtOnce && is_open(client.socket) && client.unsent.empty() && !client.leaving;
       ++i) {
    if (!receive(client)) break;
    if (!client.known) read_answer(client);
    while (client.known) {
      const auto request = take_request(client.received);
      if (!request) break;
      client.unsent += encode(answer(client, *request));
    }
    send(client);
  }
  const bool late = (!client.known || client.leaving) && Clock::now() >= client.deadline;
  if (late || (client.leaving && client.unsent.empty())) close(client);
}

// Reads one buffer from a client, and from a stranger at most its answer. Returns false if nothing is
// available. Closes the socket if the client has closed it.
bool Server::receive(Client& client) {
  std::array<char, size_t{64} << 10> buffer;
  const size_t room = client.known ? buffer.size() : kAnswerSize - client.received.size();
  const ssize_t count = recv(client.socket.get(), buffer.data(), room, MSG_DONTWAIT);
  if (count < 0 && may_go_on()) return false;
  if (count <= 0) {
    close(client);
    return false;
  }
  client.received.append(buffer.data(), static_cast<size_t>(count));
  return true;
}

void Server::read_answer(Client& client) {
  if (client.received.find_first_not_of("0123456789abcdef") != std::string::npos) {
    report_refusal(client, fmt::format("it is not a task of this version: it sent '{}'",
                                       harmless(client.received, kLongestQuote)));
    return close(client);
  }
  if (client.received.size() < kAnswerSize) return;
  const Nonces nonces{client.nonce, client.received.substr(0, kNonceSize)};
  const std::string proof = client.received.substr(kNonceSize, kProofSize);
  client.received.clear();
  client.known = equal_proofs(proof, prove(options_.key, Side::Caller, options_.purpose, nonces));
  client.leaving = !client.known;
  if (!client.known)
    report_refusal(client,
                   "it belongs to another job, or has another secret. Give all tasks of a job the same "
                   "TUTTI_SECRET");
  client.unsent = client.known ? kWelcome + prove(options_.key, Side::Listener, options_.purpose, nonces)
                               : kRefusal + std::string(kProofSize, '-');
}

// Only the first ones, since a stranger may try as often as it likes.
void Server::report_refusal(const Client& client, std::string_view why) {
  if (!options_.report || ++reports_ > kMostReports) return;
  SocketAddress peer;
  if (::getpeername(client.socket.get(), peer.get(), &peer.size) != 0) return;
  options_.report(fmt::format("refused a connection from {}: {}", numeric(peer), why));
}

Reply Server::answer(Client& client, const Request& request) {
  auto value = table_->peek(request.key);
  if (request.verb == Verb::Peek) return value ? Reply{Status::Value, *std::move(value)} : Reply{};
  // Entries that this process has set itself are not counted.
  const size_t rest = bytes_ - std::min(bytes_, value ? value->size() : 0);
  const size_t after = rest + request.value.size() + (value ? 0 : request.key.size());
  if (after > kMostBytes) return {Status::Full, ""};
  if (request.verb == Verb::Set || !value) bytes_ = after;
  if (request.verb == Verb::Hold && !value) client.held.push_back(request.key);
  if (request.verb != Verb::Set) return {Status::Value, table_->set_once(request.key, request.value)};
  table_->set(request.key, request.value);
  return {};
}

void Server::send(Client& client) {
  while (is_open(client.socket) && !client.unsent.empty()) {
    const ssize_t count =
        ::send(client.socket.get(), client.unsent.data(), client.unsent.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && may_go_on()) return;
    if (count < 0) return close(client);
    client.unsent.erase(0, static_cast<size_t>(count));
  }
}

void Server::close(Client& client) {
  client.socket = FileDescriptor();
  for (const std::string& key : std::exchange(client.held, {})) {
    bytes_ -= std::min(bytes_, key.size() + table_->peek(key).value_or("").size());
    table_->remove(key);
  }
}

void Server::forget_closed() {
  std::erase_if(clients_, [](const Client& client) { return !is_open(client.socket); });
}

void Server::say_goodbye() {
  for (Client& client : clients_) {
    if (!client.known || !client.unsent.empty()) continue;
    client.unsent = encode(Reply{Status::Closed, ""});
    send(client);
  }
  clients_.clear();
}

}  // namespace tutti::comm::table
