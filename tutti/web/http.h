#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>

// The part of HTTP/1.1 (RFC 9112) that a page of figures needs: requests without a body, each on a connection
// of its own. Callers are browsers, curl, probes and Prometheus, and anybody else who reaches the port.
namespace tutti::web {

// The head of a request with more bytes is refused.
inline constexpr size_t kLongestHead = 8192;

struct Request {
  int refusal = 0;  // the status with which to refuse a request that is not valid; 0: it is valid
  std::string method = {};
  std::string path = {};                            // "/metrics"
  std::string query = {};                           // what follows after the question mark
  std::map<std::string, std::string> headers = {};  // names in lower case
};

// Parses what a caller has sent so far. Returns nullopt as long as the head of the request is incomplete.
std::optional<Request> parse_request(std::string_view bytes);

// Returns the value of a name in the query, decoded; "" if there is none.
std::string value_in_query(std::string_view query, std::string_view name);

struct Answer {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body = {};
};

// Returns the bytes of an answer: the head alone for the method HEAD.
std::string to_bytes(const Answer& answer, std::string_view method);

// Says whom to answer. With a secret, a request needs `Authorization: Bearer SECRET` or `?secret=SECRET`.
// Without one, `local` requires that the request names this machine in its header Host: a page of another
// site, whose name resolves to the loopback, could otherwise read the answers in a browser on this machine.
struct Admission {
  std::string secret = {};
  bool local = true;
};

// Returns the answer that refuses the request; nullopt: it is to be answered.
std::optional<Answer> refusal_of(const Request& request, const Admission& admission);

// Asks for a page at HOST:PORT. Throws PeerLost if nothing answers there, Timeout after `patience`, and
// DataLoss if the answer is not one of HTTP.
Answer get(const std::string& address, const std::string& path, const std::string& secret,
           std::chrono::milliseconds patience);

}  // namespace tutti::web
