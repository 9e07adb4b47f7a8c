#include "tutti/rpc/test_peer.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <iterator>
#include <memory>
#include <span>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/rpc/channel.h"
#include "tutti/rpc/test_service.h"

namespace tutti::rpc {
namespace {

constexpr const char* kPeer = "--peer";

void say(const std::string& word) {
  std::printf("%s\n", word.c_str());
  std::fflush(stdout);
}

void serve() {
  TestService service;
  const Host host({}, service);
  say(address_of(host));
  pause();
}

void echo(const std::string& address, size_t bytes, bool with_arena) {
  const auto arena = std::make_shared<Arena>();
  std::vector<std::byte> memory(2 * bytes);
  const Bytes own = with_arena ? arena->allocate(2 * bytes) : Bytes(memory);
  const auto sent = pattern(bytes);
  std::copy(sent.begin(), sent.end(), own.begin());
  Channel channel(address, {.arena = with_arena ? arena : nullptr});
  for (bool first = true;; first = false) {
    channel.call("echo", {{}, {{own.first(bytes)}}}, {.into = {own.last(bytes)}});
    if (!equal(own.last(bytes), sent)) abort();
    if (first) say("going");
  }
}

void wait(const std::string& address) {
  Channel channel(address);
  say("going");
  channel.call("wait", {});
}

void run(std::span<char*> arguments) {
  // Ends this process with the test, however the test ends.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string role = arguments[0];
  if (role == "serve" && arguments.size() > 1) {
    const rlim_t descriptors = std::stoul(arguments[1]);
    const rlimit limit{descriptors, descriptors};
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (role == "serve") serve();
  if (role == "wait") wait(arguments[1]);
  if (role == "echo") echo(arguments[1], std::stoul(arguments[2]), arguments.size() > 3);
}

}  // namespace

Peer::Peer(const std::vector<std::string>& arguments) {
  std::array<int, 2> out{};
  if (pipe2(out.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  std::vector<char*> words;
  std::vector<std::string> all = {"rpc_test", kPeer};
  all.insert(all.end(), arguments.begin(), arguments.end());
  for (std::string& argument : all) words.push_back(argument.data());
  words.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(out[1], STDOUT_FILENO);
    execv("/proc/self/exe", words.data());
    _exit(127);
  }
  close(out[1]);
  await_word(out[0]);
}

void Peer::await_word(int descriptor) {
  const std::unique_ptr<FILE, int (*)(FILE*)> from(fdopen(descriptor, "r"), &std::fclose);
  std::array<char, 256> line{};
  EXPECT_NE(std::fgets(line.data(), line.size(), from.get()), nullptr) << "it did not start";
  word_ = line.data();
  while (!word_.empty() && word_.back() == '\n') word_.pop_back();
}

Peer::~Peer() { kill(); }

size_t Peer::descriptors() const {
  const std::filesystem::directory_iterator all("/proc/" + std::to_string(pid_) + "/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

void Peer::signal(int number) const { EXPECT_EQ(::kill(pid_, number), 0); }

void Peer::kill() {
  if (pid_ < 0) return;
  signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace tutti::rpc

int main(int argc, char** argv) {
  const std::span<char*> words(argv, static_cast<size_t>(argc));
  if (words.size() > 2 && std::string(words[1]) == tutti::rpc::kPeer) {
    tutti::rpc::run(words.subspan(2));
    return 0;
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
