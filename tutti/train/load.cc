#include "tutti/train/load.h"

#include <algorithm>
#include <filesystem>
#include <fnmatch.h>
#include <optional>

#include <fmt/ranges.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/data/batch_queue.h"
#include "tutti/embedding/row_state.h"
#include "tutti/embedding/tables.h"
#include "tutti/lanes/sampler.h"
#include "tutti/store/checkpoint.h"
#include "tutti/store/manifest.h"
#include "tutti/store/torch_file.h"
#include "tutti/train/replica.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLinesShown = 20;

// Returns "" if there is none, or if the folder cannot be read.
std::string newest_in(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) return "";
  try {
    return store::newest_checkpoint(folder);
  } catch (const Error&) {
    return "";
  }
}

[[noreturn]] void fail_not_loadable(const std::string& path, const char* expected) {
  std::vector<std::string> runs;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    if (!newest_in(entry->path()).empty()) runs.push_back(entry->path().filename().string());
  }
  std::sort(runs.begin(), runs.end());
  if (!fs::exists(path, error)) fail(ErrorKind::InvalidArgument, "{}: there is no such file or folder", path);
  fail(ErrorKind::InvalidArgument, "{}: there is no checkpoint here{}{}", path, expected,
       runs.empty() ? "" : fmt::format("; subfolders with checkpoints: {}", fmt::join(runs, ", ")));
}

// Takes a checkpoint, a log directory, or its link `latest`, which some file systems do not have. Returns ""
// if there is no checkpoint.
std::string folder_of_checkpoint(const fs::path& path) {
  std::error_code ignored;
  if (fs::exists(path / store::kManifestName, ignored)) return path;
  const bool is_missing_link = path.filename() == "latest" && !fs::exists(path, ignored);
  return newest_in(is_missing_link ? path.parent_path() : path);
}

embedding::SavedRows rows_in(const std::vector<store::NamedTensor>& tensors, const Json& state) {
  const Json parts = state.value("state", Json::object());
  return embedding::SavedRows({tensors, parts.value(store::kRowsPart, Json::object())});
}

std::vector<store::NamedTensor> read_tensors(const std::string& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) return store::read_tensor_file(path);
  if (const std::string folder = folder_of_checkpoint(path); !folder.empty()) {
    const store::Checkpoint checkpoint = store::load_checkpoint(folder);
    std::vector<store::NamedTensor> tensors = tensors_in(checkpoint);
    for (const store::NamedTensor& weight : checkpoint.weights) {
      for (const auto& [name, first_name] : checkpoint.tied) {
        if (first_name == weight.name) tensors.push_back({name, weight.tensor});
      }
    }
    return tensors;
  }
  fail_not_loadable(path,
                    ", and it is not a file of tensors. Give a folder ckpt-STEP, a log directory with "
                    "checkpoints, or a file (.safetensors, or .pt of torch.save())");
}

// A tensor of the model, with all names that it is registered under.
struct Target {
  std::vector<std::string> names;
  torch::Tensor tensor;  // of a sharded table: of the shape and type of its rows
  embedding::Table* table = nullptr;
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
  const embedding::Tables tables(module);
  for (const auto& table : tables.tables()) {
    const int64_t rows = table->options().dynamic ? 0 : table->rows();
    targets.push_back(
        {{table->name() + ".weight"}, torch::empty({1}).expand({rows, table->dim()}), table.get()});
  }
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

bool are_convertible(const torch::Tensor& from, const Target& target) {
  const torch::Tensor& to = target.tensor;
  const bool grows = target.table != nullptr && target.table->options().dynamic;
  const bool fits = grows ? from.dim() == 2 && from.size(1) == to.size(1) : from.sizes() == to.sizes();
  return fits &&
         (from.scalar_type() == to.scalar_type() || (from.is_floating_point() && to.is_floating_point()));
}

// Values that are no numbers are equal.
bool are_equal(const torch::Tensor& a, const torch::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         a.allclose(b, /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true);
}

void copy(const torch::Tensor& values, const torch::Tensor& ids, const Target& target) {
  if (target.table == nullptr)
    target.tensor.detach().copy_(values);
  else
    embedding::put_joined(target.table->alone(), values, ids);
}

// The saved tensors by their names in the model.
struct Saved {
  std::map<std::string, torch::Tensor> by_name;
  std::vector<std::string> unused;
};

Saved renamed(const std::map<std::string, torch::Tensor>& tensors, const std::string& path,
              const LoadWeightsOptions& options) {
  Saved saved;
  std::map<std::string, std::string> from;
  for (const auto& [name, tensor] : tensors) {
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

struct Match {
  Target target;
  torch::Tensor values;
  torch::Tensor ids;  // of a dynamic table
};

// A tensor that does not fit. Descriptions of what there is not are empty.
struct Difference {
  std::string name;
  std::string in_file;
  std::string in_model;
};

std::string line_of(const Difference& difference) {
  const auto& [name, in_file, in_model] = difference;
  if (in_file.empty()) return fmt::format("+ {} {}", name, in_model);
  if (in_model.empty()) return fmt::format("- {} {}", name, in_file);
  return fmt::format("! {} is {} in the file, {} in the model", name, in_file, in_model);
}

// Moves each saved tensor beside the one of the model. Adds all differences to `wrong`.
std::vector<Match> matched(const std::vector<Target>& targets, Saved& saved,
                           const LoadWeightsOptions& options, LoadedWeights& result,
                           std::vector<Difference>& wrong) {
  std::vector<Match> matches;
  for (const Target& target : targets) {
    std::optional<std::pair<std::string, torch::Tensor>> found;
    for (const std::string& name : target.names) {
      const auto node = saved.by_name.extract(name);
      if (node.empty()) continue;
      if (!found)
        found = {name, node.mapped()};
      else if (!are_equal(node.mapped(), found->second))
        wrong.push_back({name, "another tensor than " + found->first, "the same one"});
    }
    const std::string& name = target.names.front();
    torch::Tensor ids;
    if (target.table != nullptr && target.table->options().dynamic) {
      const auto node = saved.by_name.extract(target.table->name() + ".ids");
      if (!node.empty()) ids = node.mapped();
    }
    if (found && are_convertible(found->second, target)) {
      result.loaded.push_back(name);
      matches.push_back({target, found->second, ids});
    } else if (found) {
      wrong.push_back({found->first, describe(found->second), describe(target.tensor)});
    } else if (fits(name, options.only)) {
      result.missing.push_back(name);
      if (options.missing == Missing::Refuse) wrong.push_back({name, "", describe(target.tensor)});
    }
  }
  for (const auto& [name, tensor] : saved.by_name) wrong.push_back({name, describe(tensor), ""});
  return matches;
}

[[noreturn]] void fail_different(const std::string& path, const std::vector<Difference>& wrong) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::min(wrong.size(), kLinesShown); ++i) lines.push_back(line_of(wrong[i]));
  if (wrong.size() > kLinesShown) lines.push_back(fmt::format("and {} more", wrong.size() - kLinesShown));
  fail(
      ErrorKind::InvalidArgument,
      "{}: the tensors do not fit the model (- only in the file, + only in the model, ! differs):\n  {}\nUse "
      "`rename` for other names, `only` for a part of the model, and Missing::Allow to keep what was not "
      "saved",
      path, fmt::join(lines, "\n  "));
}

void copy_all(const std::vector<Match>& matches) {
  const torch::NoGradGuard no_grad;
  for (const Match& match : matches) copy(match.values, match.ids, match.target);
}

LoadedWeights load_into(const std::vector<Target>& targets,
                        const std::map<std::string, torch::Tensor>& tensors, const std::string& path,
                        const LoadWeightsOptions& options) {
  Saved saved = renamed(tensors, path, options);
  LoadedWeights result;
  std::vector<Difference> wrong;
  const std::vector<Match> matches = matched(targets, saved, options, result, wrong);
  if (!wrong.empty()) fail_different(path, wrong);
  if (matches.empty())
    fail(ErrorKind::InvalidArgument,
         "{}: nothing was loaded, because none of its tensors has the name of a tensor of the model{}", path,
         options.only.empty() ? "" : fmt::format(" that fits '{}'", options.only));
  copy_all(matches);
  result.unused = std::move(saved.unused);
  return result;
}

}  // namespace

