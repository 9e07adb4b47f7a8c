#include <algorithm>
#include <csignal>
#include <filesystem>
#include <poll.h>
#include <set>
#include <stdlib.h>
#include <sys/wait.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/launch/child.h"
#include "tools/launch/outcome.h"
#include "tools/launch/signal_pipe.h"
#include "tutti/base/config.h"
#include "tutti/base/error.h"
#include "tutti/base/flags.h"
#include "tutti/store/manifest.h"
#include "tutti/train/load.h"

namespace tutti {
namespace {

constexpr const char* kAboutExport =
    "Exports a checkpoint as a model that runs without the program that has trained it. Starts PROGRAM, "
    "which\n"
    "builds the model, with the model's own flags as the checkpoint has recorded them, and prints the path "
    "of\n"
    "the new version. ARGUMENTS are the program's other flags, such as --data: it needs some examples.\n"
    "  tutti export run --program build/bin/mnist --out exports [-- --data mnist]\n"
    "  tutti export run/ckpt-5000 --program build/bin/clicks --out exports";

// Flags of every program that the predictions depend on. Others, such as the number of workers, do not matter
// for an export.
bool matters(const std::string& name, const FlagValues& standard) {
  if (name == "--precision" || name == "--layout") return true;
  return std::none_of(standard.begin(), standard.end(),
                      [&](const FlagValue& flag) { return flag.name == name; });
}

// Returns the values of the flags that the checkpoint has recorded, as variables, so that flags in ARGUMENTS
// take precedence over them.
std::vector<std::pair<std::string, std::string>> recorded_flags(const std::string& checkpoint) {
  const nlohmann::json state = store::read_folder_manifest(checkpoint).state;
  const FlagValues standard = values_of(RunConfig());
  std::vector<std::pair<std::string, std::string>> variables;
  const nlohmann::json flags = state.value("flags", nlohmann::json::object());
  for (const auto& [name, value] : flags.items()) {
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (!matters(name, standard) || text.empty() || text == "(hidden)") continue;
    std::string variable = "TUTTI_" + name.substr(name.find_first_not_of('-'));
    for (char& letter : variable)
      letter = letter == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    variables.emplace_back(variable, text);
  }
  return variables;
}

// Runs the program to its end and returns its exit code. Passes signals on to it, and kills it at a second
// signal other than SIGHUP, which is sent twice when a terminal is closed.
int exit_code_of(const std::vector<std::string>& command) {
  SignalPipe signals({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD});
  const Environment environment = Environment::of_process();
  ChildOptions options;
  for (const auto& [name, value] : environment.variables()) options.environment.push_back(name + "=" + value);
  const Child child = start_child(command, options);
  int status = 0;
  bool is_told = false;
  while (waitpid(child.pid, &status, WNOHANG) != child.pid) {
    pollfd event = {signals.descriptor(), POLLIN, 0};
    poll(&event, 1, -1);
    while (const auto signal = signals.next()) {
      if (*signal == SIGCHLD || (is_told && *signal == SIGHUP)) continue;
      kill(-child.pid, std::exchange(is_told, true) ? SIGKILL : *signal);
    }
  }
  return Outcome(status).exit_code();
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  std::error_code ignored;  // it need not exist
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored))
    names.insert(entry.path().filename());
  return names;
}

}  // namespace

int export_command(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app(kAboutExport, "tutti export");
  std::string checkpoint;
  std::string program;
  std::string out;
  app.add_option("CHECKPOINT", checkpoint,
                 "A folder ckpt-<step>, or a --logdir, whose newest checkpoint is exported")
      ->required();
  app.add_option("--program", program, "The program that has trained the model")->required();
  app.add_option("--out", out, "The folder for versions of the model: OUT/1, OUT/2, ...")
      ->required()
      ->check([](const std::string& text) -> std::string { return text.empty() ? "it is empty" : ""; });
  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  if (!parse_arguments(app, {arguments.begin(), dashes})) return 0;

  const std::string folder = checkpoint_at(checkpoint);
  std::vector<std::string> recorded;
  for (const auto& [name, value] : recorded_flags(folder)) {
    if (environment.has(name)) continue;
    ::setenv(name.c_str(), value.c_str(), 1);
    recorded.push_back(name);
  }
  // If PROGRAM is not the program that wrote the checkpoint, it may not know some of the flags. The error
  // that the model does not fit is then more helpful than an error about a flag.
  ::setenv("_TUTTI_OF_CHECKPOINT", fmt::format("{}", fmt::join(recorded, ",")).c_str(), 1);
  std::vector<std::string> words = {program};
  if (dashes != arguments.end()) words.insert(words.end(), dashes + 1, arguments.end());
  words.insert(words.end(), {"--export", out, "--export-from", folder});
  const std::set<std::string> before = names_in(out);
  const int code = exit_code_of(words);
  if (code == 0 && names_in(out) == before)
    fail(
        ErrorKind::InvalidArgument,
        "{} ended well but exported nothing to {}: it must be a program of tutti::run() that trains a model, "
        "or that exports its model when it is given --export",
        program, out);
  return code;
}

}  // namespace tutti
