#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

namespace tutti::rpc {

// For tests: this test's program once more, in a process of its own. gRPC knows no fork without exec.
class Peer {
 public:
  // {"serve"}: a host with a TestService, whose first word is its address.
  // {"echo", ADDRESS, BYTES}: sends so many bytes there and gets them back, again and again; with "arena"
  // behind it through an arena.
  // {"wait", ADDRESS}: has the service there wait.
  explicit Peer(const std::vector<std::string>& arguments);
  // Kills it.
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // The first line that it has printed.
  const std::string& word() const { return word_; }
  void signal(int number) const;
  // Kills it with SIGKILL, and returns when it has ended.
  void kill();

 private:
  void await_word(int descriptor);

  pid_t pid_ = -1;
  std::string word_;
};

}  // namespace tutti::rpc
