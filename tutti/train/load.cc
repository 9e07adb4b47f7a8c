#include "tutti/train/load.h"

#include <algorithm>
#include <filesystem>
#include <fnmatch.h>
#include <optional>

#include <fmt/ranges.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/data/batch_queue.h"
#include "tutti/data/sampler.h"
#include "tutti/store/checkpoint.h"
#include "tutti/store/manifest.h"
#include "tutti/store/safetensors.h"
#include "tutti/train/replica.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLatestCheckpoint = "latest";
constexpr size_t kLinesShown = 20;

bool has_checkpoints(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / kLatestCheckpoint / store::kManifestName, ignored);
}

[[noreturn]] void fail_not_loadable(const std::string& path) {
  std::vector<std::string> runs;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    if (has_checkpoints(entry->path())) runs.push_back(entry->path().filename().string());
  }
  std::sort(runs.begin(), runs.end());
  fail(ErrorKind::InvalidArgument,
       "{}: there is no checkpoint here, and it is not a .safetensors file. Give a folder ckpt-STEP, a log "
       "directory with checkpoints, or a .safetensors file{}",
       path, runs.empty() ? "" : fmt::format("; subfolders with checkpoints: {}", fmt::join(runs, ", ")));
}

std::vector<store::NamedTensor> read_tensors(const std::string& path) {
  std::error_code ignored;
  const fs::path folder(path);
  if (fs::exists(folder / store::kManifestName, ignored)) return store::load_checkpoint(path).weights;
  if (has_checkpoints(folder)) return store::load_checkpoint(folder / kLatestCheckpoint).weights;
  if (!fs::is_regular_file(folder, ignored)) fail_not_loadable(path);
  return store::SafetensorsFile(path).read_all();
}

// A tensor of the model, with all names that it is registered under.
struct Target {
  std::vector<std::string> names;
  torch::Tensor tensor;
};

void add_target(std::vector<Target>& targets, const std::string& name, const torch::Tensor& tensor) {
  if (!tensor.defined()) return;
  const auto same = std::find_if(targets.begin(), targets.end(),
                                 [&](const Target& target) { return target.tensor.is_same(tensor); });
  if (same == targets.end()) {
    targets.push_back({{name}, tensor});
  } else {
    same->names.push_back(name);
  }
}

std::vector<Target> targets_in(const torch::nn::Module& module) {
  std::vector<Target> targets;
  for (const auto& item : module.named_parameters()) add_target(targets, item.key(), item.value());
  for (const auto& item : module.named_buffers()) add_target(targets, item.key(), item.value());
  return targets;
}

std::vector<Target> targets_in(const Parameters& parameters) {
  std::vector<Target> targets;
  for (const Parameters::View* view : parameters.all()) targets.push_back({{view->name}, view->tensor});
  for (const auto& [alias, name] : parameters.aliases()) {
    for (Target& target : targets) {
      if (target.names.front() == name) target.names.push_back(alias);
    }
  }
  return targets;
}

