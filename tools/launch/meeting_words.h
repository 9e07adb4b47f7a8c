#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/secret.h"

// The messages between launchers, one line each: a challenge of the first host's launcher, the hello of the
// other one, and an answer. They are a handshake as in tutti/base/secret.h. Data from the network may be
// anything: a line that does not match the format exactly is parsed as nullopt.
namespace tutti {

inline constexpr int kMostWorkersOfAHost = 4096;

// The handshake of one connection, at one end. A line after the challenge is "NONCE PROOF TEXT", with the
// nonce of the caller.
class MeetingProof {
 public:
  // At the end of the listener.
  explicit MeetingProof(std::string secret);
  // At the end of the caller, which has read the challenge; nullopt if that is none.
  static std::optional<MeetingProof> of_caller(std::string secret, std::string_view challenge);

  // The first line: "tutti-run/3 NONCE".
  std::string challenge() const;
  std::string line(Side side, std::string_view text) const;
  // The answer to a launcher that has not proved anything: it depends on nothing, least of all on the secret.
  static std::string refusal();

  struct Said {
    std::string text;
    bool proved = false;  // else the sender has another secret, and the text may say anything
  };
  std::optional<Said> read(Side side, std::string_view line);

 private:
  std::string secret_;
  Nonces nonces_;
};

// Sent by a launcher to that of the first host: "HOST WORKERS PATIENCE-MS FINGERPRINT".
struct Hello {
  static constexpr size_t kLongest = 300;  // bytes of its line

  size_t host = 0;  // its index in JobHosts::row()
  int workers = 1;
  std::chrono::milliseconds patience{0};  // the time after which it wants to know who is missing
  std::string fingerprint;                // JobHosts::fingerprint()

  bool operator==(const Hello&) const = default;
};

// The answer: "all KEY 2 1 4", the key of this launch and the workers of every host; "late TEXT", the
// launchers that are missing; or "no TEXT", the reason why this launcher is refused.
struct Answer {
  static constexpr size_t kLongest = size_t{1} << 20;  // bytes
  enum class Kind { All, Late, No };

  Kind kind = Kind::All;
  std::vector<int> workers = {};
  std::string text = "";    // of one line
  std::string launch = "";  // Identity::launch

  bool operator==(const Answer&) const = default;
};

std::string to_text(const Hello& hello);
std::string to_text(const Answer& answer);
std::optional<Hello> read_hello(std::string_view text);
std::optional<Answer> read_answer(std::string_view text);

// Returns the first bytes from a stranger in printable form: they cannot move a terminal's cursor.
std::string harmless(std::string_view bytes);
// The maximum length of such a quote in an error.
inline constexpr size_t kLongestQuote = 60;

}  // namespace tutti
