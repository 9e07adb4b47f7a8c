#include <algorithm>
#include <cstring>

#include "tutti/transport/shared/control_region.h"
#include "tutti/transport/shared/shared_transport.h"

// The part of SharedTransport that adds.
namespace tutti::comm {
namespace {

// Up to this size every rank adds everything itself, which needs one sync point instead of two.
constexpr size_t kSmallSum = size_t{16} << 10;

}  // namespace

void SharedTransport::combine(std::span<const ArraySum> sums, const Operation& operation) {
  const auto watched = watch(operation);
  if (!sums.empty() && sums.front().shared) {
    for (const ArraySum& sum : sums) {
      std::vector<const std::byte*> inputs;
      std::vector<std::byte*> outputs;
      for (const Array& input : sum.inputs) inputs.push_back(input.data);
      for (const Array& output : sum.outputs) outputs.push_back(output.data);
      add_slice(sum, std::move(inputs), std::move(outputs), operation);
    }
    sync(operation);
    return;
  }
  for (const ArraySum& sum : sums) {
    if (sum.is_all_reduce(world_)) {
      all_reduce(sum, operation);
    } else {
      Transport::combine({&sum, 1}, operation);
    }
  }
}

// Adds this rank's slice, given the inputs of all sources.
void SharedTransport::add_slice(const ArraySum& sum, std::vector<const std::byte*> inputs,
                                std::vector<std::byte*> outputs, const Operation& operation) const {
  const SpanScope span(operation.timeline, Activity::Reduce, "add", operation.step);
  const ElementRange slice =
      sum.scatters() ? sum.slices[static_cast<size_t>(rank_)] : slice_of(sum.reduction.count, rank_, world_);
  const size_t begin = static_cast<size_t>(slice.begin) * size_of(sum.reduction.type);
  for (const std::byte*& input : inputs) input += begin;
  for (std::byte*& output : outputs) output += sum.scatters() ? 0 : begin;
  Reduction reduction = sum.reduction;
  reduction.count = slice.size();
  comm::reduce(inputs, outputs, reduction, sum.sources->program);
}

void SharedTransport::all_reduce(const ArraySum& sum, const Operation& asked) {
  const Operation operation = with_whole(asked, sum.reduction);
  const Bytes input = sum.inputs[static_cast<size_t>(rank_)].bytes();
  std::byte* const output = sum.outputs[0].data;
  const RegionOffset place = input.data() == output ? place_of(output, input.size()) : RegionOffset{-1, 0};
  const OperationSummary summary{.offset = place.offset, .region = place.region};
  if (input.size() <= kSmallSum) {
    const std::vector<std::byte*> halves = next_staging();
    if (!input.empty()) std::memcpy(halves[static_cast<size_t>(rank_)], input.data(), input.size());
    const std::vector<const std::byte*> inputs(halves.begin(), halves.end());
    meet(operation, summary);
    const SpanScope span(operation.timeline, Activity::Reduce, "add", operation.step);
    comm::reduce(inputs, {&output, 1}, sum.reduction, sum.sources->program);
    return;
  }
  meet(operation, summary);
  bool in_place = true;
  for (int r = 0; r < world_; ++r) {
    const OperationSummary& other = summary_of(r);
    in_place = in_place && other.region >= 0 && other.region == summary_of(0).region &&
               other.offset == summary_of(0).offset;
  }
  if (!in_place) return reduce_staged(sum, asked);
  const std::vector<std::byte*> parts = everyones(output, input.size()).parts;
  add_slice(sum, {parts.begin(), parts.end()}, parts, asked);
  sync(asked);
}

// Per chunk: all ranks copy in, each adds its slice into its own staging buffer, and all ranks copy out.
void SharedTransport::reduce_staged(const ArraySum& sum, const Operation& operation) {
  const std::byte* const input = sum.inputs[static_cast<size_t>(rank_)].data;
  std::byte* const output = sum.outputs[0].data;
  const size_t element = size_of(sum.reduction.type);
  ArraySum part = sum;
  for (size_t done = 0; done < static_cast<size_t>(sum.reduction.count) * element; done += kStagingHalf) {
    const size_t size = std::min(kStagingHalf, static_cast<size_t>(sum.reduction.count) * element - done);
    part.reduction.count = static_cast<int64_t>(size / element);
    const std::vector<std::byte*> parts = next_staging();
    std::byte* const mine = parts[static_cast<size_t>(rank_)];
    {
      const SpanScope span(operation.timeline, Activity::Copy, "copy in", operation.step);
      std::memcpy(mine, input + done, size);
    }
    sync(operation);
    add_slice(part, {parts.begin(), parts.end()}, {mine}, operation);
    sync(operation);
    const SpanScope span(operation.timeline, Activity::Copy, "copy out", operation.step);
    for (int r = 0; r < world_; ++r) {
      const ElementRange theirs = slice_of(part.reduction.count, r, world_);
      const size_t begin = static_cast<size_t>(theirs.begin) * element;
      std::memcpy(output + done + begin, parts[static_cast<size_t>(r)] + begin,
                  static_cast<size_t>(theirs.size()) * element);
    }
  }
}

}  // namespace tutti::comm
