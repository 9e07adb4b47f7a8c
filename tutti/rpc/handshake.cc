#include "tutti/rpc/handshake.h"

#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/rpc/proof.h"

namespace tutti::rpc {
namespace {

// Small limits, because the peer is not authenticated yet.
constexpr FrameLimits kFirstWords{.head = uint32_t{64} << 10, .parts = 0};

constexpr const char* kSameSecret = "Start all tasks of a job with the same TUTTI_SECRET (--secret)";

void send(Wire& wire, FrameKind kind, const Json& head, const TimeLimits& time) {
  Frame frame;
  frame.kind = kind;
  frame.head = encode_json(head);
  wire.send(frame, {}, time);
}

Json receive(Wire& wire, FrameKind kind, const TimeLimits& time) {
  const auto allocate = [](size_t bytes) {
    return std::shared_ptr<std::byte>(new std::byte[bytes], std::default_delete<std::byte[]>());
  };
  const Frame frame = wire.receive(kFirstWords, allocate, time.next(), time);
  wire.finish();
  if (frame.kind != kind) fail(ErrorKind::DataLoss, "received a frame of an unexpected kind");
  Json head = decode_json(frame.head);
  if (!head.is_object()) fail(ErrorKind::DataLoss, "received a frame whose head is not a JSON object");
  return head;
}

std::string text_at(const Json& head, const char* key) {
  const auto found = head.find(key);
  if (found == head.end() || !found->is_string())
    fail(ErrorKind::DataLoss, "received a frame without the text '{}' in its head", key);
  return found->get<std::string>();
}

// Returns "" without a secret. The role keeps an attacker from sending a peer its own proof back.
std::string proof(const std::string& secret, std::string_view role, const std::string& of_host,
                  const std::string& of_caller, const std::string& hello) {
  if (secret.empty()) return "";
  return hmac_sha256(secret, fmt::format("{} {} {} {}", role, of_host, of_caller, hello));
}

}  // namespace

bool greet_host(Wire& wire, const std::string& secret, const Json& hello, const Arena* arena,
                const TimeLimits& time) {
  const Json challenge = receive(wire, FrameKind::Challenge, time);
  const std::string of_host = text_at(challenge, "nonce");
  const std::string of_caller = make_nonce();
  const std::string said = encode_json(hello);
  send(wire, FrameKind::Proof,
       {{"nonce", of_caller},
        {"proof", proof(secret, "caller", of_host, of_caller, said)},
        {"hello", said},
        {"arena", arena == nullptr ? "" : arena->name()}},
       time);
  const Json welcome = receive(wire, FrameKind::Welcome, time);
  if (!equal_proofs(text_at(welcome, "proof"), proof(secret, "host", of_host, of_caller, said)))
    fail(ErrorKind::InvalidArgument, "the server and this task have different secrets. {}", kSameSecret);
  return welcome.value("arena", Json()) == true;
}

Greeting greet_caller(Wire& wire, const std::string& secret, const TimeLimits& time) {
  const std::string of_host = make_nonce();
  send(wire, FrameKind::Challenge, {{"nonce", of_host}}, time);
  const Json answer = receive(wire, FrameKind::Proof, time);
  const std::string of_caller = text_at(answer, "nonce");
  const std::string said = text_at(answer, "hello");
  const std::string shown = text_at(answer, "proof");
  if (!equal_proofs(shown, proof(secret, "caller", of_host, of_caller, said))) {
    const char* const how = secret.empty()  ? "the caller has a secret, but this server has none"
                            : shown.empty() ? "this server has a secret, but the caller has none"
                                            : "the caller and this server have different secrets";
    fail(ErrorKind::InvalidArgument, "{}. {}", how, kSameSecret);
  }
  Greeting greeting{decode_json(said), Mapping::of(text_at(answer, "arena"))};
  if (!greeting.hello.is_object()) fail(ErrorKind::DataLoss, "the hello is not a JSON object");
  send(wire, FrameKind::Welcome,
       {{"proof", proof(secret, "host", of_host, of_caller, said)}, {"arena", greeting.arena != nullptr}},
       time);
  return greeting;
}

}  // namespace tutti::rpc
