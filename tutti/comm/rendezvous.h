#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace tutti::comm {

// A small table of texts that all ranks of a job can reach: where they find one another, and leave word when
// something goes wrong. Not for tensors. Thread-safe.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits until somebody has set it; a Timeout names the key.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
  virtual std::optional<std::string> peek(const std::string& key) = 0;
  // The first value that comes stays. Returns the one that is there afterwards.
  virtual std::string set_once(const std::string& key, const std::string& value) = 0;
};

// One table in this process, for ranks that are threads.
std::shared_ptr<Rendezvous> local_rendezvous();

// The same table under keys that begin with `prefix`.
std::shared_ptr<Rendezvous> with_prefix(std::shared_ptr<Rendezvous> table, const std::string& prefix);

}  // namespace tutti::comm