bool has_average(const store::Checkpoint& checkpoint) {
  return checkpoint.more.contains(store::kAveragePart) ||
         checkpoint.state.value("state", Json::object()).contains(store::kAveragePart);
}

std::vector<store::NamedTensor> tensors_in(const store::Checkpoint& checkpoint, embedding::RowValues values) {
  std::vector<store::NamedTensor> tensors = checkpoint.weights;
  const auto average = checkpoint.more.find(store::kAveragePart);
  if (values == embedding::RowValues::Average && average != checkpoint.more.end()) {
    for (store::NamedTensor& tensor : tensors) {
      const auto found = std::find_if(average->second.begin(), average->second.end(),
                                      [&](const auto& each) { return each.name == tensor.name; });
      if (found != average->second.end()) tensor.tensor = found->tensor;
    }
  }
  const auto found = checkpoint.more.find(store::kRowsPart);
  if (found == checkpoint.more.end()) return tensors;
  const embedding::SavedRows rows = rows_in(found->second, checkpoint.state);
  std::vector<store::NamedTensor> joined;
  if (checkpoint.base) {
    const auto& base = *checkpoint.base;
    joined = embedding::joined_rows(rows_in(base.parts.at(store::kRowsPart), base.state), &rows, values);
  } else {
    joined = embedding::joined_rows(rows, nullptr, values);
  }
  tensors.insert(tensors.end(), joined.begin(), joined.end());
  return tensors;
}

std::map<std::string, torch::Tensor> load(const std::string& path) {
  return store::by_name(read_tensors(path));
}

std::string checkpoint_at(const std::string& path) {
  const std::string folder = folder_of_checkpoint(path);
  if (folder.empty())
    fail_not_loadable(path, ". Give a folder ckpt-STEP, or a log directory with checkpoints");
  return folder;
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
  return load_into(targets_in(module), load(path), path, options);
}

LoadedWeights load_weights(torch::nn::Module& module, const std::map<std::string, torch::Tensor>& tensors,
                           const std::string& where, const LoadWeightsOptions& options) {
  return load_into(targets_in(module), tensors, where, options);
}

void load_checkpoint_weights(torch::nn::Module& module, const std::map<std::string, torch::Tensor>& tensors,
                             const std::string& folder) {
  const LoadWeightsOptions options;
  Saved saved = renamed(tensors, folder, options);
  LoadedWeights result;
  std::vector<Difference> wrong;
  const std::vector<Match> matches = matched(targets_in(module), saved, options, result, wrong);
  if (!wrong.empty()) {
    const auto& [name, in_file, in_model] = wrong.front();
    fail(ErrorKind::InvalidArgument,
         "{}: this is not a checkpoint of the program's model: '{}' is {} in the checkpoint and {} in the "
         "model; use the program that has written it, with the same flags for the model",
         folder, name, in_file.empty() ? "missing" : in_file, in_model.empty() ? "missing" : in_model);
  }
  copy_all(matches);
}

LoadedWeights load_weights(Parameters& parameters, const std::string& path,
                           const LoadWeightsOptions& options) {
  return load_into(targets_in(parameters), load(path), path, options);
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
