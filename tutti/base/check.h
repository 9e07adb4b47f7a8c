#pragma once

#include "tutti/base/error.h"

// Checks a condition that only a bug in Tutti can break. If it does not hold, throws Error{Bug} with the
// source location and the given values.
//   TUTTI_CHECK(begin <= end, "begin {} end {}", begin, end);
#define TUTTI_CHECK(condition, ...)                                                                         \
  do {                                                                                                      \
    if (!(condition)) {                                                                                     \
      ::tutti::fail(::tutti::ErrorKind::Bug, "{}:{}: {} does not hold: {}", __FILE__, __LINE__, #condition, \
                    ::fmt::format(__VA_ARGS__));                                                            \
    }                                                                                                       \
  } while (false)
