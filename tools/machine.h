#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

// What `tutti doctor` finds out about one thing.
struct Finding {
  enum class Level { Ok, Warning, Bad };
  Level level = Level::Ok;
  std::string about;   // "BLAS"
  std::string found;   // "OpenBLAS (/usr/lib/...)"
  std::string advice;  // what to do about it; empty where it is fine
};

// Which BLAS a process uses, from the text of its /proc/self/maps. `built_in`: LibTorch brings its own (MKL).
enum class BuiltInBlas { No, Mkl };
Finding check_blas(std::string_view maps, BuiltInBlas built_in);

// The vector units named in the text of /proc/cpuinfo.
Finding check_vector_units(std::string_view cpuinfo);

Finding check_cores(int usable, int online);
Finding check_memory(uint64_t available, uint64_t total);
// `problem`: why workers of one host cannot share memory; "" where they can.
Finding check_shared_memory(const std::string& problem);
// What carries gradients between hosts.
Finding check_network(bool gloo, bool mpi);
// `devices`: GPUs whose driver is loaded; `usable`: those that LibTorch can use; `cuda_build`: whether it
// could at all.
enum class CudaBuild { No, Yes };
Finding check_gpus(int devices, int usable, CudaBuild cuda_build);
// What carries gradients between GPUs: `usable` of them are here.
enum class NcclBuild { No, Yes };
Finding check_between_gpus(int usable, NcclBuild build);
// The text of /proc/sys/net/ipv4/ip_local_port_range.
Finding check_port_range(std::string_view range);
Finding check_open_files(uint64_t limit);

}  // namespace tutti
