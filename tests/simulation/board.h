#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tests/simulation/process.h"
#include "tutti/transport/rendezvous.h"

namespace tutti::simulation {

// How long the messages of a board take.
struct BoardDelays {
  Time most = 300;         // microseconds, each way
  double slow_chance = 0;  // of a message that takes up to `slowest`
  Time slowest = 0;
};

// The board as one process sees it: each call is a request and an answer, which take their time. The messages
// of one process stay in order, and arrive although the process is stopped. When a process is killed, the
// request that it has sent last may still arrive, or not.
class SimulatedBoard final : public comm::Rendezvous {
 public:
  SimulatedBoard(std::shared_ptr<comm::LocalRendezvous> board, Process& process, const BoardDelays& delays)
      : board_(std::move(board)), process_(process), delays_(delays) {}

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::optional<std::string> peek(const std::string& key) override;
  std::string set_once(const std::string& key, const std::string& value) override;
  std::string hold(const std::string& key, const std::string& value) override { return set_once(key, value); }
  bool ended() const override { return false; }

 private:
  void call(std::function<void()> request);
  Time delay();

  const std::shared_ptr<comm::LocalRendezvous> board_;
  Process& process_;
  const BoardDelays delays_;
};

}  // namespace tutti::simulation
