#include "tutti/step/reducer.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/type_name.h"
#include "tutti/comm/hosts.h"
#include "tutti/comm/reduce_on_device.h"

namespace tutti {
namespace {

// With --reduce fast, each worker is a single leaf of the tree; else the lanes are the leaves.
ControlWord word_for(int world, int64_t lanes, int64_t numbers, bool fast) {
  const int64_t leaves = fast ? world : lanes;
  return {blocks_of(world, leaves), leaves, numbers};
}

comm::SharedVectors* memory_for(comm::Communicator& comm, const Buckets& buckets) {
  // If there are no vectors, only the numbers are added.
  if (buckets.vectors.empty() || comm.on_device(buckets.vectors.front())) return nullptr;
  return shared_by(comm, buckets.vectors.front().device());
}

}  // namespace

ReducerOptions reducer_options(const RunConfig& config) {
  ReducerOptions options;
  options.fast = config.reduction.order == "fast";
  if (config.reduction.wire_precision == "bf16") options.wire.type = torch::kBFloat16;
  if (config.reduction.wire_precision == "fp16") options.wire.type = torch::kHalf;
  options.wire.error_feedback = config.reduction.error_feedback;
  options.scatter = config.reduction.optimizer_state == "sharded";
  options.nan_guard = config.training.nan_guard;
  return options;
}

std::string to_string(const ReducerOptions& options) {
  std::string text = options.fast ? "reduce fast" : "reduce tree";
  if (options.wire.type != torch::ScalarType::Undefined)
    text += fmt::format(", {} on the wire{}", type_name(options.wire.type),
                        options.wire.error_feedback ? " with error feedback" : "");
  return options.scatter ? text + ", scattered" : text;
}

comm::SharedVectors* shared_by(comm::Communicator& comm, torch::Device device) {
  if (comm.world() == 1 || !device.is_cpu()) return nullptr;
  if (comm::SharedVectors* shared = comm.shared()) return shared;
  return comm.hosts() != nullptr ? comm.hosts()->inside.shared() : nullptr;
}

Reducer::Reducer(comm::Communicator& comm, Buckets buckets, torch::Tensor numbers, int64_t lanes,
                 Divisor divisor, const ReducerOptions& options)
    : comm_(comm),
      buckets_(std::move(buckets)),
      numbers_(std::move(numbers)),
      divisor_(std::move(divisor)),
      options_(options),
      block_(lanes_of(comm.rank(), comm.world(), lanes)),
      numbers_sum_(make_sum({numbers_}, lanes)),
      word_(word_for(comm.world(), lanes, numbers_.numel(), options.fast)),
      memory_(memory_for(comm, buckets_)),
      order_(buckets_.all.size()) {
  prepare_sums(lanes);
  if (overlaps() && !options.fast && options.wire.type != torch::ScalarType::Undefined)
    rounded_.emplace(comm, buckets_, word_.most_subtrees(), options.wire);
  std::iota(order_.rbegin(), order_.rend(), 0);
  std::stable_partition(order_.begin(), order_.end(), [&](size_t i) { return buckets_.all[i].gradients; });
  agreed_ = !overlaps();
}

Reducer::~Reducer() = default;

// With --reduce fast, the lanes of a worker form a tree of their own.
TreeSum Reducer::make_sum(Tensors vectors, int64_t lanes, std::vector<Tensors> waiting_room) const {
  const bool by_itself = options_.fast && block_.size() > 0;
  const LaneRange block = by_itself ? LaneRange{0, block_.size()} : block_;
  return {std::move(vectors), block, by_itself ? block_.size() : lanes, std::move(waiting_room)};
}

// Prepares the sums of all buckets: finds out where each worker of this host has its subtrees. The last is in
// the vectors themselves, and those before it in memory for values that wait for others.
void Reducer::prepare_sums(int64_t lanes) {
  const auto everyones = [&](const torch::Tensor& mine) {
    return memory_ != nullptr ? memory_->everyones(mine) : Tensors{mine};
  };
  std::vector<std::vector<Tensors>> places;  // [vector][subtree][rank of the host]; at last, the vectors
  for (const torch::Tensor& vector : buckets_.vectors) {
    places.emplace_back();
    for (size_t i = 0; i + 1 < word_.most_subtrees(); ++i) {
      places.back().push_back(everyones(memory_ != nullptr
                                            ? memory_->allocate(vector.numel(), vector.scalar_type())
                                            : torch::empty_like(vector)));
    }
    places.back().push_back(everyones(vector));
  }
  const int here = memory_ == nullptr ? 0 : overlaps() ? comm_.hosts()->inside.rank() : comm_.rank();
  for (const Bucket& bucket : buckets_.all) {
    std::vector<Tensors> sections = places[bucket.vector];
    for (Tensors& of_ranks : sections) {
      for (torch::Tensor& tensor : of_ranks) tensor = section_of(tensor, bucket.slice());
    }
    sums_.push_back(sum_over(bucket, sections, here));
    std::vector<Tensors> waiting_room;
    for (size_t i = 0; i + 1 < sections.size(); ++i)
      waiting_room.push_back({sections[i][static_cast<size_t>(here)]});
    progress_.push_back({make_sum({buckets_.section(bucket)}, lanes, std::move(waiting_room))});
  }
}

// `sections` are where the bucket's subtrees are, by subtree and by rank on this host; `here` is the rank of
// this worker on the host.
comm::SlicedSum Reducer::sum_over(const Bucket& bucket, const std::vector<Tensors>& sections,
                                  int here) const {
  const Tensors& vectors = sections.back();
  const torch::Tensor& own = vectors[static_cast<size_t>(here)];
  const auto sources = word_.sources();
  comm::SlicedSum sum{.reduction = sum_of(own.scalar_type(), own.numel()),
                      .sources = &word_.order(),
                      .inputs = Tensors(sources.size()),
                      .outputs = {own},
                      .slices = {},
                      .shared = memory_ != nullptr};
  for (size_t s = 0; s < sources.size(); ++s) {
    const int rank = sources[s].rank - (comm_.rank() - here);
    if (rank < 0 || rank >= static_cast<int>(vectors.size())) continue;
    const bool is_last = s + 1 == sources.size() || sources[s + 1].rank != sources[s].rank;
    sum.inputs[s] = (is_last ? vectors : sections[sources[s].subtree])[static_cast<size_t>(rank)];
  }
  if (options_.scatter && bucket.gradients) {
    for (int rank = 0; rank < comm_.world(); ++rank) {
      const comm::Slice part = part_of(bucket, rank, comm_.world());
      sum.slices.push_back({part.begin - bucket.begin, part.end - bucket.begin});
    }
    sum.outputs = {section_of(own, sum.slices[static_cast<size_t>(comm_.rank())])};
    return sum;
  }
  for (size_t r = 0; r < vectors.size(); ++r) {
    if (static_cast<int>(r) != here) sum.outputs.push_back(vectors[r]);
  }
  return sum;
}

std::string Reducer::name() const {
  if (options_.fast) return comm_.world() > 1 ? "fast" : "tree";
  return rounded_ ? fmt::format("tree, {} on the wire", type_name(options_.wire.type)) : "tree";
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
  if (!overlaps() || lanes_done_ + 1 != block_.size()) return false;
  opened_ = true;
  numbers_sum_.add();
  start_words();
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

void Reducer::start_words() {
  const torch::Tensor own = torch::zeros({word_.size()}, torch::kDouble);
  word_.write(own, step_, wishes_, learning_rate_, numbers_sum_.finish());
  start([this, own] {
    const torch::Tensor all = torch::empty({comm_.world() * word_.size()}, torch::kDouble);
    comm_.all_gather(all, own, {.what = "the control word", .step = step_});
    const Tensors words = all.view({comm_.world(), word_.size()}).unbind(0);
    outcome_ = word_.read(words);
    if (outcome_.any_data) totals_ = word_.sum_numbers(words);
  });
}

// Starts the buckets that are next in the order and complete: all workers send them in the same order.
void Reducer::start_ready() {
  for (; next_ < order_.size() && progress_[order_[next_]].complete; ++next_) {
    const size_t bucket = order_[next_];
    start([this, bucket] { sum(bucket, bucket + 1); });
  }
}

// Sums some buckets over the workers.
void Reducer::sum(size_t begin, size_t end) {
  if (!outcome_.any_data) return;
  const SpanScope span(comm_.timeline(), Activity::Reduce, "sum of buckets", step_);
  for (size_t i = begin; i < end; ++i)
    sums_[i].reduction.divisor = divisor_ ? divisor_(buckets_.all[i], totals_) : 0;
  if (rounded_ && rounded_->has(begin)) return rounded_->add(begin, sums_[begin], step_);
  // Other workers of this host are about to read the buckets. If all workers share memory, they have met when
  // they exchanged their words.
  if (memory_ != nullptr && overlaps()) memory_->sync({.what = "gradients", .step = step_});
  comm_.combine(std::span(sums_).subspan(begin, end - begin),
                {.any_order = options_.fast, .what = "gradients", .step = step_});
}

ReduceOutcome Reducer::finish() {
  const torch::NoGradGuard no_grad;
  if (lanes_done_ != block_.size()) {
    fail(ErrorKind::InvalidArgument, "step {} was finished after {} of the {} lanes of this worker", step_,
         lanes_done_, block_.size());
  }
  if (comm_.world() == 1) return finish_alone();
  if (!opened_) {
    for (Progress& bucket : progress_) {
      bucket.sum.finish();
      bucket.complete = true;
    }
    start_words();
    overlaps() ? start_ready() : sum(0, sums_.size());
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
  for (Progress& bucket : progress_) bucket.sum.finish();
  const bool any_data = numbers_sum_.finish().front().values.has_value();
  if (any_data && divisor_) {
    const torch::Tensor numbers = numbers_.to(torch::kCPU);
    for (const Bucket& bucket : buckets_.all)
      comm::divide(buckets_.section(bucket), divisor_(bucket, numbers));
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

std::optional<Residuals> Reducer::residuals() const {
  if (!rounded_ || !options_.wire.error_feedback) return std::nullopt;
  return rounded_->residuals();
}

void Reducer::set_residuals(const Residuals& residuals) {
  if (rounded_) rounded_->set_residuals(residuals);
}

void Reducer::spread(const Tensors& vectors) {
  if (comm_.world() == 1) return;
  const auto me = static_cast<size_t>(comm_.rank());
  const comm::Options options{.what = "the parameters", .step = step_};
  for (const Bucket& bucket : buckets_.all) {
    if (!bucket.gradients) continue;
    const torch::Tensor& vector = vectors[bucket.vector];
    Tensors parts;
    for (int rank = 0; rank < comm_.world(); ++rank)
      parts.push_back(section_of(vector, part_of(bucket, rank, comm_.world())));
    if (overlaps()) {
      comm_.all_gather_uneven(parts, parts[me], options);
      continue;
    }
    const Tensors everyones = memory_->everyones(parts[me]);
    for (size_t r = 0; r < everyones.size(); ++r) {
      if (r != me) everyones[r].copy_(parts[me]);
    }
  }
  if (!overlaps()) memory_->sync(options);
}

}  // namespace tutti
