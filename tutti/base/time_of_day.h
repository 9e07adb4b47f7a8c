#pragma once

#include <string>

namespace tutti {

// Returns the local time as in a line of the log, "12:03:41.250".
std::string time_of_day();

}  // namespace tutti
