#include "tutti/train/strategies/in_graph.h"

#include <csignal>
#include <utility>

#include <nlohmann/json.hpp>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/timeline.h"
#include "tutti/params/device_scope.h"
#include "tutti/ps/wire.h"
#include "tutti/rpc/arena.h"
#include "tutti/step/buckets.h"

namespace tutti {
namespace {

constexpr const char* kName = "in-graph";

// The workers that compute. The master is the chief, but not one of them.
Group computing_group(const Context& context) {
  Group group = Group::unconnected(context);
  group.world = static_cast<int>(passive::tasks_of(context.cluster()).size());
  if (group.world == 0)
    fail(ErrorKind::InvalidArgument,
         "--strategy in-graph needs workers in addition to the master, but the cluster (found through {}) "
         "has none with an address: start it with `tutti run -n 2 -- ...`, or name them in --cluster_spec",
         context.identity().source);
  return group;
}

}  // namespace

InGraph::InGraph(const Context& context, const Trainable& model, const OptimizerOptions& optimizer,
                 const ReplicaOptions& replica, double clip_norm)
    : context_(context),
      model_(model),
      clip_norm_(clip_norm),
      group_(computing_group(context)),
      arena_(std::make_shared<rpc::Arena>()),
      replica_(model, optimizer, context.is_chief() ? options_of_master(replica, arena_) : replica),
      timeline_file_(context) {
  // The master has the values of everything, so it would have to own all rows.
  require_no_sharded_tables(replica_.parameters(), "with --strategy in-graph");
  if (!context.is_chief()) worker_.emplace(context, passive::Worker::Stop::ByNobody);
}

InGraph::~InGraph() {
  if (!finished_ || std::uncaught_exceptions() > exceptions_) return;
  try {
    for (bool ended = false; !ended;) {
      ended = worker_->next().value().method == "end";
      // Values that the master shares are not needed here.
      worker_->answer();
    }
  } catch (const std::exception& error) {
    context_.log().warning("{}", error.what());
  }
}

Strategy::Start InGraph::start(Session& session, const std::vector<std::string>& plan) {
  if (worker_) return follow(session, plan);
  Session::Start found = session.start();
  replica_.optimizer().restore(found.optimizers.front());
  master_.emplace(context_, model_, replica_, arena_,
                  Master::Run{.plan = plan,
                              .lanes = session.lanes(),
                              .step = found.progress.step,
                              .progress = to_json(found.progress)});
  say_placement(context_, replica_.parameters(), {});
  context_.log().info("{} passive {} connected", group_.world, group_.world == 1 ? "worker" : "workers");
  facts_ = {.name = kName, .lanes = {0, session.lanes()}, .chief_reads_all = true};
  return {found.progress, 0, std::move(found.more)};
}

// A worker's start.
Strategy::Start InGraph::follow(Session& session, const std::vector<std::string>& plan) {
  const passive::Worker::Request request = worker_->await_beginning();
  Progress progress;
  worker_->answer([&] {
    const Json& head = request.message->head;
    tutti::require_same({"the master", ps::lines_in(head, "plan")}, {context_.task().short_name(), plan});
    rpc::Message answer = worker_->begin(replica_, context_.kernels(), *request.message);
    progress = progress_of(head.at("progress"));
    session.follow(worker_->lanes());
    return answer;
  });
  facts_ = {.name = kName, .restarts = true, .evaluation_part = -1, .chief_reads_all = true};
  return {progress, 0};
}

void InGraph::set_progress(const Progress& progress) {
  if (master_) master_->set_progress(to_json(progress));
}

// Answers the master's next request. Returns the step that the master makes with the answer, if it is one.
std::optional<int64_t> InGraph::serve(const Wishes& wishes) {
  const passive::Worker::Request request = worker_->next().value();
  const Json& head = request.message->head;
  std::optional<int64_t> step;
  worker_->answer([&] {
    if (request.method == "step") step = ps::number_in(head, "step");
    if (request.method == "finish") {
      wishes_ = {.stop = true, .signal = static_cast<int>(ps::number_within(head, "signal", 0, SIGRTMAX))};
      end_ = progress_of(head.at("progress"));
    }
    // Only the master decides when to save; this worker does not learn about it.
    return worker_->serve(request, {.stop = wishes.stop, .signal = wishes.signal});
  });
  return step;
}

StepResult InGraph::step(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                         const LaneObserver& observe) {
  while (worker_) {
    if (const auto made = serve(wishes)) return {.step = *made + 1, .made = false, .wishes = {}};
    if (end_) return {.step = step, .made = false, .wishes = wishes_};
  }
  std::vector<Batch> all;
  for (int worker = 0; worker < master_->workers(); ++worker) {
    const LaneRange lanes = master_->lanes_of(worker);
    std::vector<Batch> batches;
    for (int64_t lane = lanes.begin; lane < lanes.end; ++lane) batches.push_back(take_batch(queue, step));
    all.insert(all.end(), batches.begin(), batches.end());
    if (lanes.size() > 0) master_->gradients(worker, std::move(batches));
  }
  const Master::Mean mean = [&] {
    const SpanScope span(context_.timeline(), Activity::Wait, "gradients", step);
    return master_->average();
  }();
  for (size_t lane = 0; lane < mean.outputs.size(); ++lane) {
    if (mean.outputs[lane]) observe(static_cast<int64_t>(lane), all[lane], *mean.outputs[lane]);
  }
  {
    const SpanScope span(context_.timeline(), Activity::Compute, "update", step);
    if (mean.examples > 0 && clip_norm_ > 0) clip_norm(buckets_of(replica_.parameters()), clip_norm_);
    master_->apply();
  }
  wishes_ = wishes;
  wishes_.add(mean.wishes);
  return {step + 1, true, mean.examples, mean.loss_sum, wishes_};
}

void InGraph::save(Session& session, const Progress& progress, const Snapshots& more) {
  if (master_) session.save(progress, {replica_.optimizer().state()}, more);
}

void InGraph::finish(Progress& progress) {
  if (master_) return master_->finish(to_json(progress), wishes_.signal);
  while (!end_) serve({});
  progress = *std::exchange(end_, {});
  finished_ = true;
}

// A worker waits for the value that the master sends under this name.
Json InGraph::share(const std::string& what, const MakeValue& make) {
  if (master_) {
    const Json outcome = outcome_of(make);
    master_->note(what, outcome);
    return result_of(outcome);
  }
  const passive::Worker::Request request = worker_->next().value();
  Json value;
  worker_->answer([&]() -> rpc::Message {
    if (request.method != "note" || ps::text_in(request.message->head, "key") != what) {
      fail(ErrorKind::InvalidArgument,
           "{} expects '{}' from the master, but it sent '{}': all tasks have to run the same program",
           context_.task().short_name(), what, request.method);
    }
    value = request.message->head.at("value");
    return {};
  });
  return result_of(value);
}

void InGraph::fill(store::Report& report) const {
  report.strategy = kName;
  report.world = group_.world;
}

}  // namespace tutti
