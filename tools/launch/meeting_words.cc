#include "tools/launch/meeting_words.h"

#include <algorithm>

#include <climits>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/random_key.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

constexpr std::string_view kProtocol = "tutti-run/3 ";
constexpr size_t kFingerprint = 64;  // hexadecimal digits
constexpr size_t kLaunch = 32;
constexpr size_t kLongestHarmless = 4000;

// Accepts only digits: neither "+2" nor "-0".
std::optional<int> number(std::string_view text, int least, int most) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  const auto value = parse_int(text);
  if (!value || *value < least || *value > most) return std::nullopt;
  return static_cast<int>(*value);
}

bool is_hexadecimal(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::optional<Answer> read_all(std::string_view text) {
  const std::vector<std::string> words = split(text, ' ');
  if (words.size() < 2 || !is_hexadecimal(words.front(), kLaunch)) return std::nullopt;
  Answer answer{.launch = words.front()};
  for (size_t i = 1; i < words.size(); ++i) {
    const auto workers = number(words[i], 1, kMostWorkersOfAHost);
    if (!workers) return std::nullopt;
    answer.workers.push_back(*workers);
  }
  return answer;
}

}  // namespace

MeetingProof::MeetingProof(std::string secret) : secret_(std::move(secret)), nonces_{random_key(), ""} {}

std::optional<MeetingProof> MeetingProof::of_caller(std::string secret, std::string_view challenge) {
  if (!challenge.starts_with(kProtocol)) return std::nullopt;
  const std::string_view nonce = challenge.substr(kProtocol.size());
  if (!is_hexadecimal(nonce, kNonceSize)) return std::nullopt;
  MeetingProof proof(std::move(secret));
  proof.nonces_ = {std::string(nonce), random_key()};
  return proof;
}

std::string MeetingProof::challenge() const { return fmt::format("{}{}\n", kProtocol, nonces_.of_listener); }

std::string MeetingProof::line(Side side, std::string_view text) const {
  return fmt::format("{} {} {}\n", nonces_.of_caller, prove(secret_, side, kProtocol, nonces_, text), text);
}

std::string MeetingProof::refusal() {
  return fmt::format("{} {} no\n", std::string(kNonceSize, '0'), std::string(kProofSize, '0'));
}

std::optional<MeetingProof::Said> MeetingProof::read(Side side, std::string_view line) {
  constexpr size_t kText = kNonceSize + 1 + kProofSize + 1;
  if (line.size() < kText || line[kNonceSize] != ' ' || line[kText - 1] != ' ') return std::nullopt;
  const std::string_view nonce = line.substr(0, kNonceSize);
  const std::string_view proof = line.substr(kNonceSize + 1, kProofSize);
  if (!is_hexadecimal(nonce, kNonceSize) || !is_hexadecimal(proof, kProofSize)) return std::nullopt;
  if (side == Side::Caller) nonces_.of_caller = nonce;
  const std::string_view text = line.substr(kText);
  const bool proved =
      nonce == nonces_.of_caller && equal_proofs(proof, prove(secret_, side, kProtocol, nonces_, text));
  return Said{std::string(text), proved};
}

std::string to_text(const Hello& hello) {
  return fmt::format("{} {} {} {}", hello.host, hello.workers, hello.patience.count(), hello.fingerprint);
}

std::string to_text(const Answer& answer) {
  switch (answer.kind) {
    case Answer::Kind::All:
      return fmt::format("all {} {}", answer.launch, fmt::join(answer.workers, " "));
    case Answer::Kind::Late:
      return fmt::format("late {}", harmless(answer.text));
    case Answer::Kind::No:
      break;
  }
  return fmt::format("no {}", harmless(answer.text));
}

std::optional<Hello> read_hello(std::string_view text) {
  if (text.size() > Hello::kLongest) return std::nullopt;
  const std::vector<std::string> words = split(text, ' ');
  if (words.size() != 4 || !is_hexadecimal(words[3], kFingerprint)) return std::nullopt;
  const auto host = number(words[0], 0, INT_MAX);
  const auto workers = number(words[1], 1, kMostWorkersOfAHost);
  const auto patience = number(words[2], 0, INT_MAX);
  if (!host || !workers || !patience) return std::nullopt;
  return Hello{static_cast<size_t>(*host), *workers, std::chrono::milliseconds(*patience), words[3]};
}

std::optional<Answer> read_answer(std::string_view text) {
  const size_t space = text.find(' ');
  if (text.size() > Answer::kLongest || space == std::string_view::npos) return std::nullopt;
  const std::string_view kind = text.substr(0, space);
  const std::string_view rest = text.substr(space + 1);
  if (kind == "all") return read_all(rest);
  if (kind == "late") return Answer{.kind = Answer::Kind::Late, .text = harmless(rest)};
  if (kind == "no") return Answer{.kind = Answer::Kind::No, .text = harmless(rest)};
  return std::nullopt;
}

std::string harmless(std::string_view bytes) {
  std::string text(bytes.substr(0, kLongestHarmless));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace tutti
