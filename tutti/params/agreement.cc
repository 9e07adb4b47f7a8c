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

namespace {

void broadcast_state(comm::Communicator& comm, Optimizer& optimizer, int root) {
  const std::vector<Optimizer::Slot> mine =
      comm.rank() == root ? optimizer.slots() : std::vector<Optimizer::Slot>{};
  Json described = Json::array();
  for (const Optimizer::Slot& slot : mine)
    described.push_back({{"name", slot.name},
                         {"stretch", slot.stretch},
                         {"size", slot.vector.numel()},
                         {"type", static_cast<int>(slot.vector.scalar_type())}});
  // Only the root has anything to say.
  const std::string text =
      text_of(gather_all(comm, comm.rank() == root ? bytes_of(described.dump()) : bytes_of(""),
                         "the optimiser's state")[static_cast<size_t>(root)]);
  const torch::Tensor steps = torch::full({1}, optimizer.steps(), torch::kInt64);
  comm.broadcast(steps, root, {.what = "the optimiser's state"}).wait();
  std::vector<Optimizer::Slot> slots = mine;
  const Json list = Json::parse(text);
  for (size_t i = 0; i < list.size(); ++i) {
    if (comm.rank() != root) {
      const auto type = static_cast<torch::ScalarType>(list[i].at("type").get<int>());
      slots.push_back({list[i].at("name").get<std::string>(), list[i].at("stretch").get<size_t>(),
                       torch::empty({list[i].at("size").get<int64_t>()}, type)});
    }
    comm.broadcast(slots[i].vector, root, {.what = "the optimiser's state"}).wait();
  }
  if (comm.rank() != root && steps.item<int64_t>() > 0) optimizer.restore(steps.item<int64_t>(), slots);
}

}  // namespace

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

void broadcast(comm::Communicator& comm, Parameters& parameters, Optimizer& optimizer, int root) {
  if (comm.world() == 1) return;
  const torch::NoGradGuard no_grad;
  for (const auto& block : parameters.blocks())
    comm.broadcast(block.values, root, {.what = "the parameters"}).wait();
  for (const auto& view : parameters.frozen())
    comm.broadcast(view.tensor, root, {.what = "the parameters"}).wait();
  for (const auto& view : parameters.buffers())
    comm.broadcast(view.tensor, root, {.what = "the buffers"}).wait();
  broadcast_state(comm, optimizer, root);
}

}  // namespace tutti
