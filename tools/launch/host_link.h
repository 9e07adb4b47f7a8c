#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/identity.h"

// The messages between `tutti run -H` and the host launchers that it starts on the hosts, over the standard
// streams of the host launchers. A host launcher first prints a HostReady, then reads a HostJob and orders,
// and at the end prints its exit code; each is one line. Everything else that it prints is output.
namespace tutti {

// The hidden command of the host launcher. Its only argument is the number of tasks.
inline constexpr const char* kHostLauncher = "run-host";
// The first word of the lines that are not output. No task can print such a line, since the lines of tasks
// have a prefix.
inline constexpr std::string_view kHostMark = "tutti-run-host/1 ";

struct HostReady {
  std::string version;
  std::vector<int> ports;  // free ones, one per task
  // SSH_CONNECTION, if the host launcher was started by ssh: the addresses of both ends, "" if unknown.
  std::string client_address;
  std::string own_address;
};

// With --min: the launcher that keeps the list of the workers, and the place of the host in the job.
struct HostOfMembers {
  std::vector<std::string> addresses = {};  // of the first launcher
  int port = 0;
  int host = 0;  // the index of this host

  bool operator==(const HostOfMembers&) const = default;
};

// The tasks for one host.
struct HostJob {
  std::string host;  // the name of this host, as the user has given it
  std::string directory;
  std::vector<std::string> command;
  std::map<std::string, std::string> variables;
  ClusterSpec cluster;
  std::string launch;  // Identity::launch
  std::vector<Task> tasks;
  int store_port = 0;  // as Spread::store_port
  int evaluator_restarts = 0;
  std::chrono::milliseconds grace{0};  // as LaunchOptions::grace
  std::optional<HostOfMembers> members = {};
};

// Ends the tasks: by this signal, and by SIGKILL after the grace time.
struct Order {
  int signal = 0;
  std::chrono::milliseconds grace{0};
};

// Formats a message, including the newline. A text that is not UTF-8 is an InvalidArgument.
std::string to_line(const HostReady& ready);
std::string to_line(const HostJob& job);
std::string to_line(const Order& order);
std::string end_line(int exit_code);

// Parses a line of a host launcher. Returns nullopt if it is not a message of this kind. A damaged message is
// a DataLoss.
std::optional<HostReady> read_ready(std::string_view line);
std::optional<int> read_end(std::string_view line);

// Reads a message in JSON by this function. A field that is missing or of another type is a DataLoss.
template <class Read>
auto parse_message(std::string_view text, const Read& read) {
  constexpr const char* kWhat = "the message of a launcher";
  const Json json = parse_json(text, kWhat, ErrorKind::DataLoss);
  try {
    return read(json);
  } catch (const Json::exception& error) {
    fail(ErrorKind::DataLoss, "{}: {}", kWhat, error.what());
  }
}

// Sent if there is no other message, so that the host launcher notices a broken connection.
inline constexpr std::string_view kHeartbeat = "\n";
inline constexpr std::chrono::seconds kHeartbeatInterval{10};

// The standard input of a host launcher. Not thread-safe.
class LauncherOrders {
 public:
  // After `silence` without a line from the launcher, and at the end of the stream, the connection is lost.
  explicit LauncherOrders(int descriptor, std::chrono::milliseconds silence = std::chrono::seconds(60));

  // For poll(2); -1 after the connection was lost.
  int descriptor() const { return lost_ ? -1 : descriptor_; }
  // Waits for the job. Throws PeerLost if the launcher does not send it in time.
  HostJob await_job(std::chrono::milliseconds patience);
  // Returns the next order, if there is one, without waiting. After the connection was lost, returns the
  // order
  // SIGKILL once.
  std::optional<Order> next();

 private:
  using Clock = std::chrono::steady_clock;

  std::optional<std::string> read_line(std::chrono::milliseconds patience);

  const int descriptor_;
  const std::chrono::milliseconds silence_;
  std::string received_;
  bool lost_ = false;
  bool told_ = false;  // that it is lost
  Clock::time_point last_heard_ = Clock::now();
};

}  // namespace tutti
