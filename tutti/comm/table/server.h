#pragma once

#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tutti/base/file.h"
#include "tutti/base/net.h"
#include "tutti/comm/rendezvous.h"
#include "tutti/comm/table/protocol.h"
#include "tutti/comm/table/tcp_rendezvous.h"

namespace tutti::comm::table {

// Serves a table of this process to clients that know the key, in one thread. A client that has not proved
// this yet (a stranger) may send kAnswerSize bytes and has a few seconds; if there are many strangers, the
// oldest is disconnected. Nothing that one client sends or fails to send makes the others wait.
//
// The destructor waits up to `farewell` until the clients have left, and tells the remaining ones that the
// table ended in good order.
class Server {
 public:
  Server(std::vector<Listening> listeners, const ServeOptions& options, std::shared_ptr<Rendezvous> table);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  struct Client {
    FileDescriptor socket;
    std::string nonce;
    Clock::time_point deadline;  // for strangers
    bool known = false;          // has proved that it knows the key
    bool leaving = false;        // will be closed when all of `unsent` is sent
    std::string received = {};
    std::string unsent = {};
  };

  void serve();
  bool over() const;
  void wait();
  void accept_all();
  void accept_from(const Listening& listener);
  void make_room();
  bool drop_oldest_stranger();
  void attend(Client& client);
  bool receive(Client& client);
  void read_answer(Client& client);
  void report_refusal(const Client& client);
  Reply answer(const Request& request);
  static void send(Client& client);
  void forget_closed();
  void say_goodbye();

  const ServeOptions options_;
  const std::shared_ptr<Rendezvous> table_;  // shared with the process that serves it
  const FileDescriptor wake_;                // an event that tells the thread to end
  std::atomic<bool> ending_ = false;

  std::vector<Listening> listeners_;  // all below: used only by the thread
  std::list<Client> clients_;         // the oldest first
  Clock::time_point accepts_again_{};
  Clock::time_point ends_at_ = Clock::time_point::max();
  int reports_ = 0;
  size_t bytes_ = 0;  // approximate size of the entries that clients have set

  std::thread thread_;  // last: it uses the members above
};

}  // namespace tutti::comm::table
