#pragma once

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/error.h"

namespace tutti {

// For tests: the statement throws an Error of the kind, whose text matches.
//   expect_error(ErrorKind::DataLoss, HasSubstr("byte 8"), [&] { SafetensorsFile file(path); });
template <class Matcher, class Statement>
void expect_error(ErrorKind kind, const Matcher& text, const Statement& statement) {
  try {
    statement();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << to_string(error.kind()) << ": " << error.what();
    EXPECT_THAT(std::string(error.what()), text);
    return;
  }
  ADD_FAILURE() << "nothing was thrown where " << to_string(kind) << " is due";
}

}  // namespace tutti
