#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/cluster/context.h"

namespace tutti::bench {

// What carries the bytes between a worker and its servers.
enum class Carrier {
  Memory,   // that both see, where they are on one machine; else the network
  Network,  // also where they are on one machine
};
std::string_view name_of(Carrier carrier);
// "all", "memory" or "network".
std::vector<Carrier> parse_carriers(std::string_view text);

// What came of one size over one carrier, of all workers at once. Times are in seconds.
struct ServerRow {
  Carrier carrier = Carrier::Memory;
  int64_t bytes = 0;  // one way
  int64_t calls = 0;  // of all workers
  double median = 0;  // of the slowest worker
  double p99 = 0;
  double calls_per_second = 0;  // of all workers
  double server_seconds = 0;    // of the servers' CPU, a call
};

// Times a worker's push and pull: a gradient of so many bytes goes to the servers, which apply it by plain
// SGD, and the new values come back, as in ps-async. Every worker of a cluster makes one and calls the same.
class Servers {
 public:
  // `seconds`: how long one row takes, roughly. There are at least five calls. The context outlives this.
  Servers(const Context& context, double seconds);
  ~Servers();
  Servers(const Servers&) = delete;
  Servers& operator=(const Servers&) = delete;

  // Checks at the end that every value is what the pushes of all workers make of it, which is a DataLoss if
  // it is not. What it returns is for the chief alone.
  ServerRow measure(int64_t bytes, Carrier carrier);
  // The chief, when something was measured, and nothing more will be: the servers end.
  void end();

 private:
  struct Worker;
  void begin(const std::string& key);
  void await_all();
  std::vector<double> time();
  ServerRow gather(const std::string& key, const std::vector<double>& seconds);

  const Context& context_;
  const double seconds_;
  std::unique_ptr<Worker> worker_;  // of the newest row
  int64_t meetings_ = 0;            // so far, as the servers count them
  int64_t rows_ = 0;
};

// Lines of one table, without the newline.
std::string server_heading();
std::string line_of(const ServerRow& row);
// What its columns are.
std::string server_legend();

Json to_json(const std::vector<ServerRow>& rows, int servers, int workers);

}  // namespace tutti::bench
