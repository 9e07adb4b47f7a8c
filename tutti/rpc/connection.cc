#include "tutti/rpc/connection.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/memory.h"
#include "tutti/base/start_thread.h"
#include "tutti/rpc/handshake.h"

namespace tutti::rpc {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kGreeting{10000};
// The maximum time without progress in the middle of a message, because an incomplete message holds memory
// that other callers wait for.
constexpr milliseconds kChunk{60000};
// Bytes that are received at once if nobody takes them.
constexpr size_t kDropped = size_t{16} << 10;
// The maximum that is received after a failure before the caller is told of it.
constexpr size_t kMostDropped = size_t{32} << 20;

}  // namespace

std::thread Connection::start() {
  try {
    return start_thread("serving a caller", [this] { run(); });
  } catch (const Error& error) {
    if (shared_.tls == nullptr) turn_away(*stream_, error, shared_.options.purpose);
    throw;
  }
}

bool Connection::is_candidate() {
  const std::lock_guard lock(mutex_);
  return !greeted_ && !ended_;
}

bool Connection::is_known() {
  const std::lock_guard lock(mutex_);
  return greeted_ && !ended_;
}

void Connection::hang_up() {
  const std::lock_guard lock(mutex_);
  if (!ended_) stream_->hang_up();
}

void Connection::take_leave() {
  const std::lock_guard lock(mutex_);
  if (!ended_) stream_->stop_receiving();
}

void Connection::run() {
  try {
    talk();
  } catch (const StreamEnd& end) {
    // A caller that disconnects is the normal end of a connection, but TLS may have failed.
    if (end.kind() != ErrorKind::PeerLost)
      refuse(end);
    else if (shared_.closing)
      say_farewell();
  } catch (const Error& error) {
    refuse(error);
  } catch (const std::bad_alloc&) {
    refuse(Error(ErrorKind::Overloaded, "the server is out of memory"));
  }
  tell_gone();
  end_answering();
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  beating_.reset();
  if (taken_) shared_.service.take_connection(caller_, std::move(stream_));
  stream_.reset();
  done_ = true;
}

// A caller that has just sent a request may not hear it.
void Connection::say_farewell() {
  try {
    wire_.send(refusal(Error(ErrorKind::PeerLost, kFarewell)), {}, {.deadline = Clock::now()});
  } catch (const Error&) {
    // The caller has gone.
  }
}

void Connection::refuse(const Error& error) {
  if (shared_.options.report)
    shared_.options.report(fmt::format("{} was refused: {}", caller_.address, error.what()));
  wire_.refuse(error);
}

void Connection::talk() {
  if (!greet()) return;
  while (true) receive_and_serve(receive_frame());
}

// Returns false if the service takes the connection.
bool Connection::greet() {
  const TimeLimits time{.deadline = Clock::now() + kGreeting};
  const bool is_as_asked = shared_.tls == nullptr || stream_->accept_tls(*shared_.tls, time);
  const std::string& purpose = shared_.options.purpose;
  exchange_versions(*stream_, time, purpose, shared_.options.credentials.checksums);
  if (!is_as_asked)
    fail(ErrorKind::InvalidArgument, "this server uses TLS, but the caller does not: give it --tls-ca");
  // A caller that is told that it is welcome must not find that the host closes without having waited for it.
  greet_caller(wire_, shared_.options.credentials.secret, time, purpose, [this](const Greeting& greeting) {
    const std::lock_guard lock(mutex_);
    caller_.hello = greeting.hello;
    arena_ = greeting.arena;
    caller_.shares_memory = arena_ != nullptr;
    greeted_ = true;
  });
  taken_ = shared_.service.takes_connection(caller_);
  if (!taken_) beating_.emplace(*stream_);
  return !taken_;
}

void Connection::watch() {
  {
    const std::lock_guard lock(mutex_);
    if (!serving_ || (!gone_ && (receiving_ || !stream_->ended()))) return;
  }
  tell_gone();
}

void Connection::tell_gone() {
  {
    const std::lock_guard lock(mutex_);
    gone_ = true;  // also for a caller that is only just greeting: it must not be served any more
    if (!greeted_) return;
  }
  shared_.service.gone(caller_);
}

std::shared_ptr<std::byte> Connection::allocate(Buffers& buffers, size_t bytes) {
  auto memory = buffers.allocate(bytes, [this] { return !stream_->ended(); });
  if (memory == nullptr)
    throw StreamEnd(ErrorKind::PeerLost, "the client closed the connection while it waited for memory");
  return memory;
}

Frame Connection::receive_frame() {
  Frame frame = wire_.receive({}, [this](size_t bytes) { return allocate(shared_.buffers, bytes); }, {},
                              {.each = kChunk});
  if (frame.kind != FrameKind::Request) fail(ErrorKind::DataLoss, "received a frame of an unexpected kind");
  return frame;
}

