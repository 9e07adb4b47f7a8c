#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/base/secret.h"

// The protocol between the process that holds a table and those that use it. It begins as
// tutti/base/secret.h says: the opening and the nonce of the server, the nonce and the proof of the client,
// the verdict and the proof of the server.
namespace tutti::comm::table {

// Returns the first line of the server. `purpose` says for whom the table is, so that nobody takes the table
// of others at the same address for the own one; it is also the purpose of the proofs.
std::string opening(std::string_view purpose);
inline constexpr size_t kAnswerSize = kNonceSize + kProofSize;
// The verdict is kWelcome or kRefusal, followed by the server's proof.
inline constexpr char kWelcome = 'y';
inline constexpr char kRefusal = 'n';
inline constexpr size_t kVerdictSize = 1 + kProofSize;

enum class Verb : char { Set = 's', Peek = 'p', SetOnce = 'o', Hold = 'h' };

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
