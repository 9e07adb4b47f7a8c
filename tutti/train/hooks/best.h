#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tutti/train/hook.h"

namespace tutti::hooks {

// Says which values of a validation are better. Auto: smaller ones if the name ends with "loss", "error",
// "mse" or "rmse", else greater ones.
enum class Goal { Auto, Smaller, Greater };

struct EarlyStoppingOptions {
  std::string monitor = "loss";  // the name of a value of the validation
  Goal goal = Goal::Auto;
  int64_t patience = 0;  // the number of validations without an improvement that are accepted
  double min_delta = 0;  // the smallest change that counts as an improvement
  // If true, the model gets back the weights of its best validation when the training ends. Not possible with
  // parameter servers, which hold the weights.
  bool restore_best = false;
};

// Ends the training when a value of the validation does not improve any more. A resumed run remembers the
// best value; a fit that was ended in this way stays complete when the program is run again.
std::unique_ptr<Hook> early_stopping(const EarlyStoppingOptions& options = {});

struct KeepBestOptions {
  std::string monitor = "loss";
  Goal goal = Goal::Auto;
  std::string folder = "best";  // in the log directory
};

// Saves the weights after each validation with a better value than all before: as the only checkpoint in
// LOGDIR/best, which tutti::load() and --resume weights can read. Only the chief writes, and only with a log
// directory.
std::unique_ptr<Hook> keep_best(const KeepBestOptions& options = {});

}  // namespace tutti::hooks
