#pragma once

#include <memory>
#include <span>

#include "tutti/rpc/grpc/bytes.h"
#include "tutti/rpc/stream.h"

namespace grpc {
class CompletionQueue;
}

namespace tutti::rpc {

// A pending operation of gRPC, with its address as the tag.
struct CompletionTag {
  bool pending = false;
  bool ok = false;

  void* start() {
    pending = true;
    return this;
  }
};

// Blocking reads and writes of one call, over a completion queue of its own. A read is always pending, so
// that the next chunk arrives while one is processed, and the end of the call is noticed. Used by both ends,
// which differ in the hooks.
class Pump {
 public:
  class Hooks {
   public:
    virtual ~Hooks() = default;
    virtual void start_read(grpc::ByteBuffer& into, void* tag) = 0;
    virtual void start_write(const grpc::ByteBuffer& bytes, void* tag) = 0;
    // Called when the call has ended: throws a StreamEnd with the reason.
    [[noreturn]] virtual void fail_ended() = 0;
  };

  Pump(grpc::CompletionQueue& queue, Hooks& hooks);
  ~Pump();
  Pump(const Pump&) = delete;
  Pump& operator=(const Pump&) = delete;

  // Starts the first read. To be called when the call has begun.
  void read_on();
  bool await_room(Clock::time_point deadline);
  void write(std::span<const ConstBytes> parts, Clock::time_point deadline);
  void flush(Clock::time_point deadline);
  Chunk read(Clock::time_point deadline);
  // Returns true if a read has failed. Does not block.
  bool ended();

  // Waits for an operation and processes others meanwhile. Returns false at the deadline.
  bool await(const CompletionTag& operation, Clock::time_point deadline);
  // After the call was cancelled: waits for all pending operations.
  void drain();
  // Waits until all leases have been released.
  void await_leases();

 private:
  bool step(Clock::time_point deadline);

  grpc::CompletionQueue& queue_;
  Hooks& hooks_;
  SliceLeases leases_;
  CompletionTag reading_;
  CompletionTag writing_;
  const std::unique_ptr<grpc::ByteBuffer> incoming_;
};

}  // namespace tutti::rpc
