#include "tutti/train/coverage.h"

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/kernels/coverage.h"

namespace tutti {
namespace {

std::string line_of(const kernels::NotCovered& one) {
  return fmt::format("{} (step {}{})", one.name, one.step,
                     one.layer.empty() ? "" : fmt::format(", after layer '{}'", one.layer));
}

}  // namespace

void name_not_covered(const Log& log, std::string_view kernels, int64_t step) {
  if (kernels == "libtorch") return;
  for (const kernels::NotCovered& one : kernels::name_not_covered(step)) {
    if (kernels == "strict")
      fail(ErrorKind::Unimplemented,
           "{}: not covered by --kernels strict, since its bits may depend on the processor: {}. Use another "
           "operator, or --kernels same, which only warns",
           line_of(one), one.why);
    log.warning("{}: not covered by --kernels same, so its bits may depend on the processor: {}",
                line_of(one), one.why);
  }
}

std::vector<std::string> lines_of_not_covered() {
  std::vector<std::string> lines;
  for (const kernels::NotCovered& one : kernels::not_covered_operators()) lines.push_back(line_of(one));
  return lines;
}

}  // namespace tutti
