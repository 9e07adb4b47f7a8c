// The programs that tests start, as one executable with several names: the name by which it is started says
// which program it is. Each compiles for as long as all of them together.
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

namespace drawn_program {
int main(int argc, char** argv);
}
namespace evaluation_program {
int main(int argc, char** argv);
}
namespace growth_program {
int main(int argc, char** argv);
}
namespace halves_program {
int main(int argc, char** argv);
}
namespace ratings_program {
int main(int argc, char** argv);
}
namespace tables_program {
int main(int argc, char** argv);
}
namespace together_program {
int main(int argc, char** argv);
}

int main(int argc, char** argv) {
  const std::map<std::string, int (*)(int, char**)> programs = {
      {"drawn_program", drawn_program::main},       {"evaluation_program", evaluation_program::main},
      {"growth_program", growth_program::main},     {"halves_program", halves_program::main},
      {"ratings_program", ratings_program::main},   {"tables_program", tables_program::main},
      {"together_program", together_program::main},
  };
  const std::string name = std::filesystem::read_symlink("/proc/self/exe").filename();
  const auto program = programs.find(name);
  if (program != programs.end()) return program->second(argc, argv);
  std::fprintf(stderr, "%s is not a program of the tests: start it by the name of one\n", name.c_str());
  return 2;
}
