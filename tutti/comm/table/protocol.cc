#include "tutti/comm/table/protocol.h"

#include "tutti/base/error.h"

namespace tutti::comm::table {
namespace {

constexpr size_t kSizeBytes = 4;
constexpr size_t kRequestHead = 1 + 2 * kSizeBytes;
constexpr size_t kReplyHead = 1 + kSizeBytes;

void append_size(std::string& bytes, size_t size) {
  for (size_t i = 0; i < kSizeBytes; ++i) bytes.push_back(static_cast<char>(size >> (8 * i) & 0xff));
}

size_t size_at(std::string_view bytes, size_t place) {
  size_t size = 0;
  for (size_t i = 0; i < kSizeBytes; ++i)
    size |= static_cast<size_t>(static_cast<unsigned char>(bytes[place + i])) << (8 * i);
  return size;
}

bool is_verb(char c) {
  const auto verb = static_cast<Verb>(c);
  return verb == Verb::Set || verb == Verb::Peek || verb == Verb::SetOnce || verb == Verb::Hold;
}

bool is_status(char c) {
  const auto status = static_cast<Status>(c);
  return status == Status::Value || status == Status::Nothing || status == Status::Full ||
         status == Status::Closed;
}

[[noreturn]] void fail_foreign() {
  fail(ErrorKind::DataLoss, "the received bytes do not follow the protocol of a table");
}

}  // namespace

std::string opening(std::string_view purpose) { return "tutti table 3 " + std::string(purpose) + "\n"; }

std::string encode(const Request& request) {
  std::string bytes(1, static_cast<char>(request.verb));
  append_size(bytes, request.key.size());
  append_size(bytes, request.value.size());
  return bytes + request.key + request.value;
}

std::string encode(const Reply& reply) {
  std::string bytes(1, static_cast<char>(reply.status));
  append_size(bytes, reply.value.size());
  return bytes + reply.value;
}

std::optional<Request> take_request(std::string& received) {
  if (received.empty()) return std::nullopt;
  if (!is_verb(received[0])) fail_foreign();
  if (received.size() < kRequestHead) return std::nullopt;
  const size_t key = size_at(received, 1);
  const size_t value = size_at(received, 1 + kSizeBytes);
  if (key > kLongestKey || value > kLongestValue) fail_foreign();
  if (received.size() < kRequestHead + key + value) return std::nullopt;
  Request request{static_cast<Verb>(received[0]), received.substr(kRequestHead, key),
                  received.substr(kRequestHead + key, value)};
  received.erase(0, kRequestHead + key + value);
  return request;
}

std::optional<Reply> take_reply(std::string& received) {
  if (received.empty()) return std::nullopt;
  if (!is_status(received[0])) fail_foreign();
  if (received.size() < kReplyHead) return std::nullopt;
  const size_t value = size_at(received, 1);
  if (value > kLongestValue) fail_foreign();
  if (received.size() < kReplyHead + value) return std::nullopt;
  Reply reply{static_cast<Status>(received[0]), received.substr(kReplyHead, value)};
  received.erase(0, kReplyHead + value);
  return reply;
}

}  // namespace tutti::comm::table
