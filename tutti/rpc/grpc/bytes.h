#pragma once

#include <memory>
#include <span>

#include "tutti/rpc/stream.h"

namespace grpc {
class ByteBuffer;
}

namespace tutti::rpc {

// Counts the leases of slices that gRPC has not released yet: gRPC may read the bytes of a message after it
// has reported the write as done.
class SliceLeases {
 public:
  SliceLeases();
  ~SliceLeases();
  SliceLeases(const SliceLeases&) = delete;
  SliceLeases& operator=(const SliceLeases&) = delete;

  // Returns the bytes as a gRPC buffer: short parts are copied, long parts are leased.
  grpc::ByteBuffer lend(std::span<const ConstBytes> parts);
  bool all_returned() const;
  // Returns when all leases have been released, which is soon after the connection is closed.
  void await() const;

 private:
  struct Slice;
  struct State;
  const std::shared_ptr<State> state_;  // shared with the leased slices
};

// Returns the received bytes without a copy: they stay in gRPC's memory.
Chunk chunk_of(const grpc::ByteBuffer& bytes);

}  // namespace tutti::rpc
