#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tutti/transport/shared/signal.h"
#include "tutti/transport/transport.h"

// Each rank of a SharedTransport has in its part of the control region: a slot, a pipe from each other
// rank, and the two halves of its staging buffer.
namespace tutti::comm {

// Returns the size of half a staging buffer. The staging buffers of all ranks should fit into the cache
// together; smaller halves need more sync points.
constexpr size_t staging_half(int world) { return size_t{world <= 2 ? 1024U : 512U} << 10; }
constexpr size_t kPipeBytes = size_t{64} << 10;
constexpr size_t kCauseBytes = 2000;

// Tells all other ranks a rank's next operation. It is stored next to the rank's signal, in the same cache
// line.
struct OperationSummary {
  uint64_t key = 0;     // hash of the operation
  uint64_t offset = 0;  // of the data in `region`
  int32_t region = -1;  // the number of the region with the data; -1: not in a region
  bool more = false;    // exchange: there will be another round
};

struct ControlSlot {
  alignas(64) Signal meetings;  // number of sync points this rank has reached
  OperationSummary summaries[2];
  alignas(64) OperationLabel label[2];
  std::atomic<uint32_t> completed;  // `meetings` when this rank completed its last operation
  // The sends and recvs for which the rank has been waiting, and the one that began to wait last.
  std::atomic<uint32_t> messages;
  OperationLabel message;
  std::atomic<uint32_t> left;  // the rank has closed its end
  // Used only in the slot of rank 0: why the group has failed.
  std::atomic<uint32_t> failed;
  uint32_t kind;
  char cause[kCauseBytes];
};

// Carries messages from one rank to another, piece by piece: the sender fills it, the receiver empties it.
struct RankPipe {
  alignas(64) Signal filled;
  alignas(64) Signal emptied;
  OperationLabel label;  // of the sender
  std::byte bytes[kPipeBytes];
};

}  // namespace tutti::comm
