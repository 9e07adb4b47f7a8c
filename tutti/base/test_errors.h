#pragma once

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/error.h"

namespace tutti {

// For tests: expects that the statement throws an Error of this kind, and returns its text.
template <class Statement>
std::string error_of(ErrorKind kind, const Statement& statement) {
  try {
    statement();
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.kind()), to_string(kind)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown where " << to_string(kind) << " is due";
  return "";
}

// Like error_of(), but also expects that the text matches.
//   expect_error(ErrorKind::DataLoss, HasSubstr("byte 8"), [&] { SafetensorsFile file(path); });
template <class Matcher, class Statement>
void expect_error(ErrorKind kind, const Matcher& text, const Statement& statement) {
  EXPECT_THAT(error_of(kind, statement), text);
}

}  // namespace tutti
