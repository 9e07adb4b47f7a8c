#include "tests/chaos/small_disk.h"

#include <filesystem>
#include <fstream>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tests/launchers/training.h"

namespace tutti::testing {
namespace {

constexpr const char* kBallast = "ballast";

Words first_process(const std::string& folder, int megabytes) {
  const std::string script = fmt::format(
      "mount -t tmpfs -o size={}m tmpfs '{}' && echo ready && exec sleep infinity", megabytes, folder);
  return {"unshare", "--mount", "sh", "-c", script};
}

}  // namespace

SmallDisk::SmallDisk(std::string folder, int megabytes)
    : folder_(std::move(folder)), holder_(first_process(folder_, megabytes)) {
  holder_.wait_for_output("ready\n");
}

Words SmallDisk::here() const {
  return {"nsenter", "--target", std::to_string(holder_.pid()), "--mount", "--"};
}

std::string SmallDisk::outside() const { return fmt::format("/proc/{}/root{}", holder_.pid(), folder_); }

void SmallDisk::fill() const {
  const std::vector<char> block(1 << 12, 'x');
  std::ofstream ballast(outside() + "/" + kBallast, std::ios::app | std::ios::binary);
  while (ballast.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
  }
}

void SmallDisk::free() const { std::filesystem::remove(outside() + "/" + kBallast); }

std::string SmallDisk::why_not() {
  if (geteuid() != 0) return "only root can mount a small disk";
  for (const char* program : {"unshare", "nsenter"}) {
    if (!is_installed(program)) return fmt::format("there is no {} (apt-get install util-linux)", program);
  }
  const ProgramResult trial = run_program({"unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"});
  return trial.exit_code == 0 ? "" : "a small disk cannot be mounted here: " + trial.err;
}

}  // namespace tutti::testing
