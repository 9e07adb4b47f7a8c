// What a training tells the page of its process (--web).
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/metrics/metrics.h"
#include "tutti/train/hooks.h"
#include "tutti/train/run_state.h"
#include "tutti/train/test_trainer.h"
#include "tutti/web/page.h"

namespace tutti::web_page_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

nlohmann::json status_of(const Context& context) {
  return nlohmann::json::parse(context.page()->answer({.method = "GET", .path = "/status.json"}).body);
}

Context context_with_page(const TestFolder& folder) {
  RunConfig config = test_flags();
  config.training.steps = 20;
  config.output.web = "0";
  config.output.log_level = "warning";
  config.checkpoints.logdir = folder.path();
  config.checkpoints.every = "8";
  return test_context(config);
}

TEST(WebPageOfATraining, has_its_steps_evaluations_checkpoints_and_events) {
  const TestFolder folder;
  const Context context = context_with_page(folder);
  EXPECT_NE(context.page()->address(), "");
  EXPECT_THAT(status_of(context).at("trainings"), ElementsAre());
  Trainer trainer(context, test_net(), kAdam, test_loss);
  trainer.add_hook(std::make_unique<AfterStep>([&](Training& training) {
    if (training.step != 9) return;
    const nlohmann::json seen = status_of(context).at("trainings").at(0);
    EXPECT_EQ(seen.at("phase"), "training");
    EXPECT_EQ(seen.at("step"), 9);
    training.context.log().warning("odd");
  }));
  trainer.fit(test_feed().shuffle(),
              {.validate = {.feed = test_feed(8), .metrics = {metrics::accuracy("label")}}});
  const nlohmann::json status = status_of(context);
  const nlohmann::json& training = status.at("trainings").at(0);
  EXPECT_EQ(training.at("phase"), "complete");
  EXPECT_EQ(training.at("step"), 20);
  EXPECT_EQ(training.at("steps"), 20);
  EXPECT_EQ(training.at("examples"), 80);
  EXPECT_EQ(training.at("end_step"), 20);
  EXPECT_EQ(training.at("checkpoint_step"), 20);
  EXPECT_EQ(training.at("loss_step"), 20);
  EXPECT_EQ(training.at("curve").size(), 20U);
  EXPECT_GE(training.at("values").at("validation_accuracy"), 0);
  std::string events;
  for (const auto& event : status.at("events")) events += event.at("text").get<std::string>() + "\n";
  for (const char* text : {"begins at step 0", "ckpt-20\n", "odd\n", "validation after step 20: accuracy",
                           "complete after step 20"})
    EXPECT_THAT(events, HasSubstr(text));
}

TEST(WebPageOfATraining, says_why_it_has_failed) {
  const TestFolder folder;
  const Context context = context_with_page(folder);
  Trainer trainer(context, test_net(), kAdam, test_loss);
  trainer.add_hook(std::make_unique<AfterStep>([](Training& training) {
    if (training.step == 5) fail(ErrorKind::Bug, "broken");
  }));
  expect_error(ErrorKind::Bug, HasSubstr("broken"), [&] { trainer.fit(test_feed().shuffle()); });
  EXPECT_EQ(status_of(context).at("trainings").at(0).at("phase"), "failed");
  const web::Answer health = context.page()->answer({.method = "GET", .path = "/healthz"});
  EXPECT_EQ(health.status, 503);
  EXPECT_THAT(health.body, HasSubstr("failed at step 5: broken"));
  EXPECT_THAT(read_run_state(folder.path())->error, HasSubstr("broken"));
}

}  // namespace
}  // namespace tutti::web_page_test
