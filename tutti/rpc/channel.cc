#include "tutti/rpc/channel.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/address.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/net/heart.h"
#include "tutti/net/stream.h"
#include "tutti/rpc/buffers.h"
#include "tutti/rpc/handshake.h"
#include "tutti/rpc/wire.h"

namespace tutti::rpc {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{10};
constexpr milliseconds kLongestPause{1000};
// The maximum time of one attempt: if packets are lost, the next attempt may use another name server or
// route.
constexpr milliseconds kAttempt{10000};

// Thrown when give_up() has returned true.
class GivenUp final : public Error {
 public:
  GivenUp() : Error(ErrorKind::Timeout, "given up") {}
};

// Returns "'push' (gradients) at step 118", without the parts that are unknown.
std::string describe(const std::string& method, const CallOptions& options) {
  std::string text = fmt::format("'{}'", method);
  if (*options.what != '\0') text += fmt::format(" ({})", options.what);
  if (options.step >= 0) text += fmt::format(" at step {}", options.step);
  return text;
}

TimeLimits limits_of(const CallOptions& options, Clock::time_point deadline) {
  TimeLimits time{.deadline = deadline};
  if (options.give_up) {
    time.look = [&options] {
      if (options.give_up()) throw GivenUp();
    };
  }
  return time;
}

}  // namespace

struct Channel::Impl {
  // The state of an open connection.
  struct Connection {
    explicit Connection(std::unique_ptr<Stream> open) : stream(std::move(open)), wire(*stream) {}
    const std::unique_ptr<Stream> stream;
    Wire wire;
    bool sees_arena = false;
    std::optional<net::Beating> beating;  // after the handshake
  };

  Impl(const std::string& place, const ChannelOptions& asked)
      : address(place),
        options(asked),
        who(asked.who.empty() ? place : asked.who),
        tls(net::Tls::make(asked.credentials, net::Tls::Side::Caller)),
        buffers(asked.memory) {
    parse_address(place);
  }

  void open(Clock::time_point deadline);
  void open_in_time(milliseconds timeout);
  PieceHeader header_of(ConstBytes bytes) const;
  void send(const std::string& method, const Message& request, const CallOptions& call,
            const TimeLimits& time);
  Frame receive_frame(const TimeLimits& time);
  std::vector<Piece> receive_pieces(const Frame& answer, const CallOptions& call, const TimeLimits& time);
  Frame exchange(const std::string& method, const Message& request, const CallOptions& call,
                 const TimeLimits& time, Message& answer);
  [[noreturn]] void fail_calling(const Error& error, const std::string& what, milliseconds timeout) const;

  const std::string address;
  const ChannelOptions options;
  const std::string who;
  const std::shared_ptr<const net::Tls> tls;  // null: without TLS
  Buffers buffers;
  std::optional<Connection> connection;
  // Since when no attempt to connect has succeeded; nullopt: the last one has.
  std::optional<Clock::time_point> unreachable_since;
  std::atomic_flag in_use;
};

namespace {

// Detects concurrent calls, in which two threads would read each other's answers.
class OneAtATime {
 public:
  OneAtATime(std::atomic_flag& in_use, const std::string& who) : in_use_(in_use) {
    if (in_use_.test_and_set(std::memory_order_acquire))
      fail(ErrorKind::Bug, "{}: called by two threads at once; each thread needs a channel of its own", who);
  }
  ~OneAtATime() { in_use_.clear(std::memory_order_release); }
  OneAtATime(const OneAtATime&) = delete;
  OneAtATime& operator=(const OneAtATime&) = delete;

 private:
  std::atomic_flag& in_use_;
};

}  // namespace

void Channel::Impl::open(Clock::time_point deadline) {
  connection.emplace(net::open_stream(address, tls.get(), deadline));
  try {
    exchange_versions(*connection->stream, {.deadline = deadline}, kCalls, options.credentials.checksums);
    connection->sees_arena = greet_host(connection->wire, options.credentials.secret, options.hello,
                                        options.arena.get(), {.deadline = deadline});
    connection->beating.emplace(*connection->stream);
  } catch (...) {
    connection.reset();
    throw;
  }
}

void Channel::Impl::open_in_time(milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  if (!unreachable_since) unreachable_since = Clock::now();
  std::string last = "nothing answers";
  for (milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    try {
      open(std::min(deadline, Clock::now() + kAttempt));
      unreachable_since.reset();
      return;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PeerLost && error.kind() != ErrorKind::Timeout)
        throw Error(error.kind(), fmt::format("{}: {}", who, error.what()));
      if (error.kind() == ErrorKind::PeerLost) last = error.what();
    }
    std::this_thread::sleep_for(std::min(pause, until(deadline)));
    if (Clock::now() >= deadline)
      fail(
          ErrorKind::Timeout,
          "{}: not reachable for {:.1f} s ({}). Check that it is running, that this is its address, and that "
          "no firewall blocks the connection",
          who, std::chrono::duration<double>(Clock::now() - *unreachable_since).count(), last);
  }
}

PieceHeader Channel::Impl::header_of(ConstBytes bytes) const {
  if (!connection->sees_arena || bytes.empty() || !options.arena->contains(bytes)) return {bytes.size()};
  return {bytes.size(), options.arena->offset_of(bytes)};
}

