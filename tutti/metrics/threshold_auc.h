#pragma once

#include "tutti/metrics/metrics.h"

namespace tutti::metrics {

// The auc() with thresholds.
MetricPtr threshold_auc(const std::string& label, const AucOptions& options);

}  // namespace tutti::metrics
