#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/store/checkpoint.h"
#include "tutti/store/folder_lock.h"
#include "tutti/store/manifest.h"
#include "tutti/store/test_checkpoint.h"
#include "tutti/train/test_trainer.h"

namespace tutti::trainer_resume_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(TrainerResume, resumes_with_the_same_bits) {
  for (const int64_t lanes : {1, 3}) {
    TestFolder folder;
    RunConfig config = test_flags();
    config.training.lanes = lanes;
    const std::string straight = train(config, 40);
    config.checkpoints.logdir = folder / "run";
    config.checkpoints.every = "10";
    train(config, 40, 17);
    EXPECT_EQ(train(config, 40), straight) << lanes << " lanes";
  }
}

TEST(TrainerResume, a_run_that_has_ended_goes_on_when_more_steps_are_asked_for) {
  TestFolder folder;
  RunConfig config = test_flags();
  const std::string straight = train(config, 30);
  config.checkpoints.logdir = folder / "run";
  train(config, 20);
  EXPECT_EQ(train(config, 30), straight);
  EXPECT_EQ(train(config, 30), straight);  // nothing left to do
}

TEST(TrainerResume, a_run_that_has_ended_says_so_and_how_to_go_on) {
  TestFolder folder;
  RunConfig config = test_flags();
  config.checkpoints.logdir = folder / "run";
  config.output.log_level = "info";
  const auto said = [&](int64_t steps) {
    testing::internal::CaptureStderr();
    train(config, steps);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(said(20), testing::Not(HasSubstr("nothing is left to do")));
  for (const int64_t steps : {20, 12})
    EXPECT_THAT(said(steps),
                HasSubstr("nothing is left to do: the run is at step 20, and this training ends after step " +
                          std::to_string(steps) + "; ask for more steps to go on (--steps"));
  EXPECT_THAT(said(21), testing::Not(HasSubstr("nothing is left to do")));
}

TEST(TrainerResume, resume_never_starts_anew_and_must_needs_a_checkpoint) {
  TestFolder folder;
  RunConfig config = test_flags();
  const std::string ten = train(config, 10);
  config.checkpoints.logdir = folder / "run";
  config.checkpoints.resume = "must";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("no checkpoint"), [&] { train(config, 10); });
  config.checkpoints.resume = "auto";
  train(config, 20);
  config.checkpoints.resume = "never";
  EXPECT_EQ(train(config, 10), ten);
}

TEST(TrainerResume, a_run_with_other_settings_is_refused_by_name) {
  TestFolder folder;
  RunConfig config = test_flags();
  config.checkpoints.logdir = folder / "run";
  train(config, 5);
  RunConfig other = config;
  other.training.lanes = 2;
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("--lanes 1, not 2"), HasSubstr("--resume never")),
               [&] { train(other, 10); });
  other = config;
  other.training.batch = 5;
  expect_error(ErrorKind::InvalidArgument, HasSubstr("--batch 4, not 5"), [&] { train(other, 10); });
}

TEST(TrainerResume, lanes_that_nobody_asked_for_are_those_of_the_run) {
  TestFolder folder;
  RunConfig config = test_flags();
  config.training.lanes = 3;
  const std::string straight = train(config, 20);
  config.checkpoints.logdir = folder / "run";
  train(config, 10);
  config.training.lanes = 0;
  EXPECT_EQ(train(config, 20), straight);
}

// Replaces every value of a checkpoint's state, in turn, by one of another type, with a correct checksum.
TEST(TrainerResume, passes_over_a_checkpoint_whose_state_has_other_types) {
  TestFolder folder;
  RunConfig config = test_flags();
  const std::string straight = train(config, 6);
  config.checkpoints.logdir = folder / "saved";
  config.checkpoints.every = "2";
  train(config, 4);
  const auto whole = nlohmann::json::parse(read_file(config.checkpoints.logdir + "/ckpt-4/manifest.json"));
  std::vector<nlohmann::json::json_pointer> places = {nlohmann::json::json_pointer("/state")};
  for (const auto& [key, value] : whole.at("state").items()) places.emplace_back("/state/" + key);
  for (const char* key : {"name", "steps", "lr"}) places.emplace_back(std::string("/state/optimizer/") + key);
  const auto values = nlohmann::json::parse(R"([null, true, 0.5, "x", [], {}])");
  config.checkpoints.logdir = folder / "run";
  for (const auto& place : places) {
    for (const auto& value : values) {
      if (value.type() == whole.at(place).type()) continue;
      nlohmann::json changed = whole;
      changed[place] = value;
      std::filesystem::remove_all(config.checkpoints.logdir);
      std::filesystem::copy(
          folder / "saved", config.checkpoints.logdir,
          std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
      store::write_any_manifest(config.checkpoints.logdir + "/ckpt-4/manifest.json", changed);
      EXPECT_EQ(train(config, 6), straight) << place << " " << value;
    }
  }
}

struct OtherNet : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return head(conv(x).flatten(1)); }
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 5, 3)));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(5 * 16, 4));
  torch::nn::Linear more = register_module("more", torch::nn::Linear(2, 2));
};

