#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/base/environment.h"
#include "tutti/base/log.h"

namespace tutti {

// Returns the GPUs that a program started here may use, as CUDA_VISIBLE_DEVICES names them: "2",
// "GPU-8932f937", "MIG-...". The first of these sources that is available decides:
//   CUDA_VISIBLE_DEVICES    read as CUDA reads it: the list ends before the first entry that is not a GPU
//                           ("-1", "NoDevFiles"); if it is set but empty, there are no GPUs
//   NVIDIA_VISIBLE_DEVICES  the GPUs of the container: indices (of its host; inside they count from 0
//                           again), UUIDs, MIG ids, "all" or "none"
//   /dev/nvidia0, ...       the device files; `root` is the folder that contains dev
// Throws InvalidArgument for a list that names a GPU twice: CUDA then shows none at all.
std::vector<std::string> visible_gpus(const Environment& environment,
                                      const std::filesystem::path& root = "/");

// Logs a warning if `gpus`, a result of visible_gpus(), is not empty, but there is no sign that this machine
// has a GPU. The variables are trusted, since a driver may create its device files later; but if there is no
// GPU, the programs use CPUs without an error.
void warn_of_missing_gpus(const std::vector<std::string>& gpus, const Log& log,
                          const std::filesystem::path& root = "/");

}  // namespace tutti
