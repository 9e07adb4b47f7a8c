#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/transport.h"

namespace tutti::comm {

// Where ranks get memory from that all of them see. Thread-compatible.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  virtual std::string name() const = 0;
  virtual int rank() const = 0;
  virtual int world() const = 0;
  // For people: "worker/3 (pid 1234)".
  virtual const std::string& who(int rank) const = 0;

  // Zeros. Every rank calls it, with one size. A rank that ends meanwhile is a PeerLost, one that is late a
  // Timeout; both name it. While it waits it calls `look_up` every now and then, which may throw.
  virtual SharedBlock allocate(size_t size, const Operation& operation,
                               const std::function<void()>& look_up) = 0;
  // As far as the system knows.
  virtual bool has_ended(int rank) = 0;

  virtual std::unique_ptr<SharedMemory> split(const std::vector<int>& ranks, const std::string& name) = 0;
};

}  // namespace tutti::comm
