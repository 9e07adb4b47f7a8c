#include <algorithm>
#include <cstring>

#include "tutti/comm/collectives.h"
#include "tutti/comm/doubling.h"
#include "tutti/comm/flat.h"
#include "tutti/comm/reduce.h"
#include "tutti/comm/reduce_on_device.h"

// The part of Collectives that makes operations out of exchanges, or of what else the transport can do.
namespace tutti::comm {
namespace {

// Larger tensors are broadcast in slices, so that the root does not send the whole tensor to every rank.
constexpr int64_t kSmallBroadcast = 64 << 10;
// Up to this size, sending whole vectors to a few ranks takes less time than slices to all ranks.
constexpr size_t kSmallSum = size_t{16} << 10;

// Returns the combination of one input per rank.
Combination one_each(const torch::Tensor& input, ReduceOp op, int world) {
  Combination sum{.reduction = {input.scalar_type(), op, input.numel()},
                  .program = tree_program(static_cast<size_t>(world)),
                  .holders = {},
                  .slices = {},
                  .inputs = {input}};
  for (int r = 0; r < world; ++r) sum.holders.push_back(r);
  return sum;
}

// Returns what an exchange over a network spends its time on. Short messages take less time than it takes to
// wait for late ranks. For longer ones the two cannot be told apart, so the time counts as copying.
Activity mostly(const std::vector<ConstBytes>& sends, const std::vector<Bytes>& recvs) {
  constexpr size_t kShort = size_t{16} << 10;
  size_t longest = 0;
  for (const ConstBytes& bytes : sends) longest = std::max(longest, bytes.size());
  for (const Bytes& bytes : recvs) longest = std::max(longest, bytes.size());
  return longest <= kShort ? Activity::Wait : Activity::Copy;
}

}  // namespace

// A rank's own part is copied locally, and its device decides where the exchange runs.
void Collectives::exchange(const Tensors& inputs, const Tensors& outputs, const Operation& operation) {
  if (const auto me = static_cast<size_t>(rank_); on_device(inputs[me])) {
    if (inputs[me].data_ptr() != outputs[me].data_ptr()) outputs[me].copy_(inputs[me]);
    if (world_ == 1) return;
    const SpanScope span(timeline_, Activity::Copy, "exchange", operation.step);
    on_device_->exchange(inputs, outputs, operation);
    return;
  }
  std::vector<ConstBytes> sends;
  std::vector<Bytes> recvs;
  for (const torch::Tensor& input : inputs) sends.push_back(bytes_of(input));
  for (const torch::Tensor& output : outputs) recvs.push_back(bytes_of(output));
  const size_t me = static_cast<size_t>(rank_);
  if (sends[me].data() != recvs[me].data() && !sends[me].empty())
    std::memmove(recvs[me].data(), sends[me].data(), sends[me].size());
  if (world_ == 1) return;
  const bool by_itself = in_place_ != nullptr || by_host_ != nullptr;
  const SpanScope span(by_itself ? nullptr : timeline_, mostly(sends, recvs), "exchange", operation.step);
  transport_->exchange(sends, recvs, operation);
}

void Collectives::give_to_all(const torch::Tensor& input, const Tensors& outputs,
                              const Operation& operation) {
  if (!adds_by_host(input)) {
    exchange(Tensors(static_cast<size_t>(world_), input), outputs, operation);
    return;
  }
  std::vector<Bytes> places;
  for (const torch::Tensor& output : outputs) places.push_back(bytes_of(output));
  by_host_->all_gather(places, bytes_of(input), operation);
}

void Collectives::reduce_in_memory(const torch::Tensor& tensor, ReduceOp op, const Operation& operation) {
  in_place_->all_reduce(static_cast<std::byte*>(tensor.data_ptr()),
                        {tensor.scalar_type(), op, tensor.numel()}, operation);
}

void Collectives::reduce(const Tensors& inputs, const torch::Tensor& output, const Combination& combination,
                         const Operation& operation) {
  const SpanScope span(operation.timeline, Activity::Reduce, "add", operation.step);
  Reduction reduction = combination.reduction;
  reduction.count = output.numel();
  if (on_device(output)) {
    output.copy_(reduce_on_device(inputs, reduction, combination.program));
    return;
  }
  std::vector<const std::byte*> from;
  for (const torch::Tensor& input : inputs)
    from.push_back(input.defined() ? bytes_of(input).data() : nullptr);
  auto* to = static_cast<std::byte*>(output.data_ptr());
  comm::reduce(from, {&to, 1}, reduction, combination.program);
}

// Computes the slice of this rank after all of its inputs have arrived.
void Collectives::combine_by_exchange(const torch::Tensor& own, const Combination& combination,
                                      const Operation& operation) {
  std::vector<int64_t> counts(static_cast<size_t>(world_));
  for (const int holder : combination.holders) {
    if (holder >= 0) ++counts[static_cast<size_t>(holder)];
  }
  Tensors sends;
  Tensors recvs;
  for (int r = 0; r < world_; ++r) {
    const Slice slice = combination.slices[static_cast<size_t>(r)];
    Tensors parts = {own.narrow(0, 0, 0)};
    for (const torch::Tensor& input : combination.inputs)
      parts.push_back(input.narrow(0, slice.begin, slice.size()));
    sends.push_back(parts.size() == 2 ? parts[1] : torch::cat(parts));
    const int64_t size = counts[static_cast<size_t>(r)] * own.numel();
    recvs.push_back(r == rank_ ? sends.back() : torch::empty({size}, own.options()));
  }
  exchange(sends, recvs, operation);
  Tensors inputs;
  std::vector<int64_t> taken(counts.size());
  for (const int holder : combination.holders) {
    const auto r = static_cast<size_t>(std::max(holder, 0));
    inputs.push_back(holder < 0 ? torch::Tensor()
                                : recvs[r].narrow(0, own.numel() * taken[r]++, own.numel()));
  }
  reduce(inputs, own, combination, operation);
}

// All tensors are flat, and on the device on which they are combined.
void Collectives::combine_flat(const torch::Tensor& output, const Combination& combination,
                               const Operation& asked) {
  const Operation operation = of(asked, combination.reduction);
  const Slice slice = combination.slices[static_cast<size_t>(rank_)];
  const torch::Tensor own = combination.scatter ? output : output.narrow(0, slice.begin, slice.size());
  if (on_the_way_ == nullptr || on_device(output)) {
    combine_by_exchange(own, combination, operation);
    if (!combination.scatter)
      exchange(Tensors(static_cast<size_t>(world_), own), slices_of(output, combination.slices), operation);
    return;
  }
  std::vector<const std::byte*> inputs;
  for (const torch::Tensor& input : combination.inputs) inputs.push_back(bytes_of(input).data());
  const SpanScope span(timeline_, Activity::Copy, "add on the way", operation.step);
  on_the_way_->add({.reduction = combination.reduction,
                    .program = combination.program,
                    .holders = combination.holders,
                    .inputs = inputs,
                    .slices = combination.slices,
                    .own = bytes_of(own).data(),
                    .whole = combination.scatter ? nullptr : bytes_of(output).data()},
                   operation);
}

void Collectives::reduce_over_network(const torch::Tensor& tensor, ReduceOp op, const Operation& operation) {
  const Reduction whole{tensor.scalar_type(), op, tensor.numel()};
  if (adds_by_host(tensor)) {
    by_host_->all_reduce(bytes_of(tensor).data(), whole, of(operation, whole));
    return;
  }
  if (!on_device(tensor) && tensor.nbytes() <= kSmallSum) {
    const SpanScope span(timeline_, Activity::Wait, "exchange", operation.step);
    reduce_by_doubling(*transport_, bytes_of(tensor).data(), whole, of(operation, whole));
    return;
  }
  Combination sum = one_each(tensor, op, world_);
  sum.slices = even_slices(tensor.numel(), world_);
  combine_flat(tensor, sum, operation);
}

void Collectives::scatter_over_network(const torch::Tensor& output, const torch::Tensor& input, ReduceOp op,
                                       const Operation& operation) {
  if (adds_by_host(input)) {
    const Reduction whole{output.scalar_type(), op, output.numel()};
    by_host_->reduce_scatter(bytes_of(output).data(), bytes_of(input).data(), whole, of(operation, whole));
    return;
  }
  Combination sum = one_each(input, op, world_);
  for (int r = 0; r < world_; ++r) sum.slices.push_back({r * output.numel(), (r + 1) * output.numel()});
  sum.scatter = true;
  combine_flat(output, sum, operation);
}

void Collectives::send_everywhere(const torch::Tensor& values, int root, const Operation& operation) {
  if (adds_by_host(values)) {
    by_host_->broadcast(bytes_of(values), root, operation);
    return;
  }
  const size_t ranks = static_cast<size_t>(world_);
  const torch::Tensor none = values.narrow(0, 0, 0);
  Tensors nothing(ranks, none);
  if (static_cast<int64_t>(values.nbytes()) <= kSmallBroadcast) {
    Tensors outputs = nothing;
    outputs[static_cast<size_t>(root)] = values;
    exchange(rank_ == root ? Tensors(ranks, values) : nothing, outputs, operation);
    return;
  }
  const Tensors slices = slices_of(values, even_slices(values.numel(), world_));
  const torch::Tensor& mine = slices[static_cast<size_t>(rank_)];
  Tensors from_root = nothing;
  from_root[static_cast<size_t>(root)] = mine;
  exchange(rank_ == root ? slices : nothing, from_root, operation);
  exchange(Tensors(ranks, mine), slices, operation);
}

}  // namespace tutti::comm
