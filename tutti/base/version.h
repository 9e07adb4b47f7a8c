#pragma once

#include <string_view>

namespace tutti {

// CMakeLists.txt parses this line.
inline constexpr std::string_view kVersion = "0.1.0";

constexpr std::string_view version() { return kVersion; }

}  // namespace tutti
