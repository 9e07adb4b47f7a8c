#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <poll.h>
#include <string>
#include <vector>

#include "tools/launch/hosts.h"
#include "tools/launch/line_socket.h"
#include "tools/launch/meeting.h"
#include "tools/launch/meeting_words.h"
#include "tools/launch/signal_pipe.h"

namespace tutti {

// The launcher of the first host, to which all others connect. Occupies the port until all are connected.
class MeetingHost {
 public:
  MeetingHost(const JobHosts& hosts, int workers, const MeetingOptions& options, SignalPipe& signals,
              const Log& log);

  MeetingResult run();

 private:
  using Clock = std::chrono::steady_clock;

  // A connected client, which is a launcher once it has sent its hello.
  struct Guest {
    LineSocket socket;
    MeetingProof proof;
    std::optional<Hello> hello;
    Clock::time_point deadline;  // for the hello, and then for the answer
  };

  bool all_here() const;
  void wait_for_events();
  void accept_guests();
  void make_room();
  void listen_to(Guest& guest);
  void take_hello(Guest& guest, const std::string& line);
  std::string why_not(const Hello& hello) const;
  static bool answer(Guest& guest, const Answer& answer);
  void refuse(Guest& guest, const std::string& reason, const std::string& line);
  void dismiss_late(Guest& guest, Clock::time_point now);
  void forget_closed();
  MeetingResult tell_all();
  void await_guests_leaving();
  [[noreturn]] void give_up();
  std::string missing() const;

  const JobHosts& hosts_;
  const int workers_;
  const MeetingOptions& options_;
  const Clock::time_point deadline_ = Clock::now() + options_.timeout;
  SignalPipe& signals_;
  const Log& log_;
  FileDescriptor listener_;

  std::deque<Guest> guests_;  // in the order of connecting
  std::string stranger_;      // the last client that was not a launcher, for the error
};

}  // namespace tutti
