#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tutti/transport/scratch_buffer.h"
#include "tutti/transport/transport.h"

namespace tutti::comm::tcp {

// The messages of one operation: one to each peer and one from each peer, which may be empty.
class Traffic {
 public:
  virtual ~Traffic() = default;
  // The sizes of the messages in bytes.
  virtual uint64_t to(int peer) const = 0;
  virtual uint64_t from(int peer) const = 0;
  // Return where the bytes of a message from `offset` on are, or go, as far as they lie together and may be
  // moved now.
  virtual ConstBytes outgoing(int peer, uint64_t offset) const = 0;
  virtual Bytes incoming(int peer, uint64_t offset) const = 0;
  // So many bytes of the message from this peer have arrived.
  virtual void arrived(int /*peer*/, uint64_t /*bytes*/) {}
};

// Moves messages from and to the callers' memory.
class Exchange final : public Traffic {
 public:
  Exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs) : sends_(sends), recvs_(recvs) {}

  uint64_t to(int peer) const override { return sends_[static_cast<size_t>(peer)].size(); }
  uint64_t from(int peer) const override { return recvs_[static_cast<size_t>(peer)].size(); }
  ConstBytes outgoing(int peer, uint64_t offset) const override {
    return sends_[static_cast<size_t>(peer)].subspan(offset);
  }
  Bytes incoming(int peer, uint64_t offset) const override {
    return recvs_[static_cast<size_t>(peer)].subspan(offset);
  }

 private:
  const std::span<const ConstBytes> sends_;
  const std::span<const Bytes> recvs_;
};

// Combines the slice of this rank chunk by chunk: a chunk is combined as soon as it has arrived from all
// peers, and its result is sent while others are still on their way. The message to a peer is what this rank
// has of the peer's slice, chunk by chunk and in each chunk input by input, followed by the results of this
// rank's slice. Chunks that wait for those of other peers are kept in a ring of kWindow chunks per peer; a
// peer that is further ahead has to wait. This cannot end in a deadlock, since contributions never wait for
// results.
//
// A result may overwrite the input of which it was computed: its owner has received that input before.
class ChunkedSum final : public Traffic {
 public:
  // `scratch` is used during the lifetime of this object.
  ChunkedSum(const ArraySum& sum, int rank, int world, ScratchBuffer& scratch);

  uint64_t to(int peer) const override;
  uint64_t from(int peer) const override;
  ConstBytes outgoing(int peer, uint64_t offset) const override;
  Bytes incoming(int peer, uint64_t offset) const override;
  void arrived(int peer, uint64_t bytes) override;

 private:
  // A chunk of a slice, in bytes from the beginning of the slice.
  struct Chunk {
    uint64_t number;
    uint64_t begin;
    uint64_t size;
  };

  uint64_t bytes_of(int owner) const;
  uint64_t begin_of(int owner) const;
  Chunk chunk_of(int owner, uint64_t number) const;
  uint64_t contribution(int rank, int owner) const;
  const std::byte* input_at(size_t input, int owner, uint64_t offset) const;
  std::byte* slot_of(int peer, uint64_t chunk) const;
  void combine_complete();
  bool is_complete(const Chunk& chunk) const;
  void combine(const Chunk& chunk);

  const ArraySum& sum_;
  const int rank_;
  const size_t element_;
  const std::vector<ElementRange> slices_;  // by rank
  const uint64_t chunk_bytes_;
  std::byte* const own_;                // receives the result of this rank's slice
  std::byte* const whole_;              // receives all results, and contains `own_`; null if it scatters
  std::vector<const std::byte*> mine_;  // the inputs of this rank
  std::vector<uint64_t> inputs_;        // by rank: how many it has
  std::vector<std::byte*> rings_;       // by peer
  std::vector<uint64_t> received_;      // by peer: bytes of its message
  uint64_t combined_ = 0;               // chunks
};

}  // namespace tutti::comm::tcp
