#include "tutti/step/reducer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <torch/utils.h>

#include "tutti/base/error.h"

namespace tutti {
namespace {

// With --reduce fast, each worker is a single leaf of the tree; else the lanes are the leaves.
ControlWord word_for(int world, int64_t lanes, int64_t numbers, bool fast) {
  const int64_t leaves = fast ? world : lanes;
  return {lanes_of_all(world, leaves), leaves, numbers};
}

}  // namespace

Reducer::Reducer(comm::Communicator& comm, Buckets buckets, torch::Tensor numbers, int64_t lanes,
                 Divisor divisor, const ReducerOptions& options)
    : comm_(comm),
      buckets_(std::move(buckets)),
      numbers_(std::move(numbers)),
      fast_(options.fast),
      lanes_(lanes),
      own_lanes_(lanes_of(comm.rank(), comm.world(), lanes)),
      numbers_sum_(make_sum({numbers_}, lanes)),
      control_(word_for(comm.world(), lanes, numbers_.numel(), options.fast)),
      sums_(comm, buckets_, control_, std::move(divisor), options),
      order_(buckets_.all.size()),
      agreed_(!overlaps()) {
  for (size_t i = 0; i < buckets_.all.size(); ++i)
    progress_.push_back({make_sum({buckets_.elements(buckets_.all[i])}, lanes, sums_.waiting_room(i))});
  std::iota(order_.rbegin(), order_.rend(), 0);
  std::stable_partition(order_.begin(), order_.end(), [&](size_t i) { return buckets_.all[i].gradients; });
}

// With --reduce fast, the lanes of a worker form a tree of their own.
TreeSum Reducer::make_sum(Tensors vectors, int64_t lanes, std::vector<Tensors> waiting_room) const {
  const bool by_itself = fast_ && own_lanes_.size() > 0;
  const LaneRange range = by_itself ? LaneRange{0, own_lanes_.size()} : own_lanes_;
  return {std::move(vectors), range, by_itself ? own_lanes_.size() : lanes, std::move(waiting_room)};
}

void Reducer::begin(int64_t step, const Wishes& wishes, double learning_rate) {
  if (opened_) give_up();
  step_ = step;
  wishes_ = wishes;
  learning_rate_ = learning_rate;
  lanes_done_ = 0;
  next_ = 0;
  seen_.clear();
  outcome_ = {};
  numbers_sum_.reset();
  for (Progress& bucket : progress_) {
    bucket.sum.reset();
    bucket.complete = false;
  }
}

// The other workers wait for the rest of a step that will not come, so this abandons the communicator.
void Reducer::give_up() {
  comm_.abandon(fmt::format("step {} was abandoned while its gradients were being sent", step_));
  wait_for_jobs();
  comm_.barrier({.what = "a new step", .step = step_});  // throws why it was abandoned
}

void Reducer::add() {
  if (!opened_) numbers_sum_.add();
  for (size_t i = progress_.size(); i-- > 0;) {
    if (!progress_[i].complete) add_bucket(i);
  }
  ++lanes_done_;
  if (opened_) start_ready();
}

void Reducer::skip() {
  numbers_sum_.skip();
  for (Progress& bucket : progress_) bucket.sum.skip();
  ++lanes_done_;
}

void Reducer::add_bucket(size_t bucket) {
  progress_[bucket].sum.add();
  if (!opened_) return;
  progress_[bucket].sum.finish();
  progress_[bucket].complete = true;
  seen_.push_back(bucket);
}

bool Reducer::open() {
  if (!overlaps() || lanes_done_ + 1 != own_lanes_.size()) return false;
  opened_ = true;
  numbers_sum_.add();
  exchange_control_words();
  return true;
}

void Reducer::ready(size_t bucket) {
  if (!opened_ || progress_[bucket].complete) return;
  add_bucket(bucket);
  start_ready();
}

void Reducer::start(std::function<void()> job) {
  const auto quietly = [job = std::move(job)] {
    const torch::NoGradGuard no_grad;
    job();
  };
  if (opened_) {
    jobs_.push_back(executor_.run([this, quietly] {
      name_thread(comm_.timeline(), "reducer");
      quietly();
    }));
  } else {
    quietly();
  }
}

void Reducer::exchange_control_words() {
  const torch::Tensor own = torch::zeros({control_.size()}, torch::kDouble);
  control_.write(own, step_, wishes_, learning_rate_, numbers_sum_.finish());
  start([this, own] {
    const torch::Tensor all = torch::empty({comm_.world() * control_.size()}, torch::kDouble);
    comm_.all_gather(all, own, {.what = "the control word", .step = step_});
    const Tensors control_words = all.view({comm_.world(), control_.size()}).unbind(0);
    outcome_ = control_.read(control_words);
    if (outcome_.any_data) totals_ = control_.sum_numbers(control_words);
  });
}

// Starts the buckets that are next in the order and complete: all workers send them in the same order.
void Reducer::start_ready() {
  for (; next_ < order_.size() && progress_[order_[next_]].complete; ++next_) {
    const size_t bucket = order_[next_];
    start([this, bucket] { sum(bucket, bucket + 1); });
  }
}

void Reducer::sum(size_t begin, size_t end) {
  if (outcome_.any_data) sums_.add(begin, end, totals_, step_);
}

void Reducer::finish_buckets(const SeeSums& see) {
  for (size_t i = 0; i < progress_.size(); ++i) {
    const std::vector<TreeSum::Subtree> sums = progress_[i].sum.finish();
    if (see) see(i, sums);
    progress_[i].complete = true;
  }
}

ReduceOutcome Reducer::finish(const SeeSums& see) {
  const torch::NoGradGuard no_grad;
  if (lanes_done_ != own_lanes_.size()) {
    fail(ErrorKind::InvalidArgument, "step {} was finished after {} of the {} lanes of this worker", step_,
         lanes_done_, own_lanes_.size());
  }
  if (!opened_) finish_buckets(see);
  if (comm_.world() == 1) return finish_alone();
  if (!opened_) {
    exchange_control_words();
    overlaps() ? start_ready() : sum(0, progress_.size());
  }
  wait_for_jobs();
  if (outcome_.any_data) numbers_.copy_(totals_);
  if (!agreed_) agree_on_order();
  opened_ = false;
  return outcome_;
}

void Reducer::wait_for_jobs() {
  if (jobs_.empty()) return;
  const SpanScope span(comm_.timeline(), Activity::Wait, "wait for the reducer", step_);
  executor_.drain();
  for (const comm::Work& job : jobs_) job.wait();
  jobs_.clear();
}

ReduceOutcome Reducer::finish_alone() {
  const bool any_data = numbers_sum_.finish().front().values.has_value();
  if (any_data) sums_.divide(numbers_);
  return {.any_data = any_data, .data_everywhere = any_data, .first_with_data = 0, .wishes = wishes_};
}

void Reducer::agree_on_order() {
  agreed_ = true;
  std::vector<int64_t> order(order_.begin(), order_.end());
  if (seen_.size() == order_.size()) order.assign(seen_.begin(), seen_.end());
  const torch::Tensor agreed = torch::tensor(order, torch::kInt64);
  comm_.broadcast(agreed, 0, {.what = "the order of gradients", .step = step_});
  const auto* buckets = static_cast<const int64_t*>(agreed.data_ptr());
  std::copy_n(buckets, order_.size(), order_.begin());
}

}  // namespace tutti
