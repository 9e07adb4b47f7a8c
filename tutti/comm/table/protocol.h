#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// The protocol between the process that holds a table of the ranks and those that use it.
//
// The server speaks first: kMagic and a nonce. The client answers with a nonce of its own and a proof, an
// HMAC over both nonces, that it knows the key. Only then does the server prove the same and read requests.
// Neither the key nor anything that is the same for two connections is ever sent. There is no TLS: this keeps
// out processes that do not know the key, but not an attacker who can modify the messages of others.
namespace tutti::comm::table {

inline constexpr std::string_view kMagic = "tutti table 1\n";
inline constexpr size_t kNonceSize = 32;
inline constexpr size_t kProofSize = 64;
inline constexpr size_t kChallengeSize = kMagic.size() + kNonceSize;
inline constexpr size_t kAnswerSize = kNonceSize + kProofSize;
// The verdict is kWelcome or kRefusal, followed by the server's proof.
inline constexpr char kWelcome = 'y';
inline constexpr char kRefusal = 'n';
inline constexpr size_t kVerdictSize = 1 + kProofSize;

std::string client_proof(std::string_view key, std::string_view of_server, std::string_view of_client);
std::string server_proof(std::string_view key, std::string_view of_server, std::string_view of_client);

enum class Verb : char { Set = 's', Peek = 'p', SetOnce = 'o' };

struct Request {
  Verb verb = Verb::Peek;
  std::string key;
  std::string value;
};

enum class Status : char {
  Value = 'v',    // the value follows
  Nothing = '-',  // there is no value
  Full = 'f',     // the table is full
  Closed = 'c',   // sent without a request: the server ends in good order
};

struct Reply {
  Status status = Status::Nothing;
  std::string value;
};

inline constexpr size_t kLongestKey = size_t{64} << 10;
inline constexpr size_t kLongestValue = size_t{16} << 20;

std::string encode(const Request& request);
std::string encode(const Reply& reply);

// Remove the first message from the received bytes and return it; nullopt if it is not complete yet. Throw
// DataLoss if the bytes cannot come from a peer that follows this protocol.
std::optional<Request> take_request(std::string& received);
std::optional<Reply> take_reply(std::string& received);

}  // namespace tutti::comm::table
