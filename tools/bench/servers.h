#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/cluster/context.h"

namespace tutti::bench {

// The transport between a worker and its servers.
enum class Carrier {
  Memory,   // shared memory on one machine, else the network
  Network,  // the network, even on one machine
};
std::string_view name_of(Carrier carrier);
// Parses "all", "memory" or "network".
std::vector<Carrier> parse_carriers(std::string_view text);

// The result of one size over one carrier, for all workers together. Times are in seconds.
struct ServerRow {
  Carrier carrier = Carrier::Memory;
  int64_t bytes = 0;  // in one direction
  int64_t calls = 0;  // of all workers
  double median = 0;  // of the slowest worker
  double p99 = 0;
  double calls_per_second = 0;  // of all workers
  double server_seconds = 0;    // CPU time of the servers per call
};

// Measures a worker's push and pull: a gradient of this size goes to the servers, which apply it by plain
// SGD, and the new values return, as in ps-async. Every worker must create one and make the same calls.
class Servers {
 public:
  // `seconds` is the approximate time per row. There are at least five calls. The context must outlive this.
  Servers(const Context& context, double seconds);
  ~Servers();
  Servers(const Servers&) = delete;
  Servers& operator=(const Servers&) = delete;

  // Checks at the end that every value is the result of the pushes of all workers; throws DataLoss otherwise.
  // Only the chief's return value is meaningful.
  ServerRow measure(int64_t bytes, Carrier carrier);
  // Ends the servers. To be called by the chief after the last measurement, if there was one.
  void end();

 private:
  struct Worker;
  void begin(const std::string& key);
  void await_all();
  std::vector<double> time();
  ServerRow gather(const std::string& key, const std::vector<double>& seconds);

  const Context& context_;
  const double seconds_;
  std::unique_ptr<Worker> worker_;  // for the latest row
  int64_t meetings_ = 0;            // number of meetings so far, as the servers count
  int64_t rows_ = 0;
};

// Return lines of a table, without the newline.
std::string server_heading();
std::string line_of(const ServerRow& row);
// Explains the columns.
std::string server_legend();

Json to_json(const std::vector<ServerRow>& rows, int servers, int workers);

}  // namespace tutti::bench
