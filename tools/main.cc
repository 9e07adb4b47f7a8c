#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <unistd.h>

#include <fmt/core.h>

#include "tools/arguments.h"
#include "tools/commands.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {
namespace {

constexpr const char* kTorchProgram = "tutti-torch";

struct Command {
  std::string_view name;
  std::string_view about;
  CommandFunction* run;  // nothing: in kTorchProgram
};

constexpr std::array<Command, 8> kCommands = {{
    {"run", "start a program as the workers of one job", run_command},
    {"serve", "be a parameter server, for any program", nullptr},
    {"stop", "end the parameter servers of a cluster", nullptr},
    {"inspect", "what is in a checkpoint and whether it is whole; what is in a table", nullptr},
    {"shard", "cut tables into shards, all alike", nullptr},
    {"doctor", "whether this machine is fit, and what to do where it is not", nullptr},
    {"bench", "how fast tasks exchange vectors", nullptr},
    {"version", "the versions of Tutti and LibTorch", version_command},
}};

int help(std::FILE* to) {
  fmt::print(to,
             "Tutti trains one LibTorch model on many processes.\n\nusage: tutti COMMAND [ARGUMENTS...]\n\n");
  for (const Command& command : kCommands) fmt::print(to, "  {:<9} {}\n", command.name, command.about);
  fmt::print(to, "\n  tutti COMMAND --help tells more\n");
  return to == stdout ? 0 : exit_code(ErrorKind::InvalidArgument);
}

// Becomes the program that is linked with LibTorch; `run` should not take a second to start.
[[noreturn]] void become_torch_program(std::vector<std::string> arguments) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").replace_filename(kTorchProgram);
  std::vector<char*> pointers = {const_cast<char*>(program.c_str())};
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execv(program.c_str(), pointers.data());
  fail_errno(errno, "executing " + program + ", which belongs beside tutti");
}

int dispatch(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return help(stderr);
  std::string name = arguments.front();
  if (name == "help" || name == "--help" || name == "-h") return help(stdout);
  if (name == "--version") name = "version";
  std::vector<std::string> known = {"help"};
  for (const Command& command : kCommands) {
    known.emplace_back(command.name);
    if (name != command.name) continue;
    if (command.run == nullptr) become_torch_program(arguments);
    return command.run({arguments.begin() + 1, arguments.end()}, Environment::of_process());
  }
  fail(ErrorKind::InvalidArgument, "tutti: no command '{}'{} (tutti help lists all)", name,
       did_you_mean(name, known));
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) { return tutti::run_guarded(argc, argv, tutti::dispatch); }
