// Searches for inputs that break a parser, by coverage (libFuzzer): ./dev test fuzz.
//   fuzz_parsers                          prints the names of the parsers
//   fuzz_parsers NAME FOLDER [-FLAG...]   searches from the inputs in FOLDER, and keeps there what it finds;
//   flags
//                                         of libFuzzer, such as -max_total_time=60
//   fuzz_parsers NAME FILE                gives the parser this input once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tools/test_parsers.h"
#include "tutti/base/error.h"

namespace tutti::test_parsers {

Parser searched;

// Finds the parser, and writes its valid inputs into the folder.
void prepare(const std::string& name, const std::string& where) {
  std::vector<Parser> parsers = make_parsers();
  const auto named =
      std::find_if(parsers.begin(), parsers.end(), [&](const Parser& parser) { return parser.name == name; });
  if (named == parsers.end()) fail(ErrorKind::InvalidArgument, "there is no parser '{}'", name);
  searched = std::move(*named);
  if (!std::filesystem::is_directory(where)) return;
  for (size_t i = 0; i < searched.seeds.size(); ++i)
    std::ofstream(fmt::format("{}/seed{}", where, i), std::ios::binary) << searched.seeds[i];
}

}  // namespace tutti::test_parsers

// libFuzzer, which has the main function, calls these two.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc < 3) {
    for (const auto& parser : tutti::test_parsers::make_parsers()) fmt::print("{}\n", parser.name);
    std::fflush(stdout);
    std::_Exit(0);
  }
  tutti::test_parsers::prepare((*argv)[1], (*argv)[2]);
  (*argv)[1] = (*argv)[0];
  ++*argv;
  --*argc;
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tutti::test_parsers::try_to_parse(tutti::test_parsers::searched,
                                    std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
