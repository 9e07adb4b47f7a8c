#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/progress.h"
#include "tutti/store/manifest.h"
#include "tutti/store/safetensors.h"
#include "tutti/store/shared_files.h"

namespace tutti::store {

class TemporaryFolder;

// The parts of an earlier checkpoint in the same directory, for a later checkpoint that contains only the
// changes of these parts since then.
struct Base {
  int64_t step = 0;
  std::map<std::string, NamedTensors> parts = {};   // by name; filled when a checkpoint is read
  nlohmann::json state = nlohmann::json::object();  // of the earlier checkpoint, likewise
};

// The state that a run needs to resume.
struct Checkpoint {
  int64_t step = 0;        // number of steps made
  NamedTensors weights;    // parameters and buffers: "conv1.weight", each once
  NamedTensors optimizer;  // slots: "exp_avg/conv1.weight"
  // Further parts of the state, by name: "average", "random". Each is a separate file.
  std::map<std::string, NamedTensors> more = {};
  // Further names of weights. The files of the weights and of their average have the tensors under these
  // names, too, for other readers.
  TiedNames tied = {};
  std::optional<Base> base = {};
  // Everything else that the trainer needs: lanes, seed, data cursor, random streams, options. Numbers that
  // are not finite are read back as null.
  nlohmann::json state = nlohmann::json::object();
};

// Returns the number of bytes of the tensors that write_checkpoint_folder() writes.
int64_t bytes_to_write(const Checkpoint& checkpoint);

// A checkpoint that is on the disk, as its manifest describes it.
struct SavedCheckpoint {
  std::string path;
  Manifest manifest;
};

// Options of a CheckpointDir.
struct CheckpointDirOptions {
  int keep = 5;  // checkpoints beyond the newest `keep` and their bases are removed; 0 keeps all
  // save() calls it, at most once, with a line for the log, if the link `latest` cannot be made.
  std::function<void(const std::string& text)> warn = {};
  // Throws if another process saves here now, because this one was lost to the others of its job for a while.
  // Together with take_away_lock(), nothing of such a save appears in the directory, whenever it goes on.
  std::function<void()> check = {};
};

// The checkpoints of one run: folders ckpt-<step> in its log directory, and a link `latest` to the one saved
// last. The link is for people and other programs; this class never reads it, since some file systems have no
// symbolic links.
// Other files in the directory are not touched. Only one process may save at a time; others may read
// meanwhile.
class CheckpointDir {
 public:
  // Does not touch the file system before the first save.
  explicit CheckpointDir(std::string logdir, const CheckpointDirOptions& options = {});
  ~CheckpointDir();
  CheckpointDir(CheckpointDir&&) noexcept;
  CheckpointDir& operator=(CheckpointDir&&) noexcept;

  // Makes the folder of the next checkpoint, so that other tasks can write to it, and returns its absolute
  // path.
  std::string open();

  // Saves all or nothing: if the process is killed at any point, or the disk is full, the previous
  // checkpoints remain intact. Replaces a checkpoint of the same step. Returns when all data are on the
  // device, including those that other tasks write into the folder that open() has returned. Tells the bytes
  // that this task has written.
  void save(const Checkpoint& checkpoint, const SharedFiles& shared = {}, const OnProgress& on_progress = {});

  // Returns the steps in ascending order, damaged checkpoints included; empty if there is no such directory.
  std::vector<int64_t> steps() const;

  // The result of load_latest().
  struct Loaded {
    std::optional<Checkpoint> checkpoint;
    std::vector<std::string> skipped;  // a line for each damaged checkpoint: its name and the reason
  };
  // Returns the newest intact checkpoint, that is, the one saved last, whatever its step; none if the
  // directory holds no checkpoints. If all are damaged, throws DataLoss with the reasons, since starting anew
  // would lose work. `check` may throw DataLoss if a checkpoint lacks something that its reader needs; the
  // checkpoint is then skipped as well. Tells the bytes that were read of each.
  Loaded load_latest(const std::function<void(const Checkpoint&)>& check = {},
                     const OnProgress& on_progress = {}) const;

  // Returns the checkpoints with an intact manifest, in the order in which they were saved.
  std::vector<SavedCheckpoint> saved() const;

  // Throws an InvalidArgument that lists the existing steps if there is no such step, and DataLoss if the
  // checkpoint is damaged.
  Checkpoint load(int64_t step) const;

  const std::string& logdir() const { return logdir_; }

 private:
  void point_latest_to(int64_t step);

  std::string logdir_;
  CheckpointDirOptions options_;
  std::unique_ptr<TemporaryFolder> next_;  // made by open(), until it has been saved
  bool synced_ = false;                    // the names of the directory and of those in which it lies
  bool warned_ = false;
};

// Returns the path of the checkpoint in a log directory that was saved last, among those with an intact
// manifest; "" if there is none.
std::string newest_checkpoint(const std::string& logdir);

// Reads a folder ckpt-<step>, or the one that `latest` points to, and verifies all checksums. Reads only
// these parts, if any are named.
Checkpoint load_checkpoint(const std::string& folder, const std::set<std::string>& parts = {});

}  // namespace tutti::store