void Channel::Impl::send(const std::string& method, const Message& request, const CallOptions& call,
                         const TimeLimits& time) {
  Frame frame;
  frame.method = method;
  frame.head = encode_json(request.head);
  std::vector<ConstBytes> following;
  for (const Piece& piece : request.pieces) {
    frame.pieces.push_back(header_of(piece.bytes));
    if (frame.pieces.back().follows()) following.push_back(piece.bytes);
  }
  for (const Bytes bytes : call.into) frame.into.push_back(header_of(bytes));
  connection->wire.send(frame, following, time);
}

Frame Channel::Impl::receive_frame(const TimeLimits& time) {
  Frame frame = connection->wire.receive(
      {}, [this](size_t bytes) { return buffers.allocate(bytes); }, time, time);
  if (frame.kind != FrameKind::Answer && frame.kind != FrameKind::Failure)
    fail(ErrorKind::DataLoss, "received a frame of an unexpected kind");
  return frame;
}

std::vector<Piece> Channel::Impl::receive_pieces(const Frame& answer, const CallOptions& call,
                                                 const TimeLimits& time) {
  PieceMemory received{call.into, {}};
  if (call.into.empty())
    received = memory_for(answer.pieces, [this](size_t size) { return buffers.allocate(size); });
  if (answer.pieces.size() != received.places.size())
    fail(ErrorKind::DataLoss, "{} pieces were received, but {} are expected", answer.pieces.size(),
         received.places.size());
  std::vector<Piece> pieces;
  for (size_t i = 0; i < received.places.size(); ++i) {
    const PieceHeader& header = answer.pieces[i];
    const Bytes place = received.places[i];
    if (header.size != place.size())
      fail(ErrorKind::DataLoss, "piece {} has {} bytes, but {} are expected", i, header.size, place.size());
    if (header.follows()) {
      connection->wire.receive(place, time);
    } else if (call.into.empty() || header.place != header_of(place).place) {
      fail(ErrorKind::DataLoss, "piece {} was put in a place that was not requested", i);
    }
    pieces.push_back({place, received.memory});
  }
  return pieces;
}

// Returns the frame of the answer, and stores its head and pieces in `answer`.
Frame Channel::Impl::exchange(const std::string& method, const Message& request, const CallOptions& call,
                              const TimeLimits& time, Message& answer) {
  send(method, request, call, time);
  Frame frame = receive_frame(time);
  answer.head = decode_json(frame.head);
  if (frame.kind == FrameKind::Answer) {
    answer.pieces = receive_pieces(frame, call, time);
  } else if (!answer.head.is_string()) {
    fail(ErrorKind::DataLoss, "received a failure without an error text");
  }
  connection->wire.finish();
  return frame;
}

void Channel::Impl::fail_calling(const Error& error, const std::string& what, milliseconds timeout) const {
  const auto* const end = dynamic_cast<const StreamEnd*>(&error);
  switch (error.kind()) {
    case ErrorKind::Timeout:
      if (end != nullptr && end->told()) break;  // the service has waited in vain, and says for what
      fail(
          ErrorKind::Timeout,
          "{}: no answer to {} for {:g} s: the task is stopped, stuck or overloaded, or the network to it is "
          "down. Look at its log, or raise --timeout",
          who, what, seconds(timeout));
    case ErrorKind::PeerLost:
      fail(ErrorKind::PeerLost,
           "{}: the connection ended during {} ({}). The task has ended, or the network is down; its own "
           "output says why",
           who, what, error.what());
    default:
      break;
  }
  throw Error(error.kind(), fmt::format("{}: {}: {}", who, what, error.what()));
}

Channel::Channel(const std::string& address, const ChannelOptions& options)
    : impl_(std::make_unique<Impl>(address, options)) {}

Channel::~Channel() = default;

void Channel::connect(milliseconds timeout) {
  const OneAtATime alone(impl_->in_use, impl_->who);
  if (!impl_->connection) impl_->open_in_time(timeout);
}

bool Channel::is_connected() const { return impl_->connection.has_value(); }

Message Channel::call(const std::string& method, const Message& request, const CallOptions& options) {
  const OneAtATime alone(impl_->in_use, impl_->who);
  const auto deadline = deadline_after(options.timeout);
  if (!impl_->connection) impl_->open_in_time(options.timeout);
  Message answer;
  Frame frame;
  try {
    frame = impl_->exchange(method, request, options, limits_of(options, deadline), answer);
  } catch (const GivenUp&) {
    impl_->connection.reset();
    fail(ErrorKind::Timeout, "{}: stopped waiting for the answer to {}", impl_->who,
         describe(method, options));
  } catch (const Error& error) {
    // Closes the connection: the rest of this answer could not be told from the next one.
    impl_->connection.reset();
    impl_->fail_calling(error, describe(method, options), options.timeout);
  } catch (...) {
    impl_->connection.reset();
    throw;
  }
  if (frame.kind == FrameKind::Failure) throw Error(frame.error, answer.head.get<std::string>());
  return answer;
}

}  // namespace tutti::rpc
