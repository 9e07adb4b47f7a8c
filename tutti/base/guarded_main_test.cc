#include "tutti/base/guarded_main.h"

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <new>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>

#include "tutti/base/error.h"
#include "tutti/base/hashes.h"

namespace tutti::guarded_main_test {
namespace {

struct Ended {
  int code;
  std::string text;
};

template <class Thrown>
Ended throwing(const Thrown& thrown) {
  testing::internal::CaptureStderr();
  const int code = guarded_main([&]() -> int { throw thrown; });
  return {code, testing::internal::GetCapturedStderr()};
}

TEST(GuardedMain, prints_an_error_with_its_kind_and_returns_its_code) {
  const Ended lost = throwing(Error(ErrorKind::PeerLost, "worker/1 is gone"));
  EXPECT_EQ(lost.code, 10);
  EXPECT_EQ(lost.text, "PeerLost: worker/1 is gone\n");
  const Ended memory = throwing(std::bad_alloc());
  EXPECT_EQ(memory.code, 13);
  EXPECT_THAT(memory.text, testing::StartsWith("Overloaded: out of memory"));
  const Ended early = throwing(Interrupted(0, "stopped early"));
  EXPECT_EQ(early.code, 0);
  EXPECT_EQ(early.text, "stopped early\n");
  const Ended signal = throwing(Interrupted(15, "stopped"));
  EXPECT_EQ(signal.code, 143);
  EXPECT_EQ(signal.text, "stopped\n");
  const Ended other = throwing(std::runtime_error("first\nsecond"));
  EXPECT_EQ(other.code, 1);
  EXPECT_EQ(other.text, "error: first\n");
  EXPECT_EQ(guarded_main([] { return 7; }), 7);
}

TEST(GuardedMain, ends_with_overloaded_if_memory_runs_out_in_a_thread_that_does_not_catch_it) {
  const auto end_in_thread = [](const auto& thrown) {
    guarded_main([&] {
      std::thread([&] { throw thrown; }).join();
      return 0;
    });
  };
  EXPECT_EXIT(end_in_thread(std::bad_alloc()), testing::ExitedWithCode(13), "Overloaded: out of memory");
  EXPECT_EXIT(end_in_thread(std::runtime_error("can't allocate memory: 7 bytes")),
              testing::ExitedWithCode(13), "Overloaded: can't allocate memory");
  EXPECT_EXIT(end_in_thread(std::runtime_error("a bug")), testing::KilledBySignal(SIGABRT), "a bug");
}

struct CrashesAtExit {
  ~CrashesAtExit() { std::abort(); }
};

TEST(GuardedMain, after_overloaded_no_static_object_is_destroyed) {
  const auto exit_after = [](ErrorKind kind) {
    static const CrashesAtExit kLibrary;
    std::exit(guarded_main([kind]() -> int { throw Error(kind, "no more threads"); }));
  };
  EXPECT_EXIT(exit_after(ErrorKind::Overloaded), testing::ExitedWithCode(13), "no more threads");
  EXPECT_EXIT(exit_after(ErrorKind::PeerLost), testing::KilledBySignal(SIGABRT), "no more threads");
}

// OpenMP calls exit() in any thread if it cannot start one.
TEST(GuardedMain, an_exit_before_its_end_destroys_nothing_that_threads_may_use) {
  const auto exit_within = [] {
    static const CrashesAtExit kLibrary;
    guarded_main([] {
      std::atexit([] { std::fputs(Sha256().hex().substr(0, 8).c_str(), stderr); });
      const std::string before = Sha256().hex();
      std::thread([] { std::exit(1); }).join();
      return 0;
    });
  };
  EXPECT_EXIT(exit_within(), testing::ExitedWithCode(1), "e3b0c442");
}

TEST(GuardedMain, text_that_could_not_be_written_is_an_error) {
  const auto print_to = [](const char* path) {
    static_cast<void>(std::freopen(path, "w", stdout));
    std::exit(guarded_main([] {
      std::puts("exports/1");
      return 0;
    }));
  };
  EXPECT_EXIT(print_to("/dev/full"), testing::ExitedWithCode(13), "writing standard output");
  EXPECT_EXIT(print_to("/dev/null"), testing::ExitedWithCode(0), "");
}

TEST(GuardedMain, every_exit_code_has_a_meaning) {
  EXPECT_EQ(meaning_of_exit_code(throwing(Error(ErrorKind::InvalidArgument, "")).code), "InvalidArgument");
  EXPECT_EQ(meaning_of_exit_code(throwing(Error(ErrorKind::Bug, "")).code), "Bug");
  EXPECT_EQ(meaning_of_exit_code(throwing(std::bad_alloc()).code), "Overloaded");
  EXPECT_EQ(meaning_of_exit_code(throwing(std::runtime_error("")).code), "an error of the program");
  EXPECT_EQ(meaning_of_exit_code(throwing(Interrupted(15, "")).code), "SIGTERM");
  for (const int none : {-1, 0, 3, 9, 71, 128, 255, 256}) EXPECT_EQ(meaning_of_exit_code(none), "") << none;
}

// The files that a process opens next must not get the numbers of closed standard streams.
TEST(GuardedMain, closed_standard_streams_are_replaced_by_the_null_device) {
  for (const std::array<bool, 3> closed :
       {std::array{true, false, false}, {false, true, false}, {false, false, true}, {true, true, true}}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int stream = 0; stream < 3; ++stream) {
        if (closed[static_cast<size_t>(stream)]) close(stream);
      }
      _exit(guarded_main([] { return ::open("/", O_RDONLY) > 2 && ::write(1, "", 0) == 0 ? 0 : 1; }));
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << testing::PrintToString(closed);
  }
}

}  // namespace
}  // namespace tutti::guarded_main_test
