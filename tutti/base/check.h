#pragma once

#include "tutti/base/error.h"

// A condition that only a mistake in Tutti itself can break; throws Error{Bug} with the place and the values
// given.
//   TUTTI_CHECK(begin <= end, "begin {} end {}", begin, end);
#define TUTTI_CHECK(condition, ...)                                                                         \
  do {                                                                                                      \
    if (!(condition)) {                                                                                     \
      ::tutti::fail(::tutti::ErrorKind::Bug, "{}:{}: {} does not hold: {}", __FILE__, __LINE__, #condition, \
                    ::fmt::format(__VA_ARGS__));                                                            \
    }                                                                                                       \
  } while (false)
