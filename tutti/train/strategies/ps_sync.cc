#include "tutti/train/strategies/ps_sync.h"

#include <optional>

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/timeline.h"
#include "tutti/params/buckets.h"

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

PsSync::PsSync(Replica& replica, ps::Client& client, LaneVectors& vectors, const PsSyncOptions& options)
    : replica_(replica),
      client_(client),
      vectors_(vectors),
      options_(options),
      block_(lanes_of(options.rank, options.world, options.lanes)),
      sum_(vectors, gradients_by_server(client), block_, options.lanes),
      lanes_(replica, sum_, block_),
      word_(blocks_of(options.world, options.lanes), options.lanes, kNumbers),
      own_word_(torch::zeros({word_.size()}, torch::kDouble)) {}

StepResult PsSync::make(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                        const LaneObserver& observe) {
  sum_.begin_step();
  lanes_.run_step(step, queue, observe);
  const auto subtrees = sum_.finish();
  const torch::NoGradGuard no_grad;
  const SpanScope span(options_.timeline, Activity::Reduce, "gradients", step);
  int64_t expected = options_.world;
  if (options_.backup > 0) {
    const std::optional<int64_t> with_us = client_.enter(step);
    if (!with_us) return catch_up(step, queue);
    expected = *with_us;
  }
  return push(step, wishes, subtrees, expected);
}

StepResult PsSync::push(int64_t step, const Wishes& wishes, const std::vector<TreeSum::Subtree>& subtrees,
                        int64_t expected) {
  const double rate = replica_.optimizer().learning_rate();
  word_.write(own_word_, step, wishes, rate, subtrees);
  const torch::Tensor words = client_.push_synchronous({.step = step,
                                                        .learning_rate = rate,
                                                        .word = own_word_,
                                                        .pieces = pieces_of(subtrees),
                                                        .scaled = options_.clip_norm > 0},
                                                       expected);
  if (options_.clip_norm > 0)
    client_.scale(step, clip_factor(norm_of(buckets_of(replica_.parameters())), options_.clip_norm));
  const Tensors of_each = words.chunk(options_.world);
  const ReduceOutcome outcome = word_.read(of_each);
  if (!outcome.any_data)
    return {.step = step + 1, .made = true, .examples = 0, .loss_sum = {}, .wishes = outcome.wishes};
  vectors_.take_over_buffers();
  const torch::Tensor numbers = word_.sum_numbers(of_each);
  return {step + 1, true, numbers[kExamples].item<int64_t>(), numbers[kLoss].clone(), outcome.wishes};
}

// The other workers have made this step, and maybe more, without this one.
StepResult PsSync::catch_up(int64_t step, data::BatchQueue& queue) {
  const int64_t now = client_.pull(step + 1);
  vectors_.take_over_buffers();
  for (int64_t passed = step + 1; passed < now; ++passed) {
    for (int64_t lane = block_.begin; lane < block_.end; ++lane) static_cast<void>(take(queue, passed));
  }
  return {.step = now, .made = false, .examples = 0, .loss_sum = {}, .wishes = {}};
}

std::vector<Tensors> PsSync::pieces_of(const std::vector<TreeSum::Subtree>& subtrees) const {
  std::vector<Tensors> pieces(static_cast<size_t>(client_.servers()));
  bool any = false;
  for (const TreeSum::Subtree& subtree : subtrees) {
    if (!subtree.values) continue;
    any = true;
    size_t next = 0;
    for (int server = 0; server < client_.servers(); ++server) {
      const size_t parts = client_.gradients_of(server).size();
      for (size_t part = 0; part < parts; ++part)
        pieces[static_cast<size_t>(server)].push_back((*subtree.values)[next++]);
    }
    for (size_t i = 0; i < vectors_.buffers().size(); ++i) pieces[0].push_back((*subtree.values)[next++]);
  }
  if (any) pieces[0].insert(pieces[0].end(), vectors_.counters().begin(), vectors_.counters().end());
  return pieces;
}

}  // namespace tutti
