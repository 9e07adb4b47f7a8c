#include "tutti/comm/table/client.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/random_key.h"

namespace tutti::comm::table {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// How long a table may take to answer: it has a thread of its own, but its machine may be busy.
constexpr milliseconds kPatience{5000};
// How long a call waits at least, if the table has already taken longer than kPatience.
constexpr milliseconds kGlance{20};
constexpr milliseconds kFirstRetry{1};
constexpr milliseconds kLongestRetry{50};

bool try_later() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

void await(const FileDescriptor& socket, short what, Clock::time_point deadline) {
  pollfd ready{socket.get(), what, 0};
  poll(&ready, 1, poll_time(deadline));
}

// Returns `size` bytes, or fewer if the connection is closed or the deadline has passed.
std::string receive(const FileDescriptor& socket, size_t size, Clock::time_point deadline) {
  std::string bytes(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t count = recv(socket.get(), bytes.data() + done, size - done, MSG_DONTWAIT);
    if (count > 0) {
      done += static_cast<size_t>(count);
      continue;
    }
    if (count == 0 || !try_later()) errno = ECONNRESET;
    if (count == 0 || !try_later() || Clock::now() >= deadline) break;
    await(socket, POLLIN, deadline);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace

Greeting greet(const FileDescriptor& socket, std::string_view purpose, const std::string& key,
               Clock::time_point deadline) {
  const auto why_none = [&] { return Clock::now() >= deadline ? Greeting::Silent : Greeting::Foreign; };
  const std::string expected = opening(purpose);
  const std::string opened = receive(socket, expected.size(), deadline);
  if (opened != expected.substr(0, opened.size())) return Greeting::Foreign;
  const std::string of_server = receive(socket, kNonceSize, deadline);
  if (of_server.size() != kNonceSize) return why_none();
  const Nonces nonces{of_server, random_key()};
  const std::string answer = nonces.of_caller + prove(key, Side::Caller, purpose, nonces);
  // The answer fits into the connection's buffer.
  if (send(socket.get(), answer.data(), answer.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(answer.size()))
    return Greeting::Foreign;
  const std::string verdict = receive(socket, kVerdictSize, deadline);
  if (verdict.size() != kVerdictSize) return why_none();
  const bool same =
      verdict[0] == kWelcome && equal_proofs(verdict.substr(1), prove(key, Side::Listener, purpose, nonces));
  return same ? Greeting::Done : Greeting::Refused;
}

void Client::set(const std::string& key, const std::string& value) { ask({Verb::Set, key, value}); }

std::optional<std::string> Client::peek(const std::string& key) {
  Reply reply = ask({Verb::Peek, key, ""});
  return reply.status == Status::Value ? std::optional(std::move(reply.value)) : std::nullopt;
}

std::string Client::get(const std::string& key, milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  for (milliseconds pause = kFirstRetry;; pause = std::min(2 * pause, kLongestRetry)) {
    if (auto value = peek(key)) return *std::move(value);
    if (Clock::now() >= deadline)
      fail(ErrorKind::Timeout,
           "no rank set '{}' in the table at {} within {:g} s: look at the output of the other ranks, or "
           "raise --timeout",
           key, address_, seconds(timeout));
    std::this_thread::sleep_for(std::min(pause, until(deadline)));
  }
}

std::string Client::set_once(const std::string& key, const std::string& value) {
  return ask({Verb::SetOnce, key, value}).value;
}

std::string Client::hold(const std::string& key, const std::string& value) {
  return ask({Verb::Hold, key, value}).value;
}

Reply Client::ask(const Request& request) {
  if (request.key.size() > kLongestKey || request.value.size() > kLongestValue)
    fail(ErrorKind::InvalidArgument,
         "a table accepts keys of up to {} and values of up to {} bytes, not {} and {}", kLongestKey,
         kLongestValue, request.key.size(), request.value.size());
  const std::lock_guard lock(mutex_);
  // Discards the answer to an earlier call that has timed out.
  if (owed_) await_reply();
  unsent_ += encode(request);
  owed_ = true;
  asked_at_ = Clock::now();
  Reply reply = await_reply();
  if (reply.status == Status::Full)
    fail(ErrorKind::Overloaded, "the table of the ranks at {} is full: it is only for short texts", address_);
  return reply;
}

Reply Client::await_reply() {
  const auto deadline = std::max(asked_at_ + kPatience, Clock::now() + kGlance);
  while (true) {
    const bool open = !gone_ && exchange_bytes();
    std::optional<Reply> reply;
    try {
      reply = take_reply(received_);
    } catch (const Error&) {
      gone_ = true;
    }
    if (reply && reply->status == Status::Closed) ended_ = true;
    if (reply && !ended_) {
      owed_ = false;
      return *std::move(reply);
    }
    gone_ = gone_ || !open || ended_;
    if (gone_) fail_gone();
    if (Clock::now() >= deadline) fail_silent();
    await(socket_, static_cast<short>(unsent_.empty() ? POLLIN : POLLIN | POLLOUT), deadline);
  }
}

// Sends and receives what is possible without waiting. Returns false if the connection is closed. Receives
// even if nothing can be sent any more: the server may have sent the reason before it closed the connection.
bool Client::exchange_bytes() {
  bool open = true;
  while (!unsent_.empty()) {
    const ssize_t count = ::send(socket_.get(), unsent_.data(), unsent_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && try_later()) break;
    if (count < 0) {
      unsent_.clear();
      open = false;
      break;
    }
    unsent_.erase(0, static_cast<size_t>(count));
  }
  std::array<char, size_t{16} << 10> buffer;
  while (true) {
    const ssize_t count = recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && try_later()) return open;
    if (count <= 0) return false;
    received_.append(buffer.data(), static_cast<size_t>(count));
  }
}

void Client::fail_gone() const {
  fail(ErrorKind::PeerLost,
       "the table of the ranks at {} is gone: the process that holds it (rank 0 of the job) has ended, or "
       "can no longer be reached. Its own output says why",
       address_);
}

void Client::fail_silent() const {
  fail(ErrorKind::Timeout,
       "the table of the ranks at {} has not answered for {} s: check what the process that holds it (rank "
       "0 of the job) is doing",
       address_, std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - asked_at_).count());
}

}  // namespace tutti::comm::table
