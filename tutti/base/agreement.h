#pragma once

#include <string>
#include <vector>

namespace tutti {

// The facts of one task that must be the same on all tasks of a job, such as flags, parameters or kernels.
// Each is a line with its name and its value ("--batch 32"), in the same order on all tasks.
struct Agreement {
  std::string who = {};  // "worker/2", for messages
  std::vector<std::string> lines = {};
};

// Returns how two agreements differ, with both names and values: "worker/0 has '--batch 32', worker/1 has
// '--batch 16'"; "" if they do not. Names the first line that differs or, if it is a flag, the flags
// that differ, since one may have changed another: --epochs sets --steps to 0.
std::string difference(const Agreement& one, const Agreement& other);

// Returns the text of an error: a job has two tasks of one job name and index. Both names have the host and
// the process.
std::string same_index(const std::string& first, const std::string& second);

// Throws InvalidArgument for a difference, unless it is "".
void refuse_difference(const std::string& difference);
inline void require_same(const Agreement& one, const Agreement& other) {
  refuse_difference(difference(one, other));
}

}  // namespace tutti
