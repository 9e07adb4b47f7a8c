#include "tutti/params/optimizer.h"

#include <algorithm>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <utility>

#include <nlohmann/json.hpp>
#include <torch/serialize/archive.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/base/torch_compat.h"
#include "tutti/comm/gather_all.h"
#include "tutti/params/optimizer_kinds.h"

namespace tutti {
namespace {

using optimizer_kinds::SlotView;
using optimizer_kinds::with_kind;

int64_t chunk_elements(const torch::Tensor& values) {
  // On a GPU every chunk would be a kernel launch, and chunks would not make better use of its caches.
  if (!values.device().is_cpu()) return std::max<int64_t>(1, values.numel());
  return Optimizer::kChunkElements * at::get_num_threads();
}

double rate_of(const torch::optim::OptimizerOptions& options) {
  try {
    return options.get_lr();
  } catch (const c10::Error&) {
    return kNoRate;  // options of one's own need not tell it
  }
}

// Copies the elements of a slot from `offset` on, which may be in several parts.
void copy_slot(const torch::Tensor& to, std::span<const Optimizer::Slot> slots, std::string_view name,
               size_t block, int64_t offset) {
  bool is_there = false;
  int64_t copied = 0;
  for (const Optimizer::Slot& slot : slots) {
    if (slot.name != name || slot.block != block) continue;
    is_there = true;
    const int64_t begin = std::max(offset, slot.offset);
    const int64_t length = std::min(offset + to.numel(), slot.offset + slot.vector.numel()) - begin;
    if (length <= 0) continue;
    to.narrow(0, begin - offset, length).copy_(slot.vector.narrow(0, begin - slot.offset, length));
    copied += length;
  }
  if (copied >= to.numel()) return;
  if (is_there) {
    fail(ErrorKind::InvalidArgument,
         "the optimiser's slot {} does not have the required {} elements from element {} on", name,
         to.numel(), offset);
  }
  fail(ErrorKind::InvalidArgument,
       "the optimiser's slot {} is missing; was the checkpoint made by another optimiser?", name);
}

torch::serialize::InputArchive opened(const torch::Tensor& bytes) {
  torch::serialize::InputArchive archive;
  archive.load_from(static_cast<const char*>(bytes.data_ptr()), static_cast<size_t>(bytes.numel()));
  return archive;
}

// Returns everything that the optimiser saves of itself, as bytes. Throws InvalidArgument that names it if it
// does not implement save().
torch::Tensor archive_of(const torch::optim::Optimizer& optimizer, const std::string& name) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream out;
  archive.save_to(out);
  const torch::Tensor bytes = comm::bytes_of(out.str());
  if (opened(bytes).keys().empty())
    fail(ErrorKind::InvalidArgument,
         "the optimiser {} saves nothing, so a checkpoint would not contain its state: override "
         "torch::optim::Optimizer::save() and load()",
         name);
  return bytes;
}

// Restores the result of archive_of(), except for the options of the groups, which stay as the program has
// set them. Throws InvalidArgument if the bytes belong to another optimiser or to other parameters.
void load_archive(torch::optim::Optimizer& optimizer, const torch::Tensor& archive, const std::string& name) {
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
  for (const auto& group : optimizer.param_groups()) options.push_back(group.options().clone());
  try {
    auto input = opened(archive);
    optimizer.load(input);
  } catch (const c10::Error& error) {
    fail(ErrorKind::InvalidArgument, "the saved state does not fit the optimiser {}: {}", name,
         first_line(error.what()));
  }
  for (size_t i = 0; i < options.size(); ++i) optimizer.param_groups()[i].set_options(std::move(options[i]));
}

}  // namespace

Optimizer::Optimizer(const Parameters& parameters, std::vector<Section> sections,
                     const OptimizerOptions& options)
    : Optimizer(std::move(sections), options, ranges_of(parameters, options.groups),
                {parameters.trained().begin(), parameters.trained().end()}) {}

Optimizer::Optimizer(std::vector<Section> sections, const OptimizerOptions& options,
                     std::vector<GroupRange> ranges, std::vector<Parameters::View> views)
    : sections_(std::move(sections)),
      options_(options),
      ranges_(std::move(ranges)),
      views_(options.is_replicated() ? std::move(views) : std::vector<Parameters::View>()) {
  require_in_range(options_);
  if (options_.is_replicated())
    begin_replicated();
  else
    begin();
}

void Optimizer::begin() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < sections_.size(); ++i) cut(i);
  use_gradients([this](size_t i) { return sections_[i].grads; });
  optimizer_ = make();
  rate_ = optimizer_->defaults().get_lr();
  set_learning_rate(rate_);
}

void Optimizer::set_sections(std::vector<Section> sections) {
  TUTTI_CHECK(!options_.is_replicated(), "the optimiser {} has no sections", name());
  const double rate = rate_;
  sections_ = std::move(sections);
  chunks_.clear();
  begin();
  set_learning_rate(rate);
  steps_ = 0;
}

