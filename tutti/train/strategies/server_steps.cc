#include "tutti/train/strategies/server_steps.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/timeline.h"
#include "tutti/comm/reduce_on_device.h"
#include "tutti/step/buckets.h"

namespace tutti {
namespace {

using Tensors = std::vector<torch::Tensor>;

// Returns the gradients of the parts that each server holds, in the order of servers.
Tensors gradients_by_server(const ps::Client& client) {
  Tensors all;
  for (int server = 0; server < client.servers(); ++server) {
    for (const torch::Tensor& part : client.gradients_of(server)) all.push_back(part);
  }
  return all;
}

}  // namespace

PsSync::PsSync(Replica& replica, ps::Client& client, ps::ServerRows& rows, LaneVectors& vectors,
               const ServerStepsOptions& options)
    : ServerSteps(replica, client, rows, vectors, options),
      sum_(vectors, gradients_by_server(client), own_lanes_, options.lanes),
      control_(lanes_of_all(options.world, options.lanes), options.lanes, kNumbers),
      own_control_word_(torch::zeros({control_.size()}, torch::kDouble)) {}

LaneSum& PsSync::begin_step(int64_t step, const Wishes& wishes) {
  step_ = step;
  wishes_ = wishes;
  sum_.begin_step();
  // With backup workers, the others may be at a later step.
  rows_.at_step(options_.backup > 0 ? std::nullopt : std::optional(step));
  return sum_;
}

StepResult PsSync::end_step() {
  const auto subtrees = sum_.finish();
  const torch::NoGradGuard no_grad;
  embedding::TableGradients rows;
  if (!replica_.tables().empty()) rows = replica_.tables().gradients(own_lanes_, options_.lanes);
  const SpanScope span(options_.timeline, Activity::Wait, "gradients", step_);
  int64_t expected = options_.world;
  if (options_.backup > 0) {
    const std::optional<int64_t> with_us = client_.enter(step_);
    if (!with_us) return catch_up();
    expected = *with_us;
  }
  StepResult result = push(subtrees, rows, expected);
  if (options_.backup == 0) rows_.at_step(result.step);
  return result;
}

StepResult PsSync::push(const std::vector<TreeSum::Subtree>& subtrees, const embedding::TableGradients& rows,
                        int64_t expected) {
  const double rate = replica_.optimizer().learning_rate();
  Gradients gradients = Gradients::Finite;
  if (replica_.options().nan_guard)
    gradients = rows.are_finite() ? sum_.gradients_in(subtrees) : Gradients::NotFinite;
  control_.write(own_control_word_, step_, wishes_, rate, subtrees, gradients);
  ps::Client::Push push{.step = step_,
                        .learning_rate = rate,
                        .control_word = own_control_word_,
                        .gradients = {},
                        .extras = {},
                        .rows = rows.of_owners,
                        .scaled = options_.clip_norm > 0};
  add_sums(subtrees, push);
  const ps::Client::Summed summed = client_.push_synchronous(push, expected);
  if (options_.clip_norm > 0) {
    const double norm = norm_of(buckets_of(replica_.parameters()), summed.row_squares);
    client_.scale(step_, clip_factor(norm, options_.clip_norm));
  }
  const Tensors of_each = summed.control_words.chunk(summed.workers);
  if (!summed.is_made_before) return result_of(control_, of_each);
  // The workers may have changed since then. Those that wanted to leave or to change say so again.
  ControlWord before(lanes_of_all(summed.workers, options_.lanes), options_.lanes, kNumbers);
  StepResult result = result_of(before, of_each);
  result.wishes.change = false;
  result.wishes.leaving = 0;
  return result;
}

StepResult PsSync::result_of(ControlWord& control, const Tensors& control_words) {
  const ReduceOutcome outcome = control.read(control_words);
  if (!outcome.any_data) return {.step = step_ + 1, .wishes = outcome.wishes};
  vectors_.take_over_buffers();
  vectors_.numbers().copy_(control.sum_numbers(control_words));
  return {step_ + 1, true, vectors_.numbers()[kExamples].item<int64_t>(), vectors_.loss_sum(),
          outcome.wishes};
}

// The other workers have made this step, and maybe more, without this one.
StepResult PsSync::catch_up() {
  const int64_t now = client_.pull(step_ + 1);
  vectors_.take_over_buffers();
  return {.step = now, .made = false, .missed = now - step_ - 1};
}

void PsSync::add_sums(const std::vector<TreeSum::Subtree>& subtrees, ps::Client::Push& push) const {
  push.gradients.resize(static_cast<size_t>(client_.servers()));
  for (const TreeSum::Subtree& subtree : subtrees) {
    if (!subtree.values) continue;
    auto next = subtree.values->begin();
    const auto next_tensors = [&next](size_t count) {
      const auto first = next;
      next += static_cast<std::ptrdiff_t>(count);
      return Tensors(first, next);
    };
    for (int server = 0; server < client_.servers(); ++server)
      push.gradients[static_cast<size_t>(server)].push_back(
          next_tensors(client_.gradients_of(server).size()));
    const Tensors buffers = next_tensors(vectors_.buffers().size());
    push.extras.insert(push.extras.end(), buffers.begin(), buffers.end());
  }
  if (!push.gradients[0].empty())
    push.extras.insert(push.extras.end(), vectors_.counters().begin(), vectors_.counters().end());
}

namespace {

// Copies in the calling thread, so that kernels of the training keep the threads of this process.
void copy(const Tensors& from, const Tensors& to) {
  for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
}

void copy(const ps::Extras& from, const ps::Extras& to) {
  copy(from.buffers, to.buffers);
  copy(from.counters, to.counters);
}

void subtract_from(const Tensors& now, const Tensors& before) {
  for (size_t i = 0; i < now.size(); ++i) {
    const bool is_bool = now[i].scalar_type() == torch::kBool;
    before[i].copy_(is_bool ? torch::logical_xor(now[i], before[i]) : now[i] - before[i]);
  }
}

Tensors zeros_like_each(const Tensors& vectors) {
  Tensors all;
  for (const torch::Tensor& vector : vectors) all.push_back(torch::zeros_like(vector));
  return all;
}

}  // namespace

PsAsync::PsAsync(Replica& replica, ps::Client& client, ps::ServerRows& rows, LaneVectors& vectors,
                 const ServerStepsOptions& options)
    : ServerSteps(replica, client, rows, vectors, options),
      gradients_(gradients_of(replica.parameters())),
      sum_(vectors, gradients_, {0, own_lanes_.size()}, std::max<int64_t>(1, own_lanes_.size())),
      results_({zeros_like_each(vectors.buffers()), zeros_like_each(vectors.counters())}),
      going_(like_ours()),
      coming_(like_ours()) {
  rows_.at_step({});
  rows_.read_ahead(options.overlap);
}

PsAsync::Vectors PsAsync::like_ours() const {
  const auto one = [&](const torch::Tensor& like) {
    return options_.allocate(like.numel(), like.options().device(torch::kCPU)).view(like.sizes());
  };
  Vectors all;
  for (const torch::Tensor& vector : gradients_) all.blocks.push_back(one(vector));
  for (const torch::Tensor& vector : vectors_.buffers()) all.extras.buffers.push_back(one(vector));
  for (const torch::Tensor& counter : vectors_.counters()) all.extras.counters.push_back(one(counter));
  return all;
}

LaneSum& PsAsync::begin_step(int64_t step, const Wishes& wishes) {
  now_ = step;
  of_ = values_step_ < 0 ? step : values_step_;
  wishes_ = wishes;
  const torch::NoGradGuard no_grad;
  copy(vectors_.counters(), results_.counters);
  sum_.begin_step();
  return sum_;
}

StepResult PsAsync::end_step() {
  const torch::NoGradGuard no_grad;
  const bool any_data = finish_lanes();
  if (any_data && options_.clip_norm > 0) {
    const double norm =
        clip_norm(buckets_of(replica_.parameters()), options_.clip_norm, row_gradients_.squares());
    if (const double factor = clip_factor(norm, options_.clip_norm); factor != 1)
      row_gradients_.multiply(factor);
  }
  copy(vectors_.buffers(), results_.buffers);
  subtract_from(vectors_.counters(), results_.counters);
  StepResult result = end_push();
  if (any_data && (end_ < 0 || result.step < end_)) {
    start_push();
    if (!options_.overlap) result = end_push();
  }
  result.wishes = wishes_;
  return result;
}

// Leaves the mean of this worker's lanes in gradients and buffers. Returns false if no lane had data.
bool PsAsync::finish_lanes() {
  const auto subtrees = sum_.finish();
  const bool any_data = std::any_of(subtrees.begin(), subtrees.end(), [](const TreeSum::Subtree& subtree) {
    return subtree.values.has_value();
  });
  if (!any_data) return false;
  if (!replica_.tables().empty())
    row_gradients_ =
        replica_.tables().gradients({0, own_lanes_.size()}, std::max<int64_t>(1, own_lanes_.size()));
  if (replica_.options().nan_guard &&
      (!row_gradients_.are_finite() || sum_.gradients_in(subtrees) == Gradients::NotFinite))
    fail(ErrorKind::InvalidArgument,
         "the gradients of this worker (rank {}) are not finite at step {} and were not sent. Try a lower "
         "learning rate, or check the data; --no-nan-guard continues the training anyway",
         options_.rank, now_);
  examples_ = vectors_.numbers()[kExamples].item<int64_t>();
  if (vectors_.one_lane()) return true;
  row_gradients_.divide(static_cast<double>(examples_));
  for (const torch::Tensor& vector : gradients_) comm::divide(vector, static_cast<double>(examples_));
  for (const torch::Tensor& vector : vectors_.buffers())
    comm::divide(vector, vectors_.numbers()[kLanes].item<double>());
  return true;
}

// Starts to push the gradients.
void PsAsync::start_push() {
  copy(gradients_, going_.blocks);
  copy(results_, going_.extras);
  going_rows_ = std::exchange(row_gradients_, {});
  // The rows of the next step are as new as the parameters, which are those before this push.
  if (options_.overlap) rows_.begin_reading(thread_);
  const double rate = replica_.optimizer().learning_rate();
  push_ = thread_.run([this, of = of_, rate, examples = examples_] {
    name_thread(options_.timeline, "push and pull");
    const SpanScope span(options_.timeline, Activity::Copy, "push and pull", now_);
    const torch::NoGradGuard no_grad;
    applied_ = client_.push_asynchronous({.gradients = going_.blocks,
                                          .results = going_.extras,
                                          .of = of,
                                          .examples = examples,
                                          .end = end_,
                                          .learning_rate = rate,
                                          .rows = going_rows_.of_owners,
                                          .lanes = std::max<int64_t>(1, own_lanes_.size())},
                                         coming_.blocks, coming_.extras);
  });
  under_way_ = true;
  pushed_examples_ = examples_;
  pushed_loss_ = vectors_.loss_sum();
}

// Waits for the push and takes over the new values.
StepResult PsAsync::end_push() {
  if (!under_way_) return {.step = now_, .made = false};
  under_way_ = false;
  {
    const SpanScope span(options_.timeline, Activity::Wait, "push and pull", now_);
    push_.wait();
  }
  for (size_t i = 0; i < coming_.blocks.size(); ++i)
    replica_.parameters().blocks()[i].values.detach().copy_(coming_.blocks[i]);
  copy(coming_.extras, {vectors_.buffers(), vectors_.counters()});
  vectors_.take_over_buffers();
  values_step_ = applied_.now;
  // Counts only this worker's own step; if there was no step left to make, takes the last one.
  now_ = applied_.made ? applied_.step + 1 : applied_.now;
  if (!applied_.made) return {.step = now_, .made = false};
  return {.step = now_, .examples = pushed_examples_, .loss_sum = pushed_loss_};
}

int64_t PsAsync::finish(int64_t step) {
  const torch::NoGradGuard no_grad;
  now_ = std::max(now_, step);
  return end_push().step;
}

}  // namespace tutti
