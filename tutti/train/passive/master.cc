#include "tutti/train/passive/master.h"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/cluster/roles.h"
#include "tutti/params/plan.h"
#include "tutti/ps/client.h"
#include "tutti/ps/peers.h"
#include "tutti/ps/sync_step.h"
#include "tutti/rpc/arena.h"
#include "tutti/step/control_word.h"
#include "tutti/step/lane_sum.h"
#include "tutti/train/passive/worker.h"
#include "tutti/train/script.h"

namespace tutti {
namespace {

using passive::append;
using passive::everything;
using Tensors = std::vector<torch::Tensor>;

// Returns, for each sum of the worker, whether it covers a lane with data.
std::vector<bool> sums_with_data(const LaneRange& range, int64_t lanes, const std::vector<Batch>& batches) {
  TreeSum sum({}, range, lanes);
  for (const Batch& batch : batches) {
    if (batch.size() > 0)
      sum.add();
    else
      sum.skip();
  }
  std::vector<bool> present;
  for (const TreeSum::Subtree& subtree : sum.finish()) present.push_back(subtree.values.has_value());
  return present;
}

}  // namespace

struct Master::Worker {
  torch::Tensor losses;  // the vectors that receive an answer: by lane of the worker
  torch::Tensor control_word;
  std::vector<std::vector<torch::Tensor>> sums;  // gradients and buffers
  std::vector<torch::Tensor> counters;

  rpc::Message answer;                             // of the last request, in the form that ps::SyncStep takes
  std::vector<std::optional<LossOutput>> outputs;  // by lane of the worker; empty for lanes without data
  bool is_ready = false;             // it has been begun; used only by its thread, like the answer
  std::optional<Agreement> kernels;  // with which it computes, once it has been begun
  bool on_cpu = true;
  bool is_asked = false;  // in this step
  comm::Work under_way = {};
};

std::vector<Task> passive::tasks_of(const ClusterSpec& cluster) {
  std::vector<Task> tasks = workers_of(cluster);
  if (!tasks.empty()) tasks.erase(tasks.begin());
  return tasks;
}

ReplicaOptions options_of_master(ReplicaOptions options, const std::shared_ptr<rpc::Arena>& arena) {
  options.device = torch::kCPU;
  return in_arena(std::move(options), arena);
}

Master::Master(const Context& context, const Trainable& model, const OptimizerOptions& optimizer)
    : context_(context),
      model_(model),
      arena_(std::make_shared<rpc::Arena>()),
      own_(std::make_unique<Replica>(
          model, optimizer,
          options_of_master(replica_options(context, layout_for(context, *model.module)), arena_))),
      replica_(*own_),
      peers_(std::make_unique<ps::Peers>(context, passive::tasks_of(context.cluster()), "passive workers",
                                         arena_)) {
  require_no_sharded_tables(parameters(), "by a Master");
  begin({.plan = parameters().plan(), .lanes = workers()});
}

Master::Master(const Context& context, const Trainable& model, Replica& replica,
               std::shared_ptr<rpc::Arena> arena, Run run)
    : context_(context),
      model_(model),
      arena_(std::move(arena)),
      replica_(replica),
      peers_(std::make_unique<ps::Peers>(context, passive::tasks_of(context.cluster()), "passive workers",
                                         arena_)) {
  begin(std::move(run));
}

Master::~Master() {
  wait_for_all();
  if (std::uncaught_exceptions() > exceptions_) return;
  try {
    tell("end", Json::object());
  } catch (const std::exception& error) {
    context_.log().warning("could not tell a passive worker that the job is done: {}", error.what());
  }
}

int Master::workers() const { return static_cast<int>(peers_->size()); }

LaneRange Master::lanes_of(int worker) const { return tutti::lanes_of(worker, workers(), run_.lanes); }

// Waits for all workers and makes them ready.
void Master::begin(Run run) {
  if (workers() == 0)
    fail(ErrorKind::InvalidArgument,
         "the master has no workers: name more tasks in --cluster_spec, or start it with `tutti run -n 2 -- "
         "PROGRAM --strategy in-graph`");
  run_ = std::move(run);
  vectors_.emplace(parameters(), run_.lanes);
  sum_ = std::make_unique<ps::SyncStep>(
      parameters().blocks(), optimizer(), vectors_->buffers(), vectors_->counters(),
      ps::SyncOptions{.workers = workers(), .lanes = run_.lanes, .name_of = [this](int rank) {
                        return peers_->name(static_cast<size_t>(rank));
                      }});
  const ControlWord control(lanes_of_all(workers(), run_.lanes), run_.lanes, kNumbers);
  const Allocate allocate = ps::arena_allocator(arena_);
  const auto allocate_like = [&](const torch::Tensor& tensor) {
    return allocate(tensor.numel(), tensor.options());
  };
  const auto doubles = torch::TensorOptions().dtype(torch::kDouble);
  for (int index = 0; index < workers(); ++index) {
    Worker& worker = workers_.emplace_back();
    worker.losses = allocate(lanes_of(index).size(), doubles);
    worker.control_word = allocate(control.size(), doubles);
    for (const ControlWord::Source& source : control.sources()) {
      if (source.rank != index) continue;
      Tensors& sum = worker.sums.emplace_back();
      for (const Section& block : parameters().blocks()) sum.push_back(allocate_like(block.grads));
      for (const torch::Tensor& buffer : vectors_->buffers()) sum.push_back(allocate_like(buffer));
    }
    for (const torch::Tensor& counter : vectors_->counters())
      worker.counters.push_back(allocate_like(counter));
  }
  peers_->connect();
  try {
    peers_->for_all([this](size_t worker) { until_done(worker, {}); });
    require_same_kernels();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::InvalidArgument) tell("refuse", {{"why", error.what()}});
    throw;
  }
}

