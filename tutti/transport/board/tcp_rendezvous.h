#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/net/credentials.h"
#include "tutti/net/stream.h"
#include "tutti/transport/rendezvous.h"

// Boards of keys that tasks reach over the network. A board is a service like any other (tutti/rpc): callers
// prove that they know the secret, and with certificates the connections are encrypted.
namespace tutti::comm {

inline constexpr const char* kForRanks = "ranks";

struct ServeOptions {
  std::string host = "127.0.0.1";     // "": all addresses of this machine
  uint16_t port = 0;                  // 0: any free port
  net::Credentials credentials = {};  // the secret is what only those know who are admitted
  std::string purpose = kForRanks;    // of those who use it; others do not find it
  // Called from another thread with a line for the log when a client is refused.
  std::function<void(const std::string& text)> report = {};
  // How long the board's destructor waits for its clients to leave. It tells the remaining clients that the
  // board has ended in good order.
  std::chrono::milliseconds farewell{2000};
  // The keys that a client holds are removed if the client was silent for this long. A client that was
  // stopped may go on later.
  std::chrono::milliseconds silence = net::kAnySilence;
};

// A board as used by the process that serves it.
class ServedBoard : public LocalRendezvous {
 public:
  // Admits no further clients. Those who are connected stay. The port is free afterwards.
  virtual void stop_listening() = 0;
};

struct ServedRendezvous {
  std::shared_ptr<ServedBoard> board;
  uint16_t port = 0;
};

// Serves a board that tasks on any machine can reach, until the returned board is destroyed. Throws
// Overloaded if the port is taken, and InvalidArgument if the host is not this machine. Thread-safe.
ServedRendezvous serve_tcp_rendezvous(const ServeOptions& options);

struct FindOptions {
  std::vector<std::string> hosts;  // names or numeric addresses
  uint16_t port = 0;
  net::Credentials credentials = {};
  std::string purpose = kForRanks;
  net::CertificateName name = net::CertificateName::Any;
  std::string holder = "rank 0 of the job";  // who serves it, for messages
  // One of the addresses may lead to another machine, as addresses of containers do. A process that listens
  // there and is no board is then not an error, as long as another address may answer.
  bool several_machines = false;
  std::chrono::milliseconds timeout{60000};
  // How long a call of the board waits for its answer. The board has threads of its own, but its machine may
  // be busy, or its process stopped.
  std::chrono::milliseconds answer{5000};
};

// The result of one attempt.
struct FindAttempt {
  std::shared_ptr<Rendezvous> board;  // null: none was found
  std::string host;                   // where the board or the obstacle is
  std::string obstacle;
  bool listens = false;     // a process listens there, but does not answer like such a board
  bool refused = false;     // a board of this purpose is there, but not for this task
  bool overloaded = false;  // a board of this purpose is there, but cannot take one more caller
};

// Tries all hosts once, each for `timeout`, but at most three seconds. Thread-safe.
FindAttempt try_tcp_rendezvous(const FindOptions& options);

struct FoundRendezvous {
  std::shared_ptr<Rendezvous> board;
  std::string host;
};

// Waits until one of these hosts answers, and returns the board that it serves. Throws a Timeout that says
// whether no process listens there, or one that is not such a board, InvalidArgument if this task is refused,
// and Overloaded if the board has no thread for it for several seconds. Calls of a board that has ended throw
// PeerLost. Thread-safe.
FoundRendezvous find_tcp_rendezvous(const FindOptions& options);

}  // namespace tutti::comm