TEST(TrainerResume, a_checkpoint_of_another_model_is_shown_as_a_diff) {
  TestFolder folder;
  RunConfig config = test_flags();
  config.checkpoints.logdir = folder / "run";
  train(config, 5);
  config.training.steps = 10;
  const Context context = test_context(config);
  Trainer trainer(context, std::make_shared<OtherNet>(), kAdam, [](OtherNet& net, const Batch& batch) {
    return torch::cross_entropy_loss(net.forward(batch["image"]), batch["label"]);
  });
  const std::string before = trainer.parameters().sha256();
  expect_error(
      ErrorKind::InvalidArgument,
      AllOf(HasSubstr("! conv.weight float32[3,1,3,3] in the checkpoint, float32[5,1,3,3] in the model"),
            HasSubstr("+ more.weight float32[2,2]"), HasSubstr("- norm.weight float32[3]"),
            HasSubstr("--resume never")),
      [&] { trainer.fit(test_feed()); });
  EXPECT_EQ(trainer.parameters().sha256(), before);
}

TEST(TrainerResume, a_checkpoint_of_another_optimiser_is_refused_by_name) {
  TestFolder folder;
  RunConfig config = test_flags();
  config.checkpoints.logdir = folder / "run";
  train(config, 5);
  const Context context = test_context(config);
  Trainer trainer(context, test_net(), torch::optim::AdagradOptions(0.1), test_loss);
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("adam"), HasSubstr("adagrad")),
               [&] { trainer.fit(test_feed()); });
}

TEST(TrainerResume, a_broken_newest_checkpoint_falls_back_to_the_one_before) {
  TestFolder folder;
  RunConfig config = test_flags();
  const std::string straight = train(config, 20);
  config.checkpoints.logdir = folder / "run";
  config.checkpoints.every = "5";
  train(config, 15);
  std::filesystem::resize_file(folder / "run/ckpt-15/weights.safetensors", 100);
  EXPECT_EQ(train(config, 20), straight);
}

TEST(TrainerResume, checkpoint_every_0_writes_only_the_last) {
  TestFolder folder;
  RunConfig config = test_flags();
  config.checkpoints.logdir = folder / "run";
  train(config, 12);
  EXPECT_EQ(store::CheckpointDir(folder / "run").steps(), std::vector<int64_t>{12});
}

TEST(TrainerResume, several_fits_follow_one_another_and_resume_in_the_right_one) {
  const auto both = [](RunConfig config, std::optional<int64_t> crash_after) {
    const Context context = test_context(config);
    Trainer trainer(context, test_net(), kAdam, test_loss);
    trainer.add_hook(std::make_unique<AfterStep>([&](Training& training) {
      if (training.step == crash_after) throw std::runtime_error("crash");
    }));
    try {
      trainer.fit(test_feed(40).shuffle(), {.epochs = 1});
      trainer.fit(test_feed(60).shuffle(), {.steps = 12});
    } catch (const std::runtime_error&) {
    }
    return std::pair(trainer.step(), trainer.parameters().sha256());
  };
  RunConfig config = test_flags();
  const auto straight = both(config, {});
  EXPECT_EQ(straight.first, 10 + 12);
  for (const int64_t crash : {7, 10, 17}) {
    TestFolder folder;
    config.checkpoints.logdir = folder / "run";
    config.checkpoints.every = "3";
    both(config, crash);
    EXPECT_EQ(both(config, {}), straight) << crash;
  }
}

