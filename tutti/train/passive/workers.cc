#include "tutti/train/passive/workers.h"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/cluster/roles.h"
#include "tutti/params/control_word.h"
#include "tutti/ps/client.h"
#include "tutti/train/passive/lane_wire.h"
#include "tutti/train/script.h"

namespace tutti::passive {
namespace {

using Tensors = std::vector<torch::Tensor>;

// Returns, for each sum of the worker, whether it covers a lane with data.
std::vector<bool> sums_with_data(const LaneRange& block, int64_t lanes, const std::vector<Batch>& batches) {
  TreeSum sum({}, block, lanes);
  for (const Batch& batch : batches) {
    if (batch.size() > 0) {
      sum.add();
    } else {
      sum.skip();
    }
  }
  std::vector<bool> present;
  for (const TreeSum::Subtree& subtree : sum.finish()) present.push_back(subtree.values.has_value());
  return present;
}

std::vector<std::string> names_of(std::span<const Parameters::View> views) {
  std::vector<std::string> names;
  for (const auto& view : views) names.push_back(view.name);
  return names;
}

}  // namespace

std::vector<Task> tasks_of(const ClusterSpec& cluster) {
  std::vector<Task> tasks = workers_of(cluster);
  if (!tasks.empty()) tasks.erase(tasks.begin());
  return tasks;
}

struct Workers::Place {
  torch::Tensor losses;
  torch::Tensor word;
  std::vector<Tensors> sums;  // gradients and buffers
  Tensors counters;
};

Workers::Workers(const Context& context, const Trainable& model, Replica& replica, LaneVectors& vectors,
                 std::shared_ptr<rpc::Arena> arena)
    : context_(context),
      model_(model),
      replica_(replica),
      vectors_(vectors),
      arena_(std::move(arena)),
      peers_(context, tasks_of(context.cluster()), "passive workers", arena_) {
  answers_.resize(peers_.size());
}

Workers::~Workers() = default;

LaneRange Workers::lanes_of(int worker) const { return tutti::lanes_of(worker, count(), beginning_.lanes); }

void Workers::begin(const Beginning& beginning) {
  beginning_ = beginning;
  const ControlWord word(blocks_of(count(), beginning.lanes), beginning.lanes, kNumbers);
  const Allocate allocate = ps::arena_allocator(arena_);
  const auto like = [&](const torch::Tensor& tensor) { return allocate(tensor.numel(), tensor.options()); };
  places_.clear();
  for (int worker = 0; worker < count(); ++worker) {
    const auto doubles = torch::TensorOptions().dtype(torch::kDouble);
    Place& place = places_.emplace_back();
    place.losses = allocate(lanes_of(worker).size(), doubles);
    place.word = allocate(word.size(), doubles);
    for (const ControlWord::Source& source : word.sources()) {
      if (source.rank != worker) continue;
      Tensors& sum = place.sums.emplace_back();
      for (const Stretch& block : replica_.parameters().blocks()) sum.push_back(like(block.grads));
      for (const torch::Tensor& buffer : vectors_.buffers()) sum.push_back(like(buffer));
    }
    for (const torch::Tensor& counter : vectors_.counters()) place.counters.push_back(like(counter));
  }
  peers_.connect();
  ready_.assign(peers_.size(), 0);
  try {
    peers_.for_all([this](size_t worker) { until_done(worker, {}); });
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::InvalidArgument) refuse(error.what());
    throw;
  }
}

// Tells the workers that have begun the reason why the run does not start.
void Workers::refuse(const std::string& why) {
  peers_.for_all([&](size_t worker) {
    if (!ready_[worker]) return;
    try {
      peers_.call(worker, "refuse", {{{"why", why}}, {}}, peers_.patience("end of the job"));
    } catch (const Error& error) {
      context_.log().warning("{}", error.what());
    }
  });
}

void Workers::begin_one(size_t worker) {
  const RunConfig& config = context_.config();
  rpc::Message message{{{"plan", beginning_.plan},
                        {"rank", worker},
                        {"workers", count()},
                        {"lanes", beginning_.lanes},
                        {"progress", beginning_.progress},
                        {"threads", context_.threads()},
                        {"seed", config.training.seed},
                        {"precision", config.compute.precision},
                        {"channels_last", replica_.options().layout == Layout::ChannelsLast},
                        {"nan_guard", config.training.nan_guard},
                        {"frozen", names_of(replica_.parameters().frozen())}},
                       {}};
  append(message, frozen(replica_.parameters()));
  if (model_.script) {
    const std::string& content = model_.script->content();
    message.head["script"] = model_.script->is_module() ? "module" : "functions";
    message.head["outline"] = outline_of(replica_.module());
    message.pieces.push_back({std::as_bytes(std::span(content)), model_.script});
  }
  peers_.call(worker, "begin", message, peers_.patience("start of a passive worker"));
}

