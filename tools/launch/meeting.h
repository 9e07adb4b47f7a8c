#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/launch/signal_pipe.h"
#include "tutti/base/log.h"
#include "tutti/comm/board/tcp_rendezvous.h"

namespace tutti {

inline constexpr int kMostWorkersOfAHost = 4096;

// The address and the ports that a host offers to the launchers of the others.
struct HostOffer {
  std::string address = "";     // at which the other hosts reach this one
  std::vector<int> ports = {};  // free ones
  int workers = 1;
  int members_port = 0;       // with --min: where its launcher serves a board (survival_board.h)
  std::string launcher = "";  // a random token of its launcher

  bool operator==(const HostOffer&) const = default;
};

// The place and the terms at which the launcher of a host meets the launchers of the other hosts.
struct Meeting {
  std::vector<std::string> hosts = {};  // their names, for messages: "worker/1 (node7:2222)"
  size_t own = 0;                       // the index of this host
  std::string address = {};             // HOST:PORT of the first host, where they meet
  std::string terms = {};               // must be the same at all launchers
  // Advice in errors, if the terms differ, and if two launchers have the same index.
  std::string if_terms_differ = {};
  std::string if_index_is_taken = {};
};

// The board of a meeting that stays open: a launcher that was lost finds the same result there. Thread-safe.
class OpenMeeting {
 public:
  explicit OpenMeeting(std::shared_ptr<comm::ServedBoard> board) : board_(std::move(board)) {}
  // Nobody gets the result any more. Frees the port.
  void close();

 private:
  const std::shared_ptr<comm::ServedBoard> board_;
};

struct MeetingResult {
  std::vector<HostOffer> hosts = {};
  std::string launch = "";                 // identifies this start of the job (Identity::launch)
  std::optional<int> signal = {};          // that this process received meanwhile and that ended the wait
  std::shared_ptr<OpenMeeting> open = {};  // at the first host, if the meeting stays open
};

struct MeetingOptions {
  std::string secret;  // of all launchers; "": there is none
  std::chrono::milliseconds timeout{300'000};
  bool stays_open = false;  // for launchers that come again
};

// Exchanges the offers of the launchers of all hosts. The launcher of the first host serves a board at its
// address (comm/board) until all others have connected. It frees the port before it answers them, since
// workers may listen there next, unless the meeting stays open. A launcher that disconnects before all have
// connected may connect again.
//   Timeout          not all came in time; all that did name the missing ones
//   InvalidArgument  the terms or the secret are not the same on all hosts, or an index is taken
//   Overloaded       the port is in use
//   PeerLost         a launcher disconnected after all had come
MeetingResult meet(const Meeting& meeting, const HostOffer& own, const MeetingOptions& options,
                   SignalPipe& signals, const Log& log);

// Returns the result of a meeting that has stayed open at this address; nullopt if there is none. `secret` as
// in MeetingOptions. Throws InvalidArgument if it is another one.
std::optional<MeetingResult> find_meeting(const std::string& address, const std::string& secret);

// Returns the next signal other than SIGCHLD; SIGTERM for SignalPipe::preempt().
std::optional<int> next_stop_signal(SignalPipe& signals);
// Waits at most until the deadline. Returns a signal if one has been received.
std::optional<int> await_signal(SignalPipe& signals, std::chrono::steady_clock::time_point deadline);

}  // namespace tutti
