#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <unistd.h>

#include <fmt/core.h>

#include "tools/commands.h"
#include "tools/launch/guardian.h"
#include "tools/launch/host_link.h"
#include "tutti/base/error.h"
#include "tutti/base/guarded_main.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

constexpr const char* kTorchProgram = "tutti-torch";

struct Command {
  std::string_view name;
  std::string_view about;
  CommandFunction* run;  // nullptr: the command is in kTorchProgram
};

constexpr std::array<Command, 15> kCommands = {{
    {"run", "start a program as the workers of one job", run_command},
    {"scale", "change the number of workers of a job", scale_command},
    {"sweep", "run a program with different values of its flags", sweep_command},
    {"serve", "run one parameter server or passive worker, for any program", nullptr},
    {"stop", "stop the servers of a cluster, or the tasks of one job", nullptr},
    {"status", "tell how far a run is, and whether it lives", nullptr},
    {"inspect", "show and verify a checkpoint, or show a table", nullptr},
    {"diff", "find the first step at which two runs have other weights", nullptr},
    {"export", "export a checkpoint as a model for other programs", nullptr},
    {"plot", "draw the curves of one or several runs", plot_command},
    {"timeline", "join the timelines of all workers of a run", timeline_command},
    {"shard", "split tables into shards, one folder each", nullptr},
    {"doctor", "check whether this machine is ready for training", nullptr},
    {"bench", "measure how fast tasks exchange vectors", nullptr},
    {"version", "print the versions of Tutti and LibTorch", version_command},
}};

int help(std::FILE* to) {
  fmt::print(to,
             "Tutti trains one LibTorch model on many processes.\n\nusage: tutti COMMAND [ARGUMENTS...]\n\n");
  for (const Command& command : kCommands) fmt::print(to, "  {:<9} {}\n", command.name, command.about);
  fmt::print(to, "\ntutti COMMAND --help lists the flags of a command\n");
  return to == stdout ? 0 : exit_code(ErrorKind::InvalidArgument);
}

// Replaces this process by the program that is linked with LibTorch. It is a separate program because loading
// LibTorch takes a second, and `tutti run` does not need it.
[[noreturn]] void become_torch_program(std::vector<std::string> arguments) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").replace_filename(kTorchProgram);
  std::vector<char*> pointers = {const_cast<char*>(program.c_str())};
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execv(program.c_str(), pointers.data());
  fail_errno(errno, "executing " + program + ", which must be in the same folder as tutti");
}

int dispatch(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return help(stderr);
  std::string name = arguments.front();
  if (name == "help" && arguments.size() > 1) return dispatch({arguments[1], "--help"});
  if (name == "help" || name == "--help" || name == "-h") return help(stdout);
  if (name == "--version") name = "version";
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  if (name == kHostLauncher) return host_command(rest, Environment::of_process());
  if (name == kGuardian) return guardian_command(rest);
  std::vector<std::string> known = {"help"};
  for (const Command& command : kCommands) {
    known.emplace_back(command.name);
    if (name != command.name) continue;
    if (command.run == nullptr) become_torch_program(arguments);
    return command.run(rest, Environment::of_process());
  }
  fail(ErrorKind::InvalidArgument, "tutti: there is no command '{}'{}; tutti help lists all commands", name,
       did_you_mean(name, known));
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  return tutti::guarded_main([&] { return tutti::dispatch({argv + 1, argv + argc}); });
}
