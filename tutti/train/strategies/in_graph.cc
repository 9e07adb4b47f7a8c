#include "tutti/train/strategies/in_graph.h"

#include <csignal>
#include <utility>

#include <nlohmann/json.hpp>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/timeline.h"
#include "tutti/params/agreement.h"
#include "tutti/params/buckets.h"
#include "tutti/params/device_scope.h"
#include "tutti/ps/wire.h"

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

// The master has the values of everything, so it would have to own all rows.
void require_no_tables(const Replica& replica) {
  require_no_sharded_tables(replica.parameters(), "with --strategy in-graph");
}

}  // namespace

InGraphMaster::InGraphMaster(const Context& context, const Trainable& model,
                             const OptimizerOptions& optimizer, const ReplicaOptions& replica,
                             double clip_norm)
    : context_(context),
      model_(model),
      clip_norm_(clip_norm),
      group_(computing_group(context)),
      arena_(std::make_shared<rpc::Arena>()),
      replica_(model, optimizer, options_of_master(replica, arena_)),
      timeline_file_(context) {
  require_no_tables(replica_);
}

Strategy::Start InGraphMaster::start(Session& session, const std::vector<std::string>& plan) {
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

// The progress is for a worker that comes back.
void InGraphMaster::set_progress(const Progress& progress) { master_->set_progress(to_json(progress)); }

StepResult InGraphMaster::step(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                               const LaneObserver& observe) {
  std::vector<Batch> all;
  for (int worker = 0; worker < master_->workers(); ++worker) {
    const LaneRange lanes = master_->lanes_of(worker);
    std::vector<Batch> batches;
    for (int64_t lane = lanes.begin; lane < lanes.end; ++lane) batches.push_back(take(queue, step));
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

void InGraphMaster::save(Session& session, const Progress& progress, const Snapshots& more) {
  session.save(progress, {replica_.optimizer().state()}, more);
}

void InGraphMaster::finish(Progress& progress) { master_->finish(to_json(progress), wishes_.signal); }

Json InGraphMaster::share(const std::string& what, const MakeValue& make) {
  const Json outcome = outcome_of(make);
  master_->note(what, outcome);
  return result_of(outcome);
}

void InGraphMaster::fill(store::Report& report) const {
  report.strategy = kName;
  report.world = group_.world;
}

InGraphWorker::InGraphWorker(const Context& context, const Trainable& model,
                             const OptimizerOptions& optimizer, const ReplicaOptions& replica)
    : context_(context),
      group_(computing_group(context)),
      replica_(model, optimizer, replica),
      connection_(context, passive::MasterConnection::Stop::ByNobody),
      timeline_file_(context) {
  require_no_tables(replica_);
}

InGraphWorker::~InGraphWorker() {
  if (!finished_ || std::uncaught_exceptions() > exceptions_) return;
  try {
    for (bool ended = false; !ended;) {
      const passive::MasterConnection::Request request = connection_.next();
      ended = request.method == "end";
      // Metrics that the master sends are not needed here.
      connection_.answer({});
    }
  } catch (const std::exception& error) {
    context_.log().warning("{}", error.what());
  }
}

Strategy::Start InGraphWorker::start(Session& session, const std::vector<std::string>& plan) {
  const passive::MasterConnection::Request request = connection_.await_beginning();
  Progress progress;
  connection_.answer_with([&]() -> rpc::Message {
    const Json& head = request.message->head;
    require_same({"the master", ps::lines_in(head, "plan")}, {context_.task().short_name(), plan});
    const passive::Assignment assignment(head);
    server_.emplace(replica_, assignment);
    ps::Reader reader(*request.message);
    passive::take_into(reader, passive::frozen(replica_.parameters()));
    progress = progress_of(head.at("progress"));
    session.follow(assignment.lanes);
    return passive::description(context_.task(), context_.kernels());
  });
  facts_ = {.name = kName, .restarts = true, .evaluation_part = -1, .chief_reads_all = true};
  return {progress, 0};
}

StepResult InGraphWorker::step(int64_t step, const Wishes& wishes, data::BatchQueue& /*queue*/,
                               const LaneObserver& /*observe*/) {
  for (;;) {
    const passive::MasterConnection::Request request = connection_.next();
    if (request.method == "finish") {
      connection_.keep();
      const auto signal = static_cast<int>(ps::number_within(request.message->head, "signal", 0, SIGRTMAX));
      return {.step = step, .made = false, .wishes = {.stop = true, .signal = signal}};
    }
    const int64_t made = request.method == "step" ? ps::number_in(request.message->head, "step") : step;
    // Only the master decides when to save; this worker does not learn about it.
    connection_.answer_with([&] {
      return server_->serve(request.method, *request.message, {.stop = wishes.stop, .signal = wishes.signal});
    });
    if (request.method == "step") return {.step = made + 1, .made = false, .wishes = {}};
  }
}

void InGraphWorker::finish(Progress& progress) {
  for (;;) {
    const passive::MasterConnection::Request request = connection_.next();
    if (request.method == "finish") progress = progress_of(request.message->head.at("progress"));
    connection_.answer_with([&] { return server_->serve(request.method, *request.message, {}); });
    if (request.method != "finish") continue;
    finished_ = true;
    return;
  }
}

// Waits for the value that the master sends under this name.
Json InGraphWorker::share(const std::string& what, const MakeValue& /*make*/) {
  const passive::MasterConnection::Request request = connection_.next();
  Json value;
  connection_.answer_with([&]() -> rpc::Message {
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

void InGraphWorker::fill(store::Report& report) const {
  report.strategy = kName;
  report.world = group_.world;
}

}  // namespace tutti
