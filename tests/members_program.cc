// The program of run_members_test: workers that do nothing but keep in step, and go on without those that are
// lost. members_program FOLDER [FACT]...; all must have the same facts. Files in FOLDER say what happens:
//   finish          all end with 0 after their step
//   fail-WORKER     this worker ends with 3, or with the exit code in the file
//   late-EPOCH      in this epoch workers no longer wait for others
//   fixed           the launcher hears that the members cannot change
//   untrained       the training has not begun, until the file is gone
//   hold            workers that come back wait before they ask for a place, until the file is gone
//   broken          workers that come back fail before they ask for a place
//   config          has one more fact
#include <atomic>
#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tutti/base/address.h"
#include "tutti/base/environment.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/text.h"
#include "tutti/base/this_host.h"
#include "tutti/cluster/identity.h"
#include "tutti/transport/board/follow.h"
#include "tutti/transport/job_board.h"
#include "tutti/transport/members.h"

namespace tutti {
namespace {

using comm::Call;
using comm::Member;
using comm::Members;
using comm::MembersBoard;

std::atomic<bool> told_to_stop{false};

void take_a_breath() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

int number_in(const Environment& environment, const char* name) {
  return static_cast<int>(parse_int(environment.get(name).value_or("")).value());
}

std::string secret_in(const Environment& environment) {
  return comm::members_secret(
      environment.get(kLaunchVariable).value(),
      environment.get(kSecretVariable).value_or(environment.get("TUTTI_SECRET").value_or("")));
}

std::shared_ptr<comm::Rendezvous> find_board(const Environment& environment) {
  const auto timeout = parse_double(environment.get("TUTTI_TIMEOUT").value_or("60")).value();
  return comm::follow_members_board(
      {.address = environment.get(kMembersVariable).value(),
       .secret = secret_in(environment),
       .timeout = std::chrono::milliseconds(static_cast<int64_t>(1000 * timeout))});
}

class Worker {
 public:
  Worker(const Environment& environment, std::string folder, std::vector<std::string> facts)
      : folder_(std::move(folder)),
        self_{number_in(environment, "TUTTI_TASK_INDEX"), number_in(environment, kLifeVariable)},
        board_(find_board(environment), self_),
        job_board_{.address = environment.get(kMembersVariable).value(),
                   .host = host_name(),
                   .secret = secret_in(environment)} {
    if (exists("config")) facts.push_back(read_file(folder_ + "/config"));
    board_.set_facts({fmt::format("worker/{} on {}", self_.worker, host_name()), std::move(facts)});
    comm::write_job_board(folder_, job_board_);
  }

  // Returns the exit code.
  int run() {
    Members members = self_.life == 0 ? board_.at(0) : join();
    while (true) {
      const std::optional<Call> call = take_part(members);
      if (!call) return told_to_stop ? 128 + SIGTERM : exit_code();
      members = board_.await_next(*call);
    }
  }

 private:
  bool exists(const std::string& file) const { return path_exists(folder_ + "/" + file); }

  int exit_code() const {
    const std::string fail = fmt::format("fail-{}", self_.worker);
    return exists(fail) ? static_cast<int>(parse_int(read_file(folder_ + "/" + fail)).value_or(3)) : 0;
  }

  void begin_training(int rank) const {
    if (rank == 0 && !board_.fit() && !exists("untrained")) board_.set_fit(0);
  }

  Members join() {
    std::printf("is back, pid %d\n", getpid());
    std::fflush(stdout);
    while (exists("hold") && !told_to_stop) take_a_breath();
    if (exists("broken")) fail(ErrorKind::InvalidArgument, "this worker is broken");
    return board_.await_next({.why = Call::Why::Joins, .facts = board_.facts()});
  }

  // If the board is lost, so is the epoch.
  std::optional<Call> take_part(const Members& members) {
    try {
      board_.set_entered(members.epoch);
      if (exists("fixed")) board_.board()->set(comm::kFixedKey, "the test says so");
      if (members.rank_of(self_) == 0) comm::write_job_board(folder_, job_board_);  // as the chief does
      begin_training(*members.rank_of(self_));
      std::printf("pid %d, worker %d, life %d, rank %d of %d, epoch %d\n", getpid(), self_.worker, self_.life,
                  *members.rank_of(self_), static_cast<int>(members.by_rank.size()),
                  static_cast<int>(members.epoch));
      std::fflush(stdout);
      return stay_in(members);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PeerLost && error.kind() != ErrorKind::Timeout) throw;
      return Call{members.epoch, Call::Why::Lost, error.what()};
    }
  }

  // Makes steps until the members change, or returns nullopt at the end. In each step all wait for all; the
  // word of rank 0 says how they go on.
  std::optional<Call> stay_in(const Members& members) {
    const int rank = *members.rank_of(self_);
    for (int64_t step = 0;; ++step) {
      const auto key = [&](size_t of) { return fmt::format("rank/{}/{}/{}", members.epoch, of, step % 2); };
      std::string word = "go";
      if (rank == 0 && board_.change_is_due(members.epoch)) word = "change";
      begin_training(rank);
      if (rank == 0 && exists("finish")) word = "finish";
      board_.board()->set(key(static_cast<size_t>(rank)), fmt::format("{} {}", step, word));
      for (size_t other = 0; other < members.by_rank.size(); ++other) {
        std::optional<std::string> said;
        while (!said || !said->starts_with(fmt::format("{} ", step))) {
          if (told_to_stop || exists(fmt::format("fail-{}", self_.worker))) return std::nullopt;
          if (comm::has_later(*board_.board(), members.epoch))
            return Call{members.epoch, Call::Why::Lost, "lost another worker"};
          if (exists(fmt::format("late-{}", members.epoch)))
            return Call{members.epoch, Call::Why::Late, "another worker is late"};
          said = board_.board()->peek(key(other));
          take_a_breath();
        }
        if (other == 0) word = said->substr(said->find(' ') + 1);
      }
      if (word == "finish") return std::nullopt;
      if (word == "change") return Call{members.epoch, Call::Why::Change, ""};
    }
  }

  const std::string folder_;
  const Member self_;
  const MembersBoard board_;
  const comm::JobBoard job_board_;
};

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  signal(SIGTERM, [](int) { tutti::told_to_stop = true; });
  try {
    return tutti::Worker(tutti::Environment::of_process(), argv[1], {argv + 2, argv + argc}).run();
  } catch (const tutti::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return tutti::exit_code(error.kind());
  }
}
