#include "tutti/store/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/text.h"
#include "tutti/store/folder_lock.h"
#include "tutti/store/manifest.h"

namespace tutti::store {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCheckpointPrefix = "ckpt-";
// The suffix of a checkpoint that is being replaced, where a file system cannot exchange folders: it is
// renamed to this until the new one is in its place.
constexpr std::string_view kReplaced = ".replaced";
constexpr const char* kLatest = "latest";

// A folder ckpt-<step> or ckpt-<step>.replaced, with any content.
struct Folder {
  int64_t step = 0;
  std::string path;
  bool replaced = false;
  int64_t sequence = -1;             // -1: unknown, because the manifest is damaged
  std::optional<int64_t> base = {};  // the step of the checkpoint that this one completes
};

std::optional<Folder> parse_folder(const fs::directory_entry& entry) {
  const std::string full_name = entry.path().filename().string();
  std::string_view name = full_name;
  const bool replaced = name.ends_with(kReplaced);
  if (replaced) name.remove_suffix(kReplaced.size());
  std::error_code ignored;
  if (!name.starts_with(kCheckpointPrefix) || !entry.is_directory(ignored)) return std::nullopt;
  const auto step = parse_int(name.substr(kCheckpointPrefix.size()));
  // "ckpt-007" and "ckpt--1" are not names of checkpoints.
  if (!step || *step < 0 || checkpoint_folder_name(*step) != name) return std::nullopt;
  return Folder{.step = *step, .path = entry.path().string(), .replaced = replaced};
}

void read_manifest_of(Folder& folder) {
  try {
    const Manifest manifest = read_folder_manifest(folder.path);
    folder.sequence = manifest.sequence;
    if (manifest.base) folder.base = manifest.base->step;
  } catch (const Error&) {
    folder.sequence = -1;
  }
}

std::vector<Folder> list_folders(const std::string& logdir) {
  std::vector<Folder> folders;
  std::error_code error;
  for (fs::directory_iterator entry(logdir, error), end; !error && entry != end; entry.increment(error)) {
    if (auto folder = parse_folder(*entry)) folders.push_back(std::move(*folder));
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    fail_errno(error.value(), fmt::format("looking for checkpoints in {}", logdir));
  }
  return folders;
}

// Returns the folders, the one saved last first; those with a damaged manifest come last.
std::vector<Folder> newest_first(const std::string& logdir) {
  std::vector<Folder> folders = list_folders(logdir);
  for (Folder& folder : folders) read_manifest_of(folder);
  std::sort(folders.begin(), folders.end(), [](const Folder& a, const Folder& b) {
    return std::tuple(a.sequence, a.step, b.replaced) > std::tuple(b.sequence, b.step, a.replaced);
  });
  return folders;
}

using Check = std::function<void()>;  // CheckpointDirOptions::check

// If a save was killed, both the old and the new checkpoint of a replacement may exist. The old one can be
// removed, because the new one was complete before it was renamed.
void remove_replaced(const std::string& logdir, const Check& check) {
  for (const Folder& folder : list_folders(logdir)) {
    if (folder.replaced && path_exists(logdir + "/" + checkpoint_folder_name(folder.step)))
      remove_folder(logdir, folder.path, check);
  }
}

void publish(TemporaryFolder& written, const std::string& logdir, int64_t step, const Check& check) {
  const std::string target = logdir + "/" + checkpoint_folder_name(step);
  const bool is_there = path_exists(target);
  const bool exchanged = is_there && written.exchange_with(target);
  if (is_there && !exchanged) rename_path(target, target + std::string(kReplaced));
  if (!exchanged) written.rename_to(target);
  sync_directory(logdir);
  remove_replaced(logdir, check);
}

// Replaces the link in one step. Throws if the file system has no symbolic links.
void replace_link(const std::string& link, const std::string& target, const std::string& logdir,
                  const Check& check) {
  const TemporaryFolder temporary(logdir, check);
  const std::string fresh = temporary.path() + "/" + kLatest;
  if (::symlink(target.c_str(), fresh.c_str()) != 0)
    fail_errno(errno, fmt::format("making the link {}", link));
  rename_path(fresh, link);
  sync_directory(logdir);
}

void remove_beyond(const std::string& logdir, int keep, const Check& check) {
  if (keep <= 0) return;
  const std::vector<Folder> folders = newest_first(logdir);
  const auto kept = std::min(static_cast<size_t>(keep), folders.size());
  std::set<int64_t> bases;
  for (size_t i = 0; i < kept; ++i) {
    if (folders[i].base) bases.insert(*folders[i].base);
  }
  for (size_t i = kept; i < folders.size(); ++i) {
    if (!bases.contains(folders[i].step)) remove_folder(logdir, folders[i].path, check);
  }
}

// Reads a folder of CheckpointDir and checks that its step agrees with its name.
Checkpoint read_folder(const Folder& folder, const OnProgress& on_progress = {}) {
  Checkpoint checkpoint = read_checkpoint_folder(folder.path, {}, on_progress);
  if (checkpoint.step != folder.step) {
    fail(ErrorKind::DataLoss, "{}: the folder contains the checkpoint of another step, {}", folder.path,
         checkpoint.step);
  }
  return checkpoint;
}

}  // namespace

