#pragma once

#include <cstddef>
#include <string>
#include <sys/types.h>
#include <vector>

namespace tutti::rpc {

// For tests: this test program in another process.
class Peer {
 public:
  // {"serve"}: a host with a TestService, which prints its address first; a number after it limits its file
  // descriptors.
  // {"echo", ADDRESS, BYTES}: sends this number of bytes there and receives them back, repeatedly; with
  // "arena" after it, through an arena.
  // {"wait", ADDRESS}: calls "wait" of the service there.
  explicit Peer(const std::vector<std::string>& arguments);
  // Kills the process.
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // Returns the first line that the process printed.
  const std::string& word() const { return word_; }
  // Returns the number of open file descriptors of the process.
  size_t descriptors() const;
  void signal(int number) const;
  // Kills it with SIGKILL, and returns when it has ended.
  void kill();

 private:
  void await_word(int descriptor);

  pid_t pid_ = -1;
  std::string word_;
};

}  // namespace tutti::rpc
