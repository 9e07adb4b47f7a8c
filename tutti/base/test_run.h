#pragma once

#include <string>

namespace tutti {

// The main() of all tests; test_main.cc calls it. In addition to the flags of GoogleTest there are two, which
// the entries of ctest use (cmake/TuttiTests.cmake):
//   --of=FILE,...   runs the tests of these sources, each of which must have at least one test
//   --soak=none     runs no suite whose name contains Soak; --soak=only runs only these
// A filter, such as the variable GTEST_FILTER, replaces both.
int run_tests(int argc, char** argv);

// Returns the path of a file of the repository: tests/oracles/check_images.py.
std::string source_path(const std::string& file);

// Returns the path of a program in build/bin.
std::string program_path(const std::string& name);

}  // namespace tutti
