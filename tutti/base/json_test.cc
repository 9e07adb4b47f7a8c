#include "tutti/base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tutti/base/test_errors.h"

namespace tutti::json_test {
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
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'lanes' occurs twice"),
               [] { parse_json(R"({"lanes": 1, "lanes": 2})", "run.json"); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'w' occurs twice"),
               [] { parse_json(R"([{"a": {"w": 1, "b": {}, "w": 2}}])", "run.json"); });
  EXPECT_NO_THROW(parse_json(R"({"a": {"w": 1}, "b": {"w": 2}, "w": [{"w": 3}]})", "run.json"));
}

TEST(JsonText, refuses_to_nest_without_end) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(parse_json(nested(kDeepestJson), "x"));
  std::string objects;
  for (int i = 0; i < 60000; ++i) objects += R"({"a":)";
  for (const std::string& text :
       {nested(kDeepestJson + 1), nested(60000), std::string(2000000, '['), objects}) {
    expect_error(ErrorKind::InvalidArgument,
                 HasSubstr("run.json: lists and objects are nested more than 100"),
                 [&] { parse_json(text, "run.json"); });
    expect_error(ErrorKind::DataLoss, HasSubstr("manifest"),
                 [&] { parse_sorted_json(text, "manifest", ErrorKind::DataLoss); });
  }
}

TEST(JsonText, gives_values_only_of_the_type_that_is_asked_for) {
  const Json values = parse_json(
      R"({"whole": 3, "half": 0.5, "yes": true, "text": "3", "none": null, "vast": 1e300,
          "unsigned": 18446744073709551615, "list": [1], "least": -9223372036854775808})",
      "x");
  EXPECT_EQ(value_in<int64_t>(values, "whole", "x"), 3);
  EXPECT_EQ(value_in<int64_t>(values, "least", "x"), INT64_MIN);
  EXPECT_EQ(value_in<double>(values, "whole", "x"), 3);
  EXPECT_EQ(value_in<double>(values, "half", "x"), 0.5);
  EXPECT_EQ(value_in<bool>(values, "yes", "x"), true);
  EXPECT_EQ(value_in<std::string>(values, "text", "x"), "3");
  EXPECT_EQ(value_in<int64_t>(values, "absent", "x", 7), 7);
  const auto expect_bad = [](const std::string& text, const auto& get) {
    expect_error(ErrorKind::DataLoss, HasSubstr(text), get);
  };
  for (const char* key : {"half", "yes", "text", "none", "vast", "unsigned", "list"}) {
    expect_bad(std::string("x: '") + key + "' should be a whole number, but it is ",
               [&] { value_in<int64_t>(values, key, "x"); });
    expect_bad("should be a whole number", [&] { value_in<int64_t>(values, key, "x", 7); });
  }
  for (const char* key : {"yes", "text", "none", "list"})
    expect_bad("should be a number", [&] { value_in<double>(values, key, "x"); });
  for (const char* key : {"whole", "text", "none"})
    expect_bad("should be true or false", [&] { value_in<bool>(values, key, "x"); });
  for (const char* key : {"whole", "yes", "none"})
    expect_bad("should be a string", [&] { value_in<std::string>(values, key, "x"); });
  expect_bad("x: 'absent' is missing", [&] { value_in<int64_t>(values, "absent", "x"); });
  expect_bad("x: expected an object, but found a list",
             [&] { value_in<int64_t>(values.at("list"), "whole", "x"); });
}

TEST(JsonText, names_types_for_people) {
  const Json values = parse_json(R"([null, {}, [], "x", true, 1, -1, 1.5])", "x");
  const char* names[] = {"null",          "an object", "a list",   "a string",
                         "true or false", "a number",  "a number", "a number"};
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(json_type_name(values[i]), names[i]);
}

}  // namespace
}  // namespace tutti::json_test
