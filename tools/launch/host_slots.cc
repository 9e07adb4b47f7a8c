#include "tools/launch/host_slots.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/base/net.h"
#include "tutti/base/text.h"
#include "tutti/base/this_host.h"
#include "tutti/cluster/identity.h"

namespace tutti {
namespace {

constexpr int kMostSlots = 4096;

// These variables say which task a process is.
constexpr std::array kIdentity = {"TF_CONFIG",        "TUTTI_CLUSTER_SPEC", "TUTTI_JOB_NAME",
                                  "TUTTI_TASK_INDEX", "TUTTI_TASK_ID",      kLaunchVariable,
                                  kSecretVariable,    kMembersVariable,     kLifeVariable};

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) {
  fail(ErrorKind::InvalidArgument, "tutti run: -H {}", fmt::format(text, std::forward<Args>(args)...));
}

// Excludes names that ssh, or the shell that it starts on the other host, could take for a flag or a command.
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

std::vector<HostSlots> fill_slots(const std::vector<HostSlots>& hosts, int workers) {
  const int slots = slots_of(hosts);
  if (workers > slots)
    refuse("'{}' has {} slot{}, too few for {} workers; name more, or lower -n or --max", host_list(hosts),
           slots, slots == 1 ? "" : "s", workers);
  int left = workers == 0 ? slots : workers;
  std::vector<HostSlots> filled;
  for (const HostSlots& host : hosts) {
    const int taken = std::min(host.slots, std::exchange(left, std::max(0, left - host.slots)));
    if (taken > 0) filled.push_back({host.host, taken});
  }
  return filled;
}

bool is_this_host(const std::string& host) {
  const std::string own = host_name();
  if (host == "localhost" || host == own || host == own.substr(0, own.find('.'))) return true;
  std::vector<std::string> addresses = own_addresses();
  addresses.emplace_back("127.0.0.1");
  const Resolved found = resolve(host, 0);
  return std::any_of(found.addresses.begin(), found.addresses.end(), [&](const SocketAddress& address) {
    return std::find(addresses.begin(), addresses.end(), numeric(address)) != addresses.end();
  });
}

ForwardedVariables forward_variables(const std::vector<std::string>& words, const Environment& environment) {
  std::map<std::string, std::string> variables = environment.variables();
  std::map<std::string, std::string> named;
  for (const std::string& word : words) {
    const std::string name = name_of(word);
    if (!is_variable(name))
      refuse_variable("'{}': '{}' is not the name of a variable; write -x NAME or -x NAME=VALUE", word, name);
    if (named.contains(name)) refuse_variable("{}: the variable is named twice", name);
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
    named[name] = variables[name];
  }
  variables.erase(kRshVariable);
  return {std::move(named), Environment(std::move(variables))};
}

Environment without_identity(const Environment& environment) {
  std::map<std::string, std::string> variables = environment.variables();
  for (const char* name : kIdentity) variables.erase(name);
  return Environment(std::move(variables));
}

std::map<std::string, std::string> variables_to_forward(const ForwardedVariables& variables) {
  std::map<std::string, std::string> forwarded = variables.named;
  const Environment taken = without_identity(variables.environment);
  for (const auto& [name, value] : taken.variables()) {
    if (name.starts_with("TUTTI_")) forwarded[name] = value;
  }
  return forwarded;
}

std::string quoted(const std::string& word) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("-_./:,=@%+").find(static_cast<char>(c)) != std::string::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return word;
  return fmt::format("'{}'", fmt::join(split(word, '\''), "'\\''"));
}

}  // namespace tutti
