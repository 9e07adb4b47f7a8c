#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/types.h>

#include "tools/arguments.h"
#include "tools/commands.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/store/checkpoint.h"
#include "tutti/store/weight_hashes.h"
#include "tutti/train/load.h"

namespace tutti {
namespace {

constexpr int kDiffer = 1;  // as that of diff(1)

// The hashes and checkpoints of a run, read from its log directory.
struct Run {
  std::string logdir;
  std::map<int64_t, std::string> hashes;       // by step
  std::map<int64_t, std::string> checkpoints;  // paths by step
};

Run read_run(const std::string& logdir) {
  if (!path_exists(logdir)) fail(ErrorKind::InvalidArgument, "{}: there is no such folder", logdir);
  Run run{logdir, store::read_weight_hashes(logdir), {}};
  for (const store::SavedCheckpoint& saved : store::CheckpointDir(logdir).saved()) {
    const int64_t step = saved.manifest.step;
    run.checkpoints[step] = saved.path;
    if (const auto hash = saved.manifest.state.value("weights_sha256", ""); !hash.empty())
      run.hashes[step] = hash;
  }
  if (run.hashes.empty())
    fail(ErrorKind::InvalidArgument,
         "{}: no hash of weights is there: train with --hash-every or --checkpoint-every and this --logdir",
         logdir);
  return run;
}

// The steps whose hashes both runs have.
struct Comparison {
  std::vector<int64_t> steps;
  std::optional<size_t> parts_at;  // the first one of them at which the runs differ
};

Comparison compare(const Run& one, const Run& other) {
  Comparison result;
  for (const auto& [step, hash] : one.hashes) {
    const auto theirs = other.hashes.find(step);
    if (theirs == other.hashes.end()) continue;
    if (!result.parts_at && hash != theirs->second) result.parts_at = result.steps.size();
    result.steps.push_back(step);
  }
  if (result.steps.empty())
    fail(ErrorKind::InvalidArgument,
         "{} and {} have no step in common whose weights could be compared: use the same --hash-every",
         one.logdir, other.logdir);
  return result;
}

// Returns "weight: 3 of 800 numbers, by at most 1.2e-07", or "" if the tensors are the same.
std::string difference_of(const store::NamedTensor& one, const store::NamedTensor& other) {
  const torch::Tensor a = one.tensor;
  const torch::Tensor b = other.tensor;
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type())
    return fmt::format("{}: another type or shape", one.name);
  const torch::Tensor differs = a.ne(b).logical_and(a.eq(a).logical_or(b.eq(b)));  // NaN is the same as NaN
  const auto count = differs.sum().item<int64_t>();
  if (count == 0) return "";
  const torch::Tensor apart = (a.to(torch::kDouble) - b.to(torch::kDouble)).abs().masked_select(differs);
  return fmt::format("{}: {} of {} numbers, by at most {:.2g}", one.name, count, a.numel(),
                     apart.max().item<double>());
}

// Compares the checkpoints of a step that both runs have, with the rows of sharded tables, whatever the
// number of their owners. Returns a line for each tensor that differs. Throws DataLoss if a file is damaged.
std::vector<std::string> tensors_that_differ(const Run& one, const Run& other, int64_t step) {
  std::map<std::string, store::NamedTensor> theirs;
  for (const store::NamedTensor& tensor : tensors_in(store::load_checkpoint(other.checkpoints.at(step))))
    theirs.emplace(tensor.name, tensor);
  std::vector<std::string> lines;
  for (const store::NamedTensor& tensor : tensors_in(store::load_checkpoint(one.checkpoints.at(step)))) {
    const auto found = theirs.find(tensor.name);
    const std::string text = found == theirs.end() ? fmt::format("{}: only in {}", tensor.name, one.logdir)
                                                   : difference_of(tensor, found->second);
    if (!text.empty()) lines.push_back(text);
  }
  return lines;
}

// Returns the steps of which both runs have a checkpoint, in ascending order.
std::vector<int64_t> common_checkpoints(const Run& one, const Run& other) {
  std::vector<int64_t> steps;
  for (const auto& [step, path] : one.checkpoints) {
    if (other.checkpoints.contains(step)) steps.push_back(step);
  }
  return steps;
}

void print_tensors_that_differ(const Run& one, const Run& other, int64_t step) {
  if (!one.checkpoints.contains(step) || !other.checkpoints.contains(step)) {
    fmt::print(
        "no checkpoint of step {} is in both: --checkpoint-every {} --keep 0 would show which tensors\n",
        step, step);
    const std::vector<int64_t> later = common_checkpoints(one, other);
    const auto next = std::upper_bound(later.begin(), later.end(), step);
    if (next == later.end()) return;
    fmt::print("at step {}, of which both have one:\n", *next);
    step = *next;
  }
  for (const std::string& line : tensors_that_differ(one, other, step)) fmt::print("  {}\n", line);
}

// No hash covers the rows of sharded tables and the buffers. Finds the first of these checkpoints in which
// they differ, though the weights have the same hashes, and prints them; returns false if there is none. Runs
// that have parted stay apart, so only a few checkpoints are read.
bool print_first_rows_that_differ(const Run& one, const Run& other, const std::vector<int64_t>& steps) {
  const auto first = std::partition_point(steps.begin(), steps.end(), [&](int64_t step) {
    return tensors_that_differ(one, other, step).empty();
  });
  if (first == steps.end()) return false;
  fmt::print("the same weights, but other rows of tables or other buffers at step {}{}\n", *first,
             first == steps.begin() ? "" : fmt::format(", and the same at step {}", *std::prev(first)));
  print_tensors_that_differ(one, other, *first);
  return true;
}

}  // namespace

int diff_command(const std::vector<std::string>& arguments, const Environment&) {
  CLI::App app(
      "Finds the first step at which two runs have other weights, from the hashes of --hash-every and the "
      "checkpoints in their log directories. Rows of sharded tables and buffers, which no hash covers, are "
      "compared where both have a checkpoint. Exits with code 1 if there is such a step.",
      "tutti diff");
  std::string paths[2];
  app.add_option("RUN", paths[0], "The --logdir of a run")->required();
  app.add_option("OTHER", paths[1], "The --logdir of another run")->required();
  if (!parse_arguments(app, arguments)) return 0;
  const Run one = read_run(paths[0]);
  const Run other = read_run(paths[1]);
  const Comparison found = compare(one, other);
  std::vector<int64_t> saved = common_checkpoints(one, other);
  if (found.parts_at)
    saved.erase(std::lower_bound(saved.begin(), saved.end(), found.steps[*found.parts_at]), saved.end());
  if (print_first_rows_that_differ(one, other, saved)) return kDiffer;
  if (!found.parts_at) {
    if (found.steps.size() == 1)
      fmt::print("the same weights at step {}, the only one that both have recorded\n", found.steps.front());
    else
      fmt::print("the same weights at all {} steps that both have recorded, from {} to {}\n",
                 found.steps.size(), found.steps.front(), found.steps.back());
    if (saved.empty())
      fmt::print("no checkpoint is in both, so rows of sharded tables and buffers are not compared\n");
    return 0;
  }
  const int64_t step = found.steps[*found.parts_at];
  if (*found.parts_at == 0)
    fmt::print("other weights at step {}, the first that both have recorded\n", step);
  else
    fmt::print("the same weights up to step {}, and others at step {}\n", found.steps[*found.parts_at - 1],
               step);
  print_tensors_that_differ(one, other, step);
  return kDiffer;
}

}  // namespace tutti
