#include "tutti/base/version.h"

#include <string_view>

#include <fmt/core.h>

#include "tools/arguments.h"
#include "tools/commands.h"

namespace tutti {

int version_command(const std::vector<std::string>& arguments, const Environment&) {
  CLI::App app("Prints the versions of Tutti and of the LibTorch that it was built with.", "tutti version");
  if (!parse_arguments(app, arguments)) return 0;
  fmt::print("tutti {}\n", version());
  const std::string_view libtorch = TUTTI_LIBTORCH_VERSION;
  if (!libtorch.empty()) fmt::print("LibTorch {}\n", libtorch);  // the Python package has none
  return 0;
}

}  // namespace tutti
