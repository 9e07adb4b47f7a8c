#include "tools/launch/survival.h"

#include <algorithm>

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
      keeper_board_(keeper_, served_.board) {
  served_.board->set(comm::kLeastKey, std::to_string(options.min));
}

void Survival::add_variables(int worker, std::map<std::string, std::string>& variables) const {
  variables[kMembersVariable] = fmt::format("127.0.0.1:{}", served_.port);
  variables[kLifeVariable] = std::to_string(keeper_.life_of(worker));
}

bool Survival::has_entered(uint64_t epoch) const {
  return served_.board->peek(comm::kEnteredKey) == std::to_string(epoch);
}

int Survival::use_restart(int worker) {
  last_restart_[worker] = keeper_.life_of(worker);
  return ++restarts_;
}

int Survival::restarts_used() const {
  const auto& epochs = keeper_.epochs();
  int in_vain = 0;
  for (const auto& [worker, life] : last_restart_) {
    const comm::Member member{worker, life};
    const bool has_joined = std::any_of(epochs.begin(), epochs.end(), [&](const comm::Members& epoch) {
      return epoch.rank_of(member).has_value();
    });
    if (!has_joined) ++in_vain;
  }
  return restarts_ - options_.restarts_before - in_vain;
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
