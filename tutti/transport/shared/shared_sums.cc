#include <algorithm>
#include <cstring>
#include <vector>

#include "tutti/transport/shared/cells.h"
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
      add_in_cells(sum, with_whole(operation, sum.reduction));
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
  if (!in_place) return add_in_cells(sum, operation);
  const std::vector<std::byte*> parts = everyones(output, input.size()).parts;
  add_slice(sum, {parts.begin(), parts.end()}, parts, asked);
  sync(asked);
}

// Per chunk: each rank puts its values of each slice into the cell for that slice's rank, adds its own slice
// from the cells of all, and hands out the result in its own cell.
void SharedTransport::add_in_cells(const ArraySum& sum, const Operation& operation) {
  const auto me = static_cast<size_t>(rank_);
  const std::vector<ElementRange> slices = sum.slices_of(world_);
  const Array& output = sum.outputs[0];
  const Array own = sum.scatters() ? output : output.part(slices[me]);
  std::vector<Arrays> values(slices.size());  // by rank; only this rank's can be read
  for (size_t s = 0; s < sum.sources->all.size(); ++s) {
    const Source& source = sum.sources->all[s];
    if (source.present) values[static_cast<size_t>(source.rank)].push_back(sum.inputs[s]);
  }
  size_t most = 1;
  size_t longest = 0;
  for (const Arrays& each : values) most = std::max(most, each.size());
  for (const ElementRange& slice : slices) longest = std::max(longest, output.part(slice).size());
  const Cells cells(staging_half(world_), slices.size(), most);
  for (size_t done = 0; done < longest; done += cells.room()) {
    const std::vector<std::byte*> halves = next_staging();
    {
      const SpanScope span(operation.timeline, Activity::Copy, "copy in", operation.step);
      for (size_t r = 0; r < slices.size(); ++r) {
        std::vector<ConstBytes> parts;
        for (const Array& each : values[me]) parts.push_back(each.part(slices[r]).bytes());
        if (r != me) cells.put(halves[me], r, parts, done);
      }
    }
    sync(operation);
    for (size_t r = 0; r < slices.size(); ++r) {
      const size_t expected = own.size() * values[r].size();
      if (const size_t sent = cells.size(halves[r], me); r != me && sent != expected)
        fail_other_size(operation, expected, static_cast<int>(r), sent);
    }
    {
      const SpanScope span(operation.timeline, Activity::Reduce, "add", operation.step);
      std::vector<const std::byte*> inputs;
      std::vector<size_t> taken(slices.size());
      for (const Source& source : sum.sources->all) {
        const auto r = static_cast<size_t>(source.rank);
        const size_t i = source.present ? taken[r]++ : 0;
        const bool here = r == me && source.present;
        inputs.push_back(here ? values[me][i].part(slices[me]).data + done : cells.at(halves[r], me, i));
      }
      std::vector<std::byte*> outputs{own.data + done};
      if (!sum.scatters()) outputs.push_back(cells.at(halves[me], me, 0));
      Reduction reduction = sum.reduction;
      reduction.count = static_cast<int64_t>(cells.part(own.bytes(), done).size() / size_of(own.type));
      if (reduction.count > 0) comm::reduce(inputs, outputs, reduction, sum.sources->program);
    }
    if (sum.scatters()) continue;
    sync(operation);
    const SpanScope span(operation.timeline, Activity::Copy, "copy out", operation.step);
    for (size_t r = 0; r < slices.size(); ++r) {
      const Bytes theirs = cells.part(output.part(slices[r]).bytes(), done);
      if (r != me && !theirs.empty()) std::memcpy(theirs.data(), cells.at(halves[r], r, 0), theirs.size());
    }
  }
}

}  // namespace tutti::comm
