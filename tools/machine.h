#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

// A result of `tutti doctor` about one topic.
struct Finding {
  enum class Level { Ok, Warning, Bad };
  Level level = Level::Ok;
  std::string about;   // "BLAS"
  std::string found;   // "OpenBLAS (/usr/lib/...)"
  std::string advice;  // recommended action; empty if there is none
};

// Determines the BLAS of a process from its /proc/self/maps. `built_in`: LibTorch contains its own (MKL).
enum class BuiltInBlas { No, Mkl };
Finding check_blas(std::string_view maps, BuiltInBlas built_in);

// Checks the vector units in the text of /proc/cpuinfo.
Finding check_vector_units(std::string_view cpuinfo);

// The seconds that a layer takes, forward and backward, in two number formats (--precision).
struct LayerTimes {
  std::string layer;  // "a linear layer"
  double fp32 = 0;
  double bf16 = 0;
};
// Reports how fast these layers were with this number of threads. The result has no advice.
Finding check_bf16(const std::vector<LayerTimes>& layers, int threads);

Finding check_cores(int usable, int online);
Finding check_memory(uint64_t available, uint64_t total);
// `problem` says why workers of one host cannot share memory; "" if they can.
Finding check_shared_memory(const std::string& problem);
// Checks which backends can send gradients between hosts.
Finding check_network(bool mpi);
// `devices` is the number of GPUs that the driver knows, `usable` the number that LibTorch can use, and
// `cuda_build` is true if LibTorch was built with CUDA.
enum class CudaBuild { No, Yes };
Finding check_gpus(int devices, int usable, CudaBuild cuda_build);
// Checks which backend can send gradients between GPUs, of which `usable` are present.
enum class NcclBuild { No, Yes };
Finding check_between_gpus(int usable, NcclBuild build);
// Checks the text of /proc/sys/net/ipv4/ip_local_port_range.
Finding check_port_range(std::string_view range);
Finding check_open_files(uint64_t limit);

}  // namespace tutti
