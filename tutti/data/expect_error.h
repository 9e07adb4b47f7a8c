#pragma once

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/error.h"

namespace tutti::data {

// For tests: `work` has to throw an Error of this kind; returns its text.
template <class Work>
std::string error_of(ErrorKind kind, const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.kind()), to_string(kind)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

}  // namespace tutti::data
