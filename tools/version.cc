#include "tutti/base/version.h"

#include <fmt/core.h>

#include "tools/arguments.h"
#include "tools/commands.h"

namespace tutti {

int version_command(const std::vector<std::string>& arguments, const Environment&) {
  CLI::App app("Prints the versions of Tutti and of the LibTorch that it was built with.", "tutti version");
  if (!parse_arguments(app, arguments)) return 0;
  fmt::print("tutti {}\nLibTorch {}\n", version(), TUTTI_LIBTORCH_VERSION);
  return 0;
}

}  // namespace tutti
