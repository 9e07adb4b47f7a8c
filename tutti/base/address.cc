#include "tutti/base/address.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cctype>
#include <optional>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

bool is_host_name(std::string_view host) {
  return !host.empty() && std::all_of(host.begin(), host.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  });
}

// Ignores the zone of an address such as fe80::1%eth0.
bool is_ipv6(std::string_view host) {
  in6_addr address{};
  return inet_pton(AF_INET6, std::string(host.substr(0, host.find('%'))).c_str(), &address) == 1;
}

std::optional<int> parse_port(std::string_view text) {
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(),
                                                   [](unsigned char c) { return std::isdigit(c) != 0; });
  const auto port = digits ? parse_int(text) : std::nullopt;
  return port && *port <= 65535 ? std::optional<int>(static_cast<int>(*port)) : std::nullopt;
}

}  // namespace

Address parse_address(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) {
    fail(ErrorKind::InvalidArgument, "address '{}' has no port: write HOST:PORT", text);
  }
  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (!bracketed && is_ipv6(text)) {
    fail(ErrorKind::InvalidArgument,
         "address '{}' is IPv6: put it in brackets and add the port, as in [::1]:2222", text);
  }
  if (bracketed ? !is_ipv6(host) : !is_host_name(host)) {
    fail(ErrorKind::InvalidArgument, "address '{}': '{}' is not a host name{}", text, host,
         is_ipv6(host) ? "; put an IPv6 address in brackets, as in [::1]:2222" : "");
  }
  const auto port = parse_port(text.substr(colon + 1));
  if (!port) {
    fail(ErrorKind::InvalidArgument, "address '{}': '{}' is not a port (0 to 65535)", text,
         text.substr(colon + 1));
  }
  return {.host = lower(host), .port = *port};
}

Address parse_page_address(std::string_view text) {
  const bool is_port = text.find(':') == std::string_view::npos;
  return parse_address(is_port ? fmt::format("127.0.0.1:{}", text) : std::string(text));
}

std::string to_string(const Address& address) {
  const bool ipv6 = address.host.find(':') != std::string::npos;
  return (ipv6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

}  // namespace tutti
