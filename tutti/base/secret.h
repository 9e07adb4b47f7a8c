#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Authentication of the tasks and launchers of a job. They share a secret, and both ends of each new
// connection prove to each other that they know it, in the same way everywhere:
//   listener: its nonce
//   caller:   its nonce, and a proof that covers both nonces and the caller's first message
//   listener: a proof that covers both nonces and its answer
// Neither end reads or sends anything else before it has checked the proof of the other end. The secret is
// never sent, and since both nonces are random, no message can be replayed on a second connection.
// docs/security.md says which attacks this prevents.
namespace tutti {

enum class Side { Listener, Caller };

// Both are results of random_key().
struct Nonces {
  std::string of_listener;
  std::string of_caller;
};

inline constexpr size_t kNonceSize = 32;
inline constexpr size_t kProofSize = 64;

// Returns a proof that this side knows the secret and sends this message. `purpose` names the protocol, so
// that a proof is not valid in another protocol.
std::string prove(std::string_view secret, Side side, std::string_view purpose, const Nonces& nonces,
                  std::string_view says = "");

// Compares in a time that does not depend on the position of the first difference.
bool equal_proofs(std::string_view one, std::string_view other);

// Returns an HMAC-SHA256 (RFC 2104) in hexadecimal digits.
std::string hmac_sha256(std::string_view key, std::string_view text);

// Returns the first `most` bytes that an unknown peer has sent, in printable form: without control
// characters, which could move the cursor of a terminal.
std::string harmless(std::string_view bytes, size_t most);

// Throws InvalidArgument if other machines can connect to `host` (a name or an address of this machine; ""
// means all addresses) without a secret, unless the user allows this by `insecure`.
void require_secret(const std::string& host, bool has_secret, bool insecure);

// Returns 32 random lower-case hexadecimal digits, which cannot be guessed.
std::string random_key();

}  // namespace tutti
