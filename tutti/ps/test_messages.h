#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/lanes/lanes.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/optimizer_state.h"
#include "tutti/ps/wire.h"
#include "tutti/rpc/host.h"
#include "tutti/step/control_word.h"
#include "tutti/step/lane_sum.h"

// For tests: the messages of a chief and of workers to a server.
namespace tutti::ps {

inline constexpr int64_t kSize = 5;
// A time within which anything happens, even on a busy machine.
inline constexpr std::chrono::seconds kEventually{60};

inline rpc::Caller caller(uint64_t id) {
  return {id, {{"task", "worker/" + std::to_string(id)}, {"host", "here"}, {"pid", 100 + id}}, "nowhere"};
}

// Five parameters of value 1, updated by SGD with rate 1.
inline rpc::Message begin(const char* strategy, int workers, int64_t staleness = -1) {
  const torch::Tensor values = torch::ones({kSize});
  return {{{"run", "r"},
           {"plan", {"five parameters"}},
           {"workers", workers},
           {"strategy", strategy},
           {"lanes", workers},
           {"backup", 0},
           {"staleness", staleness},
           {"redo", true},
           {"optimizer", tutti::to_json(torch::optim::SGDOptions(1.0))},
           {"step", 0},
           {"progress", Json::object()},
           {"block_ranges", to_json(std::vector<BlockRange>{{0, 0, kSize, torch::kFloat32}})},
           {"buffers", Json::array()},
           {"counters", Json::array()},
           {"frozen", Json::array()},
           {"state", store::outline_of(snapshot_of(Optimizer::State()))}},
          pieces_of({values})};
}

inline rpc::Message join(int rank) {
  return {{{"rank", rank}, {"plan", {"five parameters"}}, {"patience", 10}}, {}};
}

inline Json head() { return {{"run", "r"}, {"patience", 60000}}; }

inline rpc::Message push(double gradient, int64_t of = 0) {
  rpc::Message message{head(), pieces_of({torch::full({kSize}, gradient)})};
  message.head["of"] = of;
  return message;
}

inline torch::Tensor values_in(const rpc::Message& answer) {
  return Reader(answer).take_tensor(kSize, torch::kFloat32).clone();
}

// The push of a worker with the only lane.
inline rpc::Message push_of_step(int64_t step, double gradient, double rate = kNoRate) {
  const ControlWord control(lanes_of_all(1, 1), 1, kNumbers);
  const torch::Tensor control_word = torch::zeros({control.size()}, torch::kDouble);
  control.write(control_word, step, {}, rate,
                {{{0, 0}, TreeSum::Vectors{torch::tensor({1.0, 1.0, 1.0, 0.0}, torch::kDouble)}}});
  rpc::Message message{head(), pieces_of({control_word, torch::full({kSize}, gradient)})};
  message.head["step"] = step;
  return message;
}

// The push of a worker without a lane.
inline rpc::Message push_without_lane(int64_t step, double rate) {
  const ControlWord control(lanes_of_all(1, 1), 1, kNumbers);
  const torch::Tensor control_word = torch::zeros({control.size()}, torch::kDouble);
  control.write(control_word, step, {}, rate, {});
  rpc::Message message{head(), pieces_of({control_word})};
  message.head["step"] = step;
  return message;
}

}  // namespace tutti::ps
