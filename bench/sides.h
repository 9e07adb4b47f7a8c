#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace bench {

// What one process measured of itself; it prints the two numbers on its last line.
struct Measured {
  double per_second = 0;  // images, or whatever the benchmark counts
  double peak_mebibytes = 0;
};

// One of the things that are compared: a command that measures itself.
struct Side {
  std::string name;
  std::vector<std::string> command;
};

// Pins this process, and the threads it will have, to one core.
void pin_to_one_core();

// "1234.5 210.3": so much per second, and the peak of this process's memory so far.
void print_measured(double per_second);

// Runs every side `rounds` times, in turn, so that whatever else the machine does hits all of them alike: the
// medians of each. A side whose command cannot be run is left out.
std::map<std::string, Measured> measure(const std::vector<Side>& sides, int rounds);

// A folder for what is measured with; it goes with this, and all that is in it.
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

// The folder of the benchmarks' sources, with the peers' scripts (CMake writes it down).
std::filesystem::path folder();

// A Python that has those peers, as scripts/peer-python makes it the first time; nothing where it cannot.
std::optional<std::string> peer_python(const std::string& peers);

double median(std::vector<double> values);

}  // namespace bench
