#include "tutti/transport/tcp/traffic.h"

#include <algorithm>

namespace tutti::comm::tcp {
namespace {

// The chunks of a slice: many, so that the first results leave early, but not so small that the calls of the
// system take more time than the bytes.
constexpr uint64_t kChunks = 16;
constexpr uint64_t kSmallestChunk = uint64_t{64} << 10;
constexpr uint64_t kLargestChunk = uint64_t{256} << 10;
constexpr uint64_t kWindow = 4;

// All ranks get the same.
uint64_t chunk_size(const std::vector<ElementRange>& slices, size_t element) {
  int64_t longest = 0;
  for (const ElementRange& slice : slices) longest = std::max(longest, slice.size());
  const uint64_t size =
      std::clamp(static_cast<uint64_t>(longest) * element / kChunks, kSmallestChunk, kLargestChunk);
  return size / element * element;
}

}  // namespace

ChunkedSum::ChunkedSum(const ArraySum& sum, int rank, int world, ScratchBuffer& scratch)
    : sum_(sum),
      rank_(rank),
      element_(size_of(sum.reduction.type)),
      slices_(sum.slices_of(world)),
      chunk_bytes_(chunk_size(slices_, element_)),
      own_(sum.outputs[0].data + (sum.scatters() ? 0 : begin_of(rank))),
      whole_(sum.scatters() ? nullptr : sum.outputs[0].data),
      inputs_(slices_.size()),
      received_(slices_.size()) {
  const std::vector<Source>& sources = sum.sources->all;
  for (size_t s = 0; s < sources.size(); ++s) {
    if (!sources[s].present) continue;
    ++inputs_[static_cast<size_t>(sources[s].rank)];
    if (sources[s].rank == rank_) mine_.push_back(sum.inputs[s].data);
  }
  uint64_t size = 0;
  std::vector<uint64_t> places;
  for (size_t r = 0; r < inputs_.size(); ++r) {
    places.push_back(size);
    if (static_cast<int>(r) != rank_)
      size += std::min(contribution(static_cast<int>(r), rank_), kWindow * inputs_[r] * chunk_bytes_);
  }
  std::byte* const all = scratch.at_least(size);
  for (const uint64_t place : places) rings_.push_back(all + place);
  combine_complete();
}

uint64_t ChunkedSum::bytes_of(int owner) const {
  return static_cast<uint64_t>(slices_[static_cast<size_t>(owner)].size()) * element_;
}

uint64_t ChunkedSum::begin_of(int owner) const {
  return static_cast<uint64_t>(slices_[static_cast<size_t>(owner)].begin) * element_;
}

ChunkedSum::Chunk ChunkedSum::chunk_of(int owner, uint64_t number) const {
  const uint64_t begin = number * chunk_bytes_;
  return {number, begin, std::min(chunk_bytes_, bytes_of(owner) - begin)};
}

// Returns the bytes of all inputs of one rank for the slice of another.
uint64_t ChunkedSum::contribution(int rank, int owner) const {
  return inputs_[static_cast<size_t>(rank)] * bytes_of(owner);
}

uint64_t ChunkedSum::to(int peer) const {
  return contribution(rank_, peer) + (whole_ == nullptr ? 0 : bytes_of(rank_));
}

uint64_t ChunkedSum::from(int peer) const {
  return contribution(peer, rank_) + (whole_ == nullptr ? 0 : bytes_of(peer));
}

const std::byte* ChunkedSum::input_at(size_t input, int owner, uint64_t offset) const {
  return mine_[input] + begin_of(owner) + offset;
}

std::byte* ChunkedSum::slot_of(int peer, uint64_t chunk) const {
  const auto r = static_cast<size_t>(peer);
  return rings_[r] + chunk % kWindow * inputs_[r] * chunk_bytes_;
}

ConstBytes ChunkedSum::outgoing(int peer, uint64_t offset) const {
  const uint64_t contributed = contribution(rank_, peer);
  if (offset >= contributed) {
    const uint64_t ready = std::min(combined_ * chunk_bytes_, bytes_of(rank_));
    return {own_ + (offset - contributed), ready - (offset - contributed)};
  }
  const uint64_t inputs = inputs_[static_cast<size_t>(rank_)];
  const Chunk chunk = chunk_of(peer, offset / (inputs * chunk_bytes_));
  const uint64_t within = offset - inputs * chunk.begin;
  const uint64_t done = within % chunk.size;
  return {input_at(within / chunk.size, peer, chunk.begin + done), chunk.size - done};
}

Bytes ChunkedSum::incoming(int peer, uint64_t offset) const {
  const uint64_t contributed = contribution(peer, rank_);
  if (offset >= contributed) {
    const uint64_t done = offset - contributed;
    return {whole_ + begin_of(peer) + done, bytes_of(peer) - done};
  }
  const uint64_t inputs = inputs_[static_cast<size_t>(peer)];
  const Chunk chunk = chunk_of(rank_, offset / (inputs * chunk_bytes_));
  if (chunk.number >= combined_ + kWindow) return {};
  const uint64_t within = offset - inputs * chunk.begin;
  return {slot_of(peer, chunk.number) + within, inputs * chunk.size - within};
}

void ChunkedSum::arrived(int peer, uint64_t bytes) {
  received_[static_cast<size_t>(peer)] = bytes;
  combine_complete();
}

void ChunkedSum::combine_complete() {
  while (combined_ * chunk_bytes_ < bytes_of(rank_)) {
    const Chunk chunk = chunk_of(rank_, combined_);
    if (!is_complete(chunk)) return;
    combine(chunk);
    ++combined_;
  }
}

bool ChunkedSum::is_complete(const Chunk& chunk) const {
  for (size_t r = 0; r < inputs_.size(); ++r) {
    if (static_cast<int>(r) != rank_ && received_[r] < inputs_[r] * (chunk.begin + chunk.size)) return false;
  }
  return true;
}

void ChunkedSum::combine(const Chunk& chunk) {
  std::vector<const std::byte*> inputs;
  std::vector<uint64_t> taken(inputs_.size());
  for (const Source& source : sum_.sources->all) {
    if (!source.present) {
      inputs.push_back(nullptr);
      continue;
    }
    const uint64_t input = taken[static_cast<size_t>(source.rank)]++;
    inputs.push_back(source.rank == rank_ ? input_at(input, rank_, chunk.begin)
                                          : slot_of(source.rank, chunk.number) + input * chunk.size);
  }
  Reduction reduction = sum_.reduction;
  reduction.count = static_cast<int64_t>(chunk.size / element_);
  std::byte* const output = own_ + chunk.begin;
  reduce(inputs, {&output, 1}, reduction, sum_.sources->program);
}

}  // namespace tutti::comm::tcp
