#pragma once

#include <functional>
#include <string>
#include <vector>

namespace tutti::test_parsers {

// Whatever the input is, parse() must return or throw an Error that is not a Bug.
struct Parser {
  std::string name;
  std::vector<std::string> seeds;  // valid inputs
  std::function<void(const std::string& input)> parse;
};

// The parsers of what others wrote.
std::vector<Parser> make_parsers();

// Ignores the errors that are allowed, and throws std::logic_error for all others.
void try_to_parse(const Parser& parser, const std::string& input);

}  // namespace tutti::test_parsers
