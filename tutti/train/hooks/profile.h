#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tutti/train/hook.h"

namespace tutti::hooks {

// The steps [begin, end), counted from 0.
struct StepRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// "10..12" are the steps 10 and 11, "10" is step 10 alone. Anything else is an InvalidArgument.
StepRange parse_step_range(const std::string& text);

// In these steps every operator of LibTorch is noted down in the context's timeline, by all workers. Without
// --timeline the chief has a timeline for them alone, which is written to `file` (trace_events.h).
std::unique_ptr<Hook> profile(StepRange steps, std::string file);

}  // namespace tutti::hooks
