#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace tutti::store {

// The hashes of a run's weights after some of its steps, in the file hashes.tsv of its log directory: a line
// "step<TAB>sha256" for each.
class WeightHashes {
 public:
  // The run begins or goes on at `step`: removes the lines of all later steps from the file.
  WeightHashes(const std::string& logdir, int64_t step);

  void add(int64_t step, const std::string& sha256);

 private:
  const std::string path_;
};

// Returns the hashes by step; empty if the directory has none. Lines that a killed process has not finished
// are left out.
std::map<int64_t, std::string> read_weight_hashes(const std::string& logdir);

}  // namespace tutti::store
