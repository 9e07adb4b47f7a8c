#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "tutti/cluster/context.h"
#include "tutti/params/parameters.h"
#include "tutti/store/checkpoint.h"

namespace tutti {

// The checkpoints of one run, in --logdir, as --resume and --keep say. Without --logdir there are none, and
// nothing is written. For the chief; the context outlives it.
class RunFolder {
 public:
  struct Found {
    store::Checkpoint checkpoint;
    std::string where;  // for people
  };

  explicit RunFolder(const Context& context);

  bool exists() const { return checkpoints_.has_value(); }
  const std::string& logdir() const { return context_.flags().logdir; }

  // The newest whole one, if --resume wants it.
  std::optional<Found> newest();
  // A run that goes on with other lanes, batch, seed or precision is another run: InvalidArgument says what
  // differs.
  void require_same_run(const Found& found, int64_t lanes) const;
  // With --nan-guard, what is no number any more does not take the place of what was: InvalidArgument.
  void require_finite(const Parameters& parameters, int64_t step) const;
  // With what require_same_run() compares.
  void save(store::Checkpoint checkpoint, int64_t lanes);

 private:
  nlohmann::json settings(int64_t lanes) const;

  const Context& context_;
  std::optional<store::CheckpointDir> checkpoints_;
};

}  // namespace tutti
