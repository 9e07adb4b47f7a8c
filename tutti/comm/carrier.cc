#include <algorithm>
#include <cstring>

#include "tutti/comm/doubling.h"
#include "tutti/comm/flat.h"
#include "tutti/comm/reduce_on_device.h"
#include "tutti/comm/transport.h"

// The operations that are made of exchanges.
namespace tutti::comm {
namespace {

using Tensors = std::vector<torch::Tensor>;

// Larger tensors are broadcast in slices, so that the root does not send the whole tensor to every rank.
constexpr int64_t kSmallBroadcast = 64 << 10;

}  // namespace

void Carrier::combine(std::span<const SlicedSum> sums, const Operation& operation) {
  for (const SlicedSum& sum : sums) {
    if (!combine_in_any_order(sum, operation)) combine_by_exchange(sum, with_whole(operation, sum.reduction));
  }
}

bool Carrier::combine_in_any_order(const SlicedSum& sum, const Operation& operation) {
  if (!operation.any_order || sum.reduction.op != ReduceOp::Sum || !sum.is_all_reduce(world())) return false;
  const torch::Tensor values = sum.outputs[0].view(-1);
  const torch::Tensor input = sum.inputs[static_cast<size_t>(rank())].view(-1);
  if (input.data_ptr() != values.data_ptr()) values.copy_(input);
  if (!add_in_any_order(values, operation)) return false;
  if (sum.reduction.divisor != 0) divide(values, sum.reduction.divisor);
  return true;
}

// Every rank receives its slice from all others, adds it along the tree, and sends the result to all, which
// moves no more bytes than a ring.
void Carrier::combine_by_exchange(const SlicedSum& sum, const Operation& operation) {
  const auto ranks = static_cast<size_t>(world());
  const auto me = static_cast<size_t>(rank());
  const std::vector<Source>& sources = sum.sources->all;
  const std::vector<ElementRange> slices = sum.slices_of(world());
  const torch::Tensor output = sum.outputs[0].view(-1);
  const torch::Tensor own = sum.scatters() ? output : output.narrow(0, slices[me].begin, slices[me].size());
  std::vector<Tensors> sent(ranks, Tensors{own.narrow(0, 0, 0)});
  std::vector<int64_t> counts(ranks);
  for (size_t s = 0; s < sources.size(); ++s) {
    if (!sources[s].present) continue;
    ++counts[static_cast<size_t>(sources[s].rank)];
    if (sources[s].rank != rank()) continue;
    for (size_t r = 0; r < ranks; ++r)
      sent[r].push_back(sum.inputs[s].view(-1).narrow(0, slices[r].begin, slices[r].size()));
  }
  Tensors sends;
  Tensors recvs;
  for (size_t r = 0; r < ranks; ++r) {
    sends.push_back(sent[r].size() == 2 ? sent[r][1] : torch::cat(sent[r]));
    recvs.push_back(r == me ? sends.back() : torch::empty({counts[r] * own.numel()}, own.options()));
  }
  exchange_tensors(sends, recvs, operation);
  Tensors inputs;
  std::vector<int64_t> taken(ranks);
  for (const Source& source : sources) {
    const auto r = static_cast<size_t>(source.rank);
    inputs.push_back(source.present ? recvs[r].narrow(0, own.numel() * taken[r]++, own.numel())
                                    : torch::Tensor());
  }
  {
    const SpanScope span(operation.timeline, Activity::Reduce, "add", operation.step);
    Reduction reduction = sum.reduction;
    reduction.count = own.numel();
    reduce_tensors(inputs, own, reduction, sum.sources->program);
  }
  if (!sum.scatters()) exchange_tensors(Tensors(ranks, own), views_of(output, slices), operation);
}

void Carrier::all_gather(std::span<const torch::Tensor> outputs, const torch::Tensor& input,
                         const Operation& operation) {
  exchange_tensors(Tensors(static_cast<size_t>(world()), input), outputs, operation);
}

void Carrier::broadcast(const torch::Tensor& values, int root, const Operation& operation) {
  const auto ranks = static_cast<size_t>(world());
  const Tensors nothing(ranks, values.narrow(0, 0, 0));
  if (static_cast<int64_t>(values.nbytes()) <= kSmallBroadcast) {
    Tensors outputs = nothing;
    outputs[static_cast<size_t>(root)] = values;
    exchange_tensors(rank() == root ? Tensors(ranks, values) : nothing, outputs, operation);
    return;
  }
  const Tensors slices = views_of(values, even_slices(values.numel(), world()));
  const torch::Tensor& mine = slices[static_cast<size_t>(rank())];
  Tensors from_root = nothing;
  from_root[static_cast<size_t>(root)] = mine;
  exchange_tensors(rank() == root ? slices : nothing, from_root, operation);
  exchange_tensors(Tensors(ranks, mine), slices, operation);
}

void Transport::exchange_tensors(std::span<const torch::Tensor> inputs,
                                 std::span<const torch::Tensor> outputs, const Operation& operation) {
  std::vector<ConstBytes> sends;
  std::vector<Bytes> recvs;
  for (const torch::Tensor& input : inputs) sends.push_back(bytes_of(input));
  for (const torch::Tensor& output : outputs) recvs.push_back(bytes_of(output));
  const auto me = static_cast<size_t>(rank());
  if (sends[me].data() != recvs[me].data() && !sends[me].empty())
    std::memmove(recvs[me].data(), sends[me].data(), sends[me].size());
  if (world() > 1) exchange(sends, recvs, operation);
}

void Transport::combine(std::span<const SlicedSum> sums, const Operation& operation) {
  for (const SlicedSum& sum : sums) {
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
