#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/failure_board.h"
#include "tutti/comm/transport.h"

namespace tutti::comm {

// The ranks of one host among several hosts that fail together: a failure here is reported to the ranks of
// all hosts, and a failure elsewhere ends the operations in progress here. The board enforces the deadlines:
// a rank must not blame a rank of its host that is itself waiting for another host.
class HostGroup final : public Transport, public SharedBlocks {
 public:
  // `memory` must have SharedBlocks; its ranks are the ranks `ranks` of the board, which must outlive this.
  HostGroup(std::shared_ptr<Transport> memory, std::vector<int> ranks, FailureBoard& board);

  std::string name() const override { return memory_->name(); }
  int rank() const override { return memory_->rank(); }
  int world() const override { return memory_->world(); }
  SharedBlocks* shared_blocks() override { return this; }
  void exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                const Operation& operation) override;
  void send(ConstBytes bytes, int to, const Operation& operation) override;
  void recv(Bytes bytes, int from, const Operation& operation) override;
  void combine(std::span<const SlicedSum> sums, const Operation& operation) override;
  void sync(const Operation& operation) override;
  void abandon(const std::string& text) override { board_.give_up(text); }
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override;

  SharedBlock allocate(size_t size, const Operation& operation) override;
  SharedBlock everyones(const std::byte* mine, size_t size) const override;

 private:
  using Party = FailureBoard::Party;

  std::vector<int> others() const;
  template <class Body>
  void attempt(const Operation& operation, Party party, std::vector<int> peers, const Body& body);

  const std::shared_ptr<Transport> memory_;  // shared: the board may still call its abandon() when this ends
  SharedBlocks& blocks_;                     // the same object
  const std::vector<int> ranks_;             // on the board
  FailureBoard& board_;
};

}  // namespace tutti::comm
