#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/address.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/net.h"
#include "tutti/net/heart.h"
#include "tutti/rpc/handshake.h"
#include "tutti/rpc/wire.h"
#include "tutti/transport/board/protocol.h"
#include "tutti/transport/board/tcp_rendezvous.h"

namespace tutti::comm {
namespace {

using net::Clock;
using std::chrono::milliseconds;

constexpr milliseconds kFirstRetry{1};
constexpr milliseconds kLongestRetry{50};
// Time limit for each address: a host that is down or stopped does not answer at all.
constexpr milliseconds kConnectTime{3000};
// How long a board may be overloaded.
constexpr milliseconds kPatience{5000};
// How long a call waits at least, if the board has already taken longer than FindOptions::answer.
constexpr milliseconds kGlance{20};
// The longest pause within a message.
constexpr milliseconds kWithinMessage{60000};

// A board at the other end of a connection. Only one call is in progress at a time. If the server does not
// answer, for example because it is stopped, a call fails after a few seconds; the next call tries again.
class Client final : public Rendezvous {
 public:
  Client(std::unique_ptr<net::Stream> stream, std::string address, const FindOptions& options)
      : address_(std::move(address)),
        holder_(options.holder),
        patience_(options.answer),
        stream_(std::move(stream)),
        wire_(*stream_),
        beating_(*stream_) {}

  void set(const std::string& key, const std::string& value) override { ask(board::kSet, key, value); }
  std::string get(const std::string& key, milliseconds timeout) override;
  std::optional<std::string> peek(const std::string& key) override { return ask(board::kPeek, key, ""); }
  std::string set_once(const std::string& key, const std::string& value) override {
    return ask(board::kSetOnce, key, value).value_or("");
  }
  std::string hold(const std::string& key, const std::string& value) override {
    return ask(board::kHold, key, value).value_or("");
  }
  bool ended() const override { return ended_; }

 private:
  std::optional<std::string> ask(const char* method, const std::string& key, const std::string& value);
  std::optional<std::string> exchange(const char* method, const std::string& key, const std::string& value);
  std::optional<std::string> await_answer();

  const std::string address_;
  const std::string holder_;
  const milliseconds patience_;
  std::atomic<bool> ended_ = false;

  std::mutex mutex_;
  const std::unique_ptr<net::Stream> stream_;  // all below: guarded by mutex_
  rpc::Wire wire_;
  net::Beating beating_;
  bool owed_ = false;  // the server owes an answer to the request sent at asked_at_
  Clock::time_point asked_at_;
  bool gone_ = false;
  std::string changed_;  // not "": how a message was changed on its way, so that the connection was given up
};

std::string Client::get(const std::string& key, milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  for (milliseconds pause = kFirstRetry;; pause = std::min(2 * pause, kLongestRetry)) {
    if (auto value = peek(key)) return *std::move(value);
    if (Clock::now() >= deadline)
      fail(ErrorKind::Timeout,
           "no rank set '{}' on the board at {} within {:g} s: look at the output of the other ranks, or "
           "raise --timeout",
           key, address_, seconds(timeout));
    std::this_thread::sleep_for(std::min(pause, until(deadline)));
  }
}

std::optional<std::string> Client::ask(const char* method, const std::string& key, const std::string& value) {
  if (key.size() > board::kLongestKey || value.size() > board::kLongestValue)
    fail(ErrorKind::InvalidArgument,
         "a board accepts keys of up to {} and values of up to {} bytes, not {} and {}", board::kLongestKey,
         board::kLongestValue, key.size(), value.size());
  const std::lock_guard lock(mutex_);
  try {
    if (!gone_) return exchange(method, key, value);
  } catch (const net::StreamEnd& end) {
    gone_ = true;
    if (end.kind() == ErrorKind::DataLoss) changed_ = end.what();
    ended_ = end.told() && end.kind() == ErrorKind::PeerLost;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Timeout && owed_)
      fail(ErrorKind::Timeout,
           "the board of the ranks at {} has not answered for {} s: check what the process that holds it "
           "({}) is doing",
           address_, std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - asked_at_).count(),
           holder_);
    if (!owed_) fail(error.kind(), "the board of the ranks at {}: {}", address_, error.what());
    gone_ = true;
  }
  if (!changed_.empty())
    fail(ErrorKind::PeerLost, "the connection to the board of the ranks at {} was given up: {}", address_,
         changed_);
  fail(ErrorKind::PeerLost,
       "the board of the ranks at {} is gone: the process that holds it ({}) has ended, or can no "
       "longer be reached. Its own output says why",
       address_, holder_);
}

std::optional<std::string> Client::exchange(const char* method, const std::string& key,
                                            const std::string& value) {
  if (owed_) {
    try {
      await_answer();
    } catch (const Error&) {
      if (owed_) throw;  // else it is an answer to an earlier call, which has timed out
    }
  }
  rpc::Frame frame;
  frame.method = method;
  frame.pieces = {{key.size()}, {value.size()}};
  owed_ = true;
  asked_at_ = Clock::now();
  wire_.send(frame, std::array{net::ConstBytes(as_bytes(key)), net::ConstBytes(as_bytes(value))},
             {.each = kWithinMessage});
  return await_answer();
}

