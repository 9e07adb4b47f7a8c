#pragma once

#include <string>

namespace tutti::testing {

using ProgramMain = int (*)(int argc, char** argv);

// Returns the main() of the test program with this name, or nullptr. Defined only in executables that contain
// these programs: test_programs, which starts one of them, and program_tests, which forks them.
ProgramMain find_program(const std::string& name);

}  // namespace tutti::testing
