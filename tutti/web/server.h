#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tutti/net/listener.h"
#include "tutti/web/http.h"

namespace tutti::web {

struct ServerOptions {
  Admission admission = {};
  // The time that a connection may take, from its begin to its end.
  std::chrono::milliseconds patience{5000};
  // With one more, the oldest connection is closed.
  size_t most_connections = 32;
};

// Answers requests at HOST:PORT, in one thread, which sleeps while nobody asks. A caller that is slow, silent
// or sends too much holds up nobody else.
class Server {
 public:
  // Called on the server's thread. An exception is an answer with the status 500.
  using Handler = std::function<Answer(const Request&)>;

  // Throws Overloaded if the port is in use.
  Server(const std::string& address, Handler handler, ServerOptions options = {});
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const { return listener_.port(); }

 private:
  class Connection;

  void serve();
  void accept_one(std::vector<Connection>& connections) const;
  std::string answer(const Request& request) const;

  const net::Listener listener_;
  const Handler handler_;
  const ServerOptions options_;
  std::atomic<bool> stops_ = false;
  std::thread thread_;  // last member, so that it starts last
};

}  // namespace tutti::web
