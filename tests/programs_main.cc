// All test programs as one executable with several names: the name by which it is started says which program
// it is.
#include <cstdio>
#include <filesystem>

#include "tests/programs.h"

int main(int argc, char** argv) {
  const std::string name = std::filesystem::read_symlink("/proc/self/exe").filename();
  if (const auto program = tutti::testing::find_program(name)) return program(argc, argv);
  std::fprintf(stderr, "%s is not a program of the tests: start it by the name of one\n", name.c_str());
  return 2;
}
