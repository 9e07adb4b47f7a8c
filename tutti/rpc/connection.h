#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/net/heart.h"
#include "tutti/net/stream.h"
#include "tutti/net/tls.h"
#include "tutti/rpc/arena.h"
#include "tutti/rpc/buffers.h"
#include "tutti/rpc/host.h"
#include "tutti/rpc/wire.h"

namespace tutti::rpc {

// State that all connections of a host share.
struct HostState {
  const HostOptions options;
  Service& service;
  const std::shared_ptr<const net::Tls> tls;  // null: without TLS
  // Held, so that no caller finds that its thread cannot be started.
  const std::shared_ptr<net::Heart> heart;
  Buffers buffers;
  // For pieces that a service takes as they arrive: they need not wait for room behind whole requests.
  Buffers arriving;
  std::atomic<bool> closing = false;  // the host serves nobody any more
};

// An encoded answer: the frame and the pieces that follow it.
struct Reply {
  std::string frame;
  std::vector<ConstBytes> following = {};
  Message answer = {};
  std::optional<Error> error = {};  // instead of an answer
};

// One caller. Its thread does the handshake and then receives, serves and answers requests one by one.
class Connection {
 public:
  Connection(HostState& shared, uint64_t id, std::unique_ptr<Stream> stream)
      : shared_(shared),
        caller_{.id = id, .hello = Json::object(), .address = stream->address()},
        stream_(std::move(stream)),
        wire_(*stream_),
        thread_(start()) {}
  ~Connection() { thread_.join(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool done() const { return done_; }
  // Return true before the handshake has completed, and after that until the end. From any thread.
  bool is_candidate();
  bool is_known();
  // Checks whether the caller is still connected while its request is served. From any thread.
  void watch();
  // Tells the service that the caller is gone; no more requests are served. From any thread.
  void tell_gone();
  // Returns true if a request is being served or its answer has not arrived. From any thread.
  bool is_busy();
  // Ends the connection. From any thread.
  void hang_up();
  // Ends it when no request is being served, and tells the caller that the host has closed. From any thread.
  void take_leave();

 private:
  // The pieces of the current request, for a service that takes them as they arrive.
  class Arriving final : public Incoming {
   public:
    Arriving(Connection& connection, std::span<const PieceHeader> headers)
        : connection_(connection), headers_(headers) {}
    size_t left() const override { return headers_.size(); }
    size_t next_size() const override { return headers_.front().size; }
    Piece take_piece() override;
    // Rethrows the error of a take_piece() that has failed.
    void throw_if_broken() const;
    // Returns the size of the pieces that were not taken.
    uint64_t bytes_left() const { return following_bytes(headers_); }
    void drop_rest();

   private:
    Connection& connection_;
    std::span<const PieceHeader> headers_;  // of the pieces that were not taken
    std::exception_ptr error_;
  };

  std::thread start();
  void run();
  void refuse(const Error& error);
  void say_farewell();
  void talk();
  bool greet();
  Frame receive_frame();
  Message receive(const Frame& frame);
  Piece receive_piece(const PieceHeader& header);
  void drop_piece(const PieceHeader& header);
  Piece in_arena(const PieceHeader& header) const;
  std::vector<Bytes> places_of(const Frame& frame) const;
  void receive_and_serve(const Frame& frame);
  void send(const Reply& reply);
  Message ask_service(const Frame& frame, const Message& request);
  void end_answering();
  Reply reply_to(const Frame& frame, Message request);
  Reply answer(const Frame& request, Message answer) const;
  static Reply failure(const Error& error);
  PieceHeader place(const Piece& piece, const PieceHeader& wanted) const;
  std::shared_ptr<std::byte> allocate(Buffers& buffers, size_t bytes);

  HostState& shared_;
  Caller caller_;  // const after the handshake
  std::shared_ptr<const Mapping> arena_;
  std::optional<net::Beating> beating_;  // after the handshake
  // Used by the thread; during serve(), guarded by mutex_ unless `receiving_`.
  std::unique_ptr<Stream> stream_;
  Wire wire_;
  std::atomic<bool> done_ = false;
  bool taken_ = false;  // by the service; used by the thread only

  std::mutex mutex_;
  bool greeted_ = false;  // all below: guarded by mutex_
  bool ended_ = false;    // the stream is about to be destroyed
  bool serving_ = false;
  bool receiving_ = false;  // the thread uses the stream during serve()
  bool answering_ = false;
  bool gone_ = false;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace tutti::rpc
