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

// Serves a table of this process to clients that know the key, in one thread. Removes what a client holds
// when its connection ends. A client that has not proved
// this yet (a stranger) may send kAnswerSize bytes and has a few seconds; if there are many strangers, the
// oldest is disconnected. Nothing that one client sends or fails to send makes the others wait.
//
// The destructor waits up to `farewell` until the clients have left, and tells the remaining ones that the
// table ended in good order.
class Server {
 public:
  Server(std::vector<Listening> listeners, const ServeOptions& options,
         std::shared_ptr<LocalRendezvous> table);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Returns once the port is free. The clients stay connected.
  void stop_listening();

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
    std::vector<std::string> held = {};  // keys
  };

  void serve();
  bool over() const;
  void wait();
  void wake();
  void take_orders();
  void accept_all();
  void accept_from(const Listening& listener);
  void make_room();
  bool drop_oldest_stranger();
  void attend(Client& client);
  bool receive(Client& client);
  void read_answer(Client& client);
  void report_refusal(const Client& client, std::string_view why);
  Reply answer(Client& client, const Request& request);
  void send(Client& client);
  void close(Client& client);
  void forget_closed();
  void say_goodbye();

  const ServeOptions options_;
  const std::shared_ptr<LocalRendezvous> table_;  // shared with the process that serves it
  const FileDescriptor wake_;                     // an event that tells the thread to look at its orders
  std::atomic<bool> ending_ = false;
  std::atomic<bool> closing_ = false;
  std::atomic<bool> listening_ = true;

  std::vector<Listening> listeners_;  // all below: used only by the thread
  std::list<Client> clients_;         // the oldest first
  Clock::time_point accepts_again_{};
  Clock::time_point ends_at_ = Clock::time_point::max();
  int reports_ = 0;
  size_t bytes_ = 0;  // approximate size of the entries that clients have set

  std::thread thread_;  // last: it uses the members above
};

}  // namespace tutti::comm::table
