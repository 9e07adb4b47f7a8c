#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/base/log.h"
#include "tutti/web/server.h"
#include "tutti/web/status.h"

namespace tutti::web {

// The page of a process about its trainings (--web). Hooks tell it about them, and a thread answers callers.
// Thread-safe.
class Page {
 public:
  explicit Page(Status status) : status_(std::move(status)) {}

  // Begins to answer at HOST:PORT; does nothing if it does so already. Throws as Server.
  void serve(const std::string& host, int port, const Admission& admission);
  // Returns the HOST:PORT at which this machine reaches the page, "" if it is not served.
  std::string address() const;

  // Changes what is known of a training. `change` must not wait for anything.
  void update(const std::string& training, const std::function<void(TrainingStatus&, const Moment&)>& change);
  // Adds an event, of now or of this Unix time.
  void note(LogLevel level, std::string_view text, std::optional<double> time = {});

  Answer answer(const Request& request) const;

 private:
  mutable std::mutex mutex_;
  Status status_;                   // guarded by mutex_
  std::string address_;             // likewise
  std::unique_ptr<Server> server_;  // last member, so that it ends first; made under mutex_
};

}  // namespace tutti::web
