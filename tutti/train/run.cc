#include "tutti/train/run.h"

#include <exception>
#include <malloc.h>
#include <string_view>
#include <unistd.h>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/environment.h"
#include "tutti/base/error.h"
#include "tutti/base/interrupted.h"
#include "tutti/base/text.h"
#include "tutti/cluster/identity.h"
#include "tutti/cluster/roles.h"
#include "tutti/train/serve.h"
#include "tutti/train/threads.h"

namespace tutti {
namespace {

constexpr int kUnknownError = 1;

// Every step allocates and frees the same tensors. By default glibc gives blocks of this size back to the
// system each time, and the kernel clears their pages anew: a seventh of a step of a small network
// (docs/benchmarks.md).
void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

void say(std::string_view text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

int run_program(int argc, char** argv, const Program& program, const std::function<void(Context&)>& body) {
  Flags flags = program.defaults;
  FlagSet set(program.about);
  if (program.add_flags) program.add_flags(set);
  add_standard_flags(set, flags);
  const Environment environment = Environment::of_process();
  if (const auto text = set.parse(argc, argv, environment)) {
    fmt::print("{}", *text);
    return 0;
  }
  Context context(flags, discover(flags, environment));
  set_threads(context);
  if (is_server_job(context.task().job)) {
    serve(context);
    return 0;
  }
  torch::manual_seed(flags.seed);
  body(context);
  return 0;
}

}  // namespace

int run(int argc, char** argv, const std::function<void(Context&)>& body) {
  return run(argc, argv, Program{}, body);
}

int run(int argc, char** argv, const Program& program, const std::function<void(Context&)>& body) {
  keep_freed_memory();
  try {
    return run_program(argc, argv, program, body);
  } catch (const Interrupted& interrupted) {
    say(fmt::format("{}\n", interrupted.what()));
    return interrupted.exit_code();
  } catch (const Error& error) {
    say(fmt::format("{}: {}\n", to_string(error.kind()), error.what()));
    return exit_code(error.kind());
  } catch (const std::bad_alloc&) {
    say("Overloaded: out of memory; use a smaller --batch, or a machine with more\n");
    return exit_code(ErrorKind::Overloaded);
  } catch (const std::exception& error) {
    say(fmt::format("error: {}\n", first_line(error.what())));
    return kUnknownError;
  }
}

}  // namespace tutti
