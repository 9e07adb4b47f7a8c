#include "tools/launch/member.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/core.h>

#include "tools/launch/host_link.h"

namespace tutti {
namespace {

constexpr size_t kLastLines = 10;
constexpr size_t kLongestLastLine = 1000;
constexpr size_t kBuffer = size_t{1} << 16;
// A line of a host launcher has the name of a task before the line of the task.
constexpr size_t kLongestOfHost = 2 * LineSplitter::kLongestLine;

// How often a live line is passed on: into a log, less often than into a terminal.
std::chrono::milliseconds live_every(const Output& output) {
  constexpr std::chrono::milliseconds kInTerminal{100};
  constexpr std::chrono::milliseconds kInLog{1000};
  return output.is_live() ? kInTerminal : kInLog;
}

}  // namespace

Member::Member(std::string task, Child child, Output& out, Output& err)
    : task_(std::move(task)),
      pid_(child.pid),
      orders_(std::move(child.in)),
      out_{std::move(child.out), &out, splitter_for(out)},
      err_{std::move(child.err), &err, splitter_for(err)} {
  if (!has_started()) outcome_ = Outcome::exited(0);
}

LineSplitter Member::splitter_for(const Output& output) const {
  return LineSplitter(is_host() ? kLongestOfHost : LineSplitter::kLongestLine, live_every(output));
}

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
  const auto show = [&](const std::string& live) {
    stream.to->add(std::exchange(lines, ""));
    stream.to->show(live);
  };
  const auto on_line = [&](std::string_view line, bool is_live) {
    const std::optional<int> end = is_host() && &stream == &out_ ? read_end(line) : std::nullopt;
    if (end) reported_end_ = end;
    if (end) return;
    const bool is_removed = is_live && line.empty();
    const std::string text =
        is_host() || is_removed ? std::string(line) : fmt::format("[{}] {}", task_, line);
    if (is_live) return show(text);
    lines += text + "\n";
    if (is_host()) return;
    last_lines_.emplace_back(line.substr(0, kLongestLastLine));
    if (last_lines_.size() > kLastLines) last_lines_.pop_front();
  };
  stream.splitter.feed(bytes, std::chrono::steady_clock::now(), on_line);
  if (bytes.empty()) stream.splitter.finish(on_line);
  stream.to->add(lines);
}

void Member::signal(int number) const {
  if (running()) kill(-pid_, number);
}

void Member::send(std::string_view line) const {
  if (running()) ::send(orders_.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace tutti
