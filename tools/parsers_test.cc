// Tests the parsers of external input: each gets valid inputs that were changed at random.
#include <algorithm>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "tools/test_parsers.h"

namespace tutti::test_parsers {
namespace {

class Mutations : public ::testing::TestWithParam<Parser> {};
class MutationsSoak : public Mutations {};

void mutate(std::string& input, std::mt19937_64& random) {
  const auto up_to = [&](size_t most) { return static_cast<size_t>(random() % (most + 1)); };
  const size_t at = up_to(input.size());
  switch (up_to(6)) {
    case 0:
      input.resize(at);
      break;
    case 1:
      input.insert(at, 1 + up_to(2), static_cast<char>(up_to(255)));
      break;
    case 2:
      input.erase(at, 1 + up_to(3));
      break;
    case 3:
      if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << up_to(7)));
      break;
    case 4:
      input.insert(at, input.substr(up_to(input.size()), up_to(16)));
      break;
    case 5:
      input.insert(at, std::string("0-9[]{},:;|\"'=\n\t ").substr(up_to(16), 1));
      break;
    default:  // extreme numbers
      for (size_t i = at; i < std::min(at + 8, input.size()); ++i)
        input[i] = random() % 2 == 0 ? '\xff' : '\0';
  }
}

void expect_an_end(const Parser& parser, uint64_t seed_of_choices, int inputs) {
  for (const std::string& seed : parser.seeds) ASSERT_NO_THROW(parser.parse(seed)) << seed;
  std::mt19937_64 random(seed_of_choices);
  for (int i = 0; i < inputs; ++i) {
    std::string input = parser.seeds[static_cast<size_t>(i) % parser.seeds.size()];
    for (size_t changes = 1 + random() % 4; changes > 0; --changes) mutate(input, random);
    try {
      try_to_parse(parser, input);
    } catch (const std::exception& error) {
      FAIL() << error.what() << "\n" << ::testing::PrintToString(input);
    }
  }
}

TEST_P(Mutations, are_parsed_or_refused_with_an_error) { expect_an_end(GetParam(), 1, 1000); }

TEST_P(MutationsSoak, are_parsed_or_refused_with_an_error) { expect_an_end(GetParam(), 2, 50'000); }

std::string name_of(const ::testing::TestParamInfo<Parser>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Of, Mutations, ::testing::ValuesIn(make_parsers()), name_of);
INSTANTIATE_TEST_SUITE_P(Of, MutationsSoak, ::testing::ValuesIn(make_parsers()), name_of);

}  // namespace
}  // namespace tutti::test_parsers
