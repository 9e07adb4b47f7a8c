#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "tutti/metrics/metric.h"
#include "tutti/train/hook.h"

namespace tutti::hooks {

struct SummariesOptions {
  int64_t every = 100;           // steps between scalars
  int64_t histograms_every = 0;  // steps between histograms of all parameters; 0: none
};

// Writes loss, learning rate and examples per second to the event file.
std::unique_ptr<Hook> summaries(const SummariesOptions& options = {});

// Computes these metrics on the batch of the first step, which is shown as step 0, and then of every
// `every`-th step, and writes them to stderr and to the event file. Without `every`, uses --summary-every; 0
// means never. The loss function has to return its predictions.
std::unique_ptr<Hook> batch_metrics(metrics::List list, std::optional<int64_t> every = {});

}  // namespace tutti::hooks
