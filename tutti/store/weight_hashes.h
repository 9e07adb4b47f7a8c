#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace tutti::store {

// The hashes of a run's weights after some of its steps, in the file hashes.tsv of its log directory: a line
// "step<TAB>sha256" for each.
class WeightHashes {
 public:
  // Keeps those of the steps up to `step`, where the run begins or goes on, and forgets the later ones.
  WeightHashes(const std::string& logdir, int64_t step);

  void add(int64_t step, const std::string& sha256);

 private:
  const std::string path_;
};

// Returns the hashes by step; empty if the directory has none. Lines that a killed process has not finished
// are left out.
std::map<int64_t, std::string> read_weight_hashes(const std::string& logdir);

}  // namespace tutti::store