// Throws an Error of the board, after which no answer is owed any more.
std::optional<std::string> Client::await_answer() {
  const auto deadline = std::max(asked_at_ + patience_, Clock::now() + kGlance);
  const rpc::Frame frame = wire_.receive({}, {}, {.deadline = deadline}, {.each = kWithinMessage});
  const bool failed = frame.kind == rpc::FrameKind::Failure;
  const size_t size = frame.pieces.empty() ? 0 : frame.pieces.front().size;
  if ((frame.kind != rpc::FrameKind::Answer && !failed) || frame.pieces.size() > 1 ||
      size > board::kLongestValue)
    throw net::StreamEnd(ErrorKind::DataLoss, "the received bytes do not follow the protocol of a board");
  std::string value(size, '\0');
  wire_.receive(std::as_writable_bytes(std::span(value)), {.each = kWithinMessage});
  wire_.finish();
  owed_ = false;
  if (failed) throw Error(frame.error, rpc::decode_json(frame.head).get<std::string>());
  return frame.pieces.empty() ? std::nullopt : std::optional(std::move(value));
}

void try_host(const FindOptions& options, const net::Tls* tls, const std::string& host,
              FindAttempt& attempt) {
  const std::string address = to_string(Address{host, options.port});
  const net::TimeLimits time{.deadline = deadline_after(std::min(options.timeout, kConnectTime))};
  bool is_board = false;
  std::unique_ptr<net::Stream> stream;
  try {
    stream = net::open_stream(address, tls, time.deadline, options.name, net::kAnySilence);
    rpc::exchange_versions(*stream, time, options.purpose, options.credentials.checksums);
    is_board = true;
    rpc::Wire wire(*stream);
    rpc::greet_host(wire, options.credentials.secret, Json::object(), nullptr, time, options.purpose);
    attempt.board = std::make_shared<Client>(std::move(stream), address, options);
    attempt.host = host;
  } catch (const Error& error) {
    attempt.host = host;
    attempt.obstacle = error.what();
    attempt.listens = stream != nullptr;
    // Another program may make room for the board; certificates do not change.
    const bool by_tls = dynamic_cast<const net::StreamEnd*>(&error) != nullptr;
    attempt.refused = error.kind() == ErrorKind::InvalidArgument && (by_tls || is_board);
    attempt.overloaded = error.kind() == ErrorKind::Overloaded && is_board;
  }
}

FindAttempt try_all(const FindOptions& options, const net::Tls* tls) {
  FindAttempt most;
  for (const std::string& host : options.hosts) {
    FindAttempt attempt;
    try_host(options, tls, host, attempt);
    if (attempt.board) return attempt;
    // The obstacle that tells most is kept.
    if (attempt.refused >= most.refused && attempt.listens >= most.listens) most = std::move(attempt);
  }
  return most;
}

[[noreturn]] void fail_refused(const FindOptions& options, const FindAttempt& last) {
  fail(ErrorKind::InvalidArgument,
       "another job uses {}:{}, or {} there does not admit this task: {}. If that is another job, wait until "
       "it has ended, or choose other addresses",
       last.host, options.port, options.holder, last.obstacle);
}

[[noreturn]] void fail_overloaded(const FindOptions& options, const FindAttempt& last) {
  fail(ErrorKind::Overloaded, "the board of {} at {}:{} takes no more callers: {}", options.holder, last.host,
       options.port, last.obstacle);
}

[[noreturn]] void fail_late(const FindOptions& options, const FindAttempt& last) {
  if (last.listens)
    fail(ErrorKind::Timeout,
         "a program listens at {}:{}, but did not answer as the board of {} within {:g} s. Check that {} is "
         "not stopped, and that no other program uses this port ({})",
         last.host, options.port, options.holder, seconds(options.timeout), options.holder, last.obstacle);
  fail(ErrorKind::Timeout,
       "nothing answered at {}:{} within {:g} s ({}). Check that {} is running, that this is its host, "
       "and that no firewall blocks the connection; or raise --timeout",
       fmt::join(options.hosts, ", "), options.port, seconds(options.timeout), last.obstacle, options.holder);
}

}  // namespace

FindAttempt try_tcp_rendezvous(const FindOptions& options) {
  return try_all(options, net::Tls::make(options.credentials, net::Tls::Side::Caller).get());
}

FoundRendezvous find_tcp_rendezvous(const FindOptions& options) {
  const auto tls = net::Tls::make(options.credentials, net::Tls::Side::Caller);
  const auto deadline = deadline_after(options.timeout);
  const milliseconds patience = std::min(options.timeout / 2, kPatience);
  FindAttempt refusal;
  auto patient_until = Clock::time_point::max();  // with a board that is overloaded
  for (milliseconds pause = kFirstRetry;; pause = std::min(2 * pause, kLongestRetry)) {
    FindOptions left = options;
    left.timeout = until(deadline);
    const FindAttempt attempt = try_all(left, tls.get());
    if (attempt.board) return {attempt.board, attempt.host};
    if (attempt.refused) refusal = attempt;
    patient_until =
        attempt.overloaded ? std::min(patient_until, deadline_after(patience)) : Clock::time_point::max();
    if (Clock::now() >= patient_until) fail_overloaded(options, attempt);
    const bool late = Clock::now() >= deadline;
    if (refusal.refused && (late || !options.several_machines)) fail_refused(options, refusal);
    if (late) fail_late(options, attempt);
    std::this_thread::sleep_for(std::min(pause, until(deadline)));
  }
}

}  // namespace tutti::comm
