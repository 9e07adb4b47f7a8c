// The program of drawn_test: trains the program that a number draws.
#include <tutti/tutti.h>

#include "tests/drawn/training.h"

namespace drawn_program {

int main(int argc, char** argv) {
  int64_t number = 0;
  tutti::testing::Accident accident;
  int64_t signal = 0;
  tutti::Program program;
  program.about = "Trains a small model that is drawn at random.";
  program.add_flags = [&](tutti::FlagSet& flags) {
    flags.add("--draw", number, "which program: the same number draws the same one");
    flags.add("--accident", accident.mark, "a file: one task gets --signal once, and makes this file before");
    flags.add("--rank", accident.rank, "which task");
    flags.add("--pass", accident.pass, "at which of its forward passes");
    flags.add("--signal", signal, "which signal");
  };
  return tutti::run(argc, argv, program, [&](tutti::Context& context) {
    accident.signal = static_cast<int>(signal);
    tutti::testing::train(context, tutti::testing::Draw(static_cast<uint64_t>(number)), accident);
  });
}

}  // namespace drawn_program
