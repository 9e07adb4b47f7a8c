#include "tools/launch/mpirun.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <map>
#include <numeric>
#include <set>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/cluster/identity.h"

namespace tutti {
namespace {

constexpr int kMostSlots = 4096;

// These variables say which task a process is. If a launcher above this one has set them, the ranks of this
// host would inherit them.
constexpr std::array kIdentity = {"TF_CONFIG",        "TUTTI_CLUSTER_SPEC", "TUTTI_JOB_NAME",
                                  "TUTTI_TASK_INDEX", "TUTTI_TASK_ID",      kLaunchVariable};

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) {
  fail(ErrorKind::InvalidArgument, "tutti run: -H {}", fmt::format(text, std::forward<Args>(args)...));
}

// Excludes everything that mpirun, or the shell that it starts on the other host, could take for a flag or a
// command.
bool is_host(std::string_view text) {
  return !text.empty() && text.front() != '-' && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  });
}

HostSlots parse_host(const std::string& piece, std::string_view whole) {
  const size_t colon = piece.find(':');
  const std::string host = piece.substr(0, colon);
  if (piece.empty()) refuse("'{}' has an empty entry; write HOST:SLOTS,HOST:SLOTS,...", whole);
  if (colon != std::string::npos && piece.find(':', colon + 1) != std::string::npos)
    refuse("'{}': '{}' has more than one ':'; to use an IPv6 address, give it a name in /etc/hosts", whole,
           piece);
  if (!is_host(host)) refuse("'{}': '{}' is not a host name", whole, host);
  if (colon == std::string::npos) return {host, 1};
  const auto slots = parse_int(piece.substr(colon + 1));
  if (!slots || *slots < 1 || *slots > kMostSlots)
    refuse("'{}': '{}' in '{}' is not a number of slots (1 to {})", whole, piece.substr(colon + 1), piece,
           kMostSlots);
  return {host, static_cast<int>(*slots)};
}

int slots_of(const std::vector<HostSlots>& hosts) {
  return std::accumulate(hosts.begin(), hosts.end(), 0,
                         [](int sum, const HostSlots& host) { return sum + host.slots; });
}

std::string host_list(const std::vector<HostSlots>& hosts) {
  std::vector<std::string> pieces;
  for (const HostSlots& host : hosts) pieces.push_back(fmt::format("{}:{}", host.host, host.slots));
  return fmt::format("{}", fmt::join(pieces, ","));
}

// Quotes a word for a shell if necessary.
std::string quoted(const std::string& word) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("-_./:,=@%+").find(static_cast<char>(c)) != std::string::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return word;
  return fmt::format("'{}'", fmt::join(split(word, '\''), "'\\''"));
}

std::string in_words(const std::vector<std::string>& command) {
  std::vector<std::string> words;
  for (const std::string& word : command) words.push_back(quoted(word));
  return fmt::format("{}", fmt::join(words, " "));
}

template <class... Args>
[[noreturn]] void refuse_variable(fmt::format_string<Args...> text, Args&&... args) {
  fail(ErrorKind::InvalidArgument, "tutti run: -x {}", fmt::format(text, std::forward<Args>(args)...));
}

// Returns the name in "NAME" or "NAME=VALUE".
std::string name_of(const std::string& word) { return word.substr(0, word.find('=')); }

bool is_variable(std::string_view name) {
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name.front())) == 0 &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

}  // namespace

std::vector<HostSlots> parse_hosts(std::string_view text) {
  std::vector<HostSlots> hosts;
  for (const std::string& piece : split(text, ',')) {
    const HostSlots next = parse_host(piece, text);
    if (std::any_of(hosts.begin(), hosts.end(), [&](const HostSlots& h) { return h.host == next.host; }))
      refuse("'{}' names '{}' twice; name it once, with the sum of its slots", text, next.host);
    hosts.push_back(next);
  }
  return hosts;
}

std::vector<std::string> mpirun_command(const MpirunJob& job, const Environment& environment) {
  const int slots = slots_of(job.hosts);
  if (job.workers > slots)
    refuse("'{}' has {} slots, but -n asks for {} workers; give more slots or omit -n", host_list(job.hosts),
           slots, job.workers);
  // Open MPI would bind each of two ranks to a core, and each of more ranks to a socket; our programs divide
  // the cores themselves.
  std::vector<std::string> words = {
      "mpirun",    "-np", std::to_string(job.workers > 0 ? job.workers : slots), "-H", host_list(job.hosts),
      "--bind-to", "none"};
  // Without this flag mpirun refuses to run as root.
  if (geteuid() == 0) words.emplace_back("--allow-run-as-root");
  std::set<std::string> named;
  for (const std::string& word : job.forwarded) {
    named.insert(name_of(word));
    words.insert(words.end(), {"-x", word});
  }
  const Environment taken = mpirun_environment(environment);
  for (const auto& [name, value] : taken.variables()) {
    if (name.starts_with("TUTTI_") && !named.contains(name)) words.insert(words.end(), {"-x", name});
  }
  words.insert(words.end(), job.command.begin(), job.command.end());
  return words;
}

ForwardedVariables forward_variables(const std::vector<std::string>& words, const Environment& environment) {
  std::map<std::string, std::string> variables = environment.variables();
  std::set<std::string> named;
  for (const std::string& word : words) {
    const std::string name = name_of(word);
    if (!is_variable(name))
      refuse_variable("'{}': '{}' is not the name of a variable; write -x NAME or -x NAME=VALUE", word, name);
    if (!named.insert(name).second) refuse_variable("{}: the variable is named twice", name);
    if (std::find(kIdentity.begin(), kIdentity.end(), name) != kIdentity.end())
      refuse_variable(
          "{}: this variable says which task a process is, so it must differ between processes; "
          "omit it",
          name);
    if (name.size() < word.size()) {
      variables[name] = word.substr(name.size() + 1);
    } else if (!variables.contains(name)) {
      refuse_variable("{}: the variable is not set here; set it, or write -x {}=VALUE", name, name);
    }
  }
  return {words, Environment(std::move(variables))};
}

Environment mpirun_environment(const Environment& environment) {
  std::map<std::string, std::string> variables = environment.variables();
  for (const char* name : kIdentity) variables.erase(name);
  return Environment(std::move(variables));
}

void become_mpirun(const MpirunJob& job, const Environment& environment, const Log& log) {
  if (!environment.get("TF_CONFIG").value_or("").empty())
    refuse("cannot be combined with TF_CONFIG, which also names hosts; omit -H, or unset TF_CONFIG");
  std::vector<std::string> words = mpirun_command(job, environment);
  log.info("{}", in_words(words));
  std::vector<std::string> variables;
  const Environment taken = mpirun_environment(environment);
  for (const auto& [name, value] : taken.variables()) variables.push_back(fmt::format("{}={}", name, value));
  std::vector<char*> arguments;
  std::vector<char*> entries;
  for (std::string& word : words) arguments.push_back(word.data());
  for (std::string& variable : variables) entries.push_back(variable.data());
  arguments.push_back(nullptr);
  entries.push_back(nullptr);
  execvpe(arguments[0], arguments.data(), entries.data());
  if (errno == ENOENT)
    refuse(
        "needs Open MPI's mpirun, which is not in PATH; install it (apt-get install openmpi-bin), or load "
        "its module");
  fail_errno(errno, "executing mpirun");
}

}  // namespace tutti
