#include "tutti/train/stop_signals.h"

#include <csignal>
#include <stdexcept>

#include <gtest/gtest.h>

namespace tutti::stop_signals_test {
namespace {

RunConfig listening() {
  RunConfig config;
  config.training.stop_on_signals = true;
  return config;
}

bool ends_the_process(int signal) {
  struct sigaction action {};
  sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_DFL;
}

TEST(StopSignals, are_recorded_while_it_exists) {
  for (const int signal : {SIGTERM, SIGINT})
    std::signal(signal, SIG_DFL);  // other tests may leave them recorded
  {
    const StopSignals signals(listening());
    std::raise(SIGTERM);
    EXPECT_EQ(signals.received(), SIGTERM);
    EXPECT_TRUE(ends_the_process(SIGTERM)) << "a second one";
    signals.forget();
    EXPECT_FALSE(signals.received());
  }
  EXPECT_TRUE(ends_the_process(SIGTERM));
  EXPECT_TRUE(ends_the_process(SIGINT));
}

// The shell and the kernel each send one when a terminal is closed. `nohup` makes it ignored.
TEST(StopSignals, a_second_hangup_does_not_end_the_process) {
  std::signal(SIGHUP, SIG_DFL);
  {
    const StopSignals signals(listening());
    std::raise(SIGHUP);
    EXPECT_EQ(signals.received(), SIGHUP);
    std::raise(SIGHUP);
    signals.forget();
  }
  EXPECT_TRUE(ends_the_process(SIGHUP));
  std::signal(SIGHUP, SIG_IGN);
  {
    const StopSignals signals(listening());
    std::raise(SIGHUP);
    EXPECT_FALSE(signals.received());
  }
  std::signal(SIGHUP, SIG_DFL);
}

// The launcher, which may have received it too, sends SIGTERM.
TEST(StopSignals, the_signal_of_a_machine_that_is_taken_away_is_no_first_sigterm) {
  StopSignals::also_stop_on(SIGUSR1);
  {
    const StopSignals signals(listening());
    std::raise(SIGUSR1);
    EXPECT_EQ(signals.received(), SIGTERM);
    EXPECT_FALSE(ends_the_process(SIGTERM));
    std::raise(SIGUSR1);
    std::raise(SIGTERM);
    EXPECT_EQ(signals.received(), SIGTERM);
    EXPECT_TRUE(ends_the_process(SIGTERM)) << "a second one";
    signals.forget();
  }
  std::signal(SIGUSR1, SIG_DFL);
}

// The launcher ends all tasks when one is lost, while the others are about to say that.
TEST(StopSignals, do_not_silence_a_training_that_fails) {
  try {
    const StopSignals signals(listening());
    throw std::runtime_error("worker/1 is gone");
  } catch (const std::runtime_error&) {
    std::raise(SIGTERM);
    EXPECT_EQ(StopSignals::not_acted_on(), SIGTERM);
    EXPECT_TRUE(ends_the_process(SIGTERM)) << "a second one";
  }
  // It may also end while the exception is handled.
  StopSignals(listening()).forget();
  try {
    throw std::runtime_error("worker/1 is gone");
  } catch (const std::runtime_error&) {
    { const StopSignals signals(listening()); }
    EXPECT_FALSE(ends_the_process(SIGTERM));
  }
  StopSignals(listening()).forget();
  for (const int signal : {SIGTERM, SIGINT}) std::signal(signal, SIG_DFL);
}

}  // namespace
}  // namespace tutti::stop_signals_test
