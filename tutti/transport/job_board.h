#pragma once

#include <optional>
#include <string>

// How a process that is no task of a job finds the board of its launcher (comm/members.h).
namespace tutti::comm {

// The secret of the board. It does not reveal the secret of the job.
std::string members_secret(const std::string& launch, const std::string& secret);

struct JobBoard {
  std::string address = {};  // HOST:PORT
  std::string host = {};     // the machine of the process that has written this
  std::string secret = {};   // members_secret()

  bool operator==(const JobBoard&) const = default;
};

// Returns the address at which this machine may reach the board: that of another machine's loopback is not
// valid here, but its launcher may listen at all addresses.
std::string address_from_here(const JobBoard& board);

// The name of the file in the folder of a run.
inline constexpr const char* kJobBoardName = "launcher.json";

// Replaces the file atomically. Only its owner can read it.
void write_job_board(const std::string& folder, const JobBoard& board);
// Returns nullopt if there is no such file. Throws DataLoss if it was not written by write_job_board().
std::optional<JobBoard> read_job_board(const std::string& folder);

}  // namespace tutti::comm
