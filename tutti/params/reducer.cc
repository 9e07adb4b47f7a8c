#include "tutti/params/reducer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/type_name.h"
#include "tutti/comm/reduce_on_device.h"

namespace tutti {
namespace {

// With --reduce fast, each worker is a single leaf of the tree; else the lanes are the leaves.
ControlWord word_for(int world, int64_t lanes, int64_t numbers, bool fast) {
  const int64_t leaves = fast ? world : lanes;
  return {blocks_of(world, leaves), leaves, numbers};
}

std::unique_ptr<Summation> make_summation(comm::Communicator& comm, const Buckets& buckets,
                                          const ControlWord& word, const ReducerOptions& options) {
  if (comm.world() == 1) return nullptr;
  if (options.fast) return sum_by_all_reduce(comm, buckets);
  // If there are no vectors, only the numbers are added.
  const bool on_cpu = buckets.vectors.empty() ||
                      (buckets.vectors.front().is_cpu() && !comm.on_device(buckets.vectors.front()));
  if (on_cpu && comm.shared() != nullptr) return sum_in_memory(comm, buckets, word, options);
  // Values are rounded on the worker that computed them, so they cannot be added on the way (by hosts).
  const bool rounded = options.wire != torch::ScalarType::Undefined;
  if (on_cpu && !rounded && comm.hosts() != nullptr) return sum_by_hosts(comm, buckets, word, options);
  return sum_by_exchange(comm, buckets, word, options);
}

}  // namespace

ReducerOptions reducer_options(const RunConfig& config) {
  ReducerOptions options;
  options.fast = config.reduction.order == "fast";
  if (config.reduction.wire_precision == "bf16") options.wire = torch::kBFloat16;
  if (config.reduction.wire_precision == "fp16") options.wire = torch::kHalf;
  options.error_feedback = config.reduction.error_feedback;
  options.scatter = config.reduction.optimizer_state == "sharded";
  options.nan_guard = config.training.nan_guard;
  return options;
}

std::string to_string(const ReducerOptions& options) {
  std::string text = options.fast ? "reduce fast" : "reduce tree";
  if (options.wire != torch::ScalarType::Undefined)
    text += fmt::format(", {} on the wire{}", type_name(options.wire),
                        options.error_feedback ? " with error feedback" : "");
  return options.scatter ? text + ", scattered" : text;
}

Reducer::Reducer(comm::Communicator& comm, Buckets buckets, torch::Tensor numbers, int64_t lanes,
                 Divisor divisor, const ReducerOptions& options)
    : comm_(comm),
      buckets_(std::move(buckets)),
      numbers_(std::move(numbers)),
      divisor_(std::move(divisor)),
      block_(lanes_of(comm.rank(), comm.world(), lanes)),
      numbers_sum_(make_sum({numbers_}, lanes, options.fast)),
      word_(word_for(comm.world(), lanes, numbers_.numel(), options.fast)),
      summation_(make_summation(comm, buckets_, word_, options)),
      order_(buckets_.all.size()) {
  for (const Bucket& bucket : buckets_.all)
    progress_.push_back({make_sum({buckets_.stretch(bucket)}, lanes, options.fast)});
  std::iota(order_.rbegin(), order_.rend(), 0);
  std::stable_partition(order_.begin(), order_.end(), [&](size_t i) { return buckets_.all[i].gradients; });
  agreed_ = !overlaps();
}

Reducer::~Reducer() = default;

// With --reduce fast, the lanes of a worker form a tree of their own.
TreeSum Reducer::make_sum(TreeSum::Vectors vectors, int64_t lanes, bool fast) const {
  const bool by_itself = fast && block_.size() > 0;
  const LaneRange block = by_itself ? LaneRange{0, block_.size()} : block_;
  return {std::move(vectors), block, by_itself ? block_.size() : lanes};
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
    bucket.subtrees.reset();
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
    if (!progress_[i].subtrees) add_bucket(i);
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
  progress_[bucket].subtrees = progress_[bucket].sum.finish();
  seen_.push_back(bucket);
}

bool Reducer::open() {
  if (!overlaps() || lanes_done_ + 1 != block_.size()) return false;
  opened_ = true;
  numbers_sum_.add();
  start_words();
  return true;
}

void Reducer::ready(size_t bucket) {
  if (!opened_ || progress_[bucket].subtrees) return;
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

void Reducer::start_words() {
  const torch::Tensor own = torch::zeros({word_.size()}, torch::kDouble);
  word_.write(own, step_, wishes_, learning_rate_, numbers_sum_.finish());
  start([this, own] {
    const std::vector<torch::Tensor> words = summation_->words(own, step_);
    outcome_ = word_.read(words);
    if (outcome_.any_data) totals_ = word_.sum_numbers(words);
  });
}

// Starts the buckets that are next in the order and complete: all workers send them in the same order.
void Reducer::start_ready() {
  for (; next_ < order_.size() && progress_[order_[next_]].subtrees; ++next_) {
    const size_t bucket = order_[next_];
    start([this, bucket] {
      if (!outcome_.any_data) return;
      const SpanScope span(comm_.timeline(), Activity::Reduce, "sum of a bucket", step_);
      const double divisor = divisor_ ? divisor_(buckets_.all[bucket], totals_) : 0;
      summation_->add(bucket, *progress_[bucket].subtrees, divisor, step_);
    });
  }
}

ReduceOutcome Reducer::finish() {
  const torch::NoGradGuard no_grad;
  if (lanes_done_ != block_.size()) {
    fail(ErrorKind::InvalidArgument, "step {} was finished after {} of the {} lanes of this worker", step_,
         lanes_done_, block_.size());
  }
  if (summation_ == nullptr) return finish_alone();
  if (!opened_) {
    for (size_t i = 0; i < progress_.size(); ++i) {
      progress_[i].subtrees = progress_[i].sum.finish();
      summation_->show(i, *progress_[i].subtrees);
    }
    start_words();
    start_ready();
  }
  wait_for_jobs();
  summation_->end(step_);
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
  for (Progress& bucket : progress_) bucket.sum.finish();
  const bool any_data = numbers_sum_.finish().front().values.has_value();
  if (any_data && divisor_) {
    const torch::Tensor numbers = numbers_.to(torch::kCPU);
    for (const Bucket& bucket : buckets_.all)
      comm::divide(buckets_.stretch(bucket), divisor_(bucket, numbers));
  }
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

void Reducer::spread(const std::vector<torch::Tensor>& vectors) {
  if (summation_ != nullptr) summation_->spread(vectors, step_);
}

}  // namespace tutti
