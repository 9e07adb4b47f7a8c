#include "tutti/comm/hierarchy/host_group.h"

#include <chrono>
#include <utility>

namespace tutti::comm {
namespace {

// The memory's deadlines come this much later than the board's, in case the board cannot enforce those.
constexpr std::chrono::seconds kMemoryIsLater{60};

Operation later(Operation operation) {
  operation.deadline += kMemoryIsLater;
  return operation;
}

}  // namespace

HostGroup::HostGroup(std::shared_ptr<Transport> memory, std::vector<int> ranks, FailureBoard& board)
    : memory_(std::move(memory)),
      blocks_(*memory_->shared_blocks()),
      ranks_(std::move(ranks)),
      board_(board) {
  board_.on_failure([weak = std::weak_ptr(memory_)](const Error& error) {
    if (const auto memory = weak.lock()) memory->abandon(error.what());
  });
}

std::vector<int> HostGroup::others() const {
  std::vector<int> others;
  for (int r = 0; r < world(); ++r) {
    if (r != rank()) others.push_back(ranks_[static_cast<size_t>(r)]);
  }
  return others;
}

// If the memory throws an error, all ranks get the text that was reported to the board first.
template <class Body>
void HostGroup::attempt(const Operation& operation, Party party, std::vector<int> peers, const Body& body) {
  const auto watch = board_.watch(operation, party, std::move(peers));
  try {
    body(later(operation));
  } catch (const Error& error) {
    board_.report(error.kind(), error.what());
  }
}

void HostGroup::exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                         const Operation& operation) {
  attempt(operation, Party::All, others(),
          [&](const Operation& now) { memory_->exchange(sends, recvs, now); });
}

void HostGroup::send(ConstBytes bytes, int to, const Operation& operation) {
  attempt(operation, Party::Two, {ranks_[static_cast<size_t>(to)]},
          [&](const Operation& now) { memory_->send(bytes, to, now); });
}

void HostGroup::recv(Bytes bytes, int from, const Operation& operation) {
  attempt(operation, Party::Two, {ranks_[static_cast<size_t>(from)]},
          [&](const Operation& now) { memory_->recv(bytes, from, now); });
}

std::unique_ptr<Transport> HostGroup::split(const std::vector<int>& ranks, const std::string& name) {
  return memory_->split(ranks, name);
}

SharedBlock HostGroup::allocate(size_t size, const Operation& operation) {
  SharedBlock block;
  attempt(operation, Party::All, others(),
          [&](const Operation& now) { block = blocks_.allocate(size, now); });
  return block;
}

SharedBlock HostGroup::everyones(const std::byte* mine, size_t size) const {
  return blocks_.everyones(mine, size);
}

void HostGroup::sync(const Operation& operation) {
  attempt(operation, Party::All, others(), [&](const Operation& now) { memory_->sync(now); });
}

void HostGroup::combine(std::span<const SlicedSum> sums, const Operation& operation) {
  attempt(operation, Party::All, others(), [&](const Operation& now) { memory_->combine(sums, now); });
}

}  // namespace tutti::comm
