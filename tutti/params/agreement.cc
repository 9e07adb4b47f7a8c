#include "tutti/params/agreement.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>
#include <torch/version.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/text.h"
#include "tutti/base/version.h"
#include "tutti/comm/gather_all.h"
#include "tutti/params/optimizer_state.h"

namespace tutti {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::string line_or_nothing(const std::vector<std::string>& lines, size_t i) {
  return i < lines.size() ? fmt::format("'{}'", lines[i]) : "nothing more";
}

constexpr const char* kState = "the optimiser's state";

}  // namespace

std::vector<std::string> plan_of(const Context& context, const Parameters& parameters,
                                 const OptimizerOptions& optimizer) {
  std::vector<std::string> plan = {fmt::format("tutti {}, LibTorch {}", version(), TORCH_VERSION)};
  for (const std::string& flag : context.shared_flags()) plan.push_back(flag);
  plan.push_back(fmt::format("optimizer {}", to_json(optimizer).dump()));
  for (const std::string& line : parameters.plan()) plan.push_back(line);
  for (const auto& view : parameters.buffers())
    plan.push_back(fmt::format("buffer {} {}", view.name, describe(view.tensor)));
  plan.push_back(fmt::format("modules on all workers together {}", parameters.communicator_users().size()));
  return plan;
}

void require_same_plan(const Context& context, comm::Communicator& comm,
                       const std::vector<std::string>& plan) {
  const auto all =
      gather_all(comm, fmt::format("{}\n{}", context.task().short_name(), fmt::join(plan, "\n")), "the plan");
  const std::vector<std::string> first = lines_of(all[0]);
  for (int rank = 1; rank < comm.world(); ++rank) {
    const std::vector<std::string> other = lines_of(all[static_cast<size_t>(rank)]);
    // The first line is the name of the task.
    size_t i = 1;
    while (i < std::min(first.size(), other.size()) && first[i] == other[i]) ++i;
    if (i == first.size() && i == other.size()) continue;
    fail(ErrorKind::InvalidArgument,
         "the workers do not match: rank 0 ({}) has {}, rank {} ({}) has {}. Start all tasks with the same "
         "program and flags",
         first[0], line_or_nothing(first, i), rank, other[0], line_or_nothing(other, i));
  }
}

void require_same_plan(const std::vector<std::string>& first, const std::vector<std::string>& theirs,
                       const std::string& who, const std::string& first_name) {
  const auto [here, there] = std::mismatch(first.begin(), first.end(), theirs.begin(), theirs.end());
  if (here == first.end() && there == theirs.end()) return;
  fail(ErrorKind::InvalidArgument,
       "{} does not match {}: it has '{}', but {} has '{}'. Start all tasks with the same program and flags",
       who, first_name, there == theirs.end() ? "nothing" : *there, first_name,
       here == first.end() ? "nothing" : *here);
}

void on_chief(const Context& context, comm::Communicator& comm, const comm::Options& options,
              const std::function<void()>& body) {
  constexpr int kTimeouts = 10;
  if (comm.rank() == 0) {
    try {
      body();
    } catch (const std::exception& error) {
      comm.abandon(fmt::format("{} gave up: {}", context.task().short_name(), error.what()));
      throw;
    }
  }
  comm::Options waiting = options;
  waiting.timeout = milliseconds_of(context.config().network.timeout * kTimeouts);
  comm.barrier(waiting).wait();
}

void warn_of_idle_workers(const Context& context, const comm::Communicator& comm, int64_t lanes) {
  if (lanes >= comm.world() || comm.rank() != 0) return;
  context.log().warning(
      "{} of the {} workers have no lane and only wait for the others: use at least --lanes {}, or "
      "fewer workers",
      comm.world() - lanes, comm.world(), comm.world());
}

void warn_of_other_threads(const Context& context, int of_chief) {
  if (context.threads() == of_chief) return;
  context.log().warning(
      "this worker computes with {} threads and the chief with {}: kernels may add in a different order, "
      "so a run on other workers may give different bits. Set --threads",
      context.threads(), of_chief);
}

void warn_of_sparse_tables(const Context& context, const Parameters& parameters) {
  for (const Parameters::SparseTable& table : parameters.sparse_tables()) {
    context.log().warning(
        "the embedding {} was made with sparse(true), which Tutti does not support yet: each step processes "
        "all of its {} rows, not only those of the batch. This means {} of gradients, as much of weights, "
        "and as much again for each state of the optimiser",
        table.name, table.rows, human_bytes(table.bytes));
  }
}

void broadcast(comm::Communicator& comm, Parameters& parameters, int root) {
  if (comm.world() == 1) return;
  const torch::NoGradGuard no_grad;
  for (const auto& block : parameters.blocks())
    comm.broadcast(block.values, root, {.what = "the parameters"}).wait();
  for (const auto& view : parameters.frozen())
    comm.broadcast(view.tensor, root, {.what = "the parameters"}).wait();
  for (const auto& view : parameters.buffers())
    comm.broadcast(view.tensor, root, {.what = "the buffers"}).wait();
}

Optimizer::State broadcast(comm::Communicator& comm, const Optimizer::State& state, int root) {
  if (comm.world() == 1) return state;
  const bool mine = comm.rank() == root;
  const auto outlines = gather_all(comm, mine ? outline_of(state).dump() : std::string(), kState);
  const Optimizer::State result =
      mine ? state
           : state_of(parse_json(outlines[static_cast<size_t>(root)], "an outline", ErrorKind::DataLoss));
  for (const Optimizer::Slot& slot : result.slots) comm.broadcast(slot.vector, root, {.what = kState}).wait();
  if (result.archive.defined()) comm.broadcast(result.archive, root, {.what = kState}).wait();
  return result;
}

Optimizer::State gather_state(comm::Communicator& comm, const Parameters& parameters,
                              const Optimizer& optimizer) {
  const torch::NoGradGuard no_grad;
  const Optimizer::State mine = optimizer.state();
  const auto outlines = gather_all(comm, outline_of(mine).dump(), kState);
  if (comm.rank() != 0) {
    for (const Optimizer::Slot& slot : mine.slots) comm.send(slot.vector, 0, {.what = kState}).wait();
    return {};
  }
  Optimizer::State whole{.steps = mine.steps, .slots = {}};
  for (const Optimizer::Slot& slot : mine.slots) put(whole, parameters, slot);
  for (int rank = 1; rank < comm.world(); ++rank) {
    const Optimizer::State theirs =
        state_of(parse_json(outlines[static_cast<size_t>(rank)], "an outline", ErrorKind::DataLoss));
    for (const Optimizer::Slot& slot : theirs.slots) {
      comm.recv(slot.vector, rank, {.what = kState}).wait();
      put(whole, parameters, slot);
    }
  }
  return whole;
}

}  // namespace tutti
