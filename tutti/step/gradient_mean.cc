#include "tutti/step/gradient_mean.h"

#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/step/lane_hashes.h"

namespace tutti {

// Reports during a backward pass which gradients are complete, however often a parameter is used. Calls
// `before` when autograd is about to add to a gradient (if it throws, nothing is added) and `done` after
// that. Both get the index in Parameters::trained(), run on autograd's thread, and are not called for unused
// parameters. All trained parameters must still require gradients, and must outlive the watch.
class BackwardWatch {
 public:
  using Call = std::function<void(size_t parameter)>;

  BackwardWatch(const Parameters& parameters, const Call& before, const Call& done) : BackwardWatch() {
    using torch::autograd::variable_list;
    for (size_t i = 0; i < parameters.trained().size(); ++i) {
      const torch::Tensor& tensor = parameters.trained()[i].tensor;
      before_.emplace_back(tensor, tensor.register_hook([before, i](const torch::Tensor&) { before(i); }));
      const auto node = torch::autograd::impl::grad_accumulator(tensor);
      const uintptr_t key = node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [done, i](const variable_list& outputs, const variable_list&) {
            done(i);
            return outputs;
          }));
      take_away_.emplace_back([node, key] { node->del_post_hook(key); });
    }
  }
  ~BackwardWatch() {
    for (const auto& [tensor, hook] : before_) tensor.remove_hook(hook);
    for (const auto& take_away : take_away_) take_away();
  }
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

 private:
  BackwardWatch() = default;  // delegated to, so that a constructor that throws later still removes its hooks

  // The hooks on the parameters, and functions that remove the hooks on autograd's gradient accumulators.
  std::vector<std::pair<torch::Tensor, unsigned>> before_;
  std::vector<std::function<void()>> take_away_;
};

namespace {

bool is_in(comm::SharedVectors& shared, const torch::Tensor& vector) {
  try {
    return !shared.everyones(vector).empty();
  } catch (const Error&) {
    return false;
  }
}

// Moves the parameters into shared memory, if there is any.
Parameters& ready_to_sum(Parameters& parameters, comm::Communicator& comm) {
  parameters.require_as_made();
  comm::SharedVectors* shared = shared_by(comm, parameters.device());
  if (shared != nullptr && !parameters.blocks().empty() &&
      !is_in(*shared, parameters.blocks().front().values))
    parameters.move(shared_allocator(comm, parameters.device()));
  return parameters;
}

Buckets summed(const Parameters& parameters, const std::vector<torch::Tensor>& exact) {
  Buckets buckets = buckets_of(parameters);
  std::copy(exact.begin(), exact.end(), buckets.vectors.end() - static_cast<int64_t>(exact.size()));
  return buckets;
}

Reducer::Divisor count_of(bool one_lane) {
  if (one_lane) return {};
  return [](const Bucket& bucket, const torch::Tensor& numbers) {
    return numbers[bucket.gradients ? kExamples : kLanes].item<double>();
  };
}

}  // namespace

GradientMean::GradientMean(Parameters& parameters, comm::Communicator& comm, int64_t lanes,
                           const ReducerOptions& options)
    : parameters_(ready_to_sum(parameters, comm)),
      comm_(comm),
      scatter_(options.scatter && comm.world() > 1),
      checks_(options.nan_guard && parameters.device().is_cpu()),
      vectors_(parameters, lanes, shared_allocator(comm, parameters.device())),
      reducer_(comm, summed(parameters, vectors_.buffers()), vectors_.numbers(), lanes, count_of(lanes == 1),
               options) {
  if (reducer_.overlaps())
    watch_ = std::make_unique<BackwardWatch>(
        parameters, [this](size_t parameter) { before_gradient(parameter); },
        [this](size_t parameter) { on_gradient(parameter); });
}

GradientMean::~GradientMean() = default;

void GradientMean::begin_step(int64_t step, const Wishes& wishes, double learning_rate) {
  parameters_.require_as_made();
  reducer_.begin(step, wishes, learning_rate);
  break_off();
  lanes_added_ = 0;
  own_ = {};
  step_ = step;
  audited_.reset();
  audited_sum_.reset();
  copies_ = false;
}

