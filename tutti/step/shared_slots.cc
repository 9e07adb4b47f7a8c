#include "tutti/step/shared_slots.h"

#include <algorithm>
#include <string>

#include <torch/utils.h>

#include "tutti/step/buckets.h"

namespace tutti {
namespace {

constexpr int64_t kLineBytes = 64;                 // of a cache
constexpr int64_t kCounterBytes = 2 * kLineBytes;  // the counters of StepCommit, each in a line of its own

int64_t bytes_of_slot(const Section& section) {
  return (static_cast<int64_t>(section.values.nbytes()) + kLineBytes - 1) / kLineBytes * kLineBytes;
}

// Returns the size of the slots of the rank that has the most.
int64_t bytes_of_copy(const Parameters& parameters, int world, size_t slots) {
  int64_t most = 0;
  for (int rank = 0; rank < world; ++rank) {
    int64_t bytes = 0;
    for (const Section& section : sections_of(parameters, rank, world)) bytes += bytes_of_slot(section);
    most = std::max(most, bytes);
  }
  return most * static_cast<int64_t>(slots);
}

uint64_t& counter(const torch::Tensor& memory, int64_t offset) {
  return *reinterpret_cast<uint64_t*>(memory.data_ptr<uint8_t>() + offset);
}

}  // namespace

SharedSlots::SharedSlots(comm::Communicator& comm, const Parameters& parameters, Optimizer& optimizer)
    : parameters_(parameters),
      optimizer_(optimizer),
      names_(optimizer.slot_names()),
      copy_bytes_(bytes_of_copy(parameters, comm.world(), names_.size())),
      memory_(
          comm.shared()->everyones(comm.shared()->allocate(kCounterBytes + 2 * copy_bytes_, torch::kByte))),
      own_{slots_in(memory_[static_cast<size_t>(comm.rank())], 0, comm.rank()),
           slots_in(memory_[static_cast<size_t>(comm.rank())], 1, comm.rank())},
      steps_(optimizer.steps()),
      commit_(counter(memory_.front(), 0), counter(memory_.front(), kLineBytes), comm.world()) {
  optimizer_.move_slots(own_[copy_]);
  comm.shared()->sync({.what = "the optimiser's state"});
}

// Returns where a rank has its slots, in a part of the memory that is laid out alike for all.
Optimizer::SlotVectors SharedSlots::slots_in(const torch::Tensor& memory, size_t copy, int rank) const {
  const int world = static_cast<int>(memory_.size());
  int64_t at = kCounterBytes + static_cast<int64_t>(copy) * copy_bytes_;
  Optimizer::SlotVectors all;
  for (const Section& section : sections_of(parameters_, rank, world)) {
    std::vector<torch::Tensor>& slots = all.emplace_back();
    for (size_t i = 0; i < names_.size(); ++i) {
      slots.push_back(memory.narrow(0, at, static_cast<int64_t>(section.values.nbytes()))
                          .view(section.values.scalar_type()));
      at += bytes_of_slot(section);
    }
  }
  return all;
}

void SharedSlots::step(GradientMean& mean) {
  optimizer_.step_into(own_[1 - copy_]);
  mean.share_update(&commit_);
  copy_ = 1 - copy_;
  steps_ = optimizer_.steps();
}

Optimizer::State SharedSlots::state() const {
  Optimizer::State state{.steps = steps_, .slots = {}};
  if (steps_ == 0) return state;
  for (size_t rank = 0; rank < memory_.size(); ++rank) {
    const Optimizer::SlotVectors slots = slots_in(memory_[rank], copy_, static_cast<int>(rank));
    const std::vector<Section> sections =
        sections_of(parameters_, static_cast<int>(rank), static_cast<int>(memory_.size()));
    for (size_t i = 0; i < sections.size(); ++i) {
      for (size_t slot = 0; slot < names_.size(); ++slot)
        state.slots.push_back({names_[slot], sections[i].block, sections[i].offset, slots[i][slot]});
    }
  }
  return state;
}

}  // namespace tutti
