#include <fmt/format.h>

#include "tools/bench/commands.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {

int bench_command(const std::vector<std::string>& arguments, const Environment& environment) {
  const std::string name = arguments.empty() ? "--help" : arguments.front();
  if (name == "--help" || name == "-h" || name == "help") {
    fmt::print(
        "Measures how fast the tasks of a job exchange data, on one machine or on several.\n\n"
        "usage: tutti bench collectives [FLAGS]\n"
        "       tutti bench embedding [FLAGS]\n"
        "       tutti bench ps [FLAGS]\n\n"
        "  collectives   how fast ranks exchange vectors\n"
        "  embedding     how fast ranks look up and train the rows of sharded embeddings\n"
        "  ps            how fast workers push to parameter servers, and pull from them\n\n"
        "tutti bench NAME --help lists the flags of a benchmark\n");
    return 0;
  }
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  if (name == "collectives") return bench_collectives(rest, environment);
  if (name == "embedding") return bench_embedding(rest, environment);
  if (name == "ps") return bench_ps(rest, environment);
  const std::vector<std::string> known = {"collectives", "embedding", "ps", "--help"};
  fail(ErrorKind::InvalidArgument,
       "tutti bench: there is no benchmark '{}'{}; the benchmarks are collectives, embedding and ps", name,
       did_you_mean(name, known));
}

}  // namespace tutti
