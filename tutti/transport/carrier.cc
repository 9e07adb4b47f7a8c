#include <algorithm>
#include <cstring>

#include "tutti/transport/doubling.h"
#include "tutti/transport/reduce.h"
#include "tutti/transport/transport.h"

// The operations that are made of exchanges.
namespace tutti::comm {
namespace {

// Larger arrays are broadcast in slices, so that the root does not send the whole array to every rank.
constexpr size_t kSmallBroadcast = size_t{64} << 10;

}  // namespace

std::shared_ptr<std::byte> Carrier::memory_for(size_t size) const {
  return {new std::byte[std::max<size_t>(1, size)], std::default_delete<std::byte[]>()};
}

void Carrier::copy(const Array& from, const Array& to) const {
  if (from.data != to.data && from.count > 0) std::memmove(to.data, from.data, from.size());
}

void Carrier::combine_here(std::span<const Array> inputs, const Array& output, const Reduction& reduction,
                           const Program& program) const {
  std::vector<const std::byte*> from;
  for (const Array& input : inputs) from.push_back(input.data);
  reduce(from, {&output.data, 1}, reduction, program);
}

void Carrier::combine(std::span<const ArraySum> sums, const Operation& operation) {
  for (const ArraySum& sum : sums) {
    if (!combine_in_any_order(sum, operation)) combine_by_exchange(sum, with_whole(operation, sum.reduction));
  }
}

bool Carrier::combine_in_any_order(const ArraySum& sum, const Operation& operation) {
  if (!operation.any_order || sum.reduction.op != ReduceOp::Sum || !sum.is_all_reduce(world())) return false;
  const Array& values = sum.outputs[0];
  copy(sum.inputs[static_cast<size_t>(rank())], values);
  if (!add_in_any_order(values, operation)) return false;
  if (sum.reduction.divisor != 0) combine_here({&values, 1}, values, sum.reduction, {0});
  return true;
}

// Every rank receives its slice from all others, adds it along the tree, and sends the result to all, which
// moves no more bytes than a ring.
void Carrier::combine_by_exchange(const ArraySum& sum, const Operation& operation) {
  const auto ranks = static_cast<size_t>(world());
  const auto me = static_cast<size_t>(rank());
  const std::vector<Source>& sources = sum.sources->all;
  const std::vector<ElementRange> slices = sum.slices_of(world());
  const Array& output = sum.outputs[0];
  const Array own = sum.scatters() ? output : output.part(slices[me]);
  std::vector<Arrays> sent(ranks);
  std::vector<int64_t> counts(ranks);
  for (size_t s = 0; s < sources.size(); ++s) {
    if (!sources[s].present) continue;
    ++counts[static_cast<size_t>(sources[s].rank)];
    if (sources[s].rank != rank()) continue;
    for (size_t r = 0; r < ranks; ++r) sent[r].push_back(sum.inputs[s].part(slices[r]));
  }
  std::vector<std::shared_ptr<std::byte>> memory;  // until the end
  const auto room_for = [&](int64_t count) {
    const Array room{nullptr, own.type, count};
    memory.push_back(memory_for(room.size()));
    return Array{memory.back().get(), own.type, count};
  };
  Arrays sends;
  Arrays recvs;
  for (size_t r = 0; r < ranks; ++r) {
    if (sent[r].size() == 1) {
      sends.push_back(sent[r][0]);
    } else {
      sends.push_back(room_for(counts[me] * slices[r].size()));
      for (size_t i = 0; i < sent[r].size(); ++i)
        copy(sent[r][i], sends[r].part(static_cast<int64_t>(i) * slices[r].size(), slices[r].size()));
    }
    recvs.push_back(r == me ? sends[r] : room_for(counts[r] * own.count));
  }
  exchange_arrays(sends, recvs, operation);
  Arrays inputs;
  std::vector<int64_t> taken(ranks);
  for (const Source& source : sources) {
    const auto r = static_cast<size_t>(source.rank);
    inputs.push_back(source.present ? recvs[r].part(own.count * taken[r]++, own.count) : Array());
  }
  {
    const SpanScope span(operation.timeline, Activity::Reduce, "add", operation.step);
    Reduction reduction = sum.reduction;
    reduction.count = own.count;
    combine_here(inputs, own, reduction, sum.sources->program);
  }
  if (!sum.scatters()) all_gather(parts_of(output, slices), own, operation);
}

void Carrier::all_gather(std::span<const Array> outputs, const Array& input, const Operation& operation) {
  exchange_arrays(Arrays(static_cast<size_t>(world()), input), outputs, operation);
}

void Carrier::broadcast(const Array& values, int root, const Operation& operation) {
  const auto ranks = static_cast<size_t>(world());
  const Arrays nothing(ranks, values.none());
  if (values.size() <= kSmallBroadcast) {
    Arrays outputs = nothing;
    outputs[static_cast<size_t>(root)] = values;
    exchange_arrays(rank() == root ? Arrays(ranks, values) : nothing, outputs, operation);
    return;
  }
  const Arrays slices = parts_of(values, even_slices(values.count, world()));
  const Array& mine = slices[static_cast<size_t>(rank())];
  Arrays from_root = nothing;
  from_root[static_cast<size_t>(root)] = mine;
  exchange_arrays(rank() == root ? slices : nothing, from_root, operation);
  exchange_arrays(Arrays(ranks, mine), slices, operation);
}

void Transport::exchange_arrays(std::span<const Array> inputs, std::span<const Array> outputs,
                                const Operation& operation) {
  std::vector<ConstBytes> sends;
  std::vector<Bytes> recvs;
  for (const Array& input : inputs) sends.push_back(input.bytes());
  for (const Array& output : outputs) recvs.push_back(output.bytes());
  const auto me = static_cast<size_t>(rank());
  copy(inputs[me], outputs[me]);
  if (world() > 1) exchange(sends, recvs, operation);
}

void Transport::combine(std::span<const ArraySum> sums, const Operation& operation) {
  for (const ArraySum& sum : sums) {
    if (combine_in_any_order(sum, operation)) continue;
    const Operation one = with_whole(operation, sum.reduction);
    is_for_doubling(sum, world()) ? reduce_by_doubling(*this, sum, one) : combine_by_exchange(sum, one);
  }
}

void Transport::sync(const Operation& operation) {
  const std::vector<std::byte> here(static_cast<size_t>(world()));
  std::vector<std::byte> there = here;
  std::vector<ConstBytes> sends;
  std::vector<Bytes> recvs;
  for (size_t r = 0; r < here.size(); ++r) {
    sends.emplace_back(&here[r], 1);
    recvs.emplace_back(&there[r], 1);
  }
  exchange(sends, recvs, operation);
}

// Short messages take less time than it takes to wait for late ranks. For longer ones the two cannot be told
// apart, so the time counts as copying.
SpanScope span_of_exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                           const Operation& operation) {
  constexpr size_t kShort = size_t{16} << 10;
  size_t longest = 0;
  for (const ConstBytes& bytes : sends) longest = std::max(longest, bytes.size());
  for (const Bytes& bytes : recvs) longest = std::max(longest, bytes.size());
  return {operation.timeline, longest <= kShort ? Activity::Wait : Activity::Copy, "exchange",
          operation.step};
}

}  // namespace tutti::comm
