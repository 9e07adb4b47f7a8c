#pragma once

#include <memory>
#include <span>

#include "tutti/rpc/grpc/bytes.h"
#include "tutti/rpc/stream.h"

namespace grpc {
class CompletionQueue;
}

namespace tutti::rpc {

// One of gRPC's operations, which gives its address as the tag.
struct Operation {
  bool pending = false;
  bool ok = false;

  void* start() {
    pending = true;
    return this;
  }
};

// Reads and writes of one call, with plain blocking code, over a completion queue of its own. A read is
// always under way, so that one chunk comes while another is looked at, and the end is noticed. Both ends of
// a call have the same; what differs is in the hooks.
class Pump {
 public:
  class Hooks {
   public:
    virtual ~Hooks() = default;
    virtual void start_read(grpc::ByteBuffer& into, void* tag) = 0;
    virtual void start_write(const grpc::ByteBuffer& bytes, void* tag) = 0;
    // The call has ended: throws a StreamEnd that says why.
    [[noreturn]] virtual void fail_ended() = 0;
  };

  Pump(grpc::CompletionQueue& queue, Hooks& hooks);
  ~Pump();
  Pump(const Pump&) = delete;
  Pump& operator=(const Pump&) = delete;

  // The first read; to be called when the call has begun.
  void read_on();
  void write(std::span<const ConstBytes> parts, Clock::time_point deadline);
  void flush(Clock::time_point deadline);
  Chunk read(Clock::time_point deadline);
  // Whether a read has failed, without waiting.
  bool ended();

  // Waits for an operation, while others are completed too. False at the deadline.
  bool await(const Operation& operation, Clock::time_point deadline);
  // After the call has been cancelled: waits for all that is under way.
  void drain();
  // Everything lent is free again.
  void await_loan();

 private:
  bool step(Clock::time_point deadline);
  void await_write(Clock::time_point deadline);

  grpc::CompletionQueue& queue_;
  Hooks& hooks_;
  Loan loan_;
  Operation reading_;
  Operation writing_;
  const std::unique_ptr<grpc::ByteBuffer> incoming_;
};

}  // namespace tutti::rpc
