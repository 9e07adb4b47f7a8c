#include "tutti/params/plan.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/version.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/base/version.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/gather_all.h"

namespace tutti {
namespace {

// Returns what all ranks say.
std::vector<Agreement> agreements_of(const Context& context, comm::Communicator& comm,
                                     const std::vector<std::string>& lines, const char* what) {
  const std::string own = fmt::format("{}\n{}", context.task().short_name(), fmt::join(lines, "\n"));
  std::vector<Agreement> all;
  for (const std::string& text : gather_all(comm, own, what)) {
    const std::vector<std::string> theirs = split(text, '\n');
    all.push_back({fmt::format("rank {} ({})", all.size(), theirs[0]), {theirs.begin() + 1, theirs.end()}});
  }
  return all;
}

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
  const std::vector<Agreement> all = agreements_of(context, comm, plan, "the plan");
  for (const Agreement& other : all) require_same(all[0], other);
}

std::string mix_of(const Agreement& one, const Agreement& other) {
  const auto common = static_cast<std::ptrdiff_t>(std::min(one.lines.size(), other.lines.size()));
  const auto first_lines = [&](const Agreement& of) {
    return Agreement{of.who, {of.lines.begin(), of.lines.begin() + common}};
  };
  const std::string found = difference(first_lines(one), first_lines(other));
  return found.empty() ? "" : "the tasks compute with different kernels: " + found;
}

void refuse_mix(const std::string& mix) {
  if (mix.empty()) return;
  fail(ErrorKind::InvalidArgument,
       "{}. The bits of the result would depend on this mix. Start all tasks on processors of one kind, with "
       "the same libraries, --threads, and variables such as ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA and "
       "MKL_CBWR, or allow it with --mixed-machines",
       mix);
}

void warn_of_mix(const Context& context, const std::string& mix) {
  if (mix.empty() || context.warned_of_mix().exchange(true)) return;
  context.log().warning("{}: the bits of the result depend on this mix (--mixed-machines)", mix);
}

void refuse_or_warn_of_mix(const Context& context, const std::string& mix) {
  context.config().compute.mixed_machines ? warn_of_mix(context, mix) : refuse_mix(mix);
}

void require_same_kernels(const Context& context, comm::Communicator& comm) {
  if (comm.world() == 1) return;
  const auto all = agreements_of(context, comm, context.kernels().lines(), "the kernels");
  std::string mix;
  for (size_t rank = 1; rank < all.size() && mix.empty(); ++rank) mix = mix_of(all[0], all[rank]);
  if (!context.config().compute.mixed_machines) refuse_mix(mix);
  if (comm.rank() == 0) warn_of_mix(context, mix);
}

void require_same_weights(const Context& context, comm::Communicator& comm, int64_t step,
                          const std::string& sha256) {
  if (comm.world() == 1 || context.config().compute.mixed_machines) return;
  std::map<std::string, std::vector<std::string>> tasks;  // by hash
  for (const Agreement& each : agreements_of(context, comm, {sha256}, "the hash of the weights"))
    tasks[each.lines.at(0)].push_back(each.who);
  if (tasks.size() == 1) return;
  const auto most = std::max_element(tasks.begin(), tasks.end(), [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size();
  });
  const bool is_clear = 2 * most->second.size() > static_cast<size_t>(comm.world());
  std::vector<std::string> others;
  for (const auto& [hash, who] : tasks)
    if (hash != most->first) others.insert(others.end(), who.begin(), who.end());
  fail(
      ErrorKind::DataLoss,
      "after step {}, the weights of {} are not those of {}: a processor, a memory or a connection has "
      "changed numbers without an error. This step is not saved. Start the job again {}; it goes on from its "
      "newest checkpoint",
      step, fmt::join(others, " and "),
      is_clear ? "the other workers" : fmt::format("{}", fmt::join(most->second, " and ")),
      is_clear ? "without that machine" : "on other machines");
}

std::shared_ptr<comm::Communicator> give_group(const Parameters& parameters, comm::Communicator& comm,
                                               int64_t lanes) {
  if (parameters.communicator_users().empty() || comm.world() == 1) return nullptr;
  const int64_t world = comm.world();
  if (lanes % world != 0) {
    fail(ErrorKind::InvalidArgument,
         "the model has modules that work on all workers together (SyncBatchNorm), so all workers need the "
         "same number of lanes, but there are {} lanes for {} workers. Use --lanes {}, or a number of "
         "workers that divides {}",
         lanes, world, (lanes / world + 1) * world, lanes);
  }
  const std::shared_ptr<comm::Communicator> group = comm.split(0);
  for (const auto& user : parameters.communicator_users()) user->use(group);
  return group;
}

}  // namespace tutti
