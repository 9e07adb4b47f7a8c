#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/base/environment.h"

namespace tutti {

// The GPUs that a program started here may use, each as CUDA_VISIBLE_DEVICES names it: "2", "GPU-8932f937",
// "MIG-...". Asked are, the first that has something to say:
//   CUDA_VISIBLE_DEVICES    read as CUDA reads it: the list ends before the first entry that is no GPU ("-1",
//                           "NoDevFiles"); set and empty, there are none
//   NVIDIA_VISIBLE_DEVICES  what the container was given: indices (of its host; inside they count from 0
//                           again), UUIDs, MIG ids, "all" or "none"
//   /dev/nvidia0, ...       what is there; `root` is where to look
// InvalidArgument for a list that names a GPU twice: CUDA then shows none at all.
std::vector<std::string> visible_gpus(const Environment& environment,
                                      const std::filesystem::path& root = "/");

}  // namespace tutti