// The learning rates of its own groups stay as they are until set_learning_rate() is called.
void Optimizer::begin_replicated() {
  optimizer_ = make();
  if (!optimizer_ || optimizer_->param_groups().empty())
    fail(ErrorKind::InvalidArgument, "the function `make` of the optimiser {} has made no optimiser", name());
  if (dynamic_cast<const torch::optim::LBFGS*>(optimizer_.get()) != nullptr)
    fail(ErrorKind::InvalidArgument,
         "the optimiser {} is L-BFGS, which computes the loss several times in each step: use "
         "Model::fit(feed, torch::optim::LBFGSOptions())",
         name());
  groups_.clear();
  for (const auto& group : optimizer_->param_groups()) groups_.push_back({.rate = rate_of(group.options())});
  rate_ = groups_.front().rate;
  for (Group& group : groups_) group.rate = rate_ > 0 ? group.rate / rate_ : 1;
}

// Cuts a section where groups of parameters begin and end, and into chunks that fit into the cache.
void Optimizer::cut(size_t index) {
  const Section& section = sections_[index];
  const int64_t most = chunk_elements(section.values);
  const auto add = [&](int64_t begin, int64_t end, size_t group) {
    for (int64_t at = begin; at < end; at += most) {
      const int64_t length = std::min(most, end - at);
      chunks_.push_back(
          {index, at, section.values.narrow(0, at, length).detach().requires_grad_(true), group});
    }
  };
  int64_t done = 0;
  for (const GroupRange& range : ranges_) {
    const int64_t begin = std::max(done, range.begin - section.offset);
    const int64_t end = std::min(section.values.numel(), range.end - section.offset);
    if (range.block != section.block || begin >= end) continue;
    add(done, begin, 0);
    add(begin, end, group_of(range));
    done = end;
  }
  add(done, section.values.numel(), 0);
}

size_t Optimizer::group_of(const GroupRange& range) {
  const auto is_it = [&](const Group& group) {
    return group.rate == range.rate && group.weight_decay == range.weight_decay;
  };
  const auto found = std::find_if(groups_.begin(), groups_.end(), is_it);
  if (found != groups_.end()) return static_cast<size_t>(found - groups_.begin());
  groups_.push_back({range.rate, range.weight_decay});
  return groups_.size() - 1;
}

// The options of a group are set after construction: newer versions of LibTorch replace options that are
// given with a group, and have their default value there, by those of the optimiser.
std::unique_ptr<torch::optim::Optimizer> Optimizer::make() const {
  std::vector<torch::optim::OptimizerParamGroup> groups(groups_.size(), std::vector<torch::Tensor>());
  for (const Chunk& chunk : chunks_) groups[chunk.group].params().push_back(chunk.values);
  for (const Parameters::View& view : views_) groups.front().params().push_back(view.tensor);
  return with_kind(options_, [&](const auto& o, auto kind) {
    std::unique_ptr<torch::optim::Optimizer> made = kind.make(groups, o);
    for (size_t i = 0; i < groups_.size(); ++i) {
      if (const auto weight_decay = groups_[i].weight_decay)
        kind.set_weight_decay(made->param_groups()[i].options(), *weight_decay);
    }
    return made;
  });
}

// Forgets the state, and keeps the options of the groups.
void Optimizer::make_anew() {
  std::unique_ptr<torch::optim::Optimizer> made = make();
  for (size_t i = 0; i < groups_.size(); ++i)
    made->param_groups()[i].set_options(optimizer_->param_groups()[i].options().clone());
  optimizer_ = std::move(made);
}

Optimizer::~Optimizer() = default;

void Optimizer::step() {
  for (const Parameters::View& view : views_) view.tensor.mutable_grad() = view.grad;
  optimizer_->step();
  ++steps_;
}

void Optimizer::step(std::span<const torch::Tensor> gradients) {
  TUTTI_CHECK(!options_.is_replicated(), "the optimiser {} has only the gradients of the parameters", name());
  use_gradients([&](size_t i) { return gradients[i]; });
  step();
  use_gradients([this](size_t i) { return sections_[i].grads; });
}

void Optimizer::use_gradients(const std::function<torch::Tensor(size_t section)>& gradient_of) {
  for (Chunk& chunk : chunks_) {
    const torch::Tensor section = gradient_of(chunk.section);
    const int64_t elements = chunk.values.numel();
    chunk.values.mutable_grad() =
        elements == section.numel() ? section : section.narrow(0, chunk.offset, elements);
  }
}

void Optimizer::set_learning_rate(double rate) {
  require_learning_rate(name(), rate);
  try {
    for (size_t i = 0; i < groups_.size(); ++i)
      optimizer_->param_groups()[i].options().set_lr(rate * groups_[i].rate);
  } catch (const c10::Error&) {
    fail(ErrorKind::InvalidArgument,
         "the learning rate of the optimiser {} cannot be set: override get_lr() and set_lr() of its options",
         name());
  }
  rate_ = rate;
}

Optimizer::State Optimizer::state() const {
  if (options_.is_replicated() && steps_ > 0)
    return {.steps = steps_, .slots = {}, .archive = archive_of(*optimizer_, name())};
  return {.steps = steps_, .slots = slots()};
}

