#include "tools/launch/member.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/core.h>

namespace tutti {
namespace {

constexpr size_t kLastLines = 10;
constexpr size_t kLongestLastLine = 1000;
constexpr size_t kBuffer = size_t{1} << 16;

}  // namespace

Member::Member(std::string task, Child child, Output& out, Output& err)
    : task_(std::move(task)),
      pid_(child.pid),
      out_{std::move(child.out), &out, {}},
      err_{std::move(child.err), &err, {}} {}

double Member::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

std::vector<int> Member::descriptors() const {
  std::vector<int> open;
  for (const Stream* stream : {&out_, &err_}) {
    if (stream->from.get() >= 0 && !stream->to->full()) open.push_back(stream->from.get());
  }
  return open;
}

void Member::pass_on() {
  for (Stream* stream : {&out_, &err_}) {
    if (!stream->to->full()) pass_on(*stream, kBuffer);
  }
}

void Member::finish_output() {
  for (Stream* stream : {&out_, &err_}) {
    int arrived = 0;
    if (stream->from.get() >= 0) ioctl(stream->from.get(), FIONREAD, &arrived);
    for (auto left = static_cast<size_t>(arrived); left > 0;) {
      const size_t count = pass_on(*stream, std::min(left, kBuffer));
      if (count == 0) break;
      left -= count;
    }
    write_lines(*stream, {});
  }
}

// Reads at most one buffer, so that a task that never stops printing does not delay the output of others.
// Returns the number of bytes.
size_t Member::pass_on(Stream& stream, size_t most) {
  if (stream.from.get() < 0) return 0;
  std::array<char, kBuffer> buffer;
  ssize_t count = 0;
  do {
    count = read(stream.from.get(), buffer.data(), std::min(most, buffer.size()));
  } while (count < 0 && errno == EINTR);
  if (count < 0) return 0;  // no data is available now
  if (count == 0) stream.from = FileDescriptor();
  write_lines(stream, {buffer.data(), static_cast<size_t>(count)});
  return static_cast<size_t>(count);
}

// An empty text means the end of the stream.
void Member::write_lines(Stream& stream, std::string_view bytes) {
  std::string lines;
  const auto take = [&](std::string_view line) {
    lines += fmt::format("[{}] {}\n", task_, line);
    last_lines_.emplace_back(line.substr(0, kLongestLastLine));
    if (last_lines_.size() > kLastLines) last_lines_.pop_front();
  };
  stream.splitter.feed(bytes, std::chrono::steady_clock::now(), take);
  if (bytes.empty()) stream.splitter.finish(take);
  stream.to->add(lines);
}

void Member::signal(int number) const {
  if (running()) kill(-pid_, number);
}

}  // namespace tutti
