#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/c/tutti.h"
#include "tutti/transport/ranks.h"

// The handles, and the checks that several functions of the interface make.

// NOLINTBEGIN(readability-identifier-naming): the names of the interface
struct tutti_comm {
  std::unique_ptr<tutti::comm::Ranks> ranks;
  int local_rank = 0;
  int local_world = 1;
  std::string transport;
};

struct tutti_work {
  tutti::comm::Work work;
};
// NOLINTEND(readability-identifier-naming)

namespace tutti::c {

using comm::Ranks;

// Keeps the text for tutti_error_text(), and returns the status.
tutti_status failed(tutti_status status, const char* text) noexcept;
tutti_status status_of(ErrorKind kind);

// No exception leaves the library.
template <class Body>
tutti_status guarded(const Body& body) noexcept {
  try {
    body();
    return TUTTI_OK;
  } catch (const Error& error) {
    return failed(status_of(error.kind()), error.what());
  } catch (const std::bad_alloc&) {
    return failed(TUTTI_OVERLOADED, "memory ran out");
  } catch (const std::exception& error) {
    return failed(TUTTI_BUG, error.what());
  } catch (...) {
    return failed(TUTTI_BUG, "an exception of an unknown type");
  }
}

// Options of a caller that knows fewer fields are complete with zeros, and those of one that knows more are
// refused: the library would ignore what it asks for.
template <class Struct>
Struct known(const Struct* given, const char* call) {
  Struct all{};
  if (given == nullptr) return all;
  if (given->size == 0 || given->size > sizeof(Struct))
    fail(ErrorKind::InvalidArgument,
         "{}: the `size` of its options is {}, but they have {} bytes. Set it to their sizeof, and use the "
         "header of "
         "this library",
         call, given->size, sizeof(Struct));
  std::memcpy(&all, given, given->size);
  return all;
}

inline std::chrono::milliseconds time_of(double seconds, const char* call) {
  if (!(seconds >= 0)) fail(ErrorKind::InvalidArgument, "{}: a timeout of {} seconds", call, seconds);
  return milliseconds_of(seconds);
}

inline Ranks& ranks_of(tutti_comm* comm, const char* call) {
  if (comm == nullptr) fail(ErrorKind::InvalidArgument, "{}: the communicator is NULL, or was closed", call);
  return *comm->ranks;
}

inline void require_rank(int rank, const Ranks& ranks, const char* call) {
  if (rank < 0 || rank >= ranks.world())
    fail(ErrorKind::InvalidArgument, "{}: there is no rank {}; there are {} ranks", call, rank,
         ranks.world());
}

inline comm::Array array_of(const void* values, size_t count, tutti_type type, const char* call) {
  const comm::Array array{static_cast<std::byte*>(const_cast<void*>(values)), static_cast<ElementType>(type),
                          static_cast<int64_t>(count)};
  if (size_of(array.type) == 0)
    fail(ErrorKind::InvalidArgument, "{}: there is no type {}", call, static_cast<int>(type));
  if (count > PTRDIFF_MAX / size_of(array.type))
    fail(ErrorKind::InvalidArgument, "{}: {} elements are not a size", call, count);
  if (values == nullptr && count > 0)
    fail(ErrorKind::InvalidArgument, "{}: a buffer of {} elements is NULL", call, count);
  return array;
}

// A function that was passed to tutti_then() may run in the thread that carries operations out, which would
// wait for itself.
inline void require_may_wait(const char* call) {
  if (comm::Executor::is_in_callback())
    fail(ErrorKind::InvalidArgument,
         "{}: a function that was passed to tutti_then() cannot wait for an operation, since it runs in the "
         "thread "
         "that carries operations out. Wait in another thread",
         call);
}

// Begins an operation by begin(options), and waits for it unless it runs behind.
template <class Begin>
tutti_status carry_out(const char* call, const tutti_options* given, const Begin& begin) {
  return guarded([&] {
    comm::Options options;
    tutti_work** kept = nullptr;
    if (given != nullptr) {
      const tutti_options asked = known(given, call);
      options.timeout = time_of(asked.timeout_seconds, call);
      if (asked.what != nullptr) options.what = asked.what;
      options.any_order = asked.any_order != 0;
      kept = asked.work;
    }
    if (kept == nullptr) require_may_wait(call);
    std::unique_ptr<tutti_work> work;
    if (kept != nullptr) {
      work = std::make_unique<tutti_work>();
      options.run = comm::Run::Behind;
    }
    const comm::Work running = begin(options);
    if (kept == nullptr) return running.wait();
    work->work = running;
    *kept = work.release();
  });
}

}  // namespace tutti::c
