#include "tools/launch/member.h"

#include <array>
#include <cerrno>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <fmt/core.h>

namespace tutti {
namespace {

constexpr size_t kLastLines = 10;
constexpr size_t kLongestLastLine = 1000;

}  // namespace

bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(descriptor, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {  // a terminal that somebody else has made non-blocking
      pollfd ready{descriptor, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

Member::Member(std::string task, Child child)
    : task_(std::move(task)),
      pid_(child.pid),
      out_{std::move(child.out), STDOUT_FILENO, {}},
      err_{std::move(child.err), STDERR_FILENO, {}} {}

double Member::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

std::vector<int> Member::descriptors() const {
  std::vector<int> open;
  for (const Stream* stream : {&out_, &err_}) {
    if (stream->from.get() >= 0) open.push_back(stream->from.get());
  }
  return open;
}

bool Member::pass_on() {
  const bool from_out = pass_on(out_);
  const bool from_err = pass_on(err_);
  return from_out || from_err;
}

void Member::finish_output() {
  while (pass_on()) {
  }
  write_lines(out_, {});
  write_lines(err_, {});
}

// One bufferful, so that a task that never stops printing cannot keep the others from being heard.
bool Member::pass_on(Stream& stream) {
  if (stream.from.get() < 0) return false;
  std::array<char, 1 << 16> buffer;
  ssize_t count = 0;
  do {
    count = read(stream.from.get(), buffer.data(), buffer.size());
  } while (count < 0 && errno == EINTR);
  if (count < 0) return false;  // nothing there now
  if (count == 0) stream.from = FileDescriptor();
  write_lines(stream, {buffer.data(), static_cast<size_t>(count)});
  return true;
}

// No bytes: the end of the stream.
void Member::write_lines(Stream& stream, std::string_view bytes) {
  std::string lines;
  const auto take = [&](std::string_view line) {
    lines += fmt::format("[{}] {}\n", task_, line);
    last_lines_.emplace_back(line.substr(0, kLongestLastLine));
    if (last_lines_.size() > kLastLines) last_lines_.pop_front();
  };
  stream.splitter.feed(bytes, std::chrono::steady_clock::now(), take);
  if (bytes.empty()) stream.splitter.finish(take);
  write_all(stream.to, lines);
}

void Member::signal(int number) const {
  if (running()) kill(-pid_, number);
}

}  // namespace tutti
