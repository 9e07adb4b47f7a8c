#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/store/named_tensor.h"

namespace tutti::store {

// What a run needs to go on from where it was.
struct Checkpoint {
  int64_t step = 0;                    // steps done
  std::vector<NamedTensor> weights;    // parameters and buffers: "conv1.weight"
  std::vector<NamedTensor> optimizer;  // slots: "exp_avg/conv1.weight"
  // Whatever else the trainer needs: lanes, seed, data cursor, random streams, options. A number that is not
  // finite comes back as null.
  nlohmann::json state = nlohmann::json::object();
};

struct CheckpointDirOptions {
  int keep = 5;  // checkpoints beyond the newest `keep` are removed; 0 keeps all
};

// The checkpoints of one run: folders ckpt-<step> in its log directory, and a link `latest` to the one saved
// last. Other things in the directory are left alone. One process at a time saves; any number may read
// meanwhile.
class CheckpointDir {
 public:
  // Nothing is touched before the first save.
  explicit CheckpointDir(std::string logdir, const CheckpointDirOptions& options = {});

  // All or nothing: killed at any point, or with the disk full, what was there before is still there and
  // whole. A checkpoint of the same step is replaced. Returns once everything is on the device.
  void save(const Checkpoint& checkpoint);

  // In rising order, broken ones included. Empty where there is no such directory.
  std::vector<int64_t> steps() const;

  struct Loaded {
    std::optional<Checkpoint> checkpoint;
    std::vector<std::string> skipped;  // broken ones that it passed over, a line each: which, and why
  };
  // The newest whole checkpoint: the one saved last, whatever its step, of those whose every bit is as it was
  // written. None where the directory holds none at all; where it holds only broken ones, a DataLoss with
  // every reason, since to start anew would lose work.
  Loaded load_latest() const;

  // Fails with InvalidArgument where there is no such step (and lists those that are), DataLoss where it is
  // broken.
  Checkpoint load(int64_t step) const;

  const std::string& logdir() const { return logdir_; }

 private:
  std::string logdir_;
  CheckpointDirOptions options_;
};

// The checkpoint in a folder ckpt-<step>, or in what `latest` points to; every bit verified.
Checkpoint load_checkpoint(const std::string& folder);

}  // namespace tutti::store