comm::Work Workers::ask(int worker, int64_t step, std::vector<Batch> batches) {
  return peers_.run(static_cast<size_t>(worker), [this, step, batches = std::move(batches)](size_t peer) {
    until_done(peer, [&] { compute(peer, step, batches); });
  });
}

// Begins the worker if it is not ready, and runs the body. Workers keep no state, so whatever a lost worker
// was doing can be requested again.
void Workers::until_done(size_t worker, const std::function<void()>& body) {
  for (;;) {
    try {
      if (!ready_[worker]) {
        peers_.connect(worker);
        begin_one(worker);
        ready_[worker] = 1;
      }
      if (body) body();
      return;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PeerLost) throw;
      context_.log().warning("{}; waiting for the lost task to reconnect", error.what());
      ready_[worker] = 0;
    }
  }
}

void Workers::compute(size_t worker, int64_t step, const std::vector<Batch>& batches) {
  const LaneRange block = lanes_of(static_cast<int>(worker));
  rpc::Message request{{{"step", step}, {"lanes", Json::array()}}, {}};
  append(request, everything(replica_.parameters()));
  for (const Batch& batch : batches)
    request.head["lanes"].push_back(batch.size() > 0 ? append(request, batch) : Json());

  const Place& place = places_[worker];
  const std::vector<bool> present = sums_with_data(block, beginning_.lanes, batches);
  Tensors into = {place.word};
  bool any = false;
  for (size_t sum = 0; sum < present.size(); ++sum) {
    if (!present[sum]) continue;
    any = true;
    into.insert(into.end(), place.sums[sum].begin(), place.sums[sum].end());
  }
  if (any) into.insert(into.end(), place.counters.begin(), place.counters.end());

  Answer answer{.sums = {Json::object(), ps::pieces_of(into)}, .outputs = {}};
  into.insert(into.begin(), place.losses);
  rpc::CallOptions options = peers_.patience("gradients", step);
  const ps::Places places(into);
  options.into = places.spans();
  const Json head = peers_.call(worker, "step", request, options).head;
  for (size_t lane = 0; lane < batches.size(); ++lane) {
    answer.outputs.emplace_back();
    if (batches[lane].size() > 0)
      answer.outputs.back() = LossOutput(place.losses[static_cast<int64_t>(lane)].to(torch::kFloat32));
  }
  if (head.at("predictions").get<bool>()) fetch_predictions(worker, answer);
  answers_[worker] = std::move(answer);
}

void Workers::fetch_predictions(size_t worker, Answer& answer) {
  const rpc::Message message = peers_.call(worker, "predictions", {}, peers_.patience("predictions"));
  ps::Reader reader(message);
  for (const Json& lane : message.head.at("lanes")) {
    const auto at =
        static_cast<size_t>(ps::number_in(lane, "lane") - lanes_of(static_cast<int>(worker)).begin);
    answer.outputs.at(at).value().prediction = take_batch(reader, lane.at("batch")).front();
  }
}

void Workers::finish(const Json& progress, int signal) {
  peers_.for_all([&](size_t worker) {
    rpc::Message message{{{"progress", progress}, {"signal", signal}}, {}};
    append(message, everything(replica_.parameters()));
    until_done(worker, [&] { peers_.call(worker, "finish", message, peers_.patience("end of the fit")); });
  });
}

void Workers::note(const std::string& key, const Json& value) {
  peers_.for_all([&](size_t worker) {
    try {
      peers_.call(worker, "note", {{{"key", key}, {"value", value}}, {}}, peers_.patience("a note"));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PeerLost) throw;
      context_.log().warning("{}; ignored, since the job no longer needs this worker", error.what());
    }
  });
}

void Workers::end() {
  peers_.for_all([&](size_t worker) {
    try {
      peers_.call(worker, "end", {}, peers_.patience("end of the job"));
    } catch (const Error& error) {
      // The worker has ended by itself.
      if (error.kind() != ErrorKind::PeerLost) throw;
    }
  });
}

}  // namespace tutti::passive