int64_t bytes_to_write(const Checkpoint& checkpoint) {
  size_t bytes = 0;
  const auto add = [&](const NamedTensors& tensors, const TiedNames& tied) {
    const TensorsByName named = by_name(tensors);
    for (const auto& [name, tensor] : named) bytes += tensor.nbytes();
    for (const auto& [name, first_name] : tied)
      bytes += named.contains(first_name) ? named.at(first_name).nbytes() : 0;
  };
  add(checkpoint.weights, checkpoint.tied);
  add(checkpoint.optimizer, {});
  for (const auto& [part, tensors] : checkpoint.more)
    add(tensors, part == kAveragePart ? checkpoint.tied : TiedNames());
  return static_cast<int64_t>(bytes);
}

CheckpointDir::CheckpointDir(std::string logdir, const CheckpointDirOptions& options)
    : logdir_(std::move(logdir)), options_(options) {
  if (logdir_.empty()) fail(ErrorKind::InvalidArgument, "checkpoints need a directory: give --logdir");
}

CheckpointDir::~CheckpointDir() = default;
CheckpointDir::CheckpointDir(CheckpointDir&&) noexcept = default;
CheckpointDir& CheckpointDir::operator=(CheckpointDir&&) noexcept = default;

std::string CheckpointDir::open() {
  make_directories(logdir_);
  next_ = std::make_unique<TemporaryFolder>(logdir_);
  return fs::absolute(next_->path()).string();
}

void CheckpointDir::save(const Checkpoint& checkpoint, const SharedFiles& shared,
                         const OnProgress& on_progress) {
  if (checkpoint.step < 0)
    fail(ErrorKind::InvalidArgument, "cannot save a checkpoint of step {}: the step must be 0 or more",
         checkpoint.step);
  try {
    make_directories(logdir_);
    // Even if this process has not made it: another one may have been killed in between.
    if (!std::exchange(synced_, true)) sync_names_of(logdir_);
    remove_leftovers(logdir_);
    remove_replaced(logdir_, options_.check);
    int64_t sequence = 0;
    for (Folder& folder : list_folders(logdir_)) {
      read_manifest_of(folder);
      sequence = std::max(sequence, folder.sequence + 1);
    }
    // If a folder was opened but its checkpoint was given up, it may contain files of tasks that were too
    // late.
    if (shared.files.empty()) next_ = std::make_unique<TemporaryFolder>(logdir_);
    const std::unique_ptr<TemporaryFolder> temporary = std::move(next_);
    if (options_.check) options_.check();
    write_checkpoint_folder(temporary->path(), checkpoint, sequence, shared, on_progress);
    publish(*temporary, logdir_, checkpoint.step, options_.check);
    point_latest_to(checkpoint.step);
    remove_beyond(logdir_, options_.keep, options_.check);
  } catch (const Error& error) {
    if (options_.check) options_.check();  // tells what happened
    throw Error(error.kind(),
                fmt::format("saving the checkpoint of step {} failed: {}", checkpoint.step, error.what()));
  }
}

