#include <algorithm>

#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/launch/launcher.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {

int run_command(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app(
      "Starts PROGRAM as the workers of one job on this machine, each with its share of the cores, and ends "
      "them all "
      "when one fails.\n  tutti run [-n WORKERS] [--restarts K] -- PROGRAM [ARGUMENTS...]",
      "tutti run");
  LaunchOptions options;
  app.add_option("-n,--workers", options.workers, "How many (1)")->check(CLI::Range(1, 4096));
  app.add_option("--restarts", options.restarts, "Start all again up to this often after one has failed (0)")
      ->check(CLI::NonNegativeNumber);
  app.prefix_command();  // `--` may be left out where PROGRAM's name shows where it begins

  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  if (!parse_arguments(app, {arguments.begin(), dashes})) return 0;
  std::vector<std::string> command = app.remaining();
  if (!command.empty() && command.front().starts_with('-')) {
    const std::string name = command.front().substr(0, command.front().find('='));
    const std::vector<std::string> known = {"--workers", "--restarts", "--help"};
    fail(ErrorKind::InvalidArgument, "tutti run: no flag '{}'{}; flags of the program go behind its name",
         name, did_you_mean(name, known));
  }
  // A `--` behind the program's name is the program's own.
  const auto rest = command.empty() && dashes != arguments.end() ? dashes + 1 : dashes;
  command.insert(command.end(), rest, arguments.end());
  if (command.empty()) {
    fail(ErrorKind::InvalidArgument, "tutti run: no program; say which: tutti run -n 2 -- build/bin/mnist");
  }
  return launch(command, environment, options);
}

}  // namespace tutti
