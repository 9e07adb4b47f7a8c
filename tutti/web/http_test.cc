#include "tutti/web/http.h"

#include <random>

#include <gmock/gmock.h>

namespace tutti::web::http_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kGet =
    "GET /metrics?secret=a%20b&x HTTP/1.1\r\nHost: 127.0.0.1:80\r\nAuthorization:\t Bearer  me \r\n\r\n";

int refusal_of_head(const std::string& bytes) {
  const auto request = parse_request(bytes);
  return request ? request->refusal : -1;
}

TEST(Http, reads_a_request) {
  const auto request = parse_request(kGet);
  ASSERT_TRUE(request);
  EXPECT_EQ(request->refusal, 0);
  EXPECT_EQ(request->method, "GET");
  EXPECT_EQ(request->path, "/metrics");
  EXPECT_EQ(request->query, "secret=a%20b&x");
  EXPECT_EQ(request->headers.at("host"), "127.0.0.1:80");
  EXPECT_EQ(request->headers.at("authorization"), "Bearer  me");
  EXPECT_EQ(refusal_of_head("HEAD / HTTP/1.0\r\n\r\n"), 0);
  EXPECT_EQ(refusal_of_head("GET / HTTP/1.1\r\nContent-Length: 0\r\n\r\nmore"), 0);
}

TEST(Http, waits_for_the_end_of_a_head_that_is_cut) {
  for (size_t size = 0; size < kGet.size(); ++size) EXPECT_FALSE(parse_request(kGet.substr(0, size))) << size;
}

TEST(Http, refuses_a_request_that_is_not_valid) {
  const std::vector<std::pair<std::string, int>> cases = {
      {"GET\r\n\r\n", 400},
      {"GET /\r\n\r\n", 400},
      {"GET  HTTP/1.1\r\n\r\n", 400},
      {"GET x HTTP/1.1\r\n\r\n", 400},
      {"GET http://h/ HTTP/1.1\r\n\r\n", 400},
      {"GET /a b HTTP/1.1\r\n\r\n", 400},
      {"GET /\n HTTP/1.1\r\n\r\n", 400},
      {std::string("GET /\0 HTTP/1.1\r\n\r\n", 20), 400},
      {"GET / HTTP/2.0\r\n\r\n", 505},
      {"GET / HTTP/1.10\r\n\r\n", 505},
      {"GET / FTP/1.1\r\n\r\n", 400},
      {"G(T / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n: x\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: x\nEvil: y\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: x\r\nHOST: y\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 400},
      {"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"\x16\x03\x01", 400},  // TLS
      {"\r\n", 400},
      {"GET /" + std::string(kLongestHead, 'a'), 431},
      {"GET / HTTP/1.1\r\nX: " + std::string(kLongestHead, 'a') + "\r\n\r\n", 431},
  };
  for (const auto& [bytes, status] : cases) EXPECT_EQ(refusal_of_head(bytes), status) << bytes.substr(0, 60);
}

TEST(Http, survives_any_bytes) {
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = kGet;
    for (int change = 0; change < 1 + round % 5; ++change)
      bytes[random() % bytes.size()] = static_cast<char>(random() % 256);
    const auto request = parse_request(bytes);
    if (!request) continue;
    EXPECT_TRUE(request->refusal != 0 || request->path.starts_with('/'));
    refusal_of(*request, {.secret = "s"});
    refusal_of(*request, {});
  }
}

TEST(Http, finds_and_decodes_a_value_in_the_query) {
  EXPECT_EQ(value_in_query("a=1&secret=x%2By+z%&b", "secret"), "x+y+z%");
  EXPECT_EQ(value_in_query("secret=%zz%4", "secret"), "%zz%4");
  EXPECT_EQ(value_in_query("%41=%41%5a%5A", "%41"), "AZZ");
  EXPECT_EQ(value_in_query("secret", "secret"), "");
  EXPECT_EQ(value_in_query("", "secret"), "");
}

int status_for(Request request, const Admission& admission) {
  const auto refusal = refusal_of(request, admission);
  return refusal ? refusal->status : 200;
}

TEST(Http, admits_whoever_knows_the_secret) {
  const Admission secret{.secret = "s3cret", .local = false};
  EXPECT_EQ(status_for({.method = "GET"}, secret), 401);
  EXPECT_EQ(status_for({.method = "GET", .headers = {{"authorization", "Bearer s3cret"}}}, secret), 200);
  EXPECT_EQ(status_for({.method = "GET", .query = "secret=s3cret"}, secret), 200);
  for (const char* wrong : {"s3cret", "Bearer s3cre", "Bearer s3cret2", "Bearer ", "Basic s3cret", ""})
    EXPECT_EQ(status_for({.method = "GET", .headers = {{"authorization", wrong}}}, secret), 401) << wrong;
  EXPECT_EQ(status_for({.method = "GET", .query = "secret="}, secret), 401);
  EXPECT_EQ(status_for({.method = "POST", .query = "secret=s3cret"}, secret), 405);
  EXPECT_EQ(status_for({.method = "GET", .headers = {{"host", "other:80"}}}, {.local = false}), 200);
}

TEST(Http, admits_only_pages_of_this_machine_without_a_secret) {
  for (const char* host : {"localhost", "LOCALHOST:80", "127.0.0.1:80", "127.1.2.3", "[::1]:80", ""})
    EXPECT_EQ(status_for({.method = "GET", .headers = {{"host", host}}}, {}), 200) << host;
  for (const char* host :
       {"evil.example", "localhost.evil.example:80", "10.0.0.1", "[", ":80", "[2001:db8::1]"})
    EXPECT_EQ(status_for({.method = "GET", .headers = {{"host", host}}}, {}), 403) << host;
  EXPECT_EQ(status_for({.method = "GET"}, {}), 200);
  EXPECT_EQ(status_for({.method = "PUT"}, {}), 405);
}

TEST(Http, writes_an_answer) {
  const std::string whole = to_bytes({.body = "hello"}, "GET");
  EXPECT_THAT(whole, HasSubstr("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(whole, HasSubstr("Content-Length: 5\r\n"));
  EXPECT_TRUE(whole.ends_with("\r\n\r\nhello"));
  EXPECT_THAT(to_bytes({.body = "hello"}, "HEAD"), HasSubstr("Content-Length: 5\r\n"));
  EXPECT_THAT(to_bytes({.body = "hello"}, "HEAD"), Not(HasSubstr("hello")));
  EXPECT_THAT(to_bytes({.status = 405}, "PUT"), HasSubstr("Allow: GET, HEAD\r\n"));
}

}  // namespace
}  // namespace tutti::web::http_test