void GradientMean::audit(int64_t lane, bool copies, uint64_t bits) {
  vectors_.keep_buffers();
  audited_ = lane;
  copies_ = copies;
  hashes_ = {};
  if (parameters_.trained().empty() || !reducer_.is_exact()) return;
  const AuditedRange range = draw_range(parameters_, bits);
  const Buckets& buckets = reducer_.buckets();
  audited_sum_.emplace(comm_, parameters_, buckets.all[buckets.of_parameter[range.parameter]], range,
                       reducer_.all_lanes(), scatter_, vectors_.numbers());
}

void GradientMean::break_off() {
  if (lane_begun_) vectors_.restore_buffers();
  lane_begun_ = false;
}

void GradientMean::take_back() { vectors_.restore_buffers(); }

// The first lane leaves the buffers alone, since a loop may have made its forward pass already.
void GradientMean::begin_lane() {
  watching_ = false;  // resets the state after a backward pass that failed
  if (lane_begun_) return vectors_.begin_lane();
  parameters_.zero_grads();
  vectors_.save_buffers();
  lane_begun_ = true;
}

void GradientMean::begin_backward(const torch::Tensor& loss, int64_t examples) {
  const torch::NoGradGuard no_grad;
  vectors_.count(loss, examples);
  of_lane_ = {examples, !loss.defined()};
  if (!watch_ || audited_ || !reducer_.open()) return;
  heard_.assign(parameters_.trained().size(), false);
  missing_.assign(reducer_.buckets().all.size(), 0);
  for (const size_t bucket : reducer_.buckets().of_parameter) ++missing_[bucket];
  watching_ = true;
}

// Throws if the gradient is being sent, since it must not change then.
void GradientMean::before_gradient(size_t parameter) const {
  if (!is_sending() || (watching_ && !heard_[parameter])) return;
  const std::string& name = parameters_.trained()[parameter].name;
  if (watching_) {
    fail(ErrorKind::InvalidArgument,
         "the gradient of {} was computed twice in one lane: make one backward pass over the sum of the "
         "losses",
         name);
  }
  fail(ErrorKind::InvalidArgument,
       "a backward pass would change the gradient of {}, which is already being sent after the last lane of "
       "step {}: call step() first",
       name, step_);
}

void GradientMean::on_gradient(size_t parameter) {
  if (!watching_) return;
  heard_[parameter] = true;
  parameters_.collect_grad(parameter);
  const size_t bucket = reducer_.buckets().of_parameter[parameter];
  const torch::NoGradGuard no_grad;
  if (--missing_[bucket] != 0) return;
  require_finite(bucket);
  reducer_.ready(bucket);
}

// Looks at the gradients of a bucket that are about to be added or sent. Tells the other workers, since a
// loop of the program's own would end without a reason for them.
void GradientMean::require_finite(size_t bucket) const {
  const Buckets& buckets = reducer_.buckets();
  if (!checks_ || !buckets.all[bucket].gradients || is_finite(buckets.elements(buckets.all[bucket]))) return;
  for (size_t i = 0; i < parameters_.trained().size(); ++i) {
    const Parameters::View& view = parameters_.trained()[i];
    const torch::Tensor gradient = parameters_.view_of(view, parameters_.blocks()[view.block].grads);
    if (buckets.of_parameter[i] != bucket || is_finite(gradient)) continue;
    const std::string why = fmt::format(
        "the gradient of {} is not finite on rank {} at step {}, lane {}. Try a lower learning rate, or "
        "check "
        "the data; --no-nan-guard continues the training anyway",
        view.name, comm_.rank(), step_, lanes().begin + lanes_added_);
    comm_.abandon(why);
    throw Error(ErrorKind::InvalidArgument, why);
  }
}

