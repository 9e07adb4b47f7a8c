#include "tutti/rpc/host.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <list>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/rpc/buffers.h"
#include "tutti/rpc/handshake.h"
#include "tutti/rpc/listening.h"
#include "tutti/rpc/pieces.h"
#include "tutti/rpc/stream.h"
#include "tutti/rpc/wire.h"

namespace tutti::rpc {
namespace {

using std::chrono::milliseconds;

// Every connection has a thread; more of them than this are no cluster but a flood.
constexpr size_t kMostCallers = 4096;
constexpr milliseconds kGreeting{10000};
// That an answer may take to leave when the host ends.
constexpr milliseconds kFarewell{2000};
// Between two chunks of one message: a caller that begins and does not go on holds memory that others wait
// for.
constexpr milliseconds kChunk{60000};
// How soon the end of a caller is noticed whose request is being served.
constexpr milliseconds kWatch{100};

// What the connections of a host share.
struct Shared {
  const HostOptions options;
  Service& service;
  Buffers buffers;
};

// What is sent: the frame, encoded, and those of the answer's pieces that follow it.
struct Reply {
  std::string frame;
  std::vector<ConstBytes> following;
  Message answer;
};

// One caller: its thread greets it, and then receives, serves and answers one request after the other.
class Connection {
 public:
  Connection(Shared& shared, uint64_t id, std::unique_ptr<ServerStream> stream)
      : shared_(shared),
        caller_{id, Json::object(), stream->address()},
        stream_(std::move(stream)),
        wire_(*stream_),
        thread_([this] { run(); }) {}
  ~Connection() { thread_.join(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool done() const { return done_; }
  // Looks whether a caller whose request is being served is still there. From any thread.
  void watch();
  // Nothing of it is served any more. From any thread.
  void tell_gone();
  // Whether it has been asked for something, and the answer has not left. From any thread.
  bool is_busy();

 private:
  void run();
  void refuse(const Error& error);
  void talk();
  void greet();
  Frame receive_frame();
  Message receive(const Frame& frame);
  std::vector<Bytes> places_of(const Frame& frame) const;
  void serve(const Frame& frame, Message request);
  Message ask_service(const Frame& frame, const Message& request);
  void end_answering();
  Reply reply_to(const Frame& frame, Message request);
  Reply answer(const Frame& request, Message answer) const;
  static Reply failure(const Error& error);
  Part place(const Piece& piece, const Part& wanted) const;
  std::shared_ptr<std::byte> allocate(size_t bytes);

  Shared& shared_;
  Caller caller_;  // const once it has been greeted
  std::shared_ptr<const Mapping> arena_;
  std::unique_ptr<ServerStream> stream_;  // of the thread; while it serves, guarded by mutex_
  Wire wire_;
  std::atomic<bool> done_ = false;

  std::mutex mutex_;
  bool greeted_ = false;  // all below: guarded by mutex_
  bool serving_ = false;
  bool answering_ = false;
  bool gone_ = false;

  std::thread thread_;  // last: it uses all of the above
};

void Connection::run() {
  try {
    talk();
  } catch (const StreamEnd&) {
    // It has gone, which is how every connection ends.
  } catch (const Error& error) {
    refuse(error);
  } catch (const std::bad_alloc&) {
    refuse(Error(ErrorKind::Overloaded, "no memory"));
  }
  tell_gone();
  end_answering();
  stream_.reset();
  done_ = true;
}

void Connection::refuse(const Error& error) {
  if (shared_.options.report)
    shared_.options.report(fmt::format("{} was refused: {}", caller_.address, error.what()));
  stream_->refuse(error);
}

void Connection::talk() {
  greet();
  while (true) {
    const Frame frame = receive_frame();
    serve(frame, receive(frame));
  }
}

void Connection::greet() {
  const Greeting greeting =
      greet_caller(wire_, shared_.options.credentials.secret, {.deadline = Clock::now() + kGreeting});
  caller_.hello = greeting.hello;
  arena_ = greeting.arena;
  const std::lock_guard lock(mutex_);
  greeted_ = true;
}

void Connection::watch() {
  {
    const std::lock_guard lock(mutex_);
    if (!serving_ || (!gone_ && !stream_->ended())) return;
  }
  tell_gone();
}

void Connection::tell_gone() {
  {
    const std::lock_guard lock(mutex_);
    if (!greeted_) return;
    gone_ = true;
  }
  shared_.service.gone(caller_);
}

std::shared_ptr<std::byte> Connection::allocate(size_t bytes) {
  auto memory = shared_.buffers.take(bytes, [this] { return !stream_->ended(); });
  if (memory == nullptr)
    throw StreamEnd(ErrorKind::PeerLost, "the caller has gone while it waited for memory");
  return memory;
}

Frame Connection::receive_frame() {
  Frame frame = wire_.receive({}, [this](size_t bytes) { return allocate(bytes); }, Clock::time_point::max(),
                              {.each = kChunk});
  if (frame.kind != FrameKind::Request) fail(ErrorKind::DataLoss, "a frame of another kind than is due");
  return frame;
}

Message Connection::receive(const Frame& frame) {
  Message request;
  request.head = decode_json(frame.head);
  const Room room = room_for(frame.pieces, [this](size_t bytes) { return allocate(bytes); });
  for (size_t i = 0; i < frame.pieces.size(); ++i) {
    const Part& part = frame.pieces[i];
    if (part.follows()) {
      wire_.receive(room.places[i], {.each = kChunk});
      request.pieces.push_back({room.places[i], room.memory});
    } else {
      if (arena_ == nullptr) fail(ErrorKind::DataLoss, "a piece in an arena that is not seen from here");
      request.pieces.push_back({arena_->at(part.place, part.size), arena_});
    }
  }
  wire_.finish();
  return request;
}

std::vector<Bytes> Connection::places_of(const Frame& frame) const {
  std::vector<Bytes> places;
  for (const Part& part : frame.into)
    places.push_back(part.follows() || arena_ == nullptr ? Bytes()
                                                         : Bytes(arena_->at(part.place, part.size)));
  return places;
}

bool Connection::is_busy() {
  const std::lock_guard lock(mutex_);
  return serving_ || answering_;
}

// A write that fails ends the connection: half an answer may have left.
void Connection::serve(const Frame& frame, Message request) {
  const Reply reply = reply_to(frame, std::move(request));
  wire_.send(reply.frame, reply.following, {.each = kChunk});
  end_answering();
}

Reply Connection::reply_to(const Frame& frame, Message request) {
  try {
    request.into = places_of(frame);
    return answer(frame, ask_service(frame, request));
  } catch (const StreamEnd&) {
    throw;
  } catch (const Error& error) {
    return failure(error);
  } catch (const std::exception& error) {
    return failure(Error(ErrorKind::Bug, fmt::format("'{}': {}", frame.method, error.what())));
  }
}

Message Connection::ask_service(const Frame& frame, const Message& request) {
  {
    const std::lock_guard lock(mutex_);
    if (gone_) throw StreamEnd(ErrorKind::PeerLost, "the host is closing");
    serving_ = true;
  }
  try {
    Message answer = shared_.service.serve(caller_, frame.method, request);
    const std::lock_guard lock(mutex_);
    serving_ = false;
    answering_ = true;
    return answer;
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    serving_ = false;
    // What it was told of itself the caller need not hear: that it has gone, or that the host is closing.
    if (gone_ && error.kind() == ErrorKind::PeerLost)
      throw StreamEnd(ErrorKind::PeerLost, "the caller has gone");
    answering_ = true;
    throw;
  } catch (...) {
    const std::lock_guard lock(mutex_);
    serving_ = false;
    answering_ = true;
    throw;
  }
}

void Connection::end_answering() {
  const std::lock_guard lock(mutex_);
  answering_ = false;
}

// Where a piece of the answer goes. What the caller wants in its arena is copied there at once, where the
// service has not done so.
Part Connection::place(const Piece& piece, const Part& wanted) const {
  if (wanted.follows() || wanted.size != piece.bytes.size() || arena_ == nullptr) return {piece.bytes.size()};
  const Bytes to = arena_->at(wanted.place, wanted.size);
  // It may overlap: the service may answer with what it was sent.
  if (to.data() != piece.bytes.data() && !to.empty()) std::memmove(to.data(), piece.bytes.data(), to.size());
  return wanted;
}

Reply Connection::answer(const Frame& request, Message answer) const {
  Reply reply;
  Frame frame;
  frame.kind = FrameKind::Answer;
  frame.head = encode_json(answer.head);
  for (size_t i = 0; i < answer.pieces.size(); ++i) {
    const Piece& piece = answer.pieces[i];
    frame.pieces.push_back(place(piece, i < request.into.size() ? request.into[i] : Part{}));
    if (frame.pieces.back().follows()) reply.following.push_back(piece.bytes);
  }
  reply.frame = encode(frame);
  reply.answer = std::move(answer);
  return reply;
}

Reply Connection::failure(const Error& error) {
  Frame frame;
  frame.kind = FrameKind::Failure;
  frame.error = error.kind();
  frame.head = encode_json(error.what());
  return {encode(frame), {}, {}};
}

void check_options(const HostOptions& options) {
  const Credentials& credentials = options.credentials;
  if (credentials.certificate.empty() && !credentials.authority.empty())
    fail(ErrorKind::InvalidArgument,
         "a server with --tls-ca needs a certificate too: give it --tls-cert and --tls-key");
  if (!credentials.certificate.empty() || options.insecure) return;
  if (!is_loopback(parse_address(options.address).host))
    fail(ErrorKind::InvalidArgument,
         "will not listen at {} without TLS, where other machines can read and change what is sent: give "
         "--tls-cert and --tls-key, or --insecure where the network is trusted, or listen at 127.0.0.1",
         options.address);
}

const HostOptions& checked(const HostOptions& options) {
  check_options(options);
  return options;
}

}  // namespace

struct Host::Impl {
  Impl(const HostOptions& options, Service& service)
      : shared{checked(options), service, Buffers(options.memory)},
        listener(listen(options.address, options.credentials)),
        doorkeeper([this] { keep_door(); }) {}
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void keep_door();
  void let_in(std::unique_ptr<ServerStream> stream);
  bool anyone_busy();

