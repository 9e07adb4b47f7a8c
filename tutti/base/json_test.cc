#include "tutti/base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tutti/base/test_errors.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(JsonText, keeps_the_order_of_keys) {
  EXPECT_EQ(parse_json(R"({"b": 1, "a": [true, null]})", "x").dump(), R"({"b":1,"a":[true,null]})");
}

TEST(JsonText, names_the_source_and_the_place_of_a_mistake) {
  expect_error(
      ErrorKind::InvalidArgument,
      AllOf(HasSubstr("run.json is not JSON"), HasSubstr("line 2, column 7"), Not(HasSubstr("exception"))),
      [] { parse_json("{\"a\": 1,\n \"b\": x}", "run.json"); });
  for (const char* text :
       {"", "{", "{\"a\": 1,}", "[1 2]", "nul", "{} {}", "\"\xff\"", "{'a': 1}", "\xef\xbb"}) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr("run.json"), [&] { parse_json(text, "run.json"); });
  }
}

TEST(JsonText, refuses_a_key_that_stands_twice) {
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'lanes' stands twice"),
               [] { parse_json(R"({"lanes": 1, "lanes": 2})", "run.json"); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'w' stands twice"),
               [] { parse_json(R"([{"a": {"w": 1, "b": {}, "w": 2}}])", "run.json"); });
  EXPECT_NO_THROW(parse_json(R"({"a": {"w": 1}, "b": {"w": 2}, "w": [{"w": 3}]})", "run.json"));
}

TEST(JsonText, names_types_for_people) {
  const Json values = parse_json(R"([null, {}, [], "x", true, 1, -1, 1.5])", "x");
  const char* names[] = {"null",          "an object", "a list",   "a text",
                         "true or false", "a number",  "a number", "a number"};
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(json_type_name(values[i]), names[i]);
}

}  // namespace
}  // namespace tutti
