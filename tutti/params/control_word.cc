#include "tutti/params/control_word.h"

#include <algorithm>

#include <torch/utils.h>

#include "tutti/base/error.h"

namespace tutti {
namespace {

// What a word begins with.
enum Head { kStep, kStop, kSave, kHead };

// The shape that TreeSum's result has for a block.
std::vector<TreeSum::Subtree> subtrees_of(LaneRange block, int64_t leaves) {
  TreeSum empty({}, block, leaves);
  for (int64_t leaf = block.begin; leaf < block.end; ++leaf) empty.skip();
  return empty.finish();
}

const double* numbers_in(const torch::Tensor& word) { return static_cast<const double*>(word.data_ptr()); }

}  // namespace

ControlWord::ControlWord(std::span<const LaneRange> blocks, int64_t leaves, int64_t numbers)
    : leaves_(leaves), numbers_(numbers) {
  for (size_t rank = 0; rank < blocks.size(); ++rank) {
    const auto subtrees = subtrees_of(blocks[rank], leaves);
    for (size_t i = 0; i < subtrees.size(); ++i) {
      nodes_.push_back({subtrees[i].place, true});
      sources_.push_back({static_cast<int>(rank), i});
    }
    most_subtrees_ = std::max(most_subtrees_, subtrees.size());
  }
}

int64_t ControlWord::size() const { return place_of(most_subtrees_); }

int64_t ControlWord::place_of(size_t subtree) const {
  return kHead + static_cast<int64_t>(subtree) * (1 + numbers_);
}

void ControlWord::write(const torch::Tensor& word, int64_t step, const Wishes& wishes,
                        const std::vector<TreeSum::Subtree>& subtrees) const {
  auto* to = static_cast<double*>(word.data_ptr());
  to[kStep] = static_cast<double>(step);
  to[kStop] = static_cast<double>(wishes.stop);
  to[kSave] = wishes.save ? 1 : 0;
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
  static_cast<double*>(word.data_ptr())[kStep] = static_cast<double>(step);
  return word;
}

int64_t ControlWord::step_of(const torch::Tensor& word) const {
  return static_cast<int64_t>(numbers_in(word)[kStep]);
}

bool ControlWord::has_data(const torch::Tensor& word, size_t subtree) const {
  return numbers_in(word)[place_of(subtree)] != 0;
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
    outcome.wishes.stop = std::max(outcome.wishes.stop, static_cast<int64_t>(word[kStop]));
    outcome.wishes.save = outcome.wishes.save || word[kSave] != 0;
  }
  outcome.first_with_data = -1;
  for (size_t s = 0; s < sources_.size();) {
    const int rank = sources_[s].rank;
    bool with_data = false;
    for (; s < sources_.size() && sources_[s].rank == rank; ++s) {
      nodes_[s].present = has_data(words[static_cast<size_t>(rank)], sources_[s].subtree);
      with_data = with_data || nodes_[s].present;
    }
    if (with_data && outcome.first_with_data < 0) outcome.first_with_data = rank;
    outcome.data_everywhere = outcome.data_everywhere && with_data;
  }
  outcome.any_data = outcome.first_with_data >= 0;
  program_ = comm::program_of(nodes_, leaves_);
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
  comm::reduce(inputs, {&output, 1}, {torch::kDouble, comm::ReduceOp::Sum, numbers_}, program_);
  return sum;
}

}  // namespace tutti
