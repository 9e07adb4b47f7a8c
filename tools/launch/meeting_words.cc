#include "tools/launch/meeting_words.h"

#include <algorithm>

#include <climits>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/text.h"

namespace tutti {
namespace {

constexpr std::string_view kProtocol = "tutti-run/2";
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

std::string to_line(const Hello& hello) {
  return fmt::format("{} {} {} {} {}\n", kProtocol, hello.host, hello.workers, hello.patience.count(),
                     hello.fingerprint);
}

std::string to_line(const Answer& answer) {
  switch (answer.kind) {
    case Answer::Kind::All:
      return fmt::format("all {} {}\n", answer.launch, fmt::join(answer.workers, " "));
    case Answer::Kind::Late:
      return fmt::format("late {}\n", harmless(answer.text));
    case Answer::Kind::No:
      break;
  }
  return fmt::format("no {}\n", harmless(answer.text));
}

std::optional<Hello> read_hello(std::string_view line) {
  if (line.size() > Hello::kLongest) return std::nullopt;
  const std::vector<std::string> words = split(line, ' ');
  if (words.size() != 5 || words[0] != kProtocol || !is_hexadecimal(words[4], kFingerprint))
    return std::nullopt;
  const auto host = number(words[1], 0, INT_MAX);
  const auto workers = number(words[2], 1, kMostWorkersOfAHost);
  const auto patience = number(words[3], 0, INT_MAX);
  if (!host || !workers || !patience) return std::nullopt;
  return Hello{static_cast<size_t>(*host), *workers, std::chrono::milliseconds(*patience), words[4]};
}

std::optional<Answer> read_answer(std::string_view line) {
  const size_t space = line.find(' ');
  if (line.size() > Answer::kLongest || space == std::string_view::npos) return std::nullopt;
  const std::string_view kind = line.substr(0, space);
  const std::string_view rest = line.substr(space + 1);
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
