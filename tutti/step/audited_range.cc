#include "tutti/step/audited_range.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <torch/utils.h>

#include "tutti/comm/reduce_on_device.h"
#include "tutti/step/lane_hashes.h"
#include "tutti/step/lane_sum.h"

namespace tutti {
namespace {

constexpr auto kBytesOfNumber = static_cast<int64_t>(sizeof(double));

// Returns the elements of the parameter with those up to the next one, which are always zero.
comm::ElementRange place_of(const Parameters& parameters, const Parameters::View& view) {
  comm::ElementRange place{view.offset, parameters.blocks()[view.block].values.numel()};
  for (const Parameters::View& other : parameters.trained()) {
    if (other.block == view.block && other.offset > view.offset)
      place.end = std::min(place.end, other.offset);
  }
  return place;
}

comm::ElementRange both(const comm::ElementRange& a, const comm::ElementRange& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

// Returns the part of the range that each rank adds. Where hosts have several ranks, this is so for slices
// that are scattered only.
std::vector<comm::ElementRange> parts_of(const Bucket& bucket, const comm::ElementRange& range, int world,
                                         bool scatters) {
  std::vector<comm::ElementRange> parts;
  for (int rank = 0; rank < world; ++rank) {
    comm::ElementRange slice = slice_of(bucket, rank, world);
    if (!scatters) {
      slice = comm::slice_of(bucket.range().size(), rank, world);
      slice = {slice.begin + bucket.begin, slice.end + bucket.begin};
    }
    parts.push_back(both(range, slice));
  }
  return parts;
}

// The vector has the elements from `offset` on.
torch::Tensor part_of(const torch::Tensor& vector, const comm::ElementRange& part, int64_t offset) {
  return vector.narrow(0, part.size() == 0 ? 0 : part.begin - offset, part.size());
}

// Returns the slots of these elements in host memory, one after the other.
torch::Tensor slots_of(const Optimizer& optimizer, const std::vector<std::string>& names, size_t block,
                       const comm::ElementRange& part, torch::ScalarType type) {
  const auto count = static_cast<int64_t>(names.size());
  torch::Tensor all = torch::zeros({count, part.size()}, type);
  for (const Optimizer::Slot& slot : optimizer.slots_in(block, part)) {
    const auto i = std::find(names.begin(), names.end(), slot.name) - names.begin();
    all[i].narrow(0, slot.offset - part.begin, slot.vector.numel()).copy_(slot.vector);
  }
  return all;
}

}  // namespace

AuditedRange draw_range(const Parameters& parameters, uint64_t bits) {
  auto at = static_cast<int64_t>(bits % static_cast<uint64_t>(parameters.size()));
  size_t parameter = 0;
  for (; at >= parameters.trained()[parameter].tensor.numel(); ++parameter)
    at -= parameters.trained()[parameter].tensor.numel();
  const comm::ElementRange place = place_of(parameters, parameters.trained()[parameter]);
  const int64_t begin = place.begin + at / kAuditedElements * kAuditedElements;
  return {parameter, {begin, std::min(place.end, begin + kAuditedElements)}};
}

AuditedSum::AuditedSum(comm::Communicator& comm, const Parameters& parameters, const Bucket& bucket,
                       const AuditedRange& range, int64_t lanes, bool scatters, torch::Tensor numbers)
    : comm_(comm),
      parameters_(parameters),
      bucket_(bucket),
      range_(range),
      scatters_(scatters),
      numbers_(std::move(numbers)),
      lanes_(lanes_of_all(comm.world(), lanes)),
      parts_(parts_of(bucket, range.elements, comm.world(), scatters)),
      gradients_(elements_of(parameters.blocks()[bucket.vector].grads, range.elements)),
      row_bytes_((1 + kNumbers) * kBytesOfNumber +
                 (static_cast<int64_t>(gradients_.nbytes()) + kBytesOfNumber - 1) / kBytesOfNumber *
                     kBytesOfNumber),
      rows_(torch::zeros({lanes * row_bytes_}, torch::kByte)) {}

// Whether the lane has data, and its numbers.
torch::Tensor AuditedSum::numbers_of(int64_t lane) const {
  return rows_.narrow(0, lane * row_bytes_, (1 + kNumbers) * kBytesOfNumber).view(torch::kDouble);
}

torch::Tensor AuditedSum::values_of(int64_t lane) const {
  return rows_
      .narrow(0, lane * row_bytes_ + (1 + kNumbers) * kBytesOfNumber,
              static_cast<int64_t>(gradients_.nbytes()))
      .view(gradients_.scalar_type());
}

void AuditedSum::add() {
  const int64_t lane = lanes_[static_cast<size_t>(comm_.rank())].begin + lanes_added_++;
  const torch::Tensor numbers = numbers_of(lane);
  numbers[0] = 1;
  numbers.narrow(0, 1, kNumbers).copy_(numbers_);
  values_of(lane).copy_(gradients_);
}

void AuditedSum::take_branches(const std::vector<TreeSum::Subtree>& branches) {
  branches_ = hash_of(branches, bucket_.begin);
}

// The values of the branches are those of the elements from `offset` on.
std::string AuditedSum::hash_of(const std::vector<TreeSum::Subtree>& branches, int64_t offset) const {
  std::vector<torch::Tensor> values = {torch::empty({0}, gradients_.scalar_type())};
  for (const TreeSum::Subtree& branch : branches) {
    if (branch.values) values.push_back(part_of(branch.values->front(), range_.elements, offset).cpu());
  }
  return hash_of_numbers(torch::cat(values));
}

std::vector<TreeSum::Subtree> AuditedSum::add_again(const LaneRange& range) const {
  const torch::Tensor values = torch::empty({range_.elements.size()}, gradients_.scalar_type());
  const torch::Tensor numbers = torch::empty({kNumbers}, torch::kDouble);
  TreeSum sum({values, numbers}, range, lanes_.back().end);
  for (int64_t lane = range.begin; lane < range.end; ++lane) {
    const torch::Tensor its_numbers = numbers_of(lane);
    if (its_numbers[0].item<double>() == 0) {
      sum.skip();
      continue;
    }
    values.copy_(values_of(lane));
    numbers.copy_(its_numbers.narrow(0, 1, kNumbers));
    sum.add();
  }
  return sum.finish();
}

std::vector<Recomputed> AuditedSum::compute_again() {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> rows;
  for (const LaneRange& range : lanes_)
    rows.push_back(rows_.narrow(0, range.begin * row_bytes_, range.size() * row_bytes_));
  const torch::Tensor own = rows[static_cast<size_t>(comm_.rank())];
  comm_.all_gather_uneven(rows, own, {.what = "the lanes of an audited sum"}).wait();
  const int64_t lanes = lanes_.back().end;
  const auto sum = add_again({0, lanes}).front().values;
  // There is a sum on all ranks, unless a wrong message says that no lane had data.
  const TreeSum::Vectors all =
      sum.value_or(TreeSum::Vectors{torch::zeros({range_.elements.size()}, gradients_.scalar_type()),
                                    torch::zeros({kNumbers}, torch::kDouble)});
  mean_ = all[0];
  if (lanes > 1) comm::divide(mean_, all[1][kExamples].item<double>());

  const std::string gradient = "the gradient of " + parameters_.trained()[range_.parameter].name;
  std::vector<Recomputed> results;
  for (int rank = 0; rank < comm_.world(); ++rank) {
    const LaneRange& range = lanes_[static_cast<size_t>(rank)];
    results.push_back({.name = "the sum of the worker's lanes of " + gradient,
                       .maker = rank,
                       .got = rank == comm_.rank() ? branches_ : "",
                       .again = hash_of(add_again(range), range_.elements.begin)});
  }
  for (int rank = 0; rank < comm_.world(); ++rank) {
    const comm::ElementRange& part = parts_[static_cast<size_t>(rank)];
    const bool has_it = !scatters_ || rank == comm_.rank();
    results.push_back({.name = "the sum of " + gradient,
                       .maker = comm_.hosts() == nullptr && gradients_.is_cpu() ? rank : -1,
                       .got = has_it ? hash_of_numbers(part_of(gradients_, part, range_.elements.begin)) : "",
                       .again = hash_of_numbers(part_of(mean_, part, range_.elements.begin))});
  }
  results.push_back({.name = "the sum of the losses and of the examples",
                     .got = hash_of_numbers(numbers_),
                     .again = hash_of_numbers(all[1])});
  return results;
}

AuditedUpdate::AuditedUpdate(comm::Communicator& comm, const Parameters& parameters, Optimizer& optimizer,
                             const AuditedSum& sum, double factor)
    : comm_(comm),
      parameters_(parameters),
      optimizer_(optimizer),
      sum_(sum),
      range_(sum.range().elements),
      values_(
          elements_of(parameters.blocks()[parameters.trained()[sum.range().parameter].block].values, range_)),
      slots_(optimizer.slot_names()),
      copy_{values_.detach().clone(), sum.mean().to(values_.device(), values_.scalar_type(), false, true),
            parameters.trained()[sum.range().parameter].block, range_.begin} {
  const torch::NoGradGuard no_grad;
  if (factor < 1) copy_.grads.mul_(factor);
  again_ = optimizer_.for_section(copy_, slots_of_all());
  again_->step();
}

comm::ElementRange AuditedUpdate::own_part() const {
  return sum_.scatters() ? sum_.parts()[static_cast<size_t>(comm_.rank())] : range_;
}

Optimizer::State AuditedUpdate::slots_of_all() const {
  Optimizer::State state{.steps = optimizer_.steps(), .slots = {}};
  if (state.steps == 0) return state;
  const auto count = static_cast<int64_t>(slots_.size());
  const torch::Tensor own = slots_of(optimizer_, slots_, copy_.block, own_part(), values_.scalar_type());
  std::vector<comm::ElementRange> parts = {range_};
  std::vector<torch::Tensor> all = {own};
  if (sum_.scatters()) {
    parts = sum_.parts();
    all.clear();
    for (const comm::ElementRange& part : parts)
      all.push_back(torch::empty({count, part.size()}, own.options()));
    std::vector<torch::Tensor> flat;
    for (const torch::Tensor& each : all) flat.push_back(each.view(-1));
    comm_.all_gather_uneven(flat, own.view(-1), {.what = "the slots of an audited update"}).wait();
  }
  for (size_t part = 0; part < parts.size(); ++part) {
    for (size_t slot = 0; slot < slots_.size(); ++slot)
      state.slots.push_back(
          {slots_[slot], copy_.block, parts[part].begin, all[part][static_cast<int64_t>(slot)]});
  }
  return state;
}

std::vector<Recomputed> AuditedUpdate::results() const {
  const torch::NoGradGuard no_grad;
  const std::string& name = parameters_.trained()[sum_.range().parameter].name;
  const bool has_owners = sum_.scatters();
  const std::vector<comm::ElementRange> parts = has_owners ? sum_.parts() : std::vector{range_};
  std::vector<Recomputed> results;
  for (size_t i = 0; i < parts.size(); ++i) {
    results.push_back({.name = "the update of " + name,
                       .maker = has_owners ? static_cast<int>(i) : -1,
                       .got = hash_of_numbers(part_of(values_, parts[i], range_.begin)),
                       .again = hash_of_numbers(part_of(copy_.values, parts[i], range_.begin))});
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool has_it = !has_owners || static_cast<int>(i) == comm_.rank();
    const auto slots = [&](const Optimizer& optimizer) {
      return slots_of(optimizer, slots_, copy_.block, parts[i], values_.scalar_type());
    };
    const torch::Tensor again = slots(*again_);
    const torch::Tensor got = has_it ? slots(optimizer_) : torch::Tensor();
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      const auto index = static_cast<int64_t>(slot);
      results.push_back({.name = fmt::format("the update of {} of {}", slots_[slot], name),
                         .maker = has_owners ? static_cast<int>(i) : -1,
                         .got = has_it ? hash_of_numbers(got[index]) : "",
                         .again = hash_of_numbers(again[index])});
    }
  }
  return results;
}

void AuditedUpdate::repair(int from) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor values = copy_.values.cpu();
  const torch::Tensor slots = slots_of(*again_, slots_, copy_.block, range_, values_.scalar_type());
  for (const torch::Tensor& right : {values, slots})
    comm_.broadcast(right, from, {.what = "an audited update"}).wait();
  values_.copy_(values);
  for (const Optimizer::Slot& slot : optimizer_.slots_in(copy_.block, own_part())) {
    const auto i = std::find(slots_.begin(), slots_.end(), slot.name) - slots_.begin();
    torch::Tensor(slot.vector).copy_(slots[i].narrow(0, slot.offset - range_.begin, slot.vector.numel()));
  }
}

}  // namespace tutti
