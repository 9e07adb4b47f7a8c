#include "tools/launch/cores.h"

#include <algorithm>
#include <fstream>
#include <sched.h>
#include <string>
#include <tuple>

#include <fmt/core.h>

namespace tutti {
namespace {

// Reads a number in /sys. Returns 0 if this kernel lacks it; cores are then ordered by their number.
int topology(int core, const char* name) {
  std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu{}/topology/{}", core, name));
  int value = 0;
  file >> value;
  return value;
}

}  // namespace

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<std::tuple<int, int, int>> places;  // package, physical core, logical core
  if (sched_getaffinity(0, sizeof set, &set) != 0) return {};
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &set)) continue;
    places.emplace_back(topology(core, "physical_package_id"), topology(core, "core_id"), core);
  }
  std::sort(places.begin(), places.end());
  std::vector<int> cores;
  cores.reserve(places.size());
  for (const auto& place : places) cores.push_back(std::get<2>(place));
  return cores;
}

std::vector<int> share_of(const std::vector<int>& cores, int index, int workers) {
  const auto count = static_cast<long>(cores.size());
  if (count < workers) return {};
  const long begin = count * index / workers;
  const long end = count * (index + 1) / workers;
  return {cores.begin() + begin, cores.begin() + end};
}

}  // namespace tutti
