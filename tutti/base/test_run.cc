#include "tutti/base/test_run.h"

#include <cstdio>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti {
namespace {

using Files = std::set<std::string>;

// Returns the file, among these, that contains the test, or "".
std::string file_of(const ::testing::TestInfo& test, const Files& files) {
  const std::string_view path = test.file();
  for (const std::string& file : files) {
    if (path == file || path.ends_with("/" + file)) return file;
  }
  return "";
}

// Returns the filter for GoogleTest that chooses the tests of these files, or of all if there are none.
std::string filter_of(const Files& files, const std::string& soak) {
  std::string filter;
  Files without_tests = files;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(s);
    const std::string name = suite.name();
    const bool is_chosen = soak.empty() || (name.find("Soak") != std::string::npos) == (soak == "only");
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(t);
      const std::string file = file_of(test, files);
      if (file.empty() && !files.empty()) continue;
      without_tests.erase(file);
      if (is_chosen) filter += name + "." + test.name() + ":";
    }
  }
  if (!without_tests.empty()) throw std::invalid_argument("there is no test in " + *without_tests.begin());
  if (filter.empty()) throw std::invalid_argument("there is no such test");
  return filter;
}

Files parts_of(const std::string& list) {
  Files parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.insert(part);
  return parts;
}

// Reads the flags that GoogleTest has left. If GoogleTest has got a filter, it takes precedence.
void choose_tests(int argc, char** argv) {
  Files files;
  std::string soak;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const std::string value = flag.substr(flag.find('=') + 1);
    if (flag.starts_with("--of=")) {
      files = parts_of(value);
    } else if (flag == "--soak=none" || flag == "--soak=only") {
      soak = value;
    } else {
      throw std::invalid_argument("unknown flag " + flag);
    }
  }
  if (argc > 1 && GTEST_FLAG_GET(filter) == "*") GTEST_FLAG_SET(filter, filter_of(files, soak));
}

}  // namespace

int run_tests(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  try {
    choose_tests(argc, argv);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return RUN_ALL_TESTS();
}

std::string source_path(const std::string& file) { return TUTTI_TEST_SOURCES "/" + file; }

std::string program_path(const std::string& name) { return TUTTI_TEST_BIN "/" + name; }

}  // namespace tutti
