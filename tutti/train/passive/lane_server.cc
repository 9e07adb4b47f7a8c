#include "tutti/train/passive/lane_server.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/train/passive/lane_wire.h"

namespace tutti::passive {
Place::Place(const Json& head)
    : rank(static_cast<int>(ps::number_within(head, "rank", 0, ps::kMostWorkers))),
      workers(static_cast<int>(ps::number_within(head, "workers", rank + 1, ps::kMostWorkers))),
      lanes(ps::number_within(head, "lanes", 1, kMostLanes)) {}

LaneServer::LaneServer(Replica& replica, const Place& place)
    : replica_(replica),
      vectors_(replica.parameters(), place.lanes),
      sum_(vectors_, gradients_of(replica.parameters()), lanes_of(place.rank, place.workers, place.lanes),
           place.lanes),
      lanes_(replica, sum_, lanes_of(place.rank, place.workers, place.lanes)),
      word_(blocks_of(place.workers, place.lanes), place.lanes, kNumbers) {}

rpc::Message LaneServer::serve(const std::string& method, const rpc::Message& request, const Wishes& wishes) {
  if (method == "step") return step(request, wishes);
  if (method == "predictions") return predictions();
  if (method == "finish") return finish(request);
  // The master evaluates between two steps, in a hook, in which this worker takes no part.
  if (method == "note") return {};
  fail(ErrorKind::InvalidArgument, "'{}' is not supported during a step", method);
}

rpc::Message LaneServer::step(const rpc::Message& request, const Wishes& wishes) {
  const int64_t step = ps::number_in(request.head, "step");
  const Json& lanes = request.head.at("lanes");
  if (static_cast<int64_t>(lanes.size()) != lanes_.lanes().size())
    fail(ErrorKind::InvalidArgument, "the request is for {} lanes, but this worker has {}", lanes.size(),
         lanes_.lanes().size());
  ps::Reader reader(request);
  take_into(reader, everything(replica_.parameters()));
  const torch::Tensor losses =
      torch::full({lanes_.lanes().size()}, std::numeric_limits<double>::quiet_NaN(), torch::kDouble);
  predictions_.clear();
  const auto observe = [&](int64_t lane, const Batch&, const LossOutput& output) {
    losses[lane - lanes_.lanes().begin] = output.loss.to(torch::kDouble).cpu();
    if (output.prediction.defined()) predictions_.emplace_back(std::to_string(lane), output.prediction);
  };
  sum_.begin_step();
  int64_t lane = lanes_.lanes().begin;
  for (const Json& outline : lanes)
    lanes_.run_lane(step, lane++, outline.is_null() ? Batch() : take_batch(reader, outline), observe);
  reader.end();
  const std::vector<TreeSum::Subtree> subtrees = sum_.finish();
  const torch::NoGradGuard no_grad;
  const torch::Tensor word = torch::zeros({word_.size()}, torch::kDouble);
  word_.write(word, step, wishes, kNoRate, subtrees);
  rpc::Message answer{{{"predictions", !predictions_.empty()}}, {}};
  append(answer, {losses, word});
  bool any = false;
  for (const TreeSum::Subtree& subtree : subtrees) {
    if (!subtree.values) continue;
    any = true;
    // The last vector holds the numbers, which are in the word.
    append(answer, {subtree.values->begin(), subtree.values->end() - 1});
  }
  if (any) append(answer, vectors_.counters());
  return answer;
}

rpc::Message LaneServer::predictions() {
  rpc::Message answer;
  Json lanes = Json::array();
  for (const auto& [lane, prediction] : predictions_)
    lanes.push_back(
        {{"lane", std::stoll(lane)}, {"batch", append(answer, Batch({{"prediction", prediction}}))}});
  answer.head["lanes"] = std::move(lanes);
  return answer;
}

rpc::Message LaneServer::finish(const rpc::Message& request) {
  ps::Reader reader(request);
  take_into(reader, everything(replica_.parameters()));
  reader.end();
  return {};
}

}  // namespace tutti::passive
