#pragma once

#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "tutti/base/error.h"

namespace tutti {

// Starts a thread that runs `body`. Throws Overloaded if the system cannot start more threads; `what` is the
// purpose of the thread for the message, such as "serving the board of the ranks".
template <class Body>
std::thread start_thread(std::string_view what, Body body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    fail(ErrorKind::Overloaded,
         "{}: the system cannot start more threads ({}). Raise the limit on processes (ulimit -u, or "
         "pids.max of the control group), or stop other programs",
         what, error.what());
  }
}

// Throws Overloaded unless the system can start `count` more threads at the same time. For libraries that
// hang, or abort the process, if they cannot start their own.
void require_threads(int count, std::string_view what);

}  // namespace tutti
