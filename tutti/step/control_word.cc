#include "tutti/step/control_word.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <torch/utils.h>

#include "tutti/base/error.h"

namespace tutti {
namespace {

// The layout of the beginning of a word.
enum Head { kStep, kStop, kSignal, kSave, kChange, kLeaving, kRate, kNotFinite, kHead };

const double* numbers_in(const torch::Tensor& word) { return static_cast<const double*>(word.data_ptr()); }

// Compares the rates exactly: a schedule computes the same bits on every worker.
void require_one_rate(const std::vector<torch::Tensor>& words) {
  constexpr size_t kNobody = std::numeric_limits<size_t>::max();
  size_t first = kNobody;
  for (size_t rank = 0; rank < words.size(); ++rank) {
    const double* word = numbers_in(words[rank]);
    if (std::isnan(word[kRate])) continue;
    if (first == kNobody) first = rank;
    const double expected = numbers_in(words[first])[kRate];
    if (word[kRate] == expected) continue;
    fail(ErrorKind::InvalidArgument,
         "the workers use different learning rates at step {}: rank {} uses {}, rank {} uses {}. Start all "
         "with the same flags, and let schedules and calls of set_learning_rate() depend only on the step",
         word[kStep], first, expected, rank, word[kRate]);
  }
}

}  // namespace

void Wishes::add(const Wishes& other) {
  stop = stop || other.stop;
  save = save || other.save;
  signal = std::max(signal, other.signal);
  change = change || other.change;
  leaving += other.leaving;
}

ControlWord::ControlWord(std::span<const LaneRange> ranges, int64_t leaves, int64_t numbers)
    : numbers_(numbers) {
  std::vector<comm::Source> order;
  for (size_t rank = 0; rank < ranges.size(); ++rank) {
    const auto subtrees = subtrees_of(ranges[rank], leaves);
    for (size_t i = 0; i < subtrees.size(); ++i) {
      order.push_back({subtrees[i], static_cast<int>(rank)});
      sources_.push_back({static_cast<int>(rank), i});
    }
    most_subtrees_ = std::max(most_subtrees_, subtrees.size());
  }
  order_ = comm::sources_of(std::move(order), leaves);
}

int64_t ControlWord::size() const { return place_of(most_subtrees_); }

int64_t ControlWord::place_of(size_t subtree) const {
  return kHead + static_cast<int64_t>(subtree) * (1 + numbers_);
}

void ControlWord::write(const torch::Tensor& word, int64_t step, const Wishes& wishes, double learning_rate,
                        const std::vector<TreeSum::Subtree>& subtrees, Gradients gradients) const {
  auto* to = static_cast<double*>(word.data_ptr());
  to[kStep] = static_cast<double>(step);
  to[kStop] = wishes.stop ? 1 : 0;
  to[kSignal] = wishes.signal;
  to[kSave] = wishes.save ? 1 : 0;
  to[kChange] = wishes.change ? 1 : 0;
  to[kLeaving] = wishes.leaving;
  to[kRate] = learning_rate;
  to[kNotFinite] = gradients == Gradients::NotFinite ? 1 : 0;
  for (size_t i = 0; i < subtrees.size(); ++i) {
    double* place = to + place_of(i);
    *place++ = subtrees[i].values ? 1 : 0;
    const torch::Tensor numbers = subtrees[i].values ? subtrees[i].values->back().to(torch::kCPU)
                                                     : torch::zeros({numbers_}, torch::kDouble);
    std::copy_n(numbers_in(numbers), numbers_, place);
  }
}

torch::Tensor ControlWord::without_data(int64_t step) const {
  torch::Tensor word = torch::zeros({size()}, torch::kDouble);
  write(word, step, {}, kNoRate, {});
  return word;
}

int64_t ControlWord::step_of(const torch::Tensor& word) const {
  return static_cast<int64_t>(numbers_in(word)[kStep]);
}

bool ControlWord::has_data(const torch::Tensor& word, size_t subtree) const {
  return numbers_in(word)[place_of(subtree)] != 0;
}

std::span<const double> ControlWord::numbers_of(const torch::Tensor& word, size_t subtree) const {
  return {numbers_in(word) + place_of(subtree) + 1, static_cast<size_t>(numbers_)};
}

ReduceOutcome ControlWord::read(const std::vector<torch::Tensor>& words) {
  ReduceOutcome outcome;
  for (size_t rank = 0; rank < words.size(); ++rank) {
    const double* word = numbers_in(words[rank]);
    const double* first = numbers_in(words[0]);
    if (word[kStep] != first[kStep]) {
      fail(ErrorKind::InvalidArgument,
           "rank 0 is at step {}, rank {} at step {}: every worker has to make the same steps", first[kStep],
           rank, word[kStep]);
    }
    if (word[kNotFinite] != 0 && outcome.not_finite < 0) outcome.not_finite = static_cast<int>(rank);
    outcome.wishes.add({.stop = word[kStop] != 0,
                        .save = word[kSave] != 0,
                        .signal = static_cast<int>(word[kSignal]),
                        .change = word[kChange] != 0,
                        .leaving = static_cast<int>(word[kLeaving])});
  }
  require_one_rate(words);
  outcome.first_with_data = -1;
  size_t ranks_with_data = 0;
  std::vector<comm::Source> order = std::move(order_.all);
  for (size_t s = 0; s < sources_.size();) {
    const int rank = sources_[s].rank;
    bool with_data = false;
    for (; s < sources_.size() && sources_[s].rank == rank; ++s) {
      order[s].present = has_data(words[static_cast<size_t>(rank)], sources_[s].subtree);
      with_data = with_data || order[s].present;
    }
    if (with_data && outcome.first_with_data < 0) outcome.first_with_data = rank;
    if (with_data) ++ranks_with_data;
  }
  outcome.any_data = outcome.first_with_data >= 0;
  outcome.data_everywhere = ranks_with_data == words.size();
  order_ = comm::sources_of(std::move(order), order_.leaves);
  return outcome;
}

torch::Tensor ControlWord::sum_numbers(const std::vector<torch::Tensor>& words) const {
  std::vector<const std::byte*> inputs;
  for (const Source& source : sources_) {
    const double* word = numbers_in(words[static_cast<size_t>(source.rank)]);
    inputs.push_back(reinterpret_cast<const std::byte*>(word + place_of(source.subtree) + 1));
  }
  const torch::Tensor sum = torch::empty({numbers_}, torch::kDouble);
  auto* output = static_cast<std::byte*>(sum.data_ptr());
  comm::reduce(inputs, {&output, 1}, {ElementType::Float64, comm::ReduceOp::Sum, numbers_}, order_.program);
  return sum;
}

}  // namespace tutti
