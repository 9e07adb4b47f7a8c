#include "tools/bench/collectives.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"

namespace tutti::bench {
namespace {

using comm::ReduceOp;
using Clock = std::chrono::steady_clock;

constexpr int64_t kElementBytes = 4;
constexpr int64_t kWarmUp = 2;  // touches pages and creates buffers
constexpr int64_t kProbes = 3;
constexpr int64_t kFewest = 5;
constexpr int64_t kMost = 10'000;
constexpr int64_t kPeriod = 251;  // a prime, so that the parts of the vector differ
constexpr int kRoot = 0;

const comm::Options kOptions = {.what = "the benchmark"};

// Returns the values of `rank` at [begin, begin + count): whole numbers so small that no sum is rounded.
torch::Tensor pattern(int64_t begin, int64_t count, int64_t rank) {
  return torch::arange(begin, begin + count, torch::kInt32).remainder_(kPeriod).add_(rank).to(torch::kFloat);
}

// Returns the sum of pattern() over all ranks.
torch::Tensor pattern_sum(int64_t begin, int64_t count, int64_t ranks) {
  return pattern(begin, count, 0).mul_(ranks).add_(ranks * (ranks - 1) / 2);
}

bool has_parts(Collective operation) {
  return operation == Collective::ReduceScatter || operation == Collective::AllGather ||
         operation == Collective::AllToAll;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

struct Collectives::Job {
  torch::Tensor input;
  torch::Tensor output;    // the input itself for operations in place
  torch::Tensor expected;  // expected contents of `output`
  std::function<void()> run;
};

bool Collectives::can(Collective operation) const {
  return operation != Collective::AllReduceInPlace || comm_.shared() != nullptr;
}

int64_t Collectives::actual_bytes(Collective operation, int64_t bytes) const {
  if (operation == Collective::Barrier) return 0;
  const int64_t unit = kElementBytes * (has_parts(operation) ? comm_.world() : 1);
  return (bytes + unit - 1) / unit * unit;
}

torch::Tensor Collectives::shared_vector(int64_t elements) {
  if (!shared_.defined() || shared_.numel() < elements) {
    shared_.reset();
    shared_ = comm_.shared()->allocate(elements, torch::kFloat);
  }
  return shared_.narrow(0, 0, elements);
}

Collectives::Job Collectives::job_of(Collective operation, int64_t elements) {
  const int64_t rank = comm_.rank();
  const int64_t ranks = comm_.world();
  const int64_t part = elements / ranks;
  const auto reduce_all = [this](const torch::Tensor& vector, comm::Options options) {
    return [this, vector, options] { comm_.all_reduce(vector, ReduceOp::Sum, options).wait(); };
  };
  Job job;
  switch (operation) {
    case Collective::AllReduce:
    case Collective::AllReduceAnyOrder:
    case Collective::AllReduceInPlace: {
      comm::Options options = kOptions;
      options.any_order = operation == Collective::AllReduceAnyOrder;
      job.output = job.input = operation == Collective::AllReduceInPlace
                                   ? shared_vector(elements).copy_(pattern(0, elements, rank))
                                   : pattern(0, elements, rank);
      job.expected = pattern_sum(0, elements, ranks);
      job.run = reduce_all(job.input, options);
      return job;
    }
    case Collective::ReduceScatter:
      job.input = pattern(0, elements, rank);
      job.output = torch::zeros({part});
      job.expected = pattern_sum(rank * part, part, ranks);
      job.run = [this, to = job.output, from = job.input] {
        comm_.reduce_scatter(to, from, ReduceOp::Sum, kOptions).wait();
      };
      return job;
    case Collective::AllGather: {
      std::vector<torch::Tensor> parts;
      for (int64_t r = 0; r < ranks; ++r) parts.push_back(pattern(0, part, r));
      job.input = pattern(0, part, rank);
      job.output = torch::zeros({elements});
      job.expected = torch::cat(parts);
      job.run = [this, to = job.output, from = job.input] { comm_.all_gather(to, from, kOptions).wait(); };
      return job;
    }
    case Collective::AllToAll: {
      std::vector<torch::Tensor> parts;
      for (int64_t r = 0; r < ranks; ++r) parts.push_back(pattern(rank * part, part, r));
      job.input = pattern(0, elements, rank);
      job.output = torch::zeros({elements});
      job.expected = torch::cat(parts);
      job.run = [this, to = job.output, from = job.input] { comm_.all_to_all(to, from, kOptions).wait(); };
      return job;
    }
    case Collective::Broadcast:
      job.output = job.input = pattern(0, elements, rank);
      job.expected = pattern(0, elements, kRoot);
      job.run = [this, vector = job.input] { comm_.broadcast(vector, kRoot, kOptions).wait(); };
      return job;
    case Collective::Barrier:
      job.output = job.input = job.expected = torch::zeros({0});
      job.run = [this] { comm_.barrier(kOptions).wait(); };
      return job;
  }
  fail(ErrorKind::Bug, "an unknown operation");
}

void Collectives::verify(const Job& job, Collective operation, int64_t bytes) {
  job.run();
  const torch::Tensor wrong = torch::full({1}, job.output.ne(job.expected).sum().item<int64_t>());
  torch::Tensor everyones = torch::zeros({comm_.world()}, torch::kInt64);
  comm_.all_gather(everyones, wrong, kOptions).wait();
  std::vector<std::string> bad;
  for (int64_t rank = 0; rank < comm_.world(); ++rank) {
    const auto count = everyones[rank].item<int64_t>();
    if (count > 0) bad.push_back(fmt::format("rank {} ({} of {})", rank, count, job.output.numel()));
  }
  if (bad.empty()) return;
  fail(ErrorKind::DataLoss,
       "{} of {} bytes over {} gave wrong values at {}; do not train with it, and report this together with "
       "the output of `tutti doctor`",
       name_of(operation), bytes, comm_.name(), fmt::join(bad, ", "));
}

// Returns the number that rank 0 computes, so that all ranks use the same.
int64_t Collectives::agree_on_repetitions(double seconds_each) {
  const double fitting = seconds_ / std::max(seconds_each, 1e-9);
  const auto count = static_cast<int64_t>(std::clamp(fitting, double{kFewest}, double{kMost}));
  const torch::Tensor agreed = torch::full({1}, count, torch::kInt64);
  comm_.broadcast(agreed, 0, kOptions).wait();
  return agreed.item<int64_t>();
}

// Returns the time of each repetition on this rank.
std::vector<double> Collectives::time(const Job& job, int64_t repetitions) {
  std::vector<double> seconds(static_cast<size_t>(repetitions));
  for (double& each : seconds) {
    comm_.barrier(kOptions).wait();
    const auto begin = Clock::now();
    job.run();
    each = seconds_since(begin);
  }
  return seconds;
}

Row Collectives::measure(Collective operation, int64_t bytes) {
  const int64_t actual = actual_bytes(operation, bytes);
  Job job = job_of(operation, actual / kElementBytes);
  verify(job, operation, actual);
  job.expected.reset();
  job.input.zero_();  // repeated sums in place would overflow
  static_cast<void>(time(job, kWarmUp));
  const auto begin = Clock::now();
  static_cast<void>(time(job, kProbes));
  const int64_t repetitions = agree_on_repetitions(seconds_since(begin) / kProbes);
  std::vector<double> seconds = time(job, repetitions);
  const torch::Tensor slowest = torch::from_blob(seconds.data(), {repetitions}, torch::kDouble);
  comm_.all_reduce(slowest, ReduceOp::Max, kOptions).wait();
  return {operation, actual, repetitions, quantile(seconds, 0.5), quantile(seconds, 0.99)};
}

}  // namespace tutti::bench
