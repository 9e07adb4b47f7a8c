#include "tutti/transport/mpi/library.h"

#include <filesystem>
#include <sched.h>
#include <thread>

#include "tutti/base/error.h"

namespace tutti::comm::mpi {
namespace {

// Not a member of Library: setting it must not initialise MPI.
std::atomic<bool> may_finalise{true};

}  // namespace

void check(int code, const char* file, int line) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int size = 0;
  MPI_Error_string(code, text, &size);
  fail(ErrorKind::PeerLost, "MPI reports '{}' ({}:{})", text, std::filesystem::path(file).filename().string(),
       line);
}

void never_finalise() noexcept { may_finalise = false; }

Library& Library::get() {
  static Library library;
  return library;
}

Library::Library() {
  int there = 0;
  check(MPI_Initialized(&there));
  int level = MPI_THREAD_SINGLE;
  if (there != 0) {
    check(MPI_Query_thread(&level));
  } else {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level));
    ours_ = true;
  }
  one_thread_ = level < MPI_THREAD_MULTIPLE;
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
}

Library::~Library() {
  int done = 1;
  MPI_Finalized(&done);
  if (ours_ && may_finalise && done == 0) MPI_Finalize();
}

void Library::leave_to_mpi(std::shared_ptr<void> memory) {
  const auto one_at_a_time = lock();
  left_.push_back(std::move(memory));
}

void Library::stop() {
  stopped_ = true;
  never_finalise();
}

void Library::require_usable() const {
  if (stopped_)
    fail(ErrorKind::PeerLost,
         "MPI can no longer be used, since it has a message in progress that cannot be cancelled");
}

Group Group::make(MPI_Comm world, const std::vector<int>& ranks, int tag) {
  Library::get().require_usable();
  const auto lock = Library::get().lock();
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group some = MPI_GROUP_NULL;
  MPI_Comm group = MPI_COMM_NULL;
  check(MPI_Comm_group(world, &all));
  check(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some));
  check(MPI_Comm_create_group(world, some, tag, &group));
  check(MPI_Group_free(&some));
  check(MPI_Group_free(&all));
  check(MPI_Comm_set_errhandler(group, MPI_ERRORS_RETURN));
  return Group(group);
}

Group::~Group() {
  // If a message is still in progress, freeing would wait for it.
  if (group_ == MPI_COMM_NULL || broken_ || Library::get().stopped()) return;
  const auto lock = Library::get().lock();
  MPI_Comm_free(&group_);
}

int rank_in(MPI_Comm group) {
  int rank = 0;
  check(MPI_Comm_rank(group, &rank));
  return rank;
}

std::vector<int> ranks_of(MPI_Comm group) {
  int world = 0;
  check(MPI_Comm_size(group, &world));
  std::vector<int> ranks(static_cast<size_t>(world));
  for (int r = 0; r < world; ++r) ranks[static_cast<size_t>(r)] = r;
  return ranks;
}

void Backoff::wait() {
  ++waited_;
  if (waited_ < 100) return;
  if (waited_ < 2000) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace tutti::comm::mpi