TEST(TrainerResume, a_checkpoint_includes_what_hooks_have_done_after_its_step) {
  const auto run = [](const std::string& logdir, int64_t crash_at) {
    RunConfig config = test_flags();
    config.checkpoints.logdir = logdir;
    config.checkpoints.every = "2";
    config.training.steps = 10;
    const Context context = test_context(config);
    Trainer trainer(context, test_net(), kAdam, test_loss);
    trainer.add_hook(std::make_unique<AfterStep>([&](Training& training) {
      if (training.step == crash_at) throw std::runtime_error("crash");
      const torch::NoGradGuard no_grad;
      torch::Tensor(training.parameters.values()).mul_(0.9);
    }));
    try {
      trainer.fit(test_feed().shuffle());
    } catch (const std::runtime_error&) {
      if (crash_at == 0) throw;
    }
    return trainer.parameters().sha256();
  };
  const std::string expected = run("", 0);
  for (const int64_t crash_at : {4, 5, 10}) {
    const TestFolder folder;
    run(folder / "run", crash_at);
    EXPECT_EQ(run(folder / "run", 0), expected) << crash_at;
  }
}

// Sets a weight to NaN in the middle of a step.
class Spoil final : public Hook {
 public:
  explicit Spoil(int64_t step) : step_(step) {}
  void after_lane(Training& training, int64_t, const Batch&, const LossOutput&) override {
    if (training.step == step_) training.parameters.values()[5].fill_(std::nanf(""));
  }

 private:
  const int64_t step_;
};

TEST(TrainerResume, weights_that_are_no_numbers_do_not_become_the_newest_checkpoint) {
  for (const bool guard : {true, false}) {
    TestFolder folder;
    RunConfig config = test_flags();
    config.checkpoints.logdir = folder / "run";
    config.checkpoints.every = "5";
    config.training.steps = 10;
    config.training.nan_guard = guard;
    const Context context = test_context(config);
    Trainer trainer(context, test_net(), kAdam, test_loss);
    trainer.add_hook(std::make_unique<Spoil>(9));
    if (guard) {
      expect_error(ErrorKind::InvalidArgument,
                   HasSubstr("weights are no longer finite after step 10 and were not saved"),
                   [&] { trainer.fit(test_feed()); });
    } else {
      trainer.fit(test_feed());
    }
    const auto steps = store::CheckpointDir(folder / "run").steps();
    EXPECT_EQ(*std::max_element(steps.begin(), steps.end()), guard ? 5 : 10);
  }
}

// Returns true if the checkpoint of this step has been written, and nothing else is being written.
bool has_saved(const std::string& logdir, int64_t step) {
  std::error_code ignored;
  if (std::filesystem::read_symlink(logdir + "/latest", ignored) != store::checkpoint_folder_name(step))
    return false;
  for (const auto& entry : std::filesystem::directory_iterator(logdir)) {
    if (entry.path().filename().string().starts_with(".tutti-temporary")) return false;
  }
  return true;
}

// Trains 20 steps with checkpoints, and calls `body` after step 12, when the checkpoint of step 10 is
// written.
void train_and(const std::string& logdir, const std::function<void()>& body) {
  RunConfig config = test_flags();
  config.checkpoints.logdir = logdir;
  config.checkpoints.every = "5";
  config.checkpoints.keep = 0;  // else old checkpoints are looked for after the new one is written
  config.training.steps = 20;
  config.output.log_level = "warning";
  const Context context = test_context(config);
  Trainer trainer(context, test_net(), kAdam, test_loss);
  trainer.add_hook(std::make_unique<AfterStep>([&](Training& training) {
    if (training.step != 12) return;
    while (!has_saved(logdir, 10)) std::this_thread::yield();
    body();
  }));
  trainer.fit(test_feed().shuffle());
}

TEST(TrainerResume, a_chief_whose_folder_another_one_has_taken_saves_there_no_more) {
  const TestFolder folder;
  const std::string run = folder / "run";
  std::optional<store::FolderLock> next;
  expect_error(ErrorKind::PeerLost,
               AllOf(HasSubstr(run + " belongs to the next chief now"),
                     HasSubstr("was lost to the others of its job")),
               [&] {
                 train_and(run, [&] {
                   store::take_away_lock(run);
                   next.emplace(run, "the next chief", std::chrono::milliseconds(0));
                 });
               });
  EXPECT_EQ(store::CheckpointDir(run).steps().back(), 10);
  EXPECT_TRUE(next->is_held());
}

TEST(TrainerResume, a_folder_that_is_removed_meanwhile_is_named_and_made_again) {
  const TestFolder folder;
  const std::string run = folder / "run";
  testing::internal::CaptureStderr();
  train_and(run, [&] { std::filesystem::remove_all(run); });
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(run + " was removed while this job uses it"));
  EXPECT_EQ(store::CheckpointDir(run).load_latest().checkpoint->step, 20);
}

}  // namespace
}  // namespace tutti::trainer_resume_test
