#pragma once

#include <memory>
#include <span>

#include "tutti/rpc/stream.h"

namespace grpc {
class ByteBuffer;
}

namespace tutti::rpc {

// Counts the bytes that gRPC has been lent and has not let go of: it may hold on to them after it has said
// that they are on their way.
class Loan {
 public:
  Loan();
  ~Loan();
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  // The bytes as gRPC takes them: short ones are copied, long ones are lent.
  grpc::ByteBuffer lend(std::span<const ConstBytes> parts);
  bool all_returned() const;
  // Returns when all of it has been let go of, which is soon where the connection is closed.
  void await() const;

 private:
  struct Slice;
  struct State;
  const std::shared_ptr<State> state_;  // shared with what is lent
};

// What has come, as it lies in gRPC's memory.
Chunk chunk_of(const grpc::ByteBuffer& bytes);

}  // namespace tutti::rpc
