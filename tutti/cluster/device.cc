#include "tutti/cluster/device.h"

#include <algorithm>
#include <sched.h>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <torch/cuda.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/cluster/device_spec.h"

namespace tutti {
namespace {

// Parses "cuda:1" and "gpu", or a DeviceSpec.
DeviceSpec read_device(std::string_view asked) {
  if (asked.starts_with('/')) return DeviceSpec::parse(asked);
  const auto colon = asked.find(':');
  const std::string_view kind = asked.substr(0, colon);
  const std::string_view index = colon == std::string_view::npos ? "" : asked.substr(colon);
  if (kind != "cpu" && kind != "gpu" && kind != "cuda") {
    const std::vector<std::string> known = {"auto", "cpu", "cuda", "gpu"};
    fail(ErrorKind::InvalidArgument, "--device '{}': expected auto, cpu, cuda, cuda:N or /gpu:N{}", asked,
         did_you_mean(kind, known));
  }
  return DeviceSpec::parse("/" + std::string(kind == "cpu" ? "cpu" : "gpu") + std::string(index));
}

c10::Device gpu(int index) { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)}; }

c10::Device choose_gpu(std::string_view asked, std::optional<int> index, int local_rank, int gpus) {
  if (gpus == 0) {
    fail(ErrorKind::InvalidArgument,
         "--device '{}': LibTorch finds no GPU here. Use --device cpu or auto; if there is a GPU, check its "
         "driver, CUDA_VISIBLE_DEVICES, and whether this LibTorch was built with CUDA (`tutti doctor` shows "
         "it)",
         asked);
  }
  if (index && *index >= gpus) {
    fail(ErrorKind::InvalidArgument, "--device '{}': there {} here, numbered from 0", asked,
         gpus == 1 ? "is 1 GPU" : fmt::format("are {} GPUs", gpus));
  }
  return gpu(index.value_or(local_rank % gpus));
}

}  // namespace

c10::Device choose_device(std::string_view asked, int local_rank, int gpus) {
  if (asked == "auto") return gpus > 0 ? gpu(local_rank % gpus) : c10::Device(c10::DeviceType::CPU);
  const DeviceSpec spec = read_device(asked);
  if (spec.job || spec.task || spec.replica) {
    fail(ErrorKind::InvalidArgument,
         "--device '{}' names a task, but must name a device of this task, such as /gpu:0", asked);
  }
  const std::string type = spec.device_type.value_or("");
  if (type == "CPU") {
    if (spec.device_index.value_or(0) != 0) {
      fail(ErrorKind::InvalidArgument,
           "--device '{}': there is only one CPU device, /cpu:0, which has all cores", asked);
    }
    return {c10::DeviceType::CPU};
  }
  if (type == "GPU" || type == "CUDA") return choose_gpu(asked, spec.device_index, local_rank, gpus);
  fail(ErrorKind::InvalidArgument, "--device '{}' has a type that Tutti does not support: use CPU or GPU",
       asked);
}

int count_gpus() { return torch::cuda::is_available() ? static_cast<int>(torch::cuda::device_count()) : 0; }

}  // namespace tutti