Message Connection::receive(const Frame& frame) {
  Message request;
  request.head = decode_json(frame.head);
  const PieceMemory received =
      memory_for(frame.pieces, [this](size_t bytes) { return allocate(shared_.buffers, bytes); });
  for (size_t i = 0; i < frame.pieces.size(); ++i) {
    const PieceHeader& header = frame.pieces[i];
    if (header.follows()) {
      wire_.receive(received.places[i], {.each = kChunk});
      request.pieces.push_back({received.places[i], received.memory});
    } else {
      request.pieces.push_back(in_arena(header));
    }
  }
  wire_.finish();
  return request;
}

Piece Connection::in_arena(const PieceHeader& header) const {
  if (arena_ == nullptr)
    fail(ErrorKind::DataLoss, "a piece is in shared memory that this host does not share with the client");
  return {arena_->at(header.place, header.size), arena_};
}

Piece Connection::receive_piece(const PieceHeader& header) {
  if (!header.follows()) return in_arena(header);
  const PieceMemory received =
      memory_for({&header, 1}, [this](size_t bytes) { return allocate(shared_.arriving, bytes); });
  wire_.receive(received.places.front(), {.each = kChunk});
  return {received.places.front(), received.memory};
}

void Connection::drop_piece(const PieceHeader& header) {
  if (!header.follows()) return;
  std::array<std::byte, kDropped> dropped;
  for (uint64_t left = header.size; left > 0;) {
    const size_t next = std::min<uint64_t>(left, dropped.size());
    wire_.receive(Bytes(dropped).first(next), {.each = kChunk});
    left -= next;
  }
}

Piece Connection::Arriving::take_piece() {
  const PieceHeader header = headers_.front();
  headers_ = headers_.subspan(1);
  const auto receiving = [this](bool now) {
    const std::lock_guard lock(connection_.mutex_);
    connection_.receiving_ = now;
  };
  receiving(true);
  try {
    Piece piece = connection_.receive_piece(header);
    receiving(false);
    return piece;
  } catch (...) {
    receiving(false);
    error_ = std::current_exception();
    throw;
  }
}

void Connection::Arriving::throw_if_broken() const {
  if (error_) std::rethrow_exception(error_);
}

void Connection::Arriving::drop_rest() {
  for (const PieceHeader& header : headers_) connection_.drop_piece(header);
  connection_.wire_.finish();
}

std::vector<Bytes> Connection::places_of(const Frame& frame) const {
  std::vector<Bytes> places;
  for (const PieceHeader& header : frame.into)
    places.push_back(header.follows() || arena_ == nullptr ? Bytes()
                                                           : Bytes(arena_->at(header.place, header.size)));
  return places;
}

bool Connection::is_busy() {
  const std::lock_guard lock(mutex_);
  // If the connection were closed before all of the answer has arrived, the caller's next beat would make the
  // system drop the rest.
  return serving_ || answering_ || (greeted_ && !ended_ && stream_->has_unsent());
}

void Connection::receive_and_serve(const Frame& frame) {
  const bool all_here = std::none_of(frame.pieces.begin(), frame.pieces.end(),
                                     [](const PieceHeader& header) { return header.follows(); });
  if (all_here || !shared_.service.takes_incoming(caller_, frame.method))
    return send(reply_to(frame, receive(frame)));
  Arriving arriving(*this, frame.pieces);
  Message request{.head = decode_json(frame.head), .pieces = {}, .into = {}, .incoming = &arriving};
  const Reply reply = reply_to(frame, std::move(request));
  arriving.throw_if_broken();
  // A caller that still has much to send would hear of the failure too late.
  if (reply.error && arriving.bytes_left() > kMostDropped) {
    wire_.refuse(*reply.error);
    throw StreamEnd(ErrorKind::PeerLost, "the caller was refused");
  }
  arriving.drop_rest();
  send(reply);
}

// If a write fails, closes the connection, because a part of the answer may have been sent.
void Connection::send(const Reply& reply) {
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
    const ErrorKind kind = ran_out(error) ? ErrorKind::Overloaded : ErrorKind::Bug;
    return failure(Error(kind, fmt::format("'{}': {}", frame.method, error.what())));
  }
}

Message Connection::ask_service(const Frame& frame, const Message& request) {
  {
    const std::lock_guard lock(mutex_);
    if (gone_) throw StreamEnd(ErrorKind::PeerLost, "the server is closing");
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
    // A PeerLost from a service that was told gone() is not sent: the caller has gone or the host is closing.
    if (gone_ && error.kind() == ErrorKind::PeerLost)
      throw StreamEnd(ErrorKind::PeerLost, "the client has closed the connection");
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

// Returns the location of a piece of the answer. If the caller wants it in its arena, copies it there, unless
// the service has already written it there.
PieceHeader Connection::place(const Piece& piece, const PieceHeader& wanted) const {
  if (wanted.follows() || wanted.size != piece.bytes.size() || arena_ == nullptr) return {piece.bytes.size()};
  const Bytes to = arena_->at(wanted.place, wanted.size);
  // The ranges may overlap, because the service may return pieces of the request.
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
    frame.pieces.push_back(place(piece, i < request.into.size() ? request.into[i] : PieceHeader{}));
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
  return {.frame = encode(frame), .error = error};
}

}  // namespace tutti::rpc
