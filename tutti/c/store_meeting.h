#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tutti/c/tutti.h"
#include "tutti/cluster/identity.h"

namespace tutti::c {

// The ranks of a group meet at a store of the caller's: they learn there who is on which host, and where rank
// 0 serves their board. Throws if the store fails, and InvalidArgument if two processes give the same rank.
class StoreMeeting {
 public:
  StoreMeeting(const tutti_store& store, int rank, int world, std::chrono::milliseconds timeout);

  // Returns the place of this rank among all, and among the ranks of its host. Every rank has to call it.
  Identity place(const std::string& name);
  // Shares a text of rank 0, which alone passes it.
  std::string share(const std::optional<std::string>& text);

 private:
  // A process at the meeting, as the value of a key.
  struct Guest {
    std::string host;  // host_identity()
    std::string who;   // "process 123 on a", and what no other process has
    bool operator==(const Guest&) const = default;
  };
  static std::string text_of(const Guest& guest);
  static Guest guest_of(const std::string& text);

  std::vector<Guest> all_guests();
  [[noreturn]] void refuse_second(int rank, const Guest& one, const Guest& other);
  [[noreturn]] void missing(const std::string& key);
  void set(const std::string& key, const std::string& value);
  std::optional<std::string> find(const std::string& key, std::chrono::milliseconds timeout);
  std::string get(const std::string& key);

  const tutti_store store_;
  const int rank_;
  const int world_;
  const std::chrono::steady_clock::time_point deadline_;
  const Guest self_;
};

}  // namespace tutti::c
