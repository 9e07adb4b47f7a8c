#pragma once

#include <cstdint>
#include <memory>

#include "tutti/metrics/metric.h"
#include "tutti/train/hook.h"

namespace tutti::hooks {

struct SummariesOptions {
  int64_t every = 100;           // steps between scalars
  int64_t histograms_every = 0;  // steps between histograms of all parameters; 0: none
};

// Writes loss, learning rate and examples per second to the event file.
std::unique_ptr<Hook> summaries(const SummariesOptions& options = {});

// Every so many steps, says what these metrics are on the step's own batch, on stderr and in the event file.
// The loss function has to return its predictions.
std::unique_ptr<Hook> batch_metrics(metrics::List list, int64_t every = 100);

}  // namespace tutti::hooks
