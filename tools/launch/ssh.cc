#include "tools/launch/ssh.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/launch/child.h"
#include "tools/launch/host_link.h"
#include "tools/launch/line_splitter.h"
#include "tools/launch/meeting.h"
#include "tools/launch/planner.h"
#include "tools/launch/restart_pause.h"
#include "tutti/base/address.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/net.h"
#include "tutti/base/secret.h"
#include "tutti/base/text.h"
#include "tutti/base/this_host.h"
#include "tutti/base/version.h"

namespace tutti {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// The time for a host launcher that is ready to take its job.
constexpr milliseconds kTakeTime{30'000};
// The time that a process has to end after it has closed its streams, and the interval between two checks.
constexpr milliseconds kEndTime{1000};
constexpr useconds_t kBetweenLooks = 10'000;
// The maximum length of a line of a login shell or of ssh that is quoted in an error.
constexpr size_t kLongestQuoteOfShell = 300;
constexpr size_t kLongestVersion = 60;
// In the addresses of workers whose host is not known yet. They tell it themselves when they come.
constexpr const char* kUnknownHost = "unknown.invalid";

std::string this_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

std::vector<std::string> command_here(std::vector<std::string> launcher) {
  launcher.insert(launcher.begin(), this_program());
  return launcher;
}

// A host launcher that is being started. Ends it if it is destroyed before release().
class StartingHost {
 public:
  StartingHost(HostSlots host, int ports, bool here, Child child)
      : host_(std::move(host)), ports_(ports), here_(here), child_(std::move(child)) {}
  ~StartingHost() {
    if (child_.pid < 0) return;
    kill(-child_.pid, SIGKILL);
    while (waitpid(child_.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  StartingHost(const StartingHost&) = delete;
  StartingHost& operator=(const StartingHost&) = delete;

  // A host that is not ready may have no launcher yet.
  bool has_begun() const { return child_.pid > 0 || ready_; }
  const HostSlots& slots() const { return host_; }
  const std::string& name() const { return host_.host; }
  int workers() const { return host_.slots; }
  int ports() const { return ports_; }
  bool here() const { return here_; }
  const std::optional<HostReady>& ready() const { return ready_; }
  int out() const { return child_.out.get(); }
  int err() const { return child_.err.get(); }

  // Reads what has arrived, without waiting. Returns true if the host launcher has ended.
  bool read_some() {
    read_from(child_.out);
    read_from(child_.err);
    return !ready_ && child_.out.get() < 0 && child_.err.get() < 0;
  }

  // Waits for the end of the process, which has closed its streams; kills it if it does not end.
  int exit_code() {
    const auto deadline = deadline_after(kEndTime);
    int status = 0;
    pid_t ended = 0;
    while ((ended = waitpid(child_.pid, &status, WNOHANG)) == 0 || (ended < 0 && errno == EINTR)) {
      if (Clock::now() >= deadline) kill(-child_.pid, SIGKILL);
      usleep(kBetweenLooks);
    }
    child_.pid = -1;
    return Outcome(status).exit_code();
  }
  // The last line that was printed before the host launcher was ready.
  const std::string& last_line() const { return last_line_; }

  // Like send(), but does not wait for anything.
  bool send_at_once(std::string_view text) const {
    const ssize_t count = ::send(child_.in.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return count == static_cast<ssize_t>(text.size());
  }
  // Returns false if the host launcher does not read everything in time, or if a `signal` is received.
  bool send(std::string_view text, SignalPipe& signals, std::optional<int>& signal) const {
    const auto deadline = deadline_after(kTakeTime);
    while (!text.empty()) {
      const ssize_t count = ::send(child_.in.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count >= 0) text.remove_prefix(static_cast<size_t>(count));
      if (count < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (Clock::now() >= deadline) return false;
      std::array<pollfd, 2> events = {{{child_.in.get(), POLLOUT, 0}, {signals.descriptor(), POLLIN, 0}}};
      if (!text.empty()) poll(events.data(), events.size(), poll_time(deadline));
      if (events[1].revents != 0 && (signal = next_stop_signal(signals))) return false;
    }
    return true;
  }
  StartedHost release() { return {host_.host, std::exchange(child_, Child())}; }

 private:
  void read_from(FileDescriptor& from) {
    std::array<char, 4096> buffer;
    while (from.get() >= 0) {
      const ssize_t count = read(from.get(), buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return;
      if (count == 0) from = FileDescriptor();
      std::string& text = &from == &child_.out ? received_[0] : received_[1];
      text.append(buffer.data(), static_cast<size_t>(count));
      take_lines(text, count == 0);
    }
  }

  void take_lines(std::string& text, bool at_end) {
    if (at_end && !text.empty()) text += '\n';
    while (const auto taken = take_line(text)) {
      const std::string& line = *taken;
      // The shell of the other host may print other lines before.
      if (auto ready = read_ready(line)) ready_ = std::move(ready);
      const std::string words = line.substr(0, line.find_last_not_of(" \r\t") + 1);
      if (!words.empty()) last_line_ = harmless(words, kLongestQuoteOfShell);
    }
    if (text.size() > LineSplitter::kLongestLine) text.clear();
  }

  HostSlots host_;
  int ports_;
  bool here_;
  Child child_;
  std::array<std::string, 2> received_;  // incomplete lines of both streams
  std::string last_line_;
  std::optional<HostReady> ready_;
};

class HostsStarter {
 public:
  HostsStarter(const RemoteShell& shell, const LaunchOptions& options, int members_port, SignalPipe& signals)
      : shell_(shell), options_(options), members_port_(members_port), signals_(signals) {}

  void start(const std::vector<HostSlots>& hosts, const Environment& environment) {
    for (const auto& [name, value] : environment.variables())
      environment_.push_back(fmt::format("{}={}", name, value));
    again_.resize(hosts.size());
    for (const HostSlots& host : hosts) {
      const int more = hosts_.empty() ? more_ports(options_) : 0;
      hosts_.push_back(host.host.empty() ? later(host, host.slots + more)
                                         : begin(host, host.slots + more, is_this_host(host.host)));
    }
  }
  // Gives this host the place of another one, or one that no host had. Its launcher is started by
  // start_again().
  void set_host(size_t i, const std::string& name) {
    hosts_[i] = later({name, hosts_[i]->workers()}, hosts_[i]->ports());
    again_[i] = {};
  }

  // Returns a signal that this process has received meanwhile.
  std::optional<int> await_all() {
    const auto deadline = deadline_after(options_.start_timeout);
    while (!missing().empty()) {
      if (Clock::now() >= deadline)
        fail(ErrorKind::Timeout,
             "tutti run: after {:g} s there is no answer from the launcher on {}; check these hosts, and "
             "what their login shells do, or raise --start-timeout{}",
             seconds(options_.start_timeout), fmt::join(missing(), ", "), last_words());
      wait_for_events(deadline);
      if (const auto signal = next_stop_signal(signals_)) return signal;
      for (const auto& host : hosts_) {
        if (!host->has_begun()) continue;
        if (host->read_some()) explain(*host);
        if (host->ready() && !fits(*host))
          fail(ErrorKind::InvalidArgument, "tutti run: host {} {}", host->name(), why_not_fit(*host));
      }
    }
    return std::nullopt;
  }

  std::optional<int> signal() const { return signal_; }
  const std::string& launch() const { return launch_; }
  bool has_others() const {
    return !std::all_of(hosts_.begin(), hosts_.end(), [](const auto& host) { return host->here(); });
  }

  // Returns an empty list if a signal is received meanwhile.
  std::vector<StartedHost> give_jobs(const std::vector<std::string>& command,
                                     const std::map<std::string, std::string>& variables) {
    job_ = {.host = {},
            .directory = directory_,
            .command = command,
            .variables = variables,
            .cluster = {},
            .launch = launch_,
            .tasks = {},
            .evaluator_restarts = options_.restarts,
            .grace = options_.grace};
    for (size_t i = 0; i < hosts_.size(); ++i) {
      if (!hosts_[i]->has_begun() || hosts_[i]->send(to_line(job_for(i)), signals_, signal_)) continue;
      if (signal_) return {};
      fail(ErrorKind::PeerLost, "tutti run: host {}: its launcher was ready, but did not read its tasks",
           hosts_[i]->name());
    }
    std::vector<StartedHost> started;
    for (const auto& host : hosts_) started.push_back(host->release());
    return started;
  }

  // Tries to start the launcher of a host that was lost, at once and then after pauses. Does not wait:
  // returns nullopt as long as the launcher has not answered.
  std::optional<StartedHost> start_again(size_t i, const Survival::Say& say) {
    Again& again = again_[i];
    if (again.started) again.at = Clock::now() + again.pauses.next(Clock::now() - *again.started);
    again.started.reset();
    if (!again.host && Clock::now() < again.at) return std::nullopt;
    std::string why;
    try {
      if (!again.host) {
        again.host = begin(hosts_[i]->slots(), hosts_[i]->ports(), hosts_[i]->here());
        again.at = deadline_after(options_.start_timeout);
      }
      const bool ended = again.host->read_some();
      if (!ended && !again.host->ready() && Clock::now() < again.at) return std::nullopt;
      if (again.host->ready() && fits(*again.host)) {
        std::swap(hosts_[i], again.host);
        if (hosts_[i]->send_at_once(to_line(job_for(i)))) {
          again.host.reset();
          again.started = Clock::now();
          again.has_said = false;
          return hosts_[i]->release();
        }
        std::swap(hosts_[i], again.host);
      }
      why = again.host->ready() ? why_not_fit(*again.host) : again.host->last_line();
    } catch (const Error& error) {
      why = error.what();
    }
    again.host.reset();
    again.at = Clock::now() + again.pauses.next(std::chrono::seconds(0));
    if (!std::exchange(again.has_said, true))
      say(fmt::format("host {} does not come again yet{}; trying again, with pauses of up to a minute",
                      hosts_[i]->name(), why.empty() ? "" : fmt::format(" ({})", why)));
    return std::nullopt;
  }

 private:
  // The start of a lost host.
  struct Again {
    std::unique_ptr<StartingHost> host = nullptr;   // null: during a pause
    Clock::time_point at = {};                      // the end of the pause, or of the patience with the host
    std::optional<Clock::time_point> started = {};  // the last time, if it was started again
    RestartPause pauses = {};
    bool has_said = false;
  };

  // A host whose launcher is not started yet.
  static std::unique_ptr<StartingHost> later(const HostSlots& host, int ports) {
    const bool here = !host.host.empty() && is_this_host(host.host);
    return std::make_unique<StartingHost>(host, ports, here, Child());
  }

  // Host launchers get no mark of the job: each has a separate guardian, and the guardian of this process
  // must not kill these.
  std::unique_ptr<StartingHost> begin(const HostSlots& host, int ports, bool here) const {
    std::vector<std::string> launcher = {kHostLauncher, std::to_string(ports)};
    if (options_.ports) launcher.push_back(fmt::format("{}-{}", options_.ports->first, options_.ports->last));
    const ChildOptions child{
        .environment = environment_, .output = ChildOutput::Talk, .ignored_signal = signals_.preempt()};
    try {
      return std::make_unique<StartingHost>(
          host, ports, here,
          start_child(here ? command_here(launcher) : shell_.command(host.host, launcher), child));
    } catch (const Error& error) {
      fail(error.kind(), "tutti run: host {}: {}", host.host, error.what());
    }
  }

  HostJob job_for(size_t i) const {
    std::vector<HostOffer> offers;
    int unknown_port = 0;
    for (const auto& host : hosts_) {
      offers.push_back({.address = kUnknownHost, .workers = host->workers()});
      for (int port = 0; port < host->ports(); ++port) offers.back().ports.push_back(++unknown_port);
      if (host->ready()) offers.back() = {address_of(*host), host->ready()->ports, host->workers()};
    }
    Spread all = spread_tasks(offers, options_);
    HostJob job = job_;
    job.cluster = std::move(all.cluster);
    job.host = hosts_[i]->name();
    job.tasks = all.tasks[i];
    job.store_port = all.store_port;
    if (options_.min)
      job.members = {
          .addresses = addresses_towards(*hosts_[i]), .port = members_port_, .host = static_cast<int>(i)};
    return job;
  }

  std::vector<std::string> missing() const {
    std::vector<std::string> names;
    for (const auto& host : hosts_) {
      if (host->has_begun() && !host->ready()) names.push_back(host->name());
    }
    return names;
  }

  // Returns the last line that a missing host has printed, for the error.
  std::string last_words() const {
    for (const auto& host : hosts_) {
      if (!host->ready() && !host->last_line().empty())
        return fmt::format("; {} printed '{}'", host->name(), host->last_line());
    }
    return "";
  }

  void wait_for_events(Clock::time_point deadline) const {
    std::vector<pollfd> events = {{signals_.descriptor(), POLLIN, 0}};
    for (const auto& host : hosts_) {
      for (const int stream : {host->out(), host->err()}) events.push_back({stream, POLLIN, 0});
    }
    poll(events.data(), events.size(), poll_time(deadline));
  }

  static bool fits(const StartingHost& host) {
    const HostReady& ready = *host.ready();
    return ready.version == version() && ready.ports.size() == static_cast<size_t>(host.ports());
  }
  std::string why_not_fit(const StartingHost& host) const {
    return fmt::format("has tutti {} at {}, but this is {}; install the same version on all hosts",
                       harmless(host.ready()->version, kLongestVersion), shell_.tutti, version());
  }

  [[noreturn]] void explain(StartingHost& host) const {
    constexpr int kOfSsh = 255;
    const int code = host.exit_code();
    const std::string quote = host.last_line().empty() ? "it printed nothing" : host.last_line();
    std::string advice = fmt::format("its launcher did not start (exit code {})", code);
    if (code == kOfSsh && shell_.is_ssh()) {
      advice = fmt::format("{} could not connect; `{} {} true` must work without asking anything",
                           shell_.words.front(), fmt::join(shell_.words, " "), host.name());
    } else if (code == 126 || code == 127) {
      advice =
          fmt::format("there is no program {} on it; install Tutti there, or give its path by --remote-tutti",
                      shell_.tutti);
    } else if (quote.find(fmt::format("no command '{}'", kHostLauncher)) != std::string::npos) {
      advice = fmt::format("{} on it is another version; install {} on all hosts", shell_.tutti, version());
    }
    fail(ErrorKind::InvalidArgument, "tutti run: host {}: {} ({})", host.name(), advice, quote);
  }

  // Workers can use the addresses at which ssh has reached the hosts, even if a host is named by an alias of
  // ssh's configuration. Without these addresses, the names must be known on all hosts.
  std::string address_of(const StartingHost& host) const {
    if (!has_others()) return "127.0.0.1";
    if (!shell_.is_ssh()) return usable_name(host);
    if (!host.here()) return host.ready()->own_address.empty() ? host.name() : host.ready()->own_address;
    const auto other = std::find_if(hosts_.begin(), hosts_.end(), [](const auto& h) {
      return !h->here() && h->ready() && !h->ready()->client_address.empty();
    });
    return other == hosts_.end() ? usable_name(host) : (*other)->ready()->client_address;
  }

  // Returns the addresses at which a host may reach this process.
  std::vector<std::string> addresses_towards(const StartingHost& host) const {
    if (host.here()) return {address_of(host)};
    if (shell_.is_ssh() && !host.ready()->client_address.empty()) return {host.ready()->client_address};
    std::vector<std::string> own = own_addresses();
    if (own.empty()) own.emplace_back("127.0.0.1");
    return own;
  }

  std::string usable_name(const StartingHost& host) const {
    if (host.name() != "localhost" && !is_loopback(host.name())) return host.name();
    const bool all_are_here = std::all_of(hosts_.begin(), hosts_.end(), [](const auto& other) {
      return other->here() || other->name().empty();
    });
    if (!all_are_here)
      fail(ErrorKind::InvalidArgument,
           "tutti run: -H: the other hosts cannot reach '{}'; name this host as they know it", host.name());
    return "127.0.0.1";
  }

  const RemoteShell& shell_;
  const LaunchOptions& options_;
  const int members_port_;
  SignalPipe& signals_;
  const std::string launch_ = random_key();
  std::optional<int> signal_;  // received while the jobs were sent
  const std::string directory_ = std::filesystem::current_path().string();
  std::vector<std::string> environment_;  // of the host launchers
  HostJob job_;                           // what the jobs of all hosts have in common
  std::vector<std::unique_ptr<StartingHost>> hosts_;
  std::vector<Again> again_;  // by host
};

}  // namespace

RemoteShell RemoteShell::parse(const std::string& command, std::string tutti) {
  RemoteShell shell{split(command.empty() ? "ssh" : command, ' '), std::move(tutti)};
  std::erase(shell.words, "");
  if (shell.words.empty())
    fail(ErrorKind::InvalidArgument, "tutti run: --rsh '{}' names no program", command);
  if (shell.tutti.empty()) shell.tutti = this_program();
  return shell;
}

bool RemoteShell::is_ssh() const { return std::filesystem::path(words.front()).filename() == "ssh"; }

// ssh must not ask for a password, since the user does not see the question, must not need a terminal, and
// must notice within a minute that the other host is gone. An option that the user gives comes first and so
// takes precedence.
std::vector<std::string> RemoteShell::command(const std::string& host,
                                              const std::vector<std::string>& launcher) const {
  std::vector<std::string> all = words;
  if (is_ssh())
    all.insert(all.end(), {"-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30", "-o",
                           "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"});
  all.insert(all.end(), {host, fmt::format("{} {}", quoted(tutti), fmt::join(launcher, " "))});
  return all;
}

HostsStart start_hosts(const std::vector<HostSlots>& hosts, const std::vector<std::string>& command,
                       const ForwardedVariables& variables, const RemoteShell& shell,
                       const LaunchOptions& options, int members_port, SignalPipe& signals) {
  const auto starter = std::make_shared<HostsStarter>(shell, options, members_port, signals);
  starter->start(hosts, without_identity(variables.environment));
  if (const auto signal = starter->await_all()) return {{}, signal};
  const bool others = starter->has_others();
  auto started = starter->give_jobs(command, variables_to_forward(variables));
  const auto again = [starter](size_t host, const auto& say) { return starter->start_again(host, say); };
  const auto set_host = [starter](size_t host, const auto& name) { starter->set_host(host, name); };
  return {std::move(started), starter->signal(), starter->launch(), others, again, set_host};
}

}  // namespace tutti
