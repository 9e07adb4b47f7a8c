#pragma once

#include <string_view>

#include <c10/core/Device.h>

namespace tutti {

// The device that --device asks for: auto, cpu, cuda, cuda:N, gpu, gpu:N, or a DeviceSpec without job and
// task (/gpu:0). Without a number it is the GPU of the local rank, round robin over the `gpus` that there
// are; auto without any is the CPU. InvalidArgument for what is not understood or not there.
c10::Device choose_device(std::string_view asked, int local_rank, int gpus);

// GPUs that LibTorch can use now.
int count_gpus();

}  // namespace tutti
