#include "tutti/params/agreement.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/version.h"

namespace tutti {
namespace {

torch::Tensor bytes_of(const std::string& text) {
  const torch::Tensor bytes = torch::empty({static_cast<int64_t>(text.size())}, torch::kUInt8);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes;
}

std::string text_of(const torch::Tensor& bytes) {
  return {static_cast<const char*>(bytes.data_ptr()), static_cast<size_t>(bytes.numel())};
}

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

// What there is of slots, without what is in them.
Json outline_of(const Optimizer::State& state) {
  Json outline = {{"steps", state.steps}, {"slots", Json::array()}};
  for (const Optimizer::Slot& slot : state.slots)
    outline["slots"].push_back({{"name", slot.name},
                                {"block", slot.block},
                                {"offset", slot.offset},
                                {"size", slot.vector.numel()},
                                {"type", static_cast<int>(slot.vector.scalar_type())}});
  return outline;
}

Optimizer::State empty_state(const Json& outline) {
  Optimizer::State state{.steps = outline.at("steps").get<int64_t>(), .slots = {}};
  for (const Json& slot : outline.at("slots")) {
    const auto type = static_cast<torch::ScalarType>(slot.at("type").get<int>());
    state.slots.push_back({slot.at("name").get<std::string>(), slot.at("block").get<size_t>(),
                           slot.at("offset").get<int64_t>(),
                           torch::empty({slot.at("size").get<int64_t>()}, type)});
  }
  return state;
}

constexpr const char* kState = "the optimiser's state";

}  // namespace

std::vector<torch::Tensor> gather_all(comm::Communicator& comm, const torch::Tensor& mine, const char* what) {
  const torch::Tensor sizes = torch::empty({comm.world()}, torch::kInt64);
  comm.all_gather(sizes, torch::full({1}, mine.numel(), torch::kInt64), {.what = what}).wait();
  std::vector<torch::Tensor> all;
  for (int rank = 0; rank < comm.world(); ++rank)
    all.push_back(torch::empty({sizes[rank].item<int64_t>()}, mine.options()));
  comm.all_gather_uneven(all, mine, {.what = what}).wait();
  return all;
}

std::vector<std::string> plan_of(const Parameters& parameters, const OptimizerOptions& optimizer) {
  std::vector<std::string> plan = {fmt::format("tutti {}", version()),
                                   fmt::format("optimizer {}", to_json(optimizer).dump())};
  for (const std::string& line : parameters.plan()) plan.push_back(line);
  for (const auto& view : parameters.buffers())
    plan.push_back(fmt::format("buffer {} {}", view.name, describe(view.tensor)));
  plan.push_back(fmt::format("modules on all workers together {}", parameters.communicator_users().size()));
  return plan;
}

void require_same_plan(comm::Communicator& comm, const std::vector<std::string>& plan) {
  const auto all = gather_all(comm, bytes_of(fmt::format("{}", fmt::join(plan, "\n"))), "the plan");
  const std::vector<std::string> first = lines_of(text_of(all[0]));
  for (int rank = 1; rank < comm.world(); ++rank) {
    const std::vector<std::string> other = lines_of(text_of(all[static_cast<size_t>(rank)]));
    if (other == first) continue;
    size_t i = 0;
    while (i < std::min(first.size(), other.size()) && first[i] == other[i]) ++i;
    fail(ErrorKind::InvalidArgument,
         "the workers do not train the same: rank 0 has {}, rank {} has {}. Start all with one program and "
         "the same flags",
         line_or_nothing(first, i), rank, line_or_nothing(other, i));
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
  const auto outlines = gather_all(comm, bytes_of(mine ? outline_of(state).dump() : ""), kState);
  const Optimizer::State result =
      mine ? state : empty_state(Json::parse(text_of(outlines[static_cast<size_t>(root)])));
  for (const Optimizer::Slot& slot : result.slots) comm.broadcast(slot.vector, root, {.what = kState}).wait();
  return result;
}

Optimizer::State gather_state(comm::Communicator& comm, const Parameters& parameters,
                              const Optimizer& optimizer) {
  const torch::NoGradGuard no_grad;
  const Optimizer::State mine = optimizer.state();
  const auto outlines = gather_all(comm, bytes_of(outline_of(mine).dump()), kState);
  if (comm.rank() != 0) {
    for (const Optimizer::Slot& slot : mine.slots) comm.send(slot.vector, 0, {.what = kState}).wait();
    return {};
  }
  Optimizer::State whole{.steps = mine.steps, .slots = {}};
  const auto put = [&](const Optimizer::Slot& part) {
    auto slot = std::find_if(whole.slots.begin(), whole.slots.end(), [&](const Optimizer::Slot& other) {
      return other.name == part.name && other.block == part.block;
    });
    if (slot == whole.slots.end()) {
      const torch::Tensor vector = torch::zeros_like(parameters.blocks()[part.block].values);
      slot = whole.slots.insert(slot, {part.name, part.block, 0, vector});
    }
    slot->vector.narrow(0, part.offset, part.vector.numel()).copy_(part.vector);
  };
  for (const Optimizer::Slot& slot : mine.slots) put(slot);
  for (int rank = 1; rank < comm.world(); ++rank) {
    const Optimizer::State theirs = empty_state(Json::parse(text_of(outlines[static_cast<size_t>(rank)])));
    for (const Optimizer::Slot& slot : theirs.slots) {
      comm.recv(slot.vector, rank, {.what = kState}).wait();
      put(slot);
    }
  }
  return whole;
}

}  // namespace tutti