void Master::begin_one(size_t worker) {
  const RunConfig& config = context_.config();
  Json names = Json::array();
  for (const auto& view : parameters().frozen()) names.push_back(view.name);
  rpc::Message message{{{"plan", run_.plan},
                        {"rank", worker},
                        {"workers", workers()},
                        {"lanes", run_.lanes},
                        {"progress", run_.progress},
                        {"threads", context_.threads()},
                        {"seed", config.training.seed},
                        {"precision", config.compute.precision},
                        {"kernels", config.compute.kernels},
                        {"channels_last", replica_.options().layout == Layout::ChannelsLast},
                        {"nan_guard", config.training.nan_guard},
                        {"frozen", std::move(names)}},
                       {}};
  append(message, passive::frozen(parameters()));
  if (model_.script) {
    const std::string& content = model_.script->content();
    message.head["script"] = model_.script->is_module() ? "module" : "functions";
    message.head["outline"] = outline_of(replica_.module());
    message.pieces.push_back({std::as_bytes(std::span(content)), model_.script});
  }
  const Json answer =
      peers_->call(worker, "begin", message, peers_->patience("start of a passive worker")).head;
  Worker& begun = workers_[worker];
  const Agreement kernels = ps::agreement_in(answer, "kernels");
  if (begun.kernels)  // it was lost and has come back
    refuse_or_warn_of_mix(context_, mix_of({kernels.who + " before", begun.kernels->lines}, kernels));
  begun.kernels = kernels;
  begun.on_cpu = answer.at("on_cpu").get<bool>();
}

// The master makes the updates, on the CPU. Workers on GPUs are compared only with each other.
void Master::require_same_kernels() const {
  const Worker& first = workers_.front();
  for (const Worker& worker : workers_) {
    refuse_or_warn_of_mix(context_, mix_of(*first.kernels, *worker.kernels));
    if (worker.on_cpu)
      refuse_or_warn_of_mix(
          context_,
          mix_of({context_.task().short_name(), context_.kernels().lines_of_updates()}, *worker.kernels));
  }
}

// Begins the worker if it is not ready, and runs the body. Workers keep no state, so whatever a lost worker
// was doing can be requested again.
void Master::until_done(size_t worker, const std::function<void()>& body) {
  bool& is_ready = workers_[worker].is_ready;
  bool was_lost = false;
  for (;;) {
    try {
      if (!is_ready) {
        peers_->connect(worker);
        begin_one(worker);
        is_ready = true;
        if (std::exchange(was_lost, false)) context_.log().info("{} is back", peers_->name(worker));
      }
      if (body) body();
      return;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PeerLost) throw;
      context_.log().warning("{}; the training goes on when the lost task has connected again", error.what());
      is_ready = false;
      was_lost = true;
    }
  }
}

void Master::gradients(int worker, std::vector<Batch> batches) {
  const auto at = static_cast<size_t>(worker);
  TUTTI_CHECK(at < workers_.size(), "worker {} of {}", worker, workers_.size());
  const LaneRange lanes = lanes_of(worker);
  if (workers_[at].is_asked || static_cast<int64_t>(batches.size()) != lanes.size())
    fail(ErrorKind::InvalidArgument,
         "call gradients() once per worker and step, with one batch for each of its {} lanes", lanes.size());
  workers_[at].is_asked = true;
  workers_[at].under_way = peers_->run(at, [this, step = step(), batches = std::move(batches)](size_t peer) {
    until_done(peer, [&] { compute(peer, step, batches); });
  });
}

