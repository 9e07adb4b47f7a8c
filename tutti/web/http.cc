#include "tutti/web/http.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>

#include "tutti/base/net.h"
#include "tutti/base/secret.h"
#include "tutti/base/text.h"

namespace tutti::web {
namespace {

constexpr std::string_view kEndOfHead = "\r\n\r\n";

Request refused(int status) { return {.refusal = status}; }

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  });
}

bool is_target(std::string_view text) {
  return text.starts_with('/') &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Takes the first line, without its end, off the text.
std::string_view take_line(std::string_view& text) {
  const size_t end = std::min(text.find("\r\n"), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 2, text.size()));
  return line;
}

// Returns the status with which to refuse the line, or 0.
int parse_request_line(std::string_view line, Request& request) {
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return 400;
  const std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  request.method = line.substr(0, first);
  if (!is_token(request.method) || !is_target(target) || !version.starts_with("HTTP/")) return 400;
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return 505;
  const size_t query = std::min(target.find('?'), target.size());
  request.path = target.substr(0, query);
  request.query = target.substr(std::min(query + 1, target.size()));
  return 0;
}

bool parse_header(std::string_view line, Request& request) {
  const size_t colon = std::min(line.find(':'), line.size() - 1);
  const std::string_view name = line.substr(0, colon);
  const std::string_view value = trimmed(line.substr(colon + 1));
  const bool has_control = std::any_of(value.begin(), value.end(),
                                       [](unsigned char c) { return (c < ' ' && c != '\t') || c == 0x7f; });
  return is_token(name) && line[colon] == ':' && !has_control &&
         request.headers.emplace(lower(name), value).second;
}

int digit_of(char c) {
  const size_t digit = std::string_view("0123456789abcdef")
                           .find(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  return digit == std::string_view::npos ? -1 : static_cast<int>(digit);
}

std::string decoded(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? digit_of(text[i + 1]) : -1;
    const int low = high >= 0 ? digit_of(text[i + 2]) : -1;
    bytes += low >= 0 ? static_cast<char>(high * 16 + low) : text[i];
    if (low >= 0) i += 2;
  }
  return bytes;
}

// Returns the value of a header, or "".
std::string header_of(const Request& request, const std::string& name) {
  const auto found = request.headers.find(name);
  return found == request.headers.end() ? "" : found->second;
}

bool knows_secret(const Request& request, const std::string& secret) {
  return equal_proofs(header_of(request, "authorization"), "Bearer " + secret) ||
         equal_proofs(value_in_query(request.query, "secret"), secret);
}

// An old client may not name the host; a browser always does.
bool names_this_machine(const Request& request) {
  const std::string host = lower(header_of(request, "host"));
  if (host.empty()) return true;
  const bool is_ipv6 = host.front() == '[';
  const std::string name = is_ipv6 ? host.substr(1, host.find(']') - 1) : host.substr(0, host.find(':'));
  return name == "localhost" || is_loopback(name);
}

std::string_view reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Internal Server Error";
  }
}

}  // namespace

std::optional<Request> parse_request(std::string_view bytes) {
  // Another protocol, such as TLS, would otherwise wait for an answer.
  if (!bytes.empty() && !is_token(bytes.substr(0, 1))) return refused(400);
  const size_t end = bytes.find(kEndOfHead);
  if (std::min(end, bytes.size()) > kLongestHead) return refused(431);
  if (end == std::string_view::npos) return std::nullopt;
  Request request;
  std::string_view rest = bytes.substr(0, end);
  if (const int status = parse_request_line(take_line(rest), request); status != 0) return refused(status);
  while (!rest.empty()) {
    const std::string_view line = take_line(rest);
    if (line.empty() || !parse_header(line, request)) return refused(400);
  }
  const bool has_body =
      request.headers.contains("transfer-encoding") ||
      (request.headers.contains("content-length") && request.headers["content-length"] != "0");
  return has_body ? refused(400) : request;
}

std::string value_in_query(std::string_view query, std::string_view name) {
  for (const std::string& part : split(query, '&')) {
    const size_t equals = std::min(part.find('='), part.size());
    if (part.substr(0, equals) == name)
      return decoded(std::string_view(part).substr(std::min(equals + 1, part.size())));
  }
  return "";
}

// The page may load nothing from elsewhere, and nobody else may show it, guess its type or keep it.
std::string to_bytes(const Answer& answer, std::string_view method) {
  const std::string more = answer.status == 405   ? "Allow: GET, HEAD\r\n"
                           : answer.status == 401 ? "WWW-Authenticate: Bearer\r\n"
                                                  : "";
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: "
      "no-store\r\n"
      "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
      "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
      "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n{}\r\n{}",
      answer.status, reason_of(answer.status), answer.type, answer.body.size(), more,
      method == "HEAD" ? "" : answer.body);
}

std::optional<Answer> refusal_of(const Request& request, const Admission& admission) {
  const auto refuse = [](int status, std::string_view why) {
    return Answer{.status = status, .body = fmt::format("{}\n", why)};
  };
  if (request.refusal != 0) return refuse(request.refusal, reason_of(request.refusal));
  if (!admission.secret.empty() && !knows_secret(request, admission.secret))
    return refuse(401, "the secret of the job is needed: Authorization: Bearer SECRET, or ?secret=SECRET");
  if (admission.secret.empty() && admission.local && !names_this_machine(request))
    return refuse(403, "only http://localhost and the addresses of the loopback lead here");
  if (request.method != "GET" && request.method != "HEAD") return refuse(405, "only GET and HEAD");
  return std::nullopt;
}

}  // namespace tutti::web
