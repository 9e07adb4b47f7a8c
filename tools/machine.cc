#include "tools/machine.h"

#include <algorithm>
#include <array>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/text.h"

namespace tutti {
namespace {

using Level = Finding::Level;

constexpr uint64_t kGibibyte = uint64_t{1} << 30;

// Returns the path of the first mapped file whose path contains `part`, or "".
std::string mapped_path(std::string_view maps, std::string_view part) {
  std::istringstream lines{std::string(maps)};
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find('/');
    if (at != std::string::npos && line.find(part, at) != std::string::npos) return line.substr(at);
  }
  return "";
}

}  // namespace

Finding check_blas(std::string_view maps, BuiltInBlas built_in) {
  if (built_in == BuiltInBlas::Mkl) return {Level::Ok, "BLAS", "MKL, inside LibTorch", ""};
  for (const auto& [part, name] : {std::pair{"openblas", "OpenBLAS"}, {"mkl_rt", "MKL"}, {"blis", "BLIS"}}) {
    const std::string path = mapped_path(maps, part);
    if (!path.empty()) return {Level::Ok, "BLAS", fmt::format("{} ({})", name, path), ""};
  }
  const std::string path = mapped_path(maps, "libblas.so");
  if (path.empty()) return {Level::Ok, "BLAS", "inside LibTorch", ""};
  return {Level::Bad, "BLAS",
          fmt::format("the reference BLAS, which is many times slower than others ({})", path),
          "apt-get install libopenblas0-pthread"};
}

Finding check_vector_units(std::string_view cpuinfo) {
  const size_t at = cpuinfo.find("\nflags");
  const std::string_view line =
      at == std::string_view::npos ? "" : cpuinfo.substr(at + 1).substr(0, cpuinfo.find('\n', at + 1) - at);
  std::istringstream words{std::string(line)};
  std::vector<std::string> found;
  constexpr std::array kKnown = {"avx2", "avx512f", "avx512_bf16", "amx_bf16"};
  for (std::string word; words >> word;) {
    if (std::find(kKnown.begin(), kKnown.end(), word) != kKnown.end()) found.push_back(word);
  }
  if (found.empty()) {
    return {Level::Warning, "vector units", "neither AVX2 nor AVX-512",
            "training will be many times slower than on a current CPU"};
  }
  return {Level::Ok, "vector units", fmt::format("{}", fmt::join(found, ", ")), ""};
}

Finding check_bf16(const std::vector<LayerTimes>& layers, int threads) {
  std::vector<std::string> lines;
  for (const LayerTimes& layer : layers)
    lines.push_back(
        fmt::format("{} {:.2f} ms, in fp32 {:.2f} ms", layer.layer, layer.bf16 * 1e3, layer.fp32 * 1e3));
  return {Level::Ok, "bf16",
          fmt::format("measured here, forward and backward with {} thread{}: {}", threads,
                      threads == 1 ? "" : "s", fmt::join(lines, "; ")),
          ""};
}

Finding check_cores(int usable, int online) {
  if (usable == online) return {Level::Ok, "cores", fmt::format("{}", online), ""};
  return {Level::Warning, "cores", fmt::format("{} of {}", usable, online),
          "a container, a launcher or taskset does not let this process use the others; see taskset -p $$"};
}

Finding check_memory(uint64_t available, uint64_t total) {
  const std::string found = fmt::format("{} free of {}", human_bytes(available), human_bytes(total));
  if (available >= 2 * kGibibyte) return {Level::Ok, "memory", found, ""};
  return {Level::Warning, "memory", found,
          "a build needs 1.5 GiB per job: end other programs, or build with -j 1"};
}

Finding check_shared_memory(const std::string& problem) {
  if (problem.empty())
    return {Level::Ok, "on one host", "workers share memory (--comm shm, which does not use /dev/shm)", ""};
  return {Level::Warning, "on one host", fmt::format("workers cannot share memory: {}", problem),
          "mount /proc, or use --comm tcp"};
}

Finding check_network(bool mpi) {
  return {Level::Ok, "between hosts",
          fmt::format("TCP yes, MPI {}; by default workers add gradients in shared memory inside each host, "
                      "then over TCP between hosts (--comm shm+tcp)",
                      mpi ? "yes" : "no"),
          ""};
}

Finding check_gpus(int devices, int usable, CudaBuild cuda_build) {
  if (devices == 0) return {Level::Ok, "GPUs", "none", ""};
  if (cuda_build == CudaBuild::No) {
    return {Level::Warning, "GPUs", fmt::format("{}, but this LibTorch is built without CUDA", devices),
            "build Tutti with a LibTorch that has CUDA, in CMAKE_PREFIX_PATH (docs/libtorch.md)"};
  }
  if (usable < devices) {
    return {Level::Bad, "GPUs", fmt::format("{}, but LibTorch can use only {}", devices, usable),
            "compare the driver (nvidia-smi) with LibTorch's CUDA, and look at CUDA_VISIBLE_DEVICES"};
  }
  return {Level::Ok, "GPUs", fmt::format("{}", usable), ""};
}

Finding check_between_gpus(int usable, NcclBuild build) {
  const std::string about = "between GPUs";
  if (build == NcclBuild::Yes) {
    const char* const found =
        usable == 0 ? "NCCL yes, but there is no GPU here: gradients go through the memory of the hosts"
                    : "NCCL yes: used if each worker has a GPU of its own (--comm auto or nccl); if two "
                      "share a GPU, gradients go through the memory of the hosts";
    return {Level::Ok, about, found, ""};
  }
  if (usable == 0) return {Level::Ok, about, "NCCL no", ""};
  return {Level::Warning, about, "NCCL no: gradients go through the memory of the hosts",
          "build with NCCL's headers (docs/libtorch.md says which)"};
}

Finding check_port_range(std::string_view range) {
  std::istringstream text{std::string(range)};
  int first = 0;
  int last = -1;
  text >> first >> last;
  const int count = last - first + 1;
  const std::string found = fmt::format("programs get ports from {} to {}", first, last);
  if (count >= 1000) return {Level::Ok, "ports", found, ""};
  return {Level::Warning, "ports", found, "sysctl -w net.ipv4.ip_local_port_range='32768 60999'"};
}

Finding check_open_files(uint64_t limit) {
  if (limit >= 1024) return {Level::Ok, "open files", fmt::format("up to {}", limit), ""};
  return {Level::Warning, "open files", fmt::format("up to {}", limit), "ulimit -n 4096"};
}

}  // namespace tutti
