#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/signal_pipe.h"
#include "tutti/base/log.h"

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
  // HOST:PORT of the first host, where they meet; or of all hosts in their order.
  std::vector<std::string> addresses = {};
  std::vector<std::string> terms = {};  // must be the same at all launchers, one line each: "--min 2"
  std::string program = {};             // the term that names it
  // The log directory of the job, or "": a launcher that comes again may find the others there as well.
  std::string folder = {};
  // Advice in errors, if the terms differ, and if two launchers have the same index.
  std::string if_terms_differ = {};
  std::string if_index_is_taken = {};
};

class OpenMeeting;

struct MeetingResult {
  std::vector<HostOffer> hosts = {};
  std::string launch = "";                 // identifies this start of the job (Identity::launch)
  size_t keeper = 0;                       // the host whose launcher has the list of the workers
  std::optional<int> signal = {};          // that this process received meanwhile and that ended the wait
  std::shared_ptr<OpenMeeting> open = {};  // if the meeting stays open
};

struct MeetingOptions {
  std::string secret;  // of all launchers; "": there is none
  std::chrono::milliseconds timeout{300'000};
  bool stays_open = false;  // for launchers that come again
};

// Exchanges the offers of the launchers of all hosts. The launcher of the first host serves a board at its
// address (comm/board) until all others have connected. It frees the port before it answers them, since
// workers may listen there next, unless the meeting stays open. A launcher that disconnects before all have
// connected may connect again. If the meeting stays open, a launcher that comes again gets the result from
// the launcher that keeps the list of the workers (open_meeting.h), also the launcher of the first host.
//   Timeout          not all came in time; all that did name the missing ones
//   InvalidArgument  the terms or the secret are not the same on all hosts, or an index is taken
//   Overloaded       the port is in use
//   PeerLost         a launcher disconnected after all had come
MeetingResult meet(const Meeting& meeting, const HostOffer& own, const MeetingOptions& options,
                   SignalPipe& signals, const Log& log);

// Returns the next signal other than SIGCHLD; SIGTERM for SignalPipe::preempt().
std::optional<int> next_stop_signal(SignalPipe& signals);
// Waits at most until the deadline. Returns a signal if one has been received.
std::optional<int> await_signal(SignalPipe& signals, std::chrono::steady_clock::time_point deadline);

}  // namespace tutti
