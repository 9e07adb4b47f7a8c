#include "tutti/params/reducer.h"

#include <algorithm>
#include <utility>

#include <torch/utils.h>

#include "tutti/base/check.h"

namespace tutti {
namespace {

TreeSum::Vectors with(TreeSum::Vectors vectors, const torch::Tensor& last) {
  vectors.push_back(last);
  return vectors;
}

// The shape that TreeSum's result has for a block.
std::vector<TreeSum::Subtree> subtrees_of(LaneRange block, int64_t lanes) {
  TreeSum empty({}, block, lanes);
  for (int64_t lane = block.begin; lane < block.end; ++lane) empty.skip();
  return empty.finish();
}

std::byte* bytes_at(const torch::Tensor& vector, int64_t element) {
  return static_cast<std::byte*>(vector.data_ptr()) + element * static_cast<int64_t>(vector.element_size());
}

}  // namespace

Reducer::Reducer(comm::Communicator& comm, TreeSum::Vectors vectors, torch::Tensor numbers, int64_t lanes)
    : comm_(comm),
      shared_(comm.world() > 1 && vectors.front().is_cpu() ? comm.shared() : nullptr),
      vectors_(std::move(vectors)),
      numbers_(std::move(numbers)),
      lanes_(lanes),
      block_(lanes_of(comm.rank(), comm.world(), lanes)),
      sum_(with(vectors_, numbers_), block_, lanes) {
  for (int rank = 0; rank < comm.world(); ++rank) {
    const auto subtrees = subtrees_of(lanes_of(rank, comm.world(), lanes), lanes);
    for (size_t i = 0; i < subtrees.size(); ++i) {
      nodes_.push_back({subtrees[i].place, true});
      sources_.push_back({rank, i});
    }
    most_subtrees_ = std::max(most_subtrees_, subtrees.size());
  }
  word_ = shared_ != nullptr ? shared_->allocate(word_size(), torch::kDouble)
                             : torch::zeros({word_size()}, torch::kDouble);
  if (shared_ == nullptr) return;
  words_ = shared_->everyones(word_);
  for (const torch::Tensor& vector : vectors_) {
    outputs_.push_back(shared_->everyones(vector));
    Tensors extras;
    std::vector<Tensors> everyones_extras;
    for (size_t i = 0; i + 1 < most_subtrees_; ++i) {
      extras.push_back(shared_->allocate(vector.numel(), vector.scalar_type()));
      everyones_extras.push_back(shared_->everyones(extras.back()));
    }
    Tensors inputs;
    for (size_t s = 0; s < sources_.size(); ++s) {
      const Source& source = sources_[s];
      const bool last = s + 1 == sources_.size() || sources_[s + 1].rank != source.rank;
      inputs.push_back(last ? outputs_.back()[static_cast<size_t>(source.rank)]
                            : everyones_extras[source.subtree][static_cast<size_t>(source.rank)]);
    }
    extras_.push_back(std::move(extras));
    inputs_.push_back(std::move(inputs));
  }
}

int64_t Reducer::word_size() const {
  return kHead + static_cast<int64_t>(most_subtrees_) * (1 + numbers_.numel());
}

Reducer::Outcome Reducer::finish(int64_t step, int64_t stop, const Divisor& divisor) {
  const std::vector<TreeSum::Subtree> subtrees = sum_.finish();
  const torch::NoGradGuard no_grad;
  if (comm_.world() == 1) {
    const bool any_data = subtrees.front().values.has_value();
    if (any_data && divisor) divide(divisor);
    return {.any_data = any_data, .stop = stop};
  }
  write_word(step, stop, subtrees);
  if (shared_ != nullptr) keep_extras(subtrees);
  const Tensors words = exchange_words(step);
  const Outcome outcome = read_words(words, step);
  if (outcome.any_data) {
    const torch::Tensor numbers = add_numbers(words);
    for (size_t v = 0; v < vectors_.size(); ++v) {
      const double by = divisor ? divisor(v, numbers) : 0;
      shared_ != nullptr ? add_in_place(v, by) : add_by_exchange(v, by, step, subtrees);
    }
  }
  if (shared_ != nullptr) shared_->sync({.what = "the sum of gradients", .step = step});
  return outcome;
}

void Reducer::divide(const Divisor& divisor) {
  const torch::Tensor numbers = numbers_.to(torch::kCPU);
  for (size_t v = 0; v < vectors_.size(); ++v) vectors_[v].div_(divisor(v, numbers));
}

void Reducer::write_word(int64_t step, int64_t stop, const std::vector<TreeSum::Subtree>& subtrees) {
  auto* word = static_cast<double*>(word_.data_ptr());
  *word++ = static_cast<double>(step);
  *word++ = static_cast<double>(stop);
  for (const TreeSum::Subtree& subtree : subtrees) {
    *word++ = subtree.values ? 1 : 0;
    const torch::Tensor numbers = subtree.values ? subtree.values->back().to(torch::kCPU) : torch::Tensor();
    for (int64_t i = 0; i < numbers_.numel(); ++i)
      *word++ = subtree.values ? static_cast<const double*>(numbers.data_ptr())[i] : 0;
  }
}

// All but the last, which is in the vectors.
void Reducer::keep_extras(const std::vector<TreeSum::Subtree>& subtrees) {
  for (size_t i = 0; i + 1 < subtrees.size(); ++i) {
    if (!subtrees[i].values) continue;
    for (size_t v = 0; v < vectors_.size(); ++v) extras_[v][i].copy_((*subtrees[i].values)[v]);
  }
}

Reducer::Tensors Reducer::exchange_words(int64_t step) {
  if (shared_ != nullptr) {
    shared_->sync({.what = "gradients", .step = step});
    return words_;
  }
  const torch::Tensor all = torch::empty({comm_.world() * word_size()}, torch::kDouble);
  comm_.all_gather(all, word_, {.what = "the control word", .step = step});
  return all.view({comm_.world(), word_size()}).unbind(0);
}

Reducer::Outcome Reducer::read_words(const Tensors& words, int64_t step) {
  Outcome outcome;
  outcome.first_with_data = -1;
  for (int rank = 0; rank < comm_.world(); ++rank) {
    const auto* word = static_cast<const double*>(words[static_cast<size_t>(rank)].data_ptr());
    if (static_cast<int64_t>(word[0]) != step) {
      fail(ErrorKind::InvalidArgument,
           "rank {} is at step {}, rank {} at step {}: every worker has to make the same steps", comm_.rank(),
           step, rank, static_cast<int64_t>(word[0]));
    }
    outcome.stop = std::max(outcome.stop, static_cast<int64_t>(word[1]));
  }
  std::vector<bool> with_data(static_cast<size_t>(comm_.world()), false);
  for (size_t s = 0; s < sources_.size(); ++s) {
    const auto rank = static_cast<size_t>(sources_[s].rank);
    const auto* word = static_cast<const double*>(words[rank].data_ptr());
    nodes_[s].present = word[kHead + static_cast<int64_t>(sources_[s].subtree) * (1 + numbers_.numel())] != 0;
    if (nodes_[s].present && outcome.first_with_data < 0) outcome.first_with_data = sources_[s].rank;
    with_data[rank] = with_data[rank] || nodes_[s].present;
  }
  outcome.any_data = outcome.first_with_data >= 0;
  outcome.data_everywhere = std::find(with_data.begin(), with_data.end(), false) == with_data.end();
  program_ = comm::program_of(nodes_, lanes_);
  return outcome;
}

torch::Tensor Reducer::add_numbers(const Tensors& words) {
  std::vector<const std::byte*> inputs;
  for (const Source& source : sources_) {
    const int64_t at = kHead + static_cast<int64_t>(source.subtree) * (1 + numbers_.numel()) + 1;
    inputs.push_back(bytes_at(words[static_cast<size_t>(source.rank)], at));
  }
  const torch::Tensor sum = torch::empty({numbers_.numel()}, torch::kDouble);
  std::byte* output = bytes_at(sum, 0);
  comm::reduce(inputs, {&output, 1}, {torch::kDouble, comm::ReduceOp::Sum, numbers_.numel()}, program_);
  numbers_.copy_(sum);
  return sum;
}

void Reducer::add_in_place(size_t vector, double divisor) {
  const torch::Tensor& mine = vectors_[vector];
  const comm::Slice slice = comm::slice_of(mine.numel(), comm_.rank(), comm_.world());
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  for (const torch::Tensor& input : inputs_[vector]) inputs.push_back(bytes_at(input, slice.begin));
  for (const torch::Tensor& output : outputs_[vector]) outputs.push_back(bytes_at(output, slice.begin));
  comm::reduce(inputs, outputs, {mine.scalar_type(), comm::ReduceOp::Sum, slice.end - slice.begin, divisor},
               program_);
}

// Every worker gets its slice of everybody's subtrees, one behind the other, and gives the sum back to all.
void Reducer::add_by_exchange(size_t vector, double divisor, int64_t step,
                              const std::vector<TreeSum::Subtree>& subtrees) {
  const torch::Tensor& mine = vectors_[vector];
  Tensors sends;
  Tensors slices;
  Tensors recvs;
  std::vector<const std::byte*> inputs;
  const comm::Slice own = comm::slice_of(mine.numel(), comm_.rank(), comm_.world());
  const int64_t own_size = own.end - own.begin;
  for (int rank = 0; rank < comm_.world(); ++rank) {
    const comm::Slice slice = comm::slice_of(mine.numel(), rank, comm_.world());
    slices.push_back(mine.narrow(0, slice.begin, slice.end - slice.begin));
    Tensors parts;
    for (const TreeSum::Subtree& subtree : subtrees) {
      if (subtree.values)
        parts.push_back((*subtree.values)[vector].narrow(0, slice.begin, slice.end - slice.begin));
    }
    sends.push_back(parts.empty()       ? mine.narrow(0, 0, 0)
                    : parts.size() == 1 ? parts.front()
                                        : torch::cat(parts));
    const auto theirs = std::count_if(nodes_.begin(), nodes_.end(), [&](const comm::Node& node) {
      return node.present && sources_[static_cast<size_t>(&node - nodes_.data())].rank == rank;
    });
    recvs.push_back(torch::empty({theirs * own_size}, mine.options().device(torch::kCPU)));
  }
  comm_.all_to_all_uneven(recvs, sends, {.what = "gradients", .step = step});
  std::vector<int64_t> next(static_cast<size_t>(comm_.world()), 0);
  for (size_t s = 0; s < sources_.size(); ++s) {
    const auto rank = static_cast<size_t>(sources_[s].rank);
    inputs.push_back(nodes_[s].present ? bytes_at(recvs[rank], own_size * next[rank]++) : nullptr);
  }
  const torch::Tensor& own_slice = slices[static_cast<size_t>(comm_.rank())];
  const torch::Tensor sum = mine.is_cpu() ? own_slice : torch::empty({own_size}, recvs.front().options());
  std::byte* output = bytes_at(sum, 0);
  comm::reduce(inputs, {&output, 1}, {mine.scalar_type(), comm::ReduceOp::Sum, own_size, divisor}, program_);
  comm_.all_gather_uneven(slices, sum, {.what = "the sum of gradients", .step = step});
}

}  // namespace tutti
