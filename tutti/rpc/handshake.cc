#include "tutti/rpc/handshake.h"

#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/secret.h"
#include "tutti/base/text.h"
#include "tutti/base/version.h"

namespace tutti::rpc {
namespace {

// Small limits, because the peer is not authenticated yet.
constexpr FrameLimits kFirstWords{.head = uint32_t{64} << 10, .parts = 0};

// The host's answer if it can map the arena of the caller; else it is empty.
constexpr std::string_view kArenaIsSeen = "arena";
constexpr const char* kSameSecret =
    "Start all tasks of a job with the same TUTTI_SECRET (--secret); without one, `tutti run` makes a secret "
    "that only the tasks of this start know";

// "tutti-rpc PROTOCOL VERSION PURPOSE CHECKSUMS\n"
constexpr std::string_view kLine = "tutti-rpc ";
constexpr size_t kLongestLine = 100;
constexpr size_t kLongestQuote = 60;

// Whether an end wants checksums. Behind a proxy, only one end may see that a network is between them, so an
// end without a reason for checksums accepts them.
constexpr std::string_view kWanted = "checksums";
constexpr std::string_view kRefused = "no-checksums";
constexpr std::string_view kEither = "either";
// Of a host that turns the caller away at once, without having read its line.
constexpr std::string_view kTurnedAway = "turned-away";

std::string_view wish_for(net::Checksums checksums, const Stream& stream) {
  if (stream.is_encrypted()) return kEither;
  if (checksums == net::Checksums::BetweenHosts) return stream.is_within_host() ? kEither : kWanted;
  return checksums == net::Checksums::Always ? kWanted : kRefused;
}

// Returns true if the connection is to have checksums.
bool have_checksums(std::string_view mine, std::string_view theirs) {
  if (theirs == kTurnedAway) return false;
  if (theirs != kWanted && theirs != kRefused && theirs != kEither)
    throw StreamEnd(ErrorKind::DataLoss, "the first line of the other end was changed on its way");
  if (mine == kEither || theirs == kEither) return mine == kWanted || theirs == kWanted;
  if (mine != theirs)
    throw StreamEnd(
        ErrorKind::InvalidArgument,
        fmt::format("this task {} checksums for its messages, but the other end {} them: give all "
                    "tasks the same --message-checksums",
                    mine == kWanted ? "wants" : "refuses", mine == kWanted ? "refuses" : "wants"));
  return mine == kWanted;
}

void send_line(Stream& stream, const TimeLimits& time, std::string_view purpose, std::string_view wish) {
  const std::string line = fmt::format("{}{} {} {} {}\n", kLine, kProtocol, version(), purpose, wish);
  const ConstBytes bytes = as_bytes(line);
  stream.write({&bytes, 1}, time);
}

std::string receive_line(Stream& stream, const TimeLimits& time) {
  stream.await_message(time);
  std::string line;
  while (line.size() < kLongestLine && !line.ends_with('\n')) {
    char next = 0;
    stream.read(std::as_writable_bytes(std::span(&next, 1)), time);
    line += next;
    if (!line.starts_with(kLine.substr(0, line.size()))) break;
  }
  if (std::byte(line.front()) == net::kFirstByteOfTls)
    fail(ErrorKind::InvalidArgument,
         "the other end uses TLS, but this task does not: give all tasks the same --tls-* flags");
  if (!line.starts_with(kLine) || !line.ends_with('\n')) {
    while (line.size() < kLongestLine && stream.has_unread()) {
      line.push_back(0);
      stream.read(std::as_writable_bytes(std::span(&line.back(), 1)), time);
    }
    fail(ErrorKind::InvalidArgument,
         "at the other end of the connection is another program, not one of Tutti: it sent '{}'. Check the "
         "address",
         harmless(line, kLongestQuote));
  }
  stream.end_message();
  return line.substr(kLine.size(), line.size() - kLine.size() - 1);
}

void send(Wire& wire, FrameKind kind, std::string head, const TimeLimits& time) {
  Frame frame;
  frame.kind = kind;
  frame.head = std::move(head);
  wire.send(frame, {}, time);
}

// Returns the head, which is not parsed: the sender has not proved anything yet.
std::string receive(Wire& wire, FrameKind kind, size_t least, const TimeLimits& time) {
  Frame frame = wire.receive(kFirstWords, {}, time, time);
  wire.finish();
  if (frame.kind != kind) fail(ErrorKind::DataLoss, "received a frame of an unexpected kind");
  if (frame.head.size() < least) fail(ErrorKind::DataLoss, "received a handshake that is cut");
  return std::move(frame.head);
}

std::string text_at(const Json& head, const char* key) {
  const auto found = head.find(key);
  if (found == head.end() || !found->is_string())
    fail(ErrorKind::DataLoss, "received a frame without the text '{}' in its head", key);
  return found->get<std::string>();
}

}  // namespace

void exchange_versions(Stream& stream, const TimeLimits& time, std::string_view purpose,
                       net::Checksums checksums) {
  const std::string_view wish = wish_for(checksums, stream);
  send_line(stream, time, purpose, wish);
  std::vector<std::string> fields = split(receive_line(stream, time), ' ');
  fields.resize(4, "?");
  if (fields[0] != std::to_string(kProtocol))
    fail(ErrorKind::InvalidArgument,
         "Tutti {} of the other end (protocol {}) and Tutti {} of this task (protocol {}) are not "
         "compatible: run the same version everywhere",
         fields[1], fields[0], version(), kProtocol);
  if (fields[2] != purpose)
    throw StreamEnd(
        ErrorKind::PeerLost,
        fmt::format("the other end of the connection is for {}, but this end for {}", fields[2], purpose));
  if (have_checksums(wish, fields[3])) stream.begin_checksums();
}

void turn_away(Stream& stream, const Error& why, std::string_view purpose) {
  const TimeLimits now{.deadline = Clock::now()};
  try {
    send_line(stream, now, purpose, kTurnedAway);
    Wire(stream).send(refusal(why), {}, now);
  } catch (const Error&) {
    // The caller has gone.
  }
}

bool greet_host(Wire& wire, const std::string& secret, const Json& hello, const Arena* arena,
                const TimeLimits& time, std::string_view purpose) {
  const Nonces nonces{receive(wire, FrameKind::Challenge, kNonceSize, time), random_key()};
  // A longer one could stand for more than a nonce in the text that is proved.
  if (nonces.of_listener.size() != kNonceSize)
    fail(ErrorKind::DataLoss, "received a challenge of {} bytes", nonces.of_listener.size());
  const std::string says = encode_json({{"hello", hello}, {"arena", arena == nullptr ? "" : arena->name()}});
  send(wire, FrameKind::Proof, nonces.of_caller + prove(secret, Side::Caller, purpose, nonces, says) + says,
       time);
  const std::string welcome = receive(wire, FrameKind::Welcome, kProofSize, time);
  const std::string_view answer = std::string_view(welcome).substr(kProofSize);
  if (!equal_proofs(welcome.substr(0, kProofSize), prove(secret, Side::Listener, purpose, nonces, answer)))
    fail(ErrorKind::InvalidArgument, "the server and this task have different secrets. {}", kSameSecret);
  return answer == kArenaIsSeen;
}

Greeting greet_caller(Wire& wire, const std::string& secret, const TimeLimits& time, std::string_view purpose,
                      const std::function<void(const Greeting&)>& admit) {
  Nonces nonces{random_key(), ""};
  send(wire, FrameKind::Challenge, nonces.of_listener, time);
  const std::string answer = receive(wire, FrameKind::Proof, kNonceSize + kProofSize, time);
  nonces.of_caller = answer.substr(0, kNonceSize);
  const std::string shown = answer.substr(kNonceSize, kProofSize);
  const std::string says = answer.substr(kNonceSize + kProofSize);
  if (!equal_proofs(shown, prove(secret, Side::Caller, purpose, nonces, says))) {
    const bool has_none = equal_proofs(shown, prove("", Side::Caller, purpose, nonces, says));
    fail(ErrorKind::InvalidArgument, "{}. {}",
         secret.empty() ? "the caller has a secret, but this server has none"
         : has_none     ? "this server has a secret, but the caller has none"
                        : "the caller and this server have different secrets",
         kSameSecret);
  }
  const Json head = decode_json(says);
  if (!head.is_object() || !head.contains("hello") || !head["hello"].is_object())
    fail(ErrorKind::DataLoss, "the hello is not a JSON object");
  Greeting greeting{head["hello"], Mapping::attach(text_at(head, "arena"))};
  if (admit) admit(greeting);
  const std::string_view seen = greeting.arena != nullptr ? kArenaIsSeen : "";
  send(wire, FrameKind::Welcome, prove(secret, Side::Listener, purpose, nonces, seen).append(seen), time);
  return greeting;
}

}  // namespace tutti::rpc