// The checkpoint is complete without the link.
void CheckpointDir::point_latest_to(int64_t step) {
  const std::string link = logdir_ + "/" + kLatest;
  try {
    // Relative, so that the directory can be moved.
    replace_link(link, checkpoint_folder_name(step), logdir_, options_.check);
  } catch (const Error& error) {
    if (options_.check) options_.check();
    std::error_code ignored;
    // It points to an older checkpoint.
    if (fs::is_symlink(link, ignored)) remove_folder(logdir_, link, options_.check);
    if (std::exchange(warned_, true) || !options_.warn) return;
    options_.warn(
        fmt::format("there is no link '{}' to the newest checkpoint ({}). Tutti does not need it; in other "
                    "programs, name a folder ckpt-STEP",
                    link, error.what()));
  }
}

std::vector<int64_t> CheckpointDir::steps() const {
  std::set<int64_t> steps;
  for (const Folder& folder : list_folders(logdir_)) steps.insert(folder.step);
  return {steps.begin(), steps.end()};
}

CheckpointDir::Loaded CheckpointDir::load_latest(const std::function<void(const Checkpoint&)>& check,
                                                 const OnProgress& on_progress) const {
  std::vector<Folder> folders = newest_first(logdir_);
  // Damaged manifests come first: their age is unknown, and they have to be reported.
  std::stable_partition(folders.begin(), folders.end(),
                        [](const Folder& folder) { return folder.sequence < 0; });
  Loaded loaded;
  for (const Folder& folder : folders) {
    try {
      Checkpoint checkpoint = read_folder(folder, on_progress);
      if (check) check(checkpoint);
      loaded.checkpoint = std::move(checkpoint);
      return loaded;
    } catch (const Error& error) {
      // Skips only damaged checkpoints; running out of memory or a newer format are errors.
      if (error.kind() != ErrorKind::DataLoss) throw;
      loaded.skipped.push_back(fmt::format("checkpoint of step {}: {}", folder.step, error.what()));
    }
  }
  if (!loaded.skipped.empty()) {
    fail(ErrorKind::DataLoss,
         "{}: all of its {} checkpoints are damaged ({}). Restore one from a copy, or start from scratch "
         "with --resume never",
         logdir_, loaded.skipped.size(), fmt::join(loaded.skipped, "; "));
  }
  return loaded;
}

Checkpoint CheckpointDir::load(int64_t step) const {
  std::optional<Folder> found;
  for (Folder& folder : list_folders(logdir_)) {
    if (folder.step == step && (!found || !folder.replaced)) found = std::move(folder);
  }
  if (!found) {
    const std::vector<int64_t> kept = steps();
    fail(ErrorKind::InvalidArgument, "{}: there is no checkpoint of step {}; available steps: {}", logdir_,
         step, kept.empty() ? "none" : fmt::format("{}", fmt::join(kept, ", ")));
  }
  return read_folder(*found);
}

std::vector<SavedCheckpoint> CheckpointDir::saved() const {
  std::vector<SavedCheckpoint> saved;
  for (const Folder& folder : list_folders(logdir_)) {
    if (folder.replaced) continue;
    try {
      saved.push_back({folder.path, read_folder_manifest(folder.path)});
    } catch (const Error&) {
      continue;  // damaged, or removed meanwhile
    }
  }
  std::sort(saved.begin(), saved.end(),
            [](const auto& a, const auto& b) { return a.manifest.sequence < b.manifest.sequence; });
  return saved;
}

std::string newest_checkpoint(const std::string& logdir) {
  const std::vector<SavedCheckpoint> saved = CheckpointDir(logdir).saved();
  return saved.empty() ? "" : saved.back().path;
}

Checkpoint load_checkpoint(const std::string& folder, const std::set<std::string>& parts) {
  if (!path_exists(folder + "/" + kManifestName)) {
    fail(ErrorKind::InvalidArgument, "{} is not a checkpoint: it contains no {}", folder, kManifestName);
  }
  return read_checkpoint_folder(folder, parts);
}

}  // namespace tutti::store
