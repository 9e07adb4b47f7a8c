#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <string>

// A text for a language model: sentences such as "the dogs near the old tree see a bird." A verb agrees with
// its subject, which may stand several words before it.
namespace example {

class Sentences {
 public:
  explicit Sentences(uint64_t seed) : random_(seed) {}

  std::string text(int64_t characters) {
    std::string text;
    while (static_cast<int64_t>(text.size()) < characters) text += sentence();
    text.resize(static_cast<size_t>(characters));
    return text;
  }

 private:
  using Words = std::array<const char*, 4>;

  // Every sentence is one of 2 * 4 * 17 * 4 * 16 with the same probability.
  std::string sentence() {
    const bool plural = below(2) == 1;
    std::string text = std::string("the ") + kNouns[below(4)] + (plural ? "s" : "");
    if (const size_t place = below(17); place < 16)
      text += std::string(" near the ") + kQualities[place / 4] + " " + kPlaces[place % 4];
    text += std::string(" ") + kVerbs[below(4)] + (plural ? "" : "s");
    const size_t object = below(16);
    return text + " a " + kQualities[object / 4] + " " + kNouns[object % 4] + ".\n";
  }
  size_t below(size_t count) { return random_() % count; }

  static constexpr Words kNouns = {"dog", "cat", "bird", "horse"};
  static constexpr Words kPlaces = {"trees", "river", "houses", "hill"};
  static constexpr Words kQualities = {"old", "small", "red", "quiet"};
  static constexpr Words kVerbs = {"see", "follow", "like", "hear"};

  std::mt19937_64 random_;
};

}  // namespace example
