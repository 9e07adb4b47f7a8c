#include "tools/launch/discovery.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <signal.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/environment.h"
#include "tutti/base/error.h"
#include "tutti/base/secret.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

constexpr size_t kLongestComplaint = 300;
constexpr size_t kMostPrinted = size_t{1} << 20;
// The last line is the exit code of the command: whoever waits for all children may take it before.
constexpr const char* kWithExitCode = "({})\nprintf '\\n%s' $?";

std::vector<std::string> variables_of_process() {
  std::vector<std::string> all;
  const Environment environment = Environment::of_process();
  for (const auto& [name, value] : environment.variables()) all.push_back(fmt::format("{}={}", name, value));
  return all;
}

std::string without_blanks(const std::string& line) {
  constexpr const char* kBlanks = " \t\r";
  const size_t first = line.find_first_not_of(kBlanks);
  if (first == std::string::npos) return "";
  return line.substr(first, line.find_last_not_of(kBlanks) + 1 - first);
}

std::string last_line_of(const std::string& text) {
  std::vector<std::string> lines = split(text, '\n');
  std::erase(lines, "");
  return lines.empty() ? "" : harmless(lines.back(), kLongestComplaint);
}

// Throws InvalidArgument.
std::vector<HostSlots> hosts_in(const std::string& printed) {
  std::vector<std::string> lines = split(printed, '\n');
  if (lines.back() != "0") fail(ErrorKind::InvalidArgument, "its exit code is {}", lines.back());
  lines.pop_back();
  for (std::string& line : lines) line = without_blanks(line);
  std::erase(lines, "");
  if (lines.empty()) fail(ErrorKind::InvalidArgument, "it printed no host");
  for (const std::string& line : lines) {
    if (line.find_first_of(" \t,") != std::string::npos)
      fail(ErrorKind::InvalidArgument, "'{}' is not HOST or HOST:SLOTS", harmless(line, kLongestComplaint));
  }
  return parse_hosts(fmt::format("{}", fmt::join(lines, ",")));
}

// Returns true once the stream has ended.
bool read_all(FileDescriptor& from, std::string& text) {
  std::array<char, 4096> buffer;
  while (from.get() >= 0) {
    const ssize_t count = read(from.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    if (count == 0) from = FileDescriptor();
    if (text.size() < kMostPrinted)
      text.append(buffer.data(), static_cast<size_t>(std::max<ssize_t>(0, count)));
  }
  return true;
}

}  // namespace

Discovery::Discovery(std::string command, std::chrono::milliseconds every, std::chrono::milliseconds patience)
    : command_(std::move(command)), every_(every), patience_(patience) {}

Discovery::~Discovery() { end(); }

std::optional<std::vector<HostSlots>> Discovery::look(const Survival::Say& say) {
  if (child_.pid < 0 && Clock::now() < at_) return std::nullopt;
  try {
    if (child_.pid < 0) {
      child_ = start_child({"sh", "-c", fmt::format(kWithExitCode, command_)},
                           {.environment = variables_of_process(), .output = ChildOutput::Capture});
      at_ = Clock::now() + patience_;
    }
    const bool has_ended = read_some();
    if (!has_ended && Clock::now() < at_) return std::nullopt;
    if (!has_ended) fail(ErrorKind::Timeout, "it takes longer than {} s", patience_.count() / 1000);
    std::vector<HostSlots> hosts = hosts_in(printed_);
    end();
    has_said_ = false;
    return hosts;
  } catch (const Error& error) {
    const std::string words = last_line_of(complained_);
    if (!std::exchange(has_said_, true))
      say(fmt::format("--discover '{}' changes nothing: {}{}", command_, error.what(),
                      words.empty() ? "" : fmt::format(" ({})", words)));
    end();
    return std::nullopt;
  }
}

bool Discovery::read_some() {
  const bool all_printed = read_all(child_.out, printed_);
  return read_all(child_.err, complained_) && all_printed;
}

void Discovery::end() {
  if (child_.pid > 0) kill(-child_.pid, SIGKILL);
  child_ = {};
  printed_.clear();
  complained_.clear();
  at_ = Clock::now() + every_;
}

HostPlaces::HostPlaces(const std::vector<HostSlots>& first, int most) {
  int left = most;
  int largest = 1;
  for (const HostSlots& host : first) {
    const int workers = std::min(host.slots, left);
    if (workers == 0) break;
    places_.push_back({.host = host.host, .workers = workers, .is_taken = true});
    largest = std::max(largest, workers);
    left -= workers;
  }
  for (; left > 0; left -= places_.back().workers)
    places_.push_back({.host = "", .workers = std::min(largest, left)});
}

HostPlaces::Changes HostPlaces::update(const std::vector<HostSlots>& hosts, const MayLeave& may_leave) {
  Changes changes;
  let_go(hosts, may_leave, changes);
  std::set<std::string> without_place;
  for (const HostSlots& host : hosts) {
    Place* const place = place_for(host);
    if (place == nullptr) {
      without_place.insert(host.host);
      if (!without_place_.contains(host.host)) changes.left_out.push_back(host.host);
    }
    if (place == nullptr || place->is_taken) continue;
    place->host = host.host;
    place->is_taken = true;
    changes.come.push_back({.place = static_cast<size_t>(place - places_.data()),
                            .host = {host.host, std::min(host.slots, place->workers)}});
  }
  without_place_ = std::move(without_place);
  return changes;
}

// Frees the places of hosts that are not listed.
void HostPlaces::let_go(const std::vector<HostSlots>& hosts, const MayLeave& may_leave, Changes& changes) {
  const auto is_listed = [&](const Place& place) {
    return std::any_of(hosts.begin(), hosts.end(),
                       [&](const HostSlots& host) { return host.host == place.host; });
  };
  std::vector<size_t> unlisted;
  for (Place& place : places_) {
    const bool listed = is_listed(place);
    if (!listed) unlisted.push_back(static_cast<size_t>(&place - places_.data()));
    place.is_kept = place.is_kept && place.is_taken && !listed;
  }
  const bool may_go = !may_leave || may_leave(unlisted);
  for (const size_t i : unlisted) {
    Place& place = places_[i];
    if (!place.is_taken) continue;
    place.is_taken = !may_go;
    const bool is_new = may_go || !std::exchange(place.is_kept, true);
    if (is_new) (may_go ? changes.leave : changes.stay).push_back(i);
  }
}

// Returns its former place, then one that no host has had, then one of another host; else null.
HostPlaces::Place* HostPlaces::place_for(const HostSlots& host) {
  Place* best = nullptr;
  for (Place& place : places_) {
    if (place.host == host.host) return &place;
    if (place.is_taken) continue;
    if (best == nullptr || (!best->host.empty() && place.host.empty())) best = &place;
  }
  return best;
}

std::vector<HostSlots> HostPlaces::all() const {
  std::vector<HostSlots> all;
  for (const Place& place : places_) all.push_back({place.host, place.workers});
  return all;
}

}  // namespace tutti
