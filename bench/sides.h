#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace bench {

// The result of one process, which prints the two numbers on its last line.
struct Measured {
  double per_second = 0;  // images, or another unit of the benchmark
  double peak_mebibytes = 0;
};

// One of the compared programs: a command that measures itself.
struct Side {
  std::string name;
  std::vector<std::string> command;
};

// Pins this process and the threads that it will start to one core.
void pin_to_one_core();

// Prints "1234.5 210.3": the speed per second, and the peak of this process's memory so far.
void print_measured(double per_second);

// Runs every side `rounds` times, alternating between them, so that other load on the machine affects all
// equally. Returns the medians of each. A side whose command cannot be run is left out.
std::map<std::string, Measured> measure(const std::vector<Side>& sides, int rounds);

// A folder for the benchmark's data, which is removed with all its contents by the destructor.
class Scratch {
 public:
  explicit Scratch(const std::string& parent);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

// Returns the folder of the benchmarks' sources and the peers' scripts (CMake defines it).
std::filesystem::path folder();

// Returns a Python with these peers, which scripts/peer-python installs on first use; nullopt if that fails.
std::optional<std::string> peer_python(const std::string& peers);

// Returns a Python whose PyTorch has this version of LibTorch, such as "2.15.0", except for the last number:
// the distribution's Python, the one in PATH, or one with PyPI's PyTorch, which scripts/peer-python installs
// on first use. nullopt if there is none.
std::optional<std::string> pytorch_python(const std::string& libtorch);

// Returns the last line that a command prints, without its errors; "" if there is none.
std::string last_line_of(const std::vector<std::string>& command);

double median(std::vector<double> values);

}  // namespace bench
