#include "tools/launch/host_link.h"

#include <array>
#include <cerrno>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <fmt/format.h>

#include "tools/launch/line_splitter.h"
#include "tutti/base/deadline.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

constexpr std::string_view kReady = "ready ";
constexpr std::string_view kEnd = "end ";

// Returns the text after the mark and this word.
std::optional<std::string_view> after(std::string_view line, std::string_view word) {
  if (!line.starts_with(kHostMark) || !line.substr(kHostMark.size()).starts_with(word)) return std::nullopt;
  return line.substr(kHostMark.size() + word.size());
}

std::string dump(const Json& message) {
  try {
    return message.dump();
  } catch (const Json::type_error&) {
    fail(ErrorKind::InvalidArgument,
         "tutti run: -H can only hand over arguments, variables and folders in UTF-8; one of them is not");
  }
}

HostJob read_job(const std::string& line) {
  return parse_message(line, [](const Json& message) {
    HostJob job;
    message.at("host").get_to(job.host);
    message.at("directory").get_to(job.directory);
    message.at("command").get_to(job.command);
    message.at("variables").get_to(job.variables);
    job.cluster = ClusterSpec::parse(message.at("cluster").get<std::string>());
    message.at("launch").get_to(job.launch);
    for (const Json& task : message.at("tasks"))
      job.tasks.push_back({.job = task.at(0).get<std::string>(), .index = task.at(1).get<int>()});
    message.at("store_port").get_to(job.store_port);
    message.at("evaluator_restarts").get_to(job.evaluator_restarts);
    job.grace = std::chrono::milliseconds(message.at("grace").get<int64_t>());
    const Json& members = message.at("members");
    if (!members.is_null())
      job.members = {.addresses = members.at("addresses").get<std::vector<std::string>>(),
                     .port = members.at("port").get<int>(),
                     .host = members.at("host").get<int>()};
    return job;
  });
}

}  // namespace

std::string to_line(const HostReady& ready) {
  const Json message = {{"version", ready.version},
                        {"ports", ready.ports},
                        {"client", ready.client_address},
                        {"own", ready.own_address}};
  return fmt::format("{}{}{}\n", kHostMark, kReady, dump(message));
}

std::string to_line(const HostJob& job) {
  Json tasks = Json::array();
  for (const Task& task : job.tasks) tasks.push_back({task.job, task.index});
  Json members;
  if (job.members)
    members = {
        {"addresses", job.members->addresses}, {"port", job.members->port}, {"host", job.members->host}};
  const Json message = {{"host", job.host},
                        {"directory", job.directory},
                        {"command", job.command},
                        {"variables", job.variables},
                        {"cluster", job.cluster.to_string()},
                        {"launch", job.launch},
                        {"tasks", tasks},
                        {"store_port", job.store_port},
                        {"evaluator_restarts", job.evaluator_restarts},
                        {"grace", job.grace.count()},
                        {"members", members}};
  return dump(message) + "\n";
}

std::string to_line(const Order& order) { return fmt::format("{} {}\n", order.signal, order.grace.count()); }

std::string end_line(int exit_code) { return fmt::format("{}{}{}\n", kHostMark, kEnd, exit_code); }

std::optional<HostReady> read_ready(std::string_view line) {
  const auto text = after(line, kReady);
  if (!text) return std::nullopt;
  return parse_message(*text, [](const Json& message) {
    HostReady ready;
    message.at("version").get_to(ready.version);
    message.at("ports").get_to(ready.ports);
    message.at("client").get_to(ready.client_address);
    message.at("own").get_to(ready.own_address);
    return std::optional(ready);
  });
}

std::optional<int> read_end(std::string_view line) {
  const auto text = after(line, kEnd);
  const auto code = text ? parse_int(*text) : std::nullopt;
  return code ? std::optional<int>(static_cast<int>(*code)) : std::nullopt;
}

LauncherOrders::LauncherOrders(int descriptor, std::chrono::milliseconds silence)
    : descriptor_(descriptor), silence_(silence) {}

HostJob LauncherOrders::await_job(std::chrono::milliseconds patience) {
  if (const auto line = read_line(patience)) return read_job(*line);
  fail(ErrorKind::PeerLost, "tutti run: the launcher that has started this host {}",
       lost_ ? "is gone" : fmt::format("has sent no job within {:g} s", seconds(patience)));
}

std::optional<Order> LauncherOrders::next() {
  while (const auto line = read_line(std::chrono::milliseconds(0))) {
    if (line->empty()) continue;  // a heartbeat
    const std::vector<std::string> words = split(*line, ' ');
    const auto signal = parse_int(words[0]);
    const auto grace = words.size() == 2 ? parse_int(words[1]) : std::nullopt;
    if (signal && grace) return Order{static_cast<int>(*signal), std::chrono::milliseconds(*grace)};
  }
  if (Clock::now() - last_heard_ > silence_) lost_ = true;
  if (!lost_ || std::exchange(told_, true)) return std::nullopt;
  return Order{SIGKILL, std::chrono::milliseconds(0)};
}

std::optional<std::string> LauncherOrders::read_line(std::chrono::milliseconds patience) {
  const auto deadline = deadline_after(patience);
  while (true) {
    if (auto line = take_line(received_)) return line;
    pollfd ready{descriptor(), POLLIN, 0};
    if (poll(&ready, 1, poll_time(deadline)) <= 0) {
      if (lost_ || Clock::now() >= deadline) return std::nullopt;
      continue;  // interrupted by a signal
    }
    std::array<char, 1 << 16> buffer;
    const ssize_t count = read(descriptor_, buffer.data(), buffer.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) {
      lost_ = true;
      return std::nullopt;
    }
    last_heard_ = Clock::now();
    received_.append(buffer.data(), static_cast<size_t>(count));
  }
}

}  // namespace tutti
