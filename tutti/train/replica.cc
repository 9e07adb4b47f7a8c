#include "tutti/train/replica.h"

#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/base/memory.h"
#include "tutti/base/text.h"
#include "tutti/kernels/coverage.h"
#include "tutti/params/device_scope.h"
#include "tutti/params/random_scope.h"
#include "tutti/ps/client.h"
#include "tutti/step/buckets.h"
#include "tutti/step/gradient_mean.h"
#include "tutti/train/hooks.h"

namespace tutti {
namespace {

// Moves the module to the device and makes its parameters; returns nullptr if the program has made them.
std::unique_ptr<Parameters> parameters_of(const Trainable& model, const ReplicaOptions& options) {
  if (options.parameters != nullptr) return nullptr;
  if (!model.module) fail(ErrorKind::InvalidArgument, "a model needs a module");
  model.module->to(options.device);
  return std::make_unique<Parameters>(
      *model.module, ParametersOptions{.allocate = {},
                                       .layout = options.layout,
                                       .may_be_empty = !embedding::tables_in(*model.module).empty()});
}

embedding::Tables tables_of(const Trainable& model) {
  const torch::nn::Module none;
  return embedding::Tables(model.module ? *model.module : none);
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
    : model_(std::move(model)),
      options_(options),
      own_parameters_(parameters_of(model_, options)),
      parameters_(own_parameters_ ? *own_parameters_ : *options.parameters),
      optimizer_(parameters_,
                 sections_of(allocated(parameters_, optimizer, options), options.part, options.parts),
                 optimizer),
      tables_(tables_of(model_)) {}

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
  kernels::locate_not_covered(output.loss, [&](const torch::Tensor& tensor) -> std::string {
    for (const auto& view : parameters_.trained()) {
      if (view.tensor.is_same(tensor)) return view.name;
    }
    return "";
  });
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

ReplicaOptions replica_options(const Context& context, Layout layout) {
  const RunConfig& config = context.config();
  return {.precision = parse_precision(config.compute.precision),
          .layout = layout,
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

Batch take_batch(data::BatchQueue& queue, int64_t step) {
  auto batch = queue.next();
  TUTTI_CHECK(batch.has_value(), "the feed ended before step {}", step);
  return *std::move(batch);
}

}  // namespace tutti
