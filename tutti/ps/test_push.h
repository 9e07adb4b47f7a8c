#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "tutti/lanes/lanes.h"
#include "tutti/ps/test_messages.h"
#include "tutti/ps/wire.h"
#include "tutti/step/control_word.h"
#include "tutti/step/lane_sum.h"

// For tests: synchronous steps with large gradients.
namespace tutti::ps {

// Makes the messages of all workers of one step. The model has one vector of parameters, two buffers and a
// counter; the gradients are random.
class Contributions {
 public:
  Contributions(int workers, int64_t lanes, int64_t elements, int64_t step = 0)
      : workers_(workers),
        lanes_(lanes),
        elements_(elements),
        step_(step),
        control_(lanes_of_all(workers, lanes), lanes, kNumbers) {}

  // Returns the worker's message. Each subtree whose number is in `without` has no data.
  rpc::Message push(int rank, const std::vector<size_t>& without = {}, double examples = 2) const {
    std::vector<TreeSum::Subtree> subtrees;
    std::vector<std::vector<torch::Tensor>> gradients;
    std::vector<torch::Tensor> rest;
    auto random = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(rank) + 1);
    for (size_t s = 0; s < control_.sources().size(); ++s) {
      if (control_.sources()[s].rank != rank) continue;
      const size_t subtree = subtrees.size();
      subtrees.push_back({control_.order().all[s].place, {}});
      if (std::find(without.begin(), without.end(), subtree) != without.end()) continue;
      subtrees.back().values = {torch::tensor({0.5, examples, 1.0, 0.0}, torch::kDouble)};
      gradients.push_back({torch::rand({elements_}, random)});
      rest.push_back(torch::rand({3}, random));
      rest.push_back(torch::rand({1}, random).to(torch::kDouble));
    }
    if (!gradients.empty()) rest.push_back(torch::full({2}, 7, torch::kLong));
    const torch::Tensor control_word = torch::zeros({control_.size()}, torch::kDouble);
    control_.write(control_word, step_, {}, 1.0, subtrees);
    rpc::Message message{head(), pieces_of({control_word})};
    message.head.update({{"step", step_}, {"expected", workers_}});
    append_segments(message, gradients);
    append(message, rest);
    return message;
  }
  // The chief's message before the step.
  rpc::Message begin() const {
    rpc::Message message = ps::begin("ps-sync", workers_);
    const std::vector<torch::Tensor> buffers = {torch::zeros({3}), torch::zeros({1}, torch::kDouble)};
    const std::vector<torch::Tensor> counters = {torch::zeros({2}, torch::kLong)};
    message.pieces = pieces_of({torch::ones({elements_})});
    message.head.update(
        {{"lanes", lanes_},
         {"block_ranges", to_json(std::vector<BlockRange>{{0, 0, elements_, torch::kFloat32}})},
         {"buffers", pack(buffers, message.pieces)},
         {"counters", pack(counters, message.pieces)}});
    return message;
  }

 private:
  const int workers_;
  const int64_t lanes_;
  const int64_t elements_;
  const int64_t step_;
  const ControlWord control_;
};

// Copies the pieces of an answer.
inline std::vector<std::vector<std::byte>> bytes_in(const rpc::Message& answer) {
  std::vector<std::vector<std::byte>> all;
  for (const rpc::Piece& piece : answer.pieces) all.emplace_back(piece.bytes.begin(), piece.bytes.end());
  return all;
}

}  // namespace tutti::ps
