#include "tutti/train/replica.h"

#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/base/ran_out.h"
#include "tutti/base/text.h"
#include "tutti/params/buckets.h"
#include "tutti/params/device_scope.h"
#include "tutti/params/gradient_mean.h"
#include "tutti/params/random_scope.h"
#include "tutti/ps/client.h"
#include "tutti/train/hooks.h"

namespace tutti {
namespace {

Trainable on_device(Trainable model, torch::Device device) {
  if (!model.module) fail(ErrorKind::InvalidArgument, "a model needs a module");
  model.module->to(device);
  return model;
}

torch::Tensor in_float32(const torch::Tensor& result) {
  return result.is_floating_point() ? result.to(torch::kFloat32) : result;
}

bool is_image(const torch::Tensor& tensor) { return tensor.dim() == 4 && tensor.is_floating_point(); }

// Freezes what the groups say, and moves the vectors to the memory that the options give, before anyone holds
// references to them.
Parameters& allocated(Parameters& parameters, const OptimizerOptions& optimizer,
                      const ReplicaOptions& options) {
  require_created_on(parameters, options.device);
  freeze(parameters, optimizer.groups);
  if (options.before_allocate) options.before_allocate(parameters, optimizer);
  if (options.allocate) parameters.move(options.allocate);
  return parameters;
}

// Runs a part of the model. Its errors say where it was, such as "lane 2 of step 7", and with which examples.
template <class Where, class Body>
auto naming_examples(const Batch& batch, const Where& where, const Body& body) {
  try {
    return body();
  } catch (const embedding::BadId& error) {
    const bool is_known = error.row() < batch.size();
    fail(error.kind(), "{}{}: {}", where(), is_known ? ", " + batch.describe(error.row()) : "", error.what());
  } catch (const c10::Error& error) {
    if (ran_out(error) || batch.size() == 0) throw;
    fail(ErrorKind::InvalidArgument, "{}, whose {} examples begin with {}: {}", where(), batch.size(),
         batch.describe(0), first_line(error.what_without_backtrace()));
  }
}

}  // namespace

Replica::Replica(Trainable model, const OptimizerOptions& optimizer, const ReplicaOptions& options)
    : model_(on_device(std::move(model), options.device)),
      options_(options),
      parameters_(*model_.module, {.allocate = {},
                                   .layout = options.layout,
                                   .may_be_empty = !embedding::tables_in(*model_.module).empty()}),
      optimizer_(parameters_,
                 parts_of(allocated(parameters_, optimizer, options), options.part, options.parts),
                 optimizer),
      tables_(*model_.module) {}

void Replica::run_lane(int64_t step, int64_t lane, const Batch& read, LaneSum& sum,
                       const LaneObserver& observe) {
  if (read.size() == 0) return sum.skip();
  if (!model_.loss)
    fail(ErrorKind::InvalidArgument, "the model has no loss function: pass one to make_trainable()");
  const Batch batch = [&] {
    const SpanScope span(options_.timeline, Activity::Copy, "prepare the batch", step);
    return prepare(read);
  }();
  {
    const SpanScope span(options_.timeline, Activity::Compute, "clear the gradients", step);
    sum.begin_lane();
  }
  const auto place = [&] { return fmt::format("lane {} of step {}", lane, step); };
  LossOutput output = naming_examples(batch, place, [&] {
    const SpanScope span(options_.timeline, Activity::Compute, "forward", step);
    const std::lock_guard lock(generator_mutex());
    torch::manual_seed(lane_seed(options_.seed, step, lane));
    const PrecisionScope precision(options_.device, options_.precision);
    return model_.loss(batch);
  });
  require_mean(output.loss);
  if (options_.nan_guard) hooks::nan_guard(parameters_, step, lane, batch, output);
  sum.begin_backward(output.loss, batch.size());
  naming_examples(batch, place, [&] {
    const SpanScope span(options_.timeline, Activity::Compute, "backward", step);
    output.loss.backward(torch::full_like(output.loss, sum.weight(batch.size())));
  });
  output.loss = output.loss.detach();
  if (output.prediction.defined()) output.prediction = output.prediction.detach();
  observe(lane, batch, output);
  const SpanScope span(options_.timeline, Activity::Reduce, "add the lane", step);
  sum.add();
}

template <class Body>
auto Replica::in_evaluation(const Batch& batch, const Body& body) {
  const SpanScope span(options_.timeline, Activity::Compute, "predict");
  const torch::NoGradGuard no_grad;
  const EvaluationScope evaluation(*model_.module);
  const PrecisionScope precision(options_.device, options_.precision);
  return naming_examples(
      batch, [] { return "a batch that is not trained"; }, body);
}

torch::Tensor Replica::predict(const Batch& batch) { return evaluate(batch, {}).front(); }

std::vector<torch::Tensor> Replica::evaluate(const Batch& batch, const Function& function) {
  if (!function && !model_.predict) fail_no_predictions();
  return in_evaluation(batch, [&] {
    std::vector<torch::Tensor> results =
        function ? function(batch) : std::vector<torch::Tensor>{model_.predict(batch)};
    for (torch::Tensor& result : results) result = in_float32(result);
    return results;
  });
}

LossOutput Replica::evaluate_loss(const Batch& batch) {
  return in_evaluation(batch, [&] {
    LossOutput output = model_.loss(batch);
    if (output.prediction.defined()) output.prediction = in_float32(output.prediction);
    return output;
  });
}

Batch Replica::prepare(const Batch& batch) const {
  const Batch moved = options_.device.is_cpu() ? batch : batch.to(options_.device);
  if (options_.layout != Layout::ChannelsLast) return moved;
  return moved.with_each([](const torch::Tensor& tensor) {
    return is_image(tensor) ? tensor.contiguous(torch::MemoryFormat::ChannelsLast) : tensor;
  });
}

ReplicaOptions replica_options(const Context& context, const torch::nn::Module& module) {
  const RunConfig& config = context.config();
  return {.precision = parse_precision(config.compute.precision),
          .layout = layout_for(context, module),
          .seed = config.training.seed,
          .device = context.device(),
          .nan_guard = config.training.nan_guard,
          .timeline = context.timeline()};
}

ReplicaOptions in_arena(ReplicaOptions options, const std::shared_ptr<rpc::Arena>& arena) {
  if (options.device.is_cpu()) options.allocate = ps::arena_allocator(arena);
  return options;
}

EvaluationScope::EvaluationScope(torch::nn::Module& module) {
  bool is_training = false;
  module.apply([&](torch::nn::Module& each) {
    before_.push_back({each, each.is_training()});
    is_training = is_training || each.is_training();
  });
  // Several threads may predict with a module that is in evaluation mode, so it is not written to.
  if (is_training)
    module.eval();
  else
    before_.clear();
}

EvaluationScope::~EvaluationScope() {
  for (const Mode& mode : before_) mode.module.train(mode.is_training);
}

Batch take(data::BatchQueue& queue, int64_t step) {
  auto batch = queue.next();
  TUTTI_CHECK(batch.has_value(), "the feed ended before step {}", step);
  return *std::move(batch);
}

// Returns the next batches, one for each lane.
std::vector<Batch> LaneRunner::next_batches(data::BatchQueue& queue, int64_t step) {
  std::vector<Batch> batches;
  for (int64_t lane = lanes_.begin; lane < lanes_.end; ++lane)
    batches.push_back(replica_.prepare(take(queue, step)));
  return batches;
}

// A lane's forward and backward pass send nothing to other workers, so that lanes may be empty.
void LaneRunner::run_step_with_tables(int64_t step, data::BatchQueue& queue, const LaneObserver& observe) {
  embedding::Tables& tables = replica_.tables();
  const bool was_announced = ahead_.has_value();
  const std::vector<Batch> batches = was_announced ? *std::move(ahead_) : next_batches(queue, step);
  ahead_.reset();
  {
    const SpanScope span(replica_.options().timeline, Activity::Copy, "fetch rows", step);
    was_announced ? tables.fetch_ahead() : tables.fetch(batches);
    if (--steps_left_ > 0 && tables.looks_ahead()) {
      ahead_ = next_batches(queue, step + 1);
      tables.look_ahead(*ahead_);
    }
  }
  for (size_t i = 0; i < batches.size(); ++i) {
    tables.begin_lane(i);
    replica_.run_lane(step, lanes_.begin + static_cast<int64_t>(i), batches[i], sum_, observe);
    tables.end_lane();
  }
}

void LaneRunner::begin_steps(int64_t count) {
  steps_left_ = count;
  ahead_.reset();
  replica_.tables().forget_ahead();
}

void LaneRunner::skip_step(int64_t step, data::BatchQueue& queue) {
  --steps_left_;
  if (!ahead_) {
    for (int64_t lane = lanes_.begin; lane < lanes_.end; ++lane) static_cast<void>(take(queue, step));
    return;
  }
  ahead_.reset();
  replica_.tables().forget_ahead();
}

void LaneRunner::run_step(int64_t step, data::BatchQueue& queue, const LaneObserver& observe) {
  if (!replica_.tables().empty()) return run_step_with_tables(step, queue, observe);
  for (int64_t lane = lanes_.begin; lane < lanes_.end; ++lane)
    replica_.run_lane(step, lane, take(queue, step), sum_, observe);
}

}  // namespace tutti
