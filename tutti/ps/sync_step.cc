#include "tutti/ps/sync_step.h"

#include <algorithm>
#include <utility>

#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/comm/reduce.h"
#include "tutti/params/summation/summation.h"
#include "tutti/ps/wire.h"

namespace tutti::ps {
namespace {

std::vector<torch::Tensor> summed(const std::vector<Stretch>& stretches,
                                  const std::vector<torch::Tensor>& buffers) {
  std::vector<torch::Tensor> all;
  for (const Stretch& stretch : stretches) all.push_back(stretch.grads);
  all.insert(all.end(), buffers.begin(), buffers.end());
  return all;
}

}  // namespace

SyncStep::SyncStep(std::vector<Stretch> stretches, Optimizer& optimizer, std::vector<torch::Tensor> buffers,
                   std::vector<torch::Tensor> counters, const SyncOptions& options)
    : stretches_(std::move(stretches)),
      optimizer_(optimizer),
      buffers_(std::move(buffers)),
      counters_(std::move(counters)),
      one_lane_(options.lanes == 1),
      blocks_(blocks_of(options.workers, options.lanes)),
      lanes_(options.lanes),
      rows_(options.rows),
      summed_(summed(stretches_, buffers_)),
      word_(blocks_of(options.workers, options.lanes), options.lanes, kNumbers),
      offers_(static_cast<size_t>(options.workers)) {}

void SyncStep::offer(int rank, int64_t step, const rpc::Message& message) {
  Reader reader(message);
  Offer offer{
      .word = reader.take(word_.size(), torch::kDouble).clone(), .subtrees = {}, .counters = {}, .rows = {}};
  if (word_.step_of(offer.word) != step)
    fail(ErrorKind::InvalidArgument, "the gradients are for step {}, expected step {}",
         word_.step_of(offer.word), step);
  bool any = false;
  for (const ControlWord::Source& source : word_.sources()) {
    if (source.rank != rank) continue;
    std::vector<torch::Tensor>& values = offer.subtrees.emplace_back();
    if (!word_.has_data(offer.word, source.subtree)) continue;
    any = true;
    for (const torch::Tensor& like : summed_) values.push_back(reader.take(like.numel(), like.scalar_type()));
  }
  for (size_t i = 0; any && i < counters_.size(); ++i)
    offer.counters.push_back(reader.take(counters_[i].numel(), counters_[i].scalar_type()));
  const embedding::RowGradients rows = rows_in(message.head, reader);
  reader.end();
  if (rows_ != nullptr) offer.rows = rows_->sums_in(rows, blocks_.at(static_cast<size_t>(rank)));
  offers_[static_cast<size_t>(rank)] = std::move(offer);
}

size_t SyncStep::bytes_of_offer(int rank) const {
  const auto subtrees = std::count_if(word_.sources().begin(), word_.sources().end(),
                                      [&](const ControlWord::Source& source) { return source.rank == rank; });
  size_t bytes = 0;
  for (const torch::Tensor& vector : summed_) bytes += vector.nbytes();
  return bytes * static_cast<size_t>(subtrees);
}

int64_t SyncStep::offers() const {
  return std::count_if(offers_.begin(), offers_.end(), [](const auto& offer) { return offer.has_value(); });
}

// Returns the control word of the worker's offer, or that of a worker without data.
torch::Tensor SyncStep::word_of(int rank, int64_t step) const {
  if (const auto& offer = offers_[static_cast<size_t>(rank)]) return offer->word;
  return word_.without_data(step);
}

SyncStep::Result SyncStep::add_up(int64_t step) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> words;
  for (size_t rank = 0; rank < offers_.size(); ++rank) words.push_back(word_of(static_cast<int>(rank), step));
  Result result{.outcome = word_.read(words), .examples = 0, .loss_sum = {}, .words = torch::cat(words)};
  if (result.outcome.any_data) {
    const torch::Tensor numbers = word_.sum_numbers(words);
    result.examples = static_cast<int64_t>(numbers[kExamples].item<double>());
    result.loss_sum = numbers[kLoss].clone();
    add(numbers);
    const auto& first = offers_[static_cast<size_t>(result.outcome.first_with_data)];
    for (size_t i = 0; i < counters_.size(); ++i)
      counters_[i].copy_(first->counters[i].view(counters_[i].sizes()));
    add_rows(step, result.examples);
  }
  for (auto& offer : offers_) offer.reset();
  any_data_ = result.outcome.any_data;
  return result;
}

void SyncStep::apply(double factor) {
  if (!any_data_) return;
  const torch::NoGradGuard no_grad;
  if (factor == 1) {
    optimizer_.step();
  } else {
    // The mean itself stays as it is: other workers may still have to get it, and compute the factor from it.
    std::vector<torch::Tensor> scaled;
    for (const Stretch& stretch : stretches_) scaled.push_back(stretch.grads * factor);
    optimizer_.step(scaled);
  }
  if (rows_ != nullptr)
    rows_->update(factor, embedding::relative_rate(optimizer_.learning_rate(), optimizer_.options()),
                  optimizer_.steps());
}

void SyncStep::add_rows(int64_t step, int64_t examples) {
  if (rows_ == nullptr) return;
  std::vector<std::vector<embedding::RowSumsView>> workers;
  for (const auto& offer : offers_)
    workers.push_back(offer ? offer->rows : std::vector<embedding::RowSumsView>());
  rows_->begin_step(workers, lanes_, one_lane_ ? 0 : static_cast<double>(examples), step);
}

void SyncStep::add(const torch::Tensor& numbers) {
  const size_t gradients = stretches_.size();
  for (size_t i = 0; i < summed_.size(); ++i) {
    const int64_t number = i < gradients ? kExamples : kLanes;
    add_one(i, summed_[i], one_lane_ ? 0 : numbers[number].item<double>());
  }
}

void SyncStep::add_one(size_t index, const torch::Tensor& output, double divisor) {
  std::vector<const std::byte*> inputs;
  for (size_t s = 0; s < word_.sources().size(); ++s) {
    const ControlWord::Source& source = word_.sources()[s];
    inputs.push_back(
        word_.present(s)
            ? bytes_of(offers_[static_cast<size_t>(source.rank)]->subtrees[source.subtree][index]).data()
            : nullptr);
  }
  std::byte* to = bytes_of(output).data();
  comm::reduce(inputs, {&to, 1}, sum_of(output.scalar_type(), output.numel(), divisor), word_.program());
}

}  // namespace tutti::ps
