#pragma once

#include <string>
#include <vector>

namespace tutti {

// The result of join_traces().
struct JoinedTraces {
  int files = 0;
  int world = 0;                      // how many there should be
  std::vector<std::string> warnings;  // about missing files and unexpected contents
};

// Joins the files of --timeline (comm::TimelineFile) of several tasks of one run into one file. If there is
// only the file of rank 0, the others are looked for beside it. The times of a file from another machine are
// shifted by the difference between the wall clocks of the two machines. Throws DataLoss if a file is
// damaged, and InvalidArgument if two files cannot belong together.
JoinedTraces join_traces(const std::vector<std::string>& paths, const std::string& out);

}  // namespace tutti
