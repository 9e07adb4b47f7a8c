// The operators that take the time of a training step.
#include <algorithm>
#include <ctime>
#include <map>

#include <ATen/record_function.h>
#include <fmt/format.h>

#include "bench/kernels.h"
#include "tutti/kernels/same_kernels.h"

namespace bench {
namespace {

constexpr int kRounds = 5;

// While one lives, adds up the time that this thread spends in each operator that no other operator calls.
class OperatorTimes {
 public:
  explicit OperatorTimes(std::map<std::string, double>& seconds) {
    state() = {&seconds, 0, 0};
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::FUNCTION}));
  }
  ~OperatorTimes() { at::removeCallback(handle_); }
  OperatorTimes(const OperatorTimes&) = delete;
  OperatorTimes& operator=(const OperatorTimes&) = delete;

 private:
  struct State {
    std::map<std::string, double>* seconds = nullptr;
    int depth = 0;
    double begin = 0;
  };
  static State& state() {
    thread_local State all;
    return all;
  }
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction&) {
    if (state().depth++ == 0) state().begin = thread_seconds();
    return nullptr;
  }
  static void end(const at::RecordFunction& function, at::ObserverContext*) {
    if (--state().depth == 0) (*state().seconds)[function.name()] += thread_seconds() - state().begin;
  }

  at::CallbackHandle handle_;
};

// Returns the time of each operator in a round's fastest step, and of the whole step as "".
void measure(const std::function<void()>& step, std::map<std::string, double>& least) {
  step();
  for (int i = 0; i < kRounds; ++i) {
    std::map<std::string, double> seconds;
    const double begin = thread_seconds();
    {
      const OperatorTimes times(seconds);
      step();
    }
    double others = thread_seconds() - begin;
    seconds["the whole step"] = others;
    for (const auto& [name, time] : seconds)
      if (name != "the whole step") others -= time;
    seconds["between operators"] = others;
    for (const auto& [name, time] : seconds)
      least[name] = least.contains(name) ? std::min(least[name], time) : time;
  }
}

}  // namespace

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void print_operators(const StepCase& of) {
  const std::function<void()> step = of.make();
  std::map<std::string, double> libtorch;
  std::map<std::string, double> ours;
  for (int round = 0; round < kRounds; ++round) {
    measure(step, libtorch);
    const tutti::kernels::SameKernels same;
    measure(step, ours);
  }
  std::vector<std::string> names;
  for (const auto& [name, time] : libtorch) names.push_back(name);
  for (const auto& [name, time] : ours)
    if (!libtorch.contains(name)) names.push_back(name);
  const double whole = ours["the whole step"];
  std::sort(names.begin(), names.end(), [&](const auto& a, const auto& b) {
    return std::max(ours[a], libtorch[a]) > std::max(ours[b], libtorch[b]);
  });
  fmt::print(
      "\n| {} | LibTorch, ms | Tutti, ms | of the step | ratio | ms lost |\n|---|---|---|---|---|---|\n",
      of.network);
  for (const std::string& name : names) {
    if (std::max(ours[name], libtorch[name]) < 0.003 * whole) continue;
    fmt::print("| {} | {:.3f} | {:.3f} | {:.1f} % | {:.2f} | {:.3f} |\n", name, libtorch[name] * 1e3,
               ours[name] * 1e3, ours[name] / whole * 100, libtorch[name] / ours[name],
               (ours[name] - libtorch[name]) * 1e3);
  }
  std::fflush(stdout);
}

}  // namespace bench