// Calls visit(chunk, the number of the slot, view) for the slots that the optimiser keeps already.
template <class Visit>
void Optimizer::for_each_slot(const Visit& visit) const {
  with_kind(options_, [&](const auto& options, auto kind) {
    for (const Chunk& chunk : chunks_) {
      const auto found = optimizer_->state().find(compat::optimizer_state_key(*optimizer_, chunk.values));
      if (found == optimizer_->state().end()) continue;  // SGD without momentum keeps nothing
      auto& state = static_cast<typename decltype(kind)::State&>(*found->second);
      size_t slot = 0;
      for (const SlotView& view : kind.slots(state, options)) visit(chunk, slot++, view);
    }
  });
}

std::vector<std::string> Optimizer::slot_names() const {
  std::vector<std::string> names;
  with_kind(options_, [&](const auto& options, auto kind) {
    typename decltype(kind)::State none;
    for (const SlotView& view : kind.slots(none, options)) names.push_back(view.name);
  });
  return names;
}

void Optimizer::move_slots(const SlotVectors& to) {
  const torch::NoGradGuard no_grad;
  for_each_slot([&](const Chunk& chunk, size_t slot, const SlotView& view) {
    torch::Tensor place = to[chunk.section][slot].narrow(0, chunk.offset, chunk.values.numel());
    if (place.data_ptr() == view.tensor->data_ptr()) return;
    place.copy_(*view.tensor);
    *view.tensor = std::move(place);
  });
}

// Slots that the step itself has made, or put elsewhere, are moved afterwards.
void Optimizer::step_into(const SlotVectors& to) {
  const torch::NoGradGuard no_grad;
  for_each_slot([&](const Chunk& chunk, size_t slot, const SlotView& view) {
    torch::Tensor place = to[chunk.section][slot].narrow(0, chunk.offset, chunk.values.numel());
    if (view.old != nullptr)
      *view.old = *view.tensor;
    else
      place.copy_(*view.tensor);
    *view.tensor = std::move(place);
  });
  step();
  move_slots(to);
}

std::vector<Optimizer::Slot> Optimizer::slots() const {
  std::vector<Slot> slots;
  if (steps_ == 0) return slots;
  const torch::NoGradGuard no_grad;
  const auto slot_at = [&](const std::string& name, const Section& section) -> Slot& {
    for (Slot& slot : slots) {
      if (slot.name == name && slot.block == section.block && slot.offset == section.offset) return slot;
    }
    return slots.emplace_back(Slot{name, section.block, section.offset, torch::empty_like(section.values)});
  };
  for_each_slot([&](const Chunk& chunk, size_t /*slot*/, const SlotView& view) {
    slot_at(view.name, sections_[chunk.section])
        .vector.narrow(0, chunk.offset, chunk.values.numel())
        .copy_(*view.tensor);
  });
  return slots;
}

std::vector<Optimizer::Slot> Optimizer::slots_in(size_t block, const comm::ElementRange& elements) const {
  std::vector<Slot> parts;
  for_each_slot([&](const Chunk& chunk, size_t /*slot*/, const SlotView& view) {
    const Section& section = sections_[chunk.section];
    const int64_t offset = section.offset + chunk.offset;
    const int64_t begin = std::max(elements.begin, offset);
    const int64_t end = std::min(elements.end, offset + chunk.values.numel());
    if (section.block == block && begin < end)
      parts.push_back({view.name, block, begin, view.tensor->narrow(0, begin - offset, end - begin)});
  });
  return parts;
}

std::unique_ptr<Optimizer> Optimizer::for_section(const Section& section, const State& state) const {
  auto optimizer = std::make_unique<Optimizer>(std::vector{section}, options_, ranges_);
  optimizer->restore(state);
  optimizer->set_learning_rate(rate_);
  return optimizer;
}

void Optimizer::restore(const State& restored) {
  const torch::NoGradGuard no_grad;
  if (restored.steps == 0 || options_.is_replicated()) make_anew();
  if (restored.steps > 0 && options_.is_replicated()) {
    if (!restored.archive.defined())
      fail(ErrorKind::InvalidArgument, "there is no saved state of the optimiser {}", name());
    load_archive(*optimizer_, restored.archive, name());
  } else if (restored.steps > 0) {
    restore_slots(restored);
  }
  steps_ = restored.steps;
}

void Optimizer::restore_slots(const State& restored) {
  with_kind(options_, [&](const auto& options, auto kind) {
    using ChunkState = typename decltype(kind)::State;
    for (const Chunk& chunk : chunks_) {
      auto& kept = optimizer_->state()[compat::optimizer_state_key(*optimizer_, chunk.values)];
      kept = std::make_unique<ChunkState>();
      auto& state = static_cast<ChunkState&>(*kept);
      kind.set_step(state, restored.steps);
      for (const SlotView& view : kind.slots(state, options)) {
        const Section& section = sections_[chunk.section];
        *view.tensor = torch::empty_like(chunk.values.detach());
        copy_slot(*view.tensor, restored.slots, view.name, section.block, section.offset + chunk.offset);
      }
    }
  });
}

}  // namespace tutti
