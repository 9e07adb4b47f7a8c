#include <fmt/core.h>

#include "tools/commands.h"
#include "tutti/base/error.h"
#include "tutti/base/guarded_main.h"
#include "tutti/base/memory.h"
#include "tutti/train/export/check.h"

namespace tutti {
namespace {

int dispatch(const std::vector<std::string>& arguments) {
  const std::string name = arguments.empty() ? "" : arguments.front();
  const std::vector<std::string> rest(arguments.begin() + (arguments.empty() ? 0 : 1), arguments.end());
  const Environment environment = Environment::of_process();
  // A program that does not call tutti::run() starts this one to check a model that it has exported.
  if (const auto code = answer_export_check(environment)) return *code;
  if (name == "inspect") return inspect_command(rest, environment);
  if (name == "status") return status_command(rest, environment);
  if (name == "diff") return diff_command(rest, environment);
  if (name == "doctor") return doctor_command(rest, environment);
  if (name == "bench") return bench_command(rest, environment);
  if (name == "export") return export_command(rest, environment);
  if (name == "serve") return serve_command(rest, environment);
  if (name == "shard") return shard_command(rest, environment);
  if (name == "stop") return stop_command(rest, environment);
  fail(ErrorKind::InvalidArgument, "tutti-torch is started by `tutti`; use `tutti` instead");
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  tutti::tune_heap();
  return tutti::guarded_main([&] { return tutti::dispatch({argv + 1, argv + argc}); });
}
