// The programs that tests start, in one library: each compiles for as long as all of them together.
#include "tests/programs.h"

#include <map>

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
namespace twin_program {
int main(int argc, char** argv);
}

namespace tutti::testing {

ProgramMain find_program(const std::string& name) {
  static const std::map<std::string, ProgramMain> kPrograms = {
      {"drawn_program", drawn_program::main},       {"evaluation_program", evaluation_program::main},
      {"growth_program", growth_program::main},     {"halves_program", halves_program::main},
      {"ratings_program", ratings_program::main},   {"tables_program", tables_program::main},
      {"together_program", together_program::main}, {"twin_program", twin_program::main},
  };
  const auto program = kPrograms.find(name);
  return program == kPrograms.end() ? nullptr : program->second;
}

}  // namespace tutti::testing
