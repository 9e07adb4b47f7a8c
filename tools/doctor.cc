#include <array>
#include <filesystem>
#include <sys/resource.h>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/launch/cores.h"
#include "tools/layer_times.h"
#include "tools/machine.h"
#include "tutti/base/config.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/memory.h"
#include "tutti/base/text.h"
#include "tutti/base/version.h"
#include "tutti/cluster/device_spec.h"
#include "tutti/cluster/identity.h"
#include "tutti/cluster/kernels.h"
#include "tutti/comm/nccl/nccl.h"
#include "tutti/kernels/instructions.h"
#include "tutti/kernels/same_kernels.h"
#include "tutti/transport/mpi/mpi.h"
#include "tutti/transport/shm/shm.h"

namespace tutti {
namespace {

using Level = Finding::Level;

std::string cpu_model(const std::string& cpuinfo) {
  const size_t at = cpuinfo.find("model name");
  const size_t colon = cpuinfo.find(": ", at);
  if (at == std::string::npos || colon == std::string::npos) return "unknown";
  return cpuinfo.substr(colon + 2, cpuinfo.find('\n', colon) - colon - 2);
}

Finding memory() {
  const MachineMemory memory = machine_memory();
  return check_memory(memory.available, memory.total);
}

Finding shared_memory() {
  try {
    comm::check_shared_memory();
    return check_shared_memory("");
  } catch (const Error& error) {
    return check_shared_memory(error.what());
  }
}

// The driver lists each GPU in a folder.
int driver_gpus() {
  std::error_code error;
  const std::filesystem::directory_iterator gpus("/proc/driver/nvidia/gpus", error);
  return error ? 0 : static_cast<int>(std::distance(begin(gpus), end(gpus)));
}

int usable_gpus() { return at::hasCUDA() ? count_gpus() : 0; }

Finding gpus() {
  return check_gpus(driver_gpus(), usable_gpus(), at::hasCUDA() ? CudaBuild::Yes : CudaBuild::No);
}

Finding between_gpus() {
  return check_between_gpus(usable_gpus(), comm::nccl_built() ? NcclBuild::Yes : NcclBuild::No);
}

Finding open_files() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return check_open_files(limit.rlim_cur);
}

// Determines which task a program started in this environment would be.
Finding identity(const Environment& environment) {
  try {
    RunConfig config;
    FlagSet set("");
    add_standard_flags(set, config);
    const std::array arguments = {"tutti doctor"};
    [[maybe_unused]] const auto nothing = set.parse(1, arguments.data(), environment);
    const Identity found = discover(config, environment);
    return {Level::Ok, "identity",
            fmt::format("{}, rank {} of {} ({})", found.task.short_name(), found.membership.rank,
                        found.membership.world, found.source),
            ""};
  } catch (const Error& error) {
    return {Level::Bad, "identity", error.what(), "correct or unset these variables"};
  }
}

Finding blas() {
  // The first product loads the libraries that are loaded lazily.
  torch::mm(torch::ones({8, 8}), torch::ones({8, 8}));
  return check_blas(read_system_file("/proc/self/maps"), at::hasMKL() ? BuiltInBlas::Mkl : BuiltInBlas::No);
}

// Which of the two is faster depends on the processor, LibTorch and the shapes, so it is measured.
Finding bf16() { return check_bf16(time_layers(), at::get_num_threads()); }

// Prints the properties that have to be the same on all machines whose tasks train together.
std::string properties_of_kernels() {
  return fmt::format("{}", fmt::join(find_kernels(torch::kCPU, at::get_num_threads()).lines(), ", "));
}

Finding same_kernels() {
  const kernels::SameKernels same;
  const std::string text =
      fmt::format("{}; with {}", properties_of_kernels(), kernels::available_instructions().front());
  if (kernels::have_fused_instructions()) return {Level::Ok, "kernels same", text, ""};
  return {Level::Warning, "kernels same", text + ", which cannot multiply and add with one rounding",
          "train with --kernels libtorch, which is faster here, or on another processor"};
}

Finding libtorch_kernels() { return {Level::Ok, "kernels libtorch", properties_of_kernels(), ""}; }

std::vector<Finding> examine(const Environment& environment) {
  const std::string cpuinfo = read_system_file("/proc/cpuinfo");
  return {
      {Level::Ok, "Tutti", std::string(version()), ""},
      {Level::Ok, "LibTorch", TORCH_VERSION, ""},
      {Level::Ok, "compiler", __VERSION__, ""},
      blas(),
      {Level::Ok, "CPU", cpu_model(cpuinfo), ""},
      check_vector_units(cpuinfo),
      same_kernels(),
      libtorch_kernels(),
      bf16(),
      check_cores(static_cast<int>(usable_cores().size()), static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN))),
      gpus(),
      memory(),
      shared_memory(),
      between_gpus(),
      check_network(comm::mpi_built()),
      check_port_range(read_system_file("/proc/sys/net/ipv4/ip_local_port_range")),
      open_files(),
      identity(environment),
  };
}

const char* label_of(Level level) {
  switch (level) {
    case Level::Ok:
      return "ok";
    case Level::Warning:
      return "warn";
    case Level::Bad:
      return "bad";
  }
  return "bad";
}

}  // namespace

int doctor_command(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app(
      "Checks whether this machine is ready for training, and says what to do if it is not. Exits with code "
      "1 if a check is \"bad\".",
      "tutti doctor");
  if (!parse_arguments(app, arguments)) return 0;
  bool bad = false;
  for (const Finding& finding : examine(environment)) {
    fmt::print("{:<4}  {:<16}  {}\n", label_of(finding.level), finding.about, finding.found);
    if (!finding.advice.empty()) fmt::print("{:<24}to do: {}\n", "", finding.advice);
    bad = bad || finding.level == Level::Bad;
  }
  return bad ? 1 : 0;
}

}  // namespace tutti
