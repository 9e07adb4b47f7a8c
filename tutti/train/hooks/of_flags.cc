#include "tutti/train/hooks/of_flags.h"

#include <filesystem>
#include <iterator>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/every.h"
#include "tutti/train/hooks/checkpoint.h"
#include "tutti/train/hooks/profile.h"
#include "tutti/train/hooks/progress.h"
#include "tutti/train/hooks/summaries.h"

namespace tutti::hooks {

std::vector<std::unique_ptr<Hook>> of_flags(const RunConfig& config) {
  std::vector<std::unique_ptr<Hook>> hooks;
  hooks.push_back(progress());
  if (!config.output.profile_steps.empty()) {
    if (config.checkpoints.logdir.empty() && config.output.timeline.empty())
      fail(ErrorKind::InvalidArgument,
           "--profile-steps needs an output file: give --timeline FILE or --logdir");
    hooks.push_back(profile(parse_step_interval(config.output.profile_steps),
                            (std::filesystem::path(config.checkpoints.logdir) / "trace.json").string()));
  }
  if (config.checkpoints.logdir.empty()) return hooks;
  hooks.push_back(summaries({.every = config.output.summary_every}));
  hooks.push_back(checkpoint(parse_every(config.checkpoints.every)));
  return hooks;
}

void add(std::vector<std::unique_ptr<Hook>>& hooks, const RunConfig& config, std::unique_ptr<Hook> hook) {
  const bool saves = !config.checkpoints.logdir.empty();
  hooks.insert(saves ? std::prev(hooks.end()) : hooks.end(), std::move(hook));
}

}  // namespace tutti::hooks
