// The program of growth_test: very many, very small steps. The chief prints how much memory each process of
// the job has after the first steps, and after the last.
#include <cstdio>
#include <fstream>
#include <string>
#include <tutti/tutti.h>
#include <unistd.h>

#include <torch/torch.h>

namespace growth_program {
namespace {

constexpr int64_t kExamples = 4000;
constexpr int64_t kWarmUp = 4000;  // steps

// Returns the value of an entry such as "RssAnon:" in /proc/PID/status, or of a variable in
// /proc/PID/environ.
std::string entry_in(const std::string& path, char separator, const std::string& name) {
  std::ifstream file(path);
  for (std::string entry; std::getline(file, entry, separator);) {
    if (entry.starts_with(name)) return entry.substr(name.size());
  }
  return "";
}

// The tasks are the children of the launcher; without a launcher, there is only this process.
std::vector<pid_t> processes_of_job(const tutti::Context& ctx) {
  if (ctx.identity().launch.empty()) return {getpid()};
  std::ifstream children(fmt::format("/proc/{0}/task/{0}/children", getppid()));
  std::vector<pid_t> tasks;
  for (pid_t child = 0; children >> child;) {
    const std::string environment = fmt::format("/proc/{}/environ", child);
    if (!entry_in(environment, '\0', "TUTTI_JOB_NAME=").empty()) tasks.push_back(child);
  }
  return tasks;
}

class SayMemory final : public tutti::Hook {
 public:
  void after_step(tutti::Training& training, const tutti::StepResult&) override {
    if (training.writes() && (training.passed(kWarmUp) && training.last_step < kWarmUp))
      say(training.context);
  }
  void end(tutti::Training& training) override {
    if (training.writes()) say(training.context);
  }

 private:
  static void say(const tutti::Context& ctx) {
    for (const pid_t task : processes_of_job(ctx)) {
      const std::string of = fmt::format("/proc/{}/", task);
      fmt::print("{}/{} has {}\n", entry_in(of + "environ", '\0', "TUTTI_JOB_NAME="),
                 entry_in(of + "environ", '\0', "TUTTI_TASK_INDEX="),
                 entry_in(of + "status", '\n', "RssAnon:"));
    }
    std::fflush(stdout);
  }
};

torch::Tensor loss_of(torch::nn::Linear& net, const tutti::Batch& batch) {
  return (net->forward(batch["x"]) - batch["y"]).square().mean();
}

void train(tutti::Context& ctx, const tutti::data::Feed& feed) {
  tutti::Trainer trainer(ctx, torch::nn::Linear(1, 1), torch::optim::SGDOptions(1e-3), loss_of);
  trainer.add_hook(std::make_unique<SayMemory>());
  trainer.fit(feed);
}

void train_in_own_loop(tutti::Context& ctx, const tutti::data::Feed& feed) {
  torch::nn::Linear net(1, 1);
  tutti::Parameters params(*net);
  tutti::DistributedOptimizer opt(ctx, params, torch::optim::SGDOptions(1e-3));
  const tutti::data::Sampler sampler(feed.size(),
                                     {.lanes = opt.all_lanes(), .batch = ctx.config().training.batch});
  tutti::Loop loop(ctx, params, opt, {.steps_per_epoch = sampler.steps_per_epoch()});
  loop.add_hook(std::make_unique<SayMemory>());
  std::vector<int64_t> examples;
  while (loop.goes_on()) {
    for (int64_t lane = opt.lanes().begin; lane < opt.lanes().end; ++lane) {
      sampler.examples(loop.batch(), lane, examples);
      const tutti::Batch batch = feed.read(examples);
      opt.zero_grad();
      opt.backward(loss_of(net, batch), batch.size());
    }
    opt.step();
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool own_loop = false;
  tutti::Program program;
  program.defaults.training.batch = 4;
  program.defaults.compute.threads = 1;
  program.add_flags = [&](tutti::FlagSet& flags) {
    flags.add("--own-loop", own_loop, "train in a loop of its own");
  };
  return tutti::run(argc, argv, program, [&](tutti::Context& ctx) {
    const torch::Tensor x = torch::linspace(-1, 1, kExamples).unsqueeze(1);
    const auto feed = tutti::data::Feed(tutti::data::from_tensors({{"x", x}, {"y", 2 * x}})).shuffle();
    own_loop ? train_in_own_loop(ctx, feed) : train(ctx, feed);
  });
}

}  // namespace growth_program
