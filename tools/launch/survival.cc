#include "tools/launch/survival.h"

#include <fmt/format.h>

#include "tutti/base/config.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/cluster/identity.h"

namespace tutti {

Survival::Survival(const SurvivalOptions& options)
    : options_(options),
      keeper_(options.workers, options.min, options.timeout),
      restarts_(options.restarts_before),
      served_(comm::serve_tcp_rendezvous(
          {.credentials = {.secret = fmt::format("members\n{}\n{}", options.launch, options.secret)}})),
      keeper_board_(keeper_, served_.board) {}

void Survival::add_variables(int worker, std::map<std::string, std::string>& variables) const {
  variables[kMembersVariable] = fmt::format("127.0.0.1:{}", served_.port);
  variables[kLifeVariable] = std::to_string(keeper_.life_of(worker));
}

std::chrono::milliseconds survival_timeout(const Environment& environment) {
  constexpr const char* kVariable = "TUTTI_TIMEOUT";
  const std::string text = environment.get(kVariable).value_or("");
  if (text.empty()) return milliseconds_of(RunConfig().network.timeout);
  const auto seconds = parse_double(text);
  if (!seconds || !(*seconds > 0))
    fail(ErrorKind::InvalidArgument, "tutti run: {}='{}' is not a number of seconds above 0", kVariable,
         text);
  return milliseconds_of(*seconds);
}

}  // namespace tutti
