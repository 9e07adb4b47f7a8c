#include "tutti/transport/shm/shm.h"

#include <cerrno>
#include <cstddef>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/file.h"
#include "tutti/base/ports.h"
#include "tutti/base/test_errors.h"
#include "tutti/transport/test_messages.h"
#include "tutti/transport/test_network.h"

namespace tutti::comm::shm_test {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kLong;
using testing::names;
using testing::operation;

std::unique_ptr<Transport> first_of(int world, const std::shared_ptr<Rendezvous>& board,
                                    milliseconds timeout = kLong) {
  return shm_transport(board, {.rank = 0, .world = world, .who = names(world), .timeout = timeout});
}

TEST(Shm, names_a_rank_that_does_not_come) {
  expect_error(ErrorKind::Timeout, HasSubstr("connect failed: nothing from worker/1 (host 1) for 0.2 s"),
               [] { first_of(2, std::make_shared<LocalRendezvous>(), milliseconds(200)); });
}

// A single timeout covers everything that the call waits for.
TEST(Shm, waits_no_longer_for_several_than_for_one) {
  const auto board = std::make_shared<LocalRendezvous>();
  std::thread slow([&] {
    for (int rank = 1; rank < 4; ++rank) {
      std::this_thread::sleep_for(milliseconds(300));
      board->set("shm/pid/" + std::to_string(rank), std::to_string(getpid()));
    }
  });
  const auto begin = Clock::now();
  expect_error(ErrorKind::Timeout, HasSubstr("worker/2"), [&] { first_of(4, board, milliseconds(500)); });
  EXPECT_LT(Clock::now() - begin, milliseconds(800));
  slow.join();
}

TEST(Shm, a_rank_that_has_ended_before_all_are_there_is_lost) {
  const pid_t ended = fork();
  if (ended == 0) _exit(0);
  waitpid(ended, nullptr, 0);
  const auto board = std::make_shared<LocalRendezvous>();
  board->set("shm/pid/1", std::to_string(ended));
  expect_error(ErrorKind::PeerLost,
               HasSubstr("worker/1 (host 1) (pid " + std::to_string(ended) + ") is gone"),
               [&] { first_of(2, board); });
}

TEST(Shm, a_rank_that_ends_while_others_wait_for_it_is_lost_at_once) {
  const auto board = std::make_shared<LocalRendezvous>();
  const pid_t other = fork();
  if (other == 0) {
    pause();
    _exit(0);
  }
  board->set("shm/pid/1", std::to_string(other));
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(200));
    kill(other, SIGKILL);
  });
  const auto begin = Clock::now();
  expect_error(ErrorKind::PeerLost,
               AllOf(HasSubstr("connect failed: worker/1 (host 1)"), HasSubstr("is gone")),
               [&] { first_of(2, board); });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  killer.join();
  waitpid(other, nullptr, 0);
}

// Rank 1 has published its memory and then closed it.
TEST(Shm, memory_that_is_no_longer_there_is_a_lost_rank) {
  const auto board = std::make_shared<LocalRendezvous>();
  board->set("shm/pid/1", std::to_string(getpid()));
  board->set("shm/region/0/1", "1000000 17 4096");
  // Sizes are checked first, so the entry must have the right one; it is taken from the error message.
  const std::string other_size =
      error_of(ErrorKind::InvalidArgument, [&] { first_of(2, board, milliseconds(500)); });
  const size_t begin = other_size.find("allocates ") + 10;
  const std::string size = other_size.substr(begin, other_size.find(' ', begin) - begin);
  board->set("shm/region/0/1", "1000000 17 " + size);
  expect_error(ErrorKind::PeerLost, HasSubstr("worker/1 (host 1)"), [&] { first_of(2, board); });
}

TEST(Shm, foreign_entries_in_the_board_are_an_error) {
  for (const char* text : {"", "many", "12 13", "99999999999999999999"}) {
    const auto board = std::make_shared<LocalRendezvous>();
    board->set("shm/pid/1", text);
    expect_error(ErrorKind::DataLoss, HasSubstr(std::string("'") + text + "'"), [&] { first_of(2, board); });
  }
}

// If there is too little memory, allocating it must fail; accessing a page that was not allocated would raise
// a signal.
TEST(Shm, memory_is_there_before_anybody_touches_it) {
  const auto board = std::make_shared<LocalRendezvous>();
  board->set("shm/pid/1", std::to_string(getpid()));
  std::thread waits_for_rank_1([&] { EXPECT_THROW(first_of(2, board, milliseconds(500)), Error); });
  const std::string region = board->get("shm/region/0/0", kLong);  // "DESCRIPTOR INODE SIZE"
  struct stat status {};
  EXPECT_EQ(fstat(std::stoi(region), &status), 0);
  EXPECT_GE(status.st_blocks * 512, std::stoll(region.substr(region.rfind(' '))));
  waits_for_rank_1.join();
}

// The long timeout is for ranks that are busy with other work, not for a rank that is stopped.
TEST(Shm, an_operation_that_may_be_long_ends_where_a_rank_was_stopped) {
  const auto port = static_cast<uint16_t>(free_ports(1)[0]);
  const auto as_rank = [](int rank, const std::shared_ptr<Rendezvous>& board) {
    auto transport =
        shm_transport(board, {.rank = rank, .world = 2, .who = names(2), .timeout = milliseconds(700)});
    transport->sync(operation("barrier", kLong, 117));
    return transport;
  };
  const testing::Child other([&] {
    const auto transport = as_rank(1, testing::find_board(port));
    while (true) pause();
  });
  const auto transport = as_rank(0, testing::serve_board(port).board);
  other.stop();
  expect_error(
      ErrorKind::Timeout,
      AllOf(HasSubstr("barrier at step 118 failed: worker/1 (host 1)"),
            HasSubstr("has been stopped by a signal for 0.7 s; it was last seen in barrier at step 117")),
      [&] { transport->sync(operation("barrier", kLong, 118)); });
}

// Makes pidfd_open fail, as a container's seccomp profile may.
void refuse_pidfd_open(int error) {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(rules), rules};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

TEST(ShmDeathTest, a_system_that_hides_who_lives_is_not_taken_for_a_lost_rank) {
  for (const int error : {ENOSYS, EPERM}) {
    EXPECT_EXIT(
        {
          refuse_pidfd_open(error);
          const std::string found = error_of(ErrorKind::InvalidArgument, check_shared_memory);
          const auto board = std::make_shared<LocalRendezvous>();
          board->set("shm/pid/1", std::to_string(getppid()));
          expect_error(ErrorKind::InvalidArgument, HasSubstr("pidfd_open"), [&] { first_of(2, board); });
          _exit(found.find("pidfd_open") != std::string::npos && !::testing::Test::HasFailure() ? 7 : 1);
        },
        ::testing::ExitedWithCode(7), "");
  }
}

}  // namespace
}  // namespace tutti::comm::shm_test
