#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/transport/transport.h"

namespace tutti::comm {

// Allocates memory that all ranks of a group share. Thread-compatible.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  virtual std::string name() const = 0;
  virtual int rank() const = 0;
  virtual int world() const = 0;
  // The rank's name in error messages: "worker/3 (pid 1234)".
  virtual const std::string& who(int rank) const = 0;

  // Returns memory filled with zeros. Every rank must call this with the same size. Throws PeerLost if a rank
  // ends meanwhile and Timeout if one is late; both name it. Calls `look_up`, which may throw, while waiting.
  virtual SharedRegion allocate(size_t size, const Operation& operation,
                                const std::function<void()>& look_up) = 0;
  // Returns true if the operating system reports that the rank's process has ended.
  virtual bool has_ended(int rank) = 0;
  // Returns true if a signal (SIGSTOP, Ctrl-Z) has stopped it. Like has_ended(), callable from any thread.
  virtual bool is_stopped(int rank) = 0;

  virtual std::unique_ptr<SharedMemory> split(const std::vector<int>& ranks, const std::string& name) = 0;
};

}  // namespace tutti::comm