// Runs in the worker's thread.
void Master::compute(size_t index, int64_t step, const std::vector<Batch>& batches) {
  const LaneRange range = lanes_of(static_cast<int>(index));
  rpc::Message request{{{"step", step}, {"lanes", Json::array()}}, {}};
  append(request, everything(parameters()));
  for (const Batch& batch : batches)
    request.head["lanes"].push_back(batch.size() > 0 ? append(request, batch) : Json());

  Worker& worker = workers_[index];
  const std::vector<bool> present = sums_with_data(range, run_.lanes, batches);
  const auto blocks = static_cast<std::ptrdiff_t>(parameters().blocks().size());
  Tensors into = {worker.losses, worker.control_word};
  std::vector<Tensors> gradients;
  Tensors rest;
  for (size_t i = 0; i < present.size(); ++i) {
    if (!present[i]) continue;
    const Tensors& sum = worker.sums[i];
    into.insert(into.end(), sum.begin(), sum.end());
    gradients.emplace_back(sum.begin(), sum.begin() + blocks);
    rest.insert(rest.end(), sum.begin() + blocks, sum.end());
  }
  if (!gradients.empty()) {
    into.insert(into.end(), worker.counters.begin(), worker.counters.end());
    rest.insert(rest.end(), worker.counters.begin(), worker.counters.end());
  }

  rpc::Message answer{Json::object(), ps::pieces_of({worker.control_word})};
  ps::append_segments(answer, gradients);
  ps::append(answer, rest);
  rpc::CallOptions options = peers_->patience("gradients", step);
  const ps::Places places(into);
  options.into = places.spans();
  const Json head = peers_->call(index, "step", request, options).head;
  std::vector<std::optional<LossOutput>> outputs(batches.size());
  for (size_t lane = 0; lane < batches.size(); ++lane) {
    if (batches[lane].size() > 0)
      outputs[lane] = LossOutput(worker.losses[static_cast<int64_t>(lane)].to(torch::kFloat32));
  }
  if (head.at("predictions").get<bool>()) {
    const rpc::Message message = peers_->call(index, "predictions", {}, peers_->patience("predictions"));
    ps::Reader reader(message);
    for (const Json& lane : message.head.at("lanes"))
      outputs.at(static_cast<size_t>(ps::number_in(lane, "lane") - range.begin)).value().prediction =
          passive::take_batch(reader, lane.at("batch")).front();
  }
  worker.answer = std::move(answer);
  worker.outputs = std::move(outputs);
}

// Waits for all requests, since pending requests still read the parameters.
std::exception_ptr Master::wait_for_all() noexcept {
  std::exception_ptr failure;
  for (Worker& worker : workers_) {
    try {
      std::exchange(worker.under_way, {}).wait();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  return failure;
}

Master::Mean Master::average() {
  const torch::NoGradGuard no_grad;
  const std::exception_ptr failure = wait_for_all();
  Mean mean;
  for (int index = 0; index < workers(); ++index) {
    Worker& worker = workers_[static_cast<size_t>(index)];
    if (!std::exchange(worker.is_asked, false) || failure) continue;
    sum_->offer(index, step(), worker.answer);
    mean.outputs.resize(static_cast<size_t>(lanes_of(index).begin));
    mean.outputs.insert(mean.outputs.end(), worker.outputs.begin(), worker.outputs.end());
  }
  if (failure) std::rethrow_exception(failure);
  const ps::SyncStep::Result result = sum_->add_up(step());
  if (result.outcome.any_data) vectors_->take_over_buffers();
  mean.examples = result.examples;
  mean.loss_sum = result.loss_sum;
  mean.wishes = result.outcome.wishes;
  return mean;
}

void Master::apply() {
  sum_->apply(1);
  ++run_.step;
}

void Master::finish(const Json& progress, int signal) {
  peers_->for_all([&](size_t worker) {
    rpc::Message message{{{"progress", progress}, {"signal", signal}}, {}};
    append(message, everything(parameters()));
    until_done(worker, [&] { peers_->call(worker, "finish", message, peers_->patience("end of the fit")); });
  });
}

void Master::note(const std::string& key, const Json& value) {
  tell("note", {{"key", key}, {"value", value}});
}

// Sends a message to all workers that have begun. A lost worker is no error: it is not needed for this.
void Master::tell(const char* method, const Json& head) {
  peers_->for_all([&](size_t worker) {
    if (!workers_[worker].is_ready) return;
    try {
      peers_->call(worker, method, {head, {}}, peers_->patience(method));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PeerLost) throw;
      context_.log().warning("{}; ignored, since the job no longer needs this worker", error.what());
    }
  });
}

}  // namespace tutti