void GradientMean::add() {
  const bool was_watching = std::exchange(watching_, false);
  vectors_.collect();
  const torch::NoGradGuard no_grad;
  if (copies_) {
    hashes_.copy = hashes_of_lane(parameters_, vectors_.numbers());
    return drop_copy();
  }
  if (lanes().begin + lanes_added_ == audited_) hashes_.own = hashes_of_lane(parameters_, vectors_.numbers());
  for (size_t bucket = 0; bucket < reducer_.buckets().all.size(); ++bucket) {
    if (!was_watching || missing_[bucket] > 0) require_finite(bucket);
  }
  if (audited_sum_) audited_sum_->add();
  reducer_.add();
  ++lanes_added_;
  own_.examples += of_lane_.examples;
  own_.without_loss = own_.without_loss || of_lane_.without_loss;
}

void GradientMean::skip() {
  if (copies_) return drop_copy();
  if (audited_sum_) audited_sum_->skip();
  reducer_.skip();
  ++lanes_added_;
}

void GradientMean::drop_copy() {
  copies_ = false;
  if (lane_begun_) vectors_.restore_buffers();
}

GradientMean::Result GradientMean::finish() {
  const ReduceOutcome outcome =
      reducer_.finish([this](size_t bucket, const std::vector<TreeSum::Subtree>& sums) {
        if (audited_sum_ && audited_sum_->is_in(reducer_.buckets().all[bucket]))
          audited_sum_->take_branches(sums);
      });
  if (!outcome.any_data) {
    audited_sum_.reset();
    return {.wishes = outcome.wishes};
  }
  if (!lane_begun_) vectors_.save_buffers();  // this worker had no data
  share_counters(outcome);
  vectors_.take_over_buffers();
  lane_begun_ = scatter_;  // then share_update() may fail
  const torch::Tensor& numbers = vectors_.numbers();
  // A worker that is alone knows its numbers, and need not wait for a GPU to read them.
  if (comm_.world() == 1)
    return {own_.examples, own_.without_loss ? torch::Tensor() : numbers[kLoss].clone(), outcome.wishes};
  return {numbers[kExamples].item<int64_t>(), vectors_.loss_sum(), outcome.wishes};
}

double GradientMean::clip_norm(double largest, double other_squares) {
  return scatter_ ? clip_norm_scattered(comm_, reducer_.buckets(), largest, step_, other_squares)
                  : tutti::clip_norm(reducer_.buckets(), largest, other_squares);
}

void GradientMean::share_update(StepCommit* commit) {
  if (!scatter_) return;
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> values;
  for (const Section& block : parameters_.blocks()) values.push_back(block.values);
  reducer_.sums().spread(values, step_, commit);
  lane_begun_ = false;
}

// The counters of a worker without data have not advanced, so they are broadcast from a worker that had data.
void GradientMean::share_counters(const ReduceOutcome& outcome) {
  if (outcome.data_everywhere) return;
  for (const torch::Tensor& counter : vectors_.counters())
    comm_.broadcast(counter, outcome.first_with_data, {.what = "a buffer"});
}

Allocate shared_allocator(comm::Communicator& comm, torch::Device device) {
  comm::SharedVectors* shared = shared_by(comm, device);
  if (shared == nullptr) return {};
  return [shared](int64_t elements, const torch::TensorOptions& options) {
    return shared->allocate(elements, options.dtype().toScalarType());
  };
}

void require_number(const torch::Tensor& loss) {
  const bool is_number = loss.defined() && loss.numel() == 1 && loss.layout() == torch::kStrided &&
                         !loss.is_complex() && !loss.is_meta();
  if (is_number) return;
  fail(ErrorKind::InvalidArgument, "the loss is {}, expected a single number, the mean over the batch",
       loss.defined() ? describe(loss) : "nothing");
}

void require_mean(const torch::Tensor& loss) {
  require_number(loss);
  if (!loss.requires_grad()) {
    fail(ErrorKind::InvalidArgument, "the loss does not depend on any trained parameter");
  }
}

void require_clip_norm(double clip_norm) {
  if (!(clip_norm >= 0))
    fail(ErrorKind::InvalidArgument, "clip_norm is {:g}, but must be 0 (no limit) or more", clip_norm);
}

}  // namespace tutti