  Shared shared;
  const std::unique_ptr<Listener> listener;
  uint64_t callers = 0;               // so far; of the doorkeeper's
  std::atomic<bool> closing = false;  // nobody is let in any more
  std::atomic<bool> closed = false;   // and nobody is there
  std::mutex mutex;
  std::list<Connection> connections;  // guarded by mutex
  std::thread doorkeeper;             // last: it uses all of the above
};

// Lets callers in, and looks after those that are there, until the last has gone.
void Host::Impl::keep_door() {
  while (!closed) {
    auto stream = listener->accept(kWatch);
    const std::lock_guard lock(mutex);
    if (stream != nullptr && !closing) let_in(std::move(stream));
    for (Connection& connection : connections) connection.watch();
    connections.remove_if([](const Connection& connection) { return connection.done(); });
  }
}

void Host::Impl::let_in(std::unique_ptr<ServerStream> stream) {
  if (connections.size() >= kMostCallers) {
    stream->refuse(Error(ErrorKind::Overloaded, fmt::format("{} callers are here already", kMostCallers)));
    return;
  }
  try {
    connections.emplace_back(shared, ++callers, std::move(stream));
  } catch (const std::system_error& error) {
    if (shared.options.report)
      shared.options.report(fmt::format("a caller was refused: no thread for it: {}", error.what()));
  }
}

bool Host::Impl::anyone_busy() {
  const std::lock_guard lock(mutex);
  return std::any_of(connections.begin(), connections.end(),
                     [](Connection& connection) { return connection.is_busy(); });
}

// What the service has done by now the callers hear of.
Host::Impl::~Impl() {
  closing = true;
  {
    const std::lock_guard lock(mutex);
    for (Connection& connection : connections) connection.tell_gone();
  }
  const auto deadline = Clock::now() + kFarewell;
  while (anyone_busy() && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  listener->close();
  closed = true;
  doorkeeper.join();
}

Host::Host(const HostOptions& options, Service& service) : impl_(std::make_unique<Impl>(options, service)) {}

Host::~Host() = default;

int Host::port() const { return impl_->listener->port(); }

}  // namespace tutti::rpc
