#pragma once

#include <csignal>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/transport/board/tcp_rendezvous.h"

namespace tutti::comm::testing {

inline std::vector<std::string> names(int world) {
  std::vector<std::string> who;
  for (int r = 0; r < world; ++r) who.push_back(fmt::format("worker/{} (host {})", r, r));
  return who;
}

// Serves a board on this machine. Its destructor does not wait for the clients.
inline ServedRendezvous serve_board(uint16_t port = 0) {
  return serve_tcp_rendezvous({.port = port, .farewell = std::chrono::milliseconds(0)});
}
inline std::shared_ptr<Rendezvous> find_board(uint16_t port, const std::string& host = "127.0.0.1") {
  return find_tcp_rendezvous({.hosts = {host}, .port = port}).board;
}

// Runs body(rank) in one thread per rank. Returns the error that each has thrown, or nullopt.
using Outcome = std::optional<Error>;
inline std::vector<Outcome> as_ranks(int world, const std::function<void(int)>& body) {
  std::vector<Outcome> outcomes(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const Error& error) {
        outcomes[static_cast<size_t>(rank)] = error;
      } catch (const std::exception& error) {
        outcomes[static_cast<size_t>(rank)] = Error(ErrorKind::Bug, error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

inline void expect_no_errors(const std::vector<Outcome>& outcomes) {
  for (const Outcome& outcome : outcomes) EXPECT_FALSE(outcome) << outcome->what();
}

// A child process that runs `body` and then waits until it is killed.
class Child {
 public:
  explicit Child(const std::function<void()>& body) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that crashes leaves nothing behind
    try {
      body();
    } catch (const std::exception& error) {
      fmt::print(stderr, "child: {}\n", error.what());
    }
    while (true) ::pause();
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void kill() const { ::kill(pid_, SIGKILL); }
  // Stops the process and waits until it has stopped.
  void stop() const {
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void go_on() const { ::kill(pid_, SIGCONT); }

 private:
  const pid_t pid_;
};

}  // namespace tutti::comm::testing
