#pragma once

#include <string>
#include <string_view>

namespace tutti {

// A host and a port, as parsed from "host:2222" or "[::1]:2222".
struct Address {
  std::string host;  // in lower case, without brackets
  int port = 0;

  bool operator==(const Address&) const = default;
};

// Throws an InvalidArgument that quotes the text and says what is wrong with it.
Address parse_address(std::string_view text);

// Parses the address at which a page is served: "8080" is a port that only this machine can reach,
// "HOST:8080" one of the addresses of this machine, or "0.0.0.0:8080" all of them. Throws as parse_address().
Address parse_page_address(std::string_view text);

// The inverse of parse_address(). Puts brackets around an IPv6 address.
std::string to_string(const Address& address);

}  // namespace tutti
