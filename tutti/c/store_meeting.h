#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "tutti/c/tutti.h"
#include "tutti/cluster/identity.h"

namespace tutti::c {

// The ranks of a group meet at a store of the caller's: they learn there who is on which host, and where rank
// 0 serves their board. Throws if the store fails.
class StoreMeeting {
 public:
  StoreMeeting(const tutti_store& store, int rank, int world, std::chrono::milliseconds timeout);

  // Returns the place of this rank among all, and among the ranks of its host. Every rank has to call it.
  Identity place(const std::string& name);
  // Shares a text of rank 0, which alone passes it.
  std::string share(const std::optional<std::string>& text);

 private:
  void set(const std::string& key, const std::string& value);
  std::string get(const std::string& key);

  const tutti_store store_;
  const int rank_;
  const int world_;
  const std::chrono::steady_clock::time_point deadline_;
};

}  // namespace tutti::c
