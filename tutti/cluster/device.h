#pragma once

#include <string_view>

#include <c10/core/Device.h>

namespace tutti {

// Returns the device for a value of --device: auto, cpu, cuda, cuda:N, gpu, gpu:N, or a DeviceSpec without
// job and task (/gpu:0). Without an index, GPUs are assigned by local rank, round robin over `gpus`; auto
// without GPUs is the CPU. Throws InvalidArgument if the value is invalid or there is no such device.
c10::Device choose_device(std::string_view asked, int local_rank, int gpus);

// Returns the number of GPUs that LibTorch can use now.
int count_gpus();

}  // namespace tutti