bool fits(const std::string& name, const std::string& pattern) {
  return pattern.empty() || ::fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

bool are_convertible(const torch::Tensor& from, const torch::Tensor& to) {
  return from.sizes() == to.sizes() &&
         (from.scalar_type() == to.scalar_type() || (from.is_floating_point() && to.is_floating_point()));
}

// The saved tensors by their names in the model.
struct Saved {
  std::map<std::string, torch::Tensor> by_name;
  std::vector<std::string> unused;
};

Saved renamed(const std::string& path, const LoadWeightsOptions& options) {
  Saved saved;
  std::map<std::string, std::string> from;
  for (const auto& [name, tensor] : load(path)) {
    const std::string to = options.rename(name);
    if (to.empty() || !fits(to, options.only)) {
      saved.unused.push_back(name);
      continue;
    }
    if (!saved.by_name.emplace(to, tensor).second)
      fail(ErrorKind::InvalidArgument, "{}: `rename` gives both '{}' and '{}' the name '{}'", path, from[to],
           name, to);
    from[to] = name;
  }
  return saved;
}

// Moves each saved tensor beside the one of the model. Adds a line for every difference to `wrong`.
std::vector<std::pair<Target, torch::Tensor>> matched(const std::vector<Target>& targets, Saved& saved,
                                                      const LoadWeightsOptions& options,
                                                      LoadedWeights& result,
                                                      std::vector<std::string>& wrong) {
  std::vector<std::pair<Target, torch::Tensor>> pairs;
  for (const Target& target : targets) {
    std::optional<std::pair<std::string, torch::Tensor>> found;
    for (const std::string& name : target.names) {
      const auto node = saved.by_name.extract(name);
      if (!node.empty() && !found) found = {name, node.mapped()};
    }
    const std::string& name = target.names.front();
    if (found && are_convertible(found->second, target.tensor)) {
      result.loaded.push_back(name);
      pairs.emplace_back(target, found->second);
    } else if (found) {
      wrong.push_back(fmt::format("! {} is {} in the file, {} in the model", found->first,
                                  describe(found->second), describe(target.tensor)));
    } else if (fits(name, options.only)) {
      result.missing.push_back(name);
      if (options.missing == Missing::Refuse)
        wrong.push_back(fmt::format("+ {} {}", name, describe(target.tensor)));
    }
  }
  for (const auto& [name, tensor] : saved.by_name)
    wrong.push_back(fmt::format("- {} {}", name, describe(tensor)));
  return pairs;
}

[[noreturn]] void fail_different(const std::string& path, std::vector<std::string> wrong) {
  if (wrong.size() > kLinesShown) {
    const size_t more = wrong.size() - kLinesShown;
    wrong.resize(kLinesShown);
    wrong.push_back(fmt::format("and {} more", more));
  }
  fail(
      ErrorKind::InvalidArgument,
      "{}: the tensors do not fit the model (- only in the file, + only in the model, ! differs):\n  {}\nUse "
      "`rename` for other names, `only` for a part of the model, and Missing::Allow to keep what was not "
      "saved",
      path, fmt::join(wrong, "\n  "));
}

LoadedWeights load_into(const std::vector<Target>& targets, const std::string& path,
                        const LoadWeightsOptions& options) {
  Saved saved = renamed(path, options);
  LoadedWeights result;
  std::vector<std::string> wrong;
  const auto pairs = matched(targets, saved, options, result, wrong);
  if (!wrong.empty()) fail_different(path, std::move(wrong));
  if (pairs.empty())
    fail(ErrorKind::InvalidArgument,
         "{}: nothing was loaded, because none of its tensors has the name of a tensor of the model{}", path,
         options.only.empty() ? "" : fmt::format(" that fits '{}'", options.only));
  const torch::NoGradGuard no_grad;
  for (const auto& [target, tensor] : pairs) {
    torch::Tensor values = target.tensor.detach();
    values.copy_(tensor);
  }
  result.unused = std::move(saved.unused);
  return result;
}

}  // namespace

std::map<std::string, torch::Tensor> load(const std::string& path) {
  std::map<std::string, torch::Tensor> tensors;
  for (const auto& [name, tensor] : read_tensors(path)) tensors.emplace(name, tensor);
  return tensors;
}

Rename::Rename(Pairs prefixes)
    : function_([prefixes = std::move(prefixes)](const std::string& name) {
        for (const auto& [from, to] : prefixes) {
          if (name.starts_with(from)) return to + name.substr(from.size());
        }
        return name;
      }) {}

LoadedWeights load_weights(torch::nn::Module& module, const std::string& path,
                           const LoadWeightsOptions& options) {
  return load_into(targets_in(module), path, options);
}

LoadedWeights load_weights(Parameters& parameters, const std::string& path,
                           const LoadWeightsOptions& options) {
  return load_into(targets_in(parameters), path, options);
}

torch::Tensor predict(const Trainable& model, const data::Feed& feed, const PredictOptions& options) {
  if (!model.predict) fail_no_predictions();
  const torch::NoGradGuard no_grad;
  const EvaluationScope evaluation(*model.module);
  const std::vector<torch::Tensor> parameters = model.module->parameters();
  const torch::Device device = parameters.empty() ? torch::kCPU : parameters.front().device();
  const data::Sampler sampler(feed.size(), {.order = data::Order::Sequential, .batch = options.batch});
  data::BatchQueue queue(feed, sampler, {.end_step = sampler.steps_per_epoch(), .device = device});
  std::vector<torch::Tensor> rows;
  while (const auto batch = queue.next()) rows.push_back(model.predict(batch->to(device)).cpu());
  return rows.empty() ? torch::Tensor() : torch::cat(rows);
}

}  // namespace tutti
