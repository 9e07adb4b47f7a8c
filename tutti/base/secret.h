#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// How the tasks and launchers of a job keep strangers out. They share a secret, and both ends of each new
// connection prove to each other that they know it, in the same way everywhere:
//   listener: its nonce
//   caller:   its nonce, and a proof that covers both nonces and what it says first
//   listener: a proof that covers both nonces and its answer
// Neither end reads, or tells, anything else before it has checked the proof of the other. The secret is
// never sent, and since both nonces are random, nothing can be used for a second connection. docs/security.md
// says what this protects against.
namespace tutti {

enum class Side { Listener, Caller };

// Both are results of random_key().
struct Nonces {
  std::string of_listener;
  std::string of_caller;
};

inline constexpr size_t kNonceSize = 32;
inline constexpr size_t kProofSize = 64;

// Returns the proof that one side knows the secret and says this. `purpose` names the protocol, so that a
// proof is of no use in another one.
std::string prove(std::string_view secret, Side side, std::string_view purpose, const Nonces& nonces,
                  std::string_view says = "");

// Compares in a time that does not depend on the first difference.
bool equal_proofs(std::string_view one, std::string_view other);

// Returns an HMAC-SHA256 (RFC 2104) in hexadecimal digits.
std::string hmac_sha256(std::string_view key, std::string_view text);

// Returns the first bytes of what a stranger has sent, in printable form: they cannot move a terminal's
// cursor.
std::string harmless(std::string_view bytes, size_t most);

// Throws InvalidArgument if other machines can connect to this host (a name or an address of this machine; ""
// means all of them) and need no secret, unless the user says that this is all right.
void require_secret(const std::string& host, bool has_secret, bool insecure);

}  // namespace tutti
