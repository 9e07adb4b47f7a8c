#include "tutti/ps/sync_step.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/step/tree_sum.h"
#include "tutti/transport/reduce.h"

namespace tutti::ps {
namespace {

using Tensors = std::vector<torch::Tensor>;

Tensors gradients_of(const std::vector<Section>& sections) {
  Tensors all;
  for (const Section& section : sections) all.push_back(section.grads);
  return all;
}

size_t bytes_in(const Tensors& tensors) {
  size_t bytes = 0;
  for (const torch::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

// Returns the number of subtrees of each rank.
std::vector<size_t> subtrees_in(const ControlWord& control, int workers) {
  std::vector<size_t> subtrees(static_cast<size_t>(workers));
  for (const ControlWord::Source& source : control.sources()) ++subtrees[static_cast<size_t>(source.rank)];
  return subtrees;
}

}  // namespace

SyncStep::SyncStep(std::vector<Section> sections, Optimizer& optimizer, Tensors buffers, Tensors counters,
                   const SyncOptions& options)
    : sections_(std::move(sections)),
      optimizer_(optimizer),
      gradients_(gradients_of(sections_)),
      buffers_(std::move(buffers)),
      counters_(std::move(counters)),
      segments_(segments_of(gradients_)),
      one_lane_(options.lanes == 1),
      ranges_(lanes_of_all(options.workers, options.lanes)),
      lanes_(options.lanes),
      rows_(options.rows),
      name_of_(options.name_of ? options.name_of : [](int rank) { return fmt::format("rank {}", rank); }),
      control_(ranges_, options.lanes, kNumbers),
      subtrees_(subtrees_in(control_, options.workers)),
      control_words_(static_cast<size_t>(options.workers)),
      offers_(static_cast<size_t>(options.workers)),
      had_data_(options.had_data) {}

SyncStep SyncStep::with_workers(int workers) const {
  return {sections_,
          optimizer_,
          buffers_,
          counters_,
          {.workers = workers, .lanes = lanes_, .rows = rows_, .name_of = name_of_, .had_data = had_data_}};
}

bool SyncStep::has_any_data(int rank, const torch::Tensor& control_word) const {
  for (size_t subtree = 0; subtree < subtrees_[static_cast<size_t>(rank)]; ++subtree) {
    if (control_.has_data(control_word, subtree)) return true;
  }
  return false;
}

torch::Tensor SyncStep::read_control_word(Reader& reader) const {
  return reader.take_tensor(control_.size(), torch::kDouble).clone();
}

std::vector<rpc::Piece> SyncStep::read_segment(int rank, const torch::Tensor& control_word, size_t segment,
                                               Reader& reader) const {
  std::vector<rpc::Piece> of_subtrees(subtrees_[static_cast<size_t>(rank)]);
  for (size_t subtree = 0; subtree < of_subtrees.size(); ++subtree) {
    if (control_.has_data(control_word, subtree))
      of_subtrees[subtree] = reader.take_bytes(segments_[segment].bytes);
  }
  return of_subtrees;
}

SyncStep::Rest SyncStep::read_rest(int rank, const torch::Tensor& control_word, const Json& head,
                                   Reader& reader) const {
  Rest rest;
  for (size_t subtree = 0; subtree < subtrees_[static_cast<size_t>(rank)]; ++subtree) {
    Tensors& buffers = rest.buffers.emplace_back();
    if (!control_.has_data(control_word, subtree)) continue;
    for (const torch::Tensor& like : buffers_)
      buffers.push_back(reader.take_tensor(like.numel(), like.scalar_type()));
  }
  if (has_any_data(rank, control_word)) {
    for (const torch::Tensor& like : counters_)
      rest.counters.push_back(reader.take_tensor(like.numel(), like.scalar_type()));
  }
  rest.rows = rows_in(head, reader);
  reader.end();
  return rest;
}

void SyncStep::offer_control_word(int rank, int64_t step, const torch::Tensor& control_word,
                                  size_t row_bytes) {
  if (control_.step_of(control_word) != step)
    fail(ErrorKind::InvalidArgument, "the gradients are for step {}, expected step {}",
         control_.step_of(control_word), step);
  const auto place = static_cast<size_t>(rank);
  if (added_ > 0) require_same_examples(rank, control_word);
  control_words_[place] = control_word;
  Offer& offer = offers_[place].emplace();
  offer.segments.resize(segments_.size());
  offer.row_bytes = row_bytes;
}

// A part of the gradients of these examples has been added already.
void SyncStep::require_same_examples(int rank, const torch::Tensor& control_word) const {
  const torch::Tensor& before = control_words_[static_cast<size_t>(rank)];
  for (size_t subtree = 0; subtree < subtrees_[static_cast<size_t>(rank)]; ++subtree) {
    if (control_.has_data(before, subtree) != control_.has_data(control_word, subtree) ||
        control_.numbers_of(before, subtree)[kExamples] !=
            control_.numbers_of(control_word, subtree)[kExamples])
      fail(ErrorKind::InvalidArgument,
           "the worker of rank {} was replaced during a step, and the new one sends the gradients of "
           "other examples: start it with the same data and flags, or continue from a checkpoint",
           rank);
  }
}

void SyncStep::offer(int rank, size_t segment, std::vector<rpc::Piece> of_subtrees) {
  if (segment >= added_) offers_[static_cast<size_t>(rank)]->segments[segment] = std::move(of_subtrees);
}

void SyncStep::offer_rest(int rank, Rest rest) {
  Offer& offer = *offers_[static_cast<size_t>(rank)];
  if (rows_ != nullptr) offer.rows = rows_->sums_in(rest.rows, ranges_.at(static_cast<size_t>(rank)));
  offer.rest = std::move(rest);
}

void SyncStep::offer(int rank, int64_t step, const rpc::Message& message) {
  Reader reader(message);
  const torch::Tensor control_word = read_control_word(reader);
  offer_control_word(rank, step, control_word);
  for (size_t segment = 0; segment < segments_.size(); ++segment)
    offer(rank, segment, read_segment(rank, control_word, segment, reader));
  offer_rest(rank, read_rest(rank, control_word, message.head, reader));
}

void SyncStep::withdraw(int rank) {
  offers_[static_cast<size_t>(rank)].reset();
  if (added_ == 0) control_words_[static_cast<size_t>(rank)] = torch::Tensor();
}

void SyncStep::withdraw_all() {
  added_ = 0;
  numbers_ = torch::Tensor();
  for (size_t rank = 0; rank < offers_.size(); ++rank) withdraw(static_cast<int>(rank));
}

bool SyncStep::awaits(int rank) const {
  const auto& offer = offers_[static_cast<size_t>(rank)];
  if (!offer || added_ == segments_.size()) return !has(rank);
  return offer->segments[added_].empty() && subtrees_[static_cast<size_t>(rank)] > 0;
}

bool SyncStep::has(int rank) const {
  const auto& offer = offers_[static_cast<size_t>(rank)];
  return offer && offer->rest;
}

int64_t SyncStep::offers() const {
  return std::count_if(offers_.begin(), offers_.end(),
                       [](const auto& offer) { return offer && offer->rest; });
}

size_t SyncStep::bytes_of_offer(int rank) const {
  return (bytes_in(gradients_) + bytes_in(buffers_)) * subtrees_[static_cast<size_t>(rank)];
}

size_t SyncStep::bytes_ahead(int rank) const {
  return (std::min(bytes_in(gradients_), kAhead * Segment::kMost) + bytes_in(buffers_)) *
         subtrees_[static_cast<size_t>(rank)];
}

size_t SyncStep::row_bytes() const {
  size_t bytes = 0;
  for (const auto& offer : offers_) bytes += offer ? offer->row_bytes : 0;
  return bytes;
}

// Workers without an offer had no data.
ReduceOutcome SyncStep::read_control_words(int64_t step) {
  for (torch::Tensor& control_word : control_words_) {
    if (!control_word.defined()) control_word = control_.without_data(step);
  }
  const ReduceOutcome outcome = control_.read(control_words_);
  if (outcome.not_finite >= 0)
    fail(ErrorKind::InvalidArgument,
         "the gradients of {} are not finite at step {}. Try a lower learning rate, or check the data; "
         "--no-nan-guard continues the training anyway",
         name_of_(outcome.not_finite), step);
  if (outcome.any_data) numbers_ = control_.sum_numbers(control_words_);
  return outcome;
}

bool SyncStep::add_offered(int64_t step) {
  const auto lacks = [&](const std::optional<Offer>& offer) {
    const auto rank = static_cast<int>(&offer - offers_.data());
    return !offer || awaits(rank);
  };
  const torch::NoGradGuard no_grad;
  const size_t before = added_;
  while (added_ < segments_.size() && std::none_of(offers_.begin(), offers_.end(), lacks)) {
    if (added_ == 0 && !read_control_words(step).any_data) {
      added_ = segments_.size();
      return true;
    }
    add_segment();
  }
  return added_ > before;
}

SyncStep::Result SyncStep::add_up(int64_t step) {
  const torch::NoGradGuard no_grad;
  for (size_t rank = 0; rank < offers_.size(); ++rank) {
    if (!has(static_cast<int>(rank))) withdraw(static_cast<int>(rank));
  }
  Result result{.outcome = read_control_words(step),
                .examples = 0,
                .loss_sum = {},
                .control_words = torch::cat(control_words_)};
  if (result.outcome.any_data) {
    result.examples = static_cast<int64_t>(numbers_[kExamples].item<double>());
    result.loss_sum = numbers_[kLoss].clone();
    while (added_ < segments_.size()) add_segment();
    add_buffers();
    const auto& first = offers_[static_cast<size_t>(result.outcome.first_with_data)];
    for (size_t i = 0; i < counters_.size(); ++i)
      counters_[i].copy_(first->rest->counters[i].view(counters_[i].sizes()));
    add_rows(step);
  }
  withdraw_all();
  had_data_ = result.outcome.any_data;
  return result;
}

void SyncStep::apply(double factor) {
  if (!had_data_) {
    if (rows_ != nullptr) rows_->skip_step();
    return;
  }
  const torch::NoGradGuard no_grad;
  if (factor == 1) {
    optimizer_.step();
  } else {
    // The mean itself stays as it is: other workers may still have to get it, and compute the factor from it.
    Tensors scaled;
    for (const torch::Tensor& gradient : gradients_) scaled.push_back(gradient * factor);
    optimizer_.step(scaled);
  }
  if (rows_ != nullptr)
    rows_->update(factor, embedding::relative_rate(optimizer_.learning_rate(), optimizer_.options()),
                  optimizer_.steps());
}

// `inputs` has one place for each source; places of sources without data are ignored.
void SyncStep::add(std::vector<const std::byte*> inputs, std::byte* output,
                   const comm::Reduction& reduction) const {
  for (size_t s = 0; s < inputs.size(); ++s) {
    if (!control_.order().all[s].present) inputs[s] = nullptr;
  }
  comm::reduce(inputs, {&output, 1}, reduction, control_.order().program);
}

void SyncStep::add_segment() {
  const Segment& segment = segments_[added_];
  const torch::Tensor output =
      gradients_[segment.vector].narrow(0, segment.begin, segment.end - segment.begin);
  std::vector<const std::byte*> inputs;
  for (const ControlWord::Source& source : control_.sources()) {
    const auto& offer = offers_[static_cast<size_t>(source.rank)];
    inputs.push_back(offer ? offer->segments[added_][source.subtree].bytes.data() : nullptr);
  }
  add(inputs, bytes_of(output).data(),
      sum_of(output.scalar_type(), output.numel(), one_lane_ ? 0 : numbers_[kExamples].item<double>()));
  for (auto& offer : offers_) {
    if (offer) offer->segments[added_].clear();
  }
  ++added_;
}

void SyncStep::add_buffers() {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    std::vector<const std::byte*> inputs;
    for (const ControlWord::Source& source : control_.sources()) {
      const auto& offer = offers_[static_cast<size_t>(source.rank)];
      const bool is_there = offer && !offer->rest->buffers[source.subtree].empty();
      inputs.push_back(is_there ? bytes_of(offer->rest->buffers[source.subtree][i]).data() : nullptr);
    }
    add(inputs, bytes_of(buffers_[i]).data(),
        sum_of(buffers_[i].scalar_type(), buffers_[i].numel(),
               one_lane_ ? 0 : numbers_[kLanes].item<double>()));
  }
}

void SyncStep::add_rows(int64_t step) {
  if (rows_ == nullptr) return;
  std::vector<std::vector<embedding::RowSumsView>> workers;
  for (const auto& offer : offers_)
    workers.push_back(offer ? offer->rows : std::vector<embedding::RowSumsView>());
  rows_->add_up(workers, lanes_, one_lane_ ? 0 : numbers_[kExamples].item<double>());
  rows_->begin_step(step);
}

}  // namespace tutti::ps
