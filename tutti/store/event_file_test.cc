#include "tutti/store/event_file.h"

#include <cmath>
#include <csignal>
#include <filesystem>
#include <sys/resource.h>
#include <thread>

#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/base/test_oracle.h"

namespace tutti::store {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

json seen_by_tensorboard(const std::string& logdir) {
  const auto answer = ask_oracle("check_events.py", {logdir});
  EXPECT_EQ(answer.status, 0) << answer.output;
  // TensorBoard writes warnings before the answer, which is the last line.
  const size_t last = answer.output.rfind('\n', answer.output.size() - 2);
  return json::parse(answer.output.substr(last == std::string::npos ? 0 : last + 1), nullptr, false);
}

size_t files_in(const std::string& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

// The expected bytes are taken from protobuf's description of its encoding.
TEST(ProtoMessage, encodes_as_the_format_says) {
  EXPECT_EQ(ProtoMessage().integer(1, 150).bytes(), "\x08\x96\x01");
  EXPECT_EQ(ProtoMessage().text(2, "testing").bytes(), "\x12\x07testing");
  EXPECT_EQ(ProtoMessage().message(3, ProtoMessage().integer(1, 150)).bytes(), "\x1a\x03\x08\x96\x01");
  EXPECT_EQ(ProtoMessage().integer(1, -1).bytes(), "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
  EXPECT_EQ(ProtoMessage().integer(16, 0).bytes(), std::string("\x80\x01\x00", 3));
  EXPECT_EQ(ProtoMessage().real(1, 1.0).bytes(), std::string("\x09\0\0\0\0\0\0\xf0\x3f", 9));
  EXPECT_EQ(ProtoMessage().single(2, 1.0F).bytes(), std::string("\x15\0\0\x80\x3f", 5));
  const std::vector<double> values = {1.0, 2.0};
  EXPECT_EQ(ProtoMessage().packed_reals(6, values).bytes(),
            std::string("\x32\x10\0\0\0\0\0\0\xf0\x3f\0\0\0\0\0\0\0\x40", 18));
}

TEST(EventWriter, names_the_file_as_tensorboard_expects) {
  const TestFolder folder;
  const EventWriter writer(folder / "runs/one");
  EXPECT_THAT(fs::path(writer.path()).filename().string(),
              testing::MatchesRegex("events\\.out\\.tfevents\\.[0-9]+\\..+\\.[0-9]+"));
  EXPECT_EQ(fs::path(writer.path()).parent_path(), folder / "runs/one");
}

TEST(EventWriter, takes_a_later_name_than_all_before_it) {
  const TestFolder folder;
  replace_file(folder / "events.out.tfevents.99999999999999999.host.1", "from the far future, not believed");
  replace_file(folder / "events.out.tfevents.x.host.1", "");
  std::string before;
  for (int i = 0; i < 5; ++i) {
    const EventWriter writer(folder.path());
    EXPECT_GT(writer.path(), before);
    before = writer.path();
  }
  EXPECT_LT(before, folder / "events.out.tfevents.9");
  EXPECT_EQ(files_in(folder.path()), 7U);
}

TEST(EventWriter, holds_back_until_flushed) {
  const TestFolder folder;
  EventWriter writer(folder.path(),
                     {.resumed_after = {}, .flush_every = std::chrono::hours(1), .flush_bytes = 200});
  const auto begin = fs::file_size(writer.path());
  EXPECT_GT(begin, 0U);
  writer.scalar("loss", 1, 0.5);
  EXPECT_EQ(fs::file_size(writer.path()), begin);
  writer.flush();
  const auto flushed = fs::file_size(writer.path());
  EXPECT_GT(flushed, begin);
  writer.text("note", 1, std::string(300, 'x'));
  EXPECT_GT(fs::file_size(writer.path()), flushed + 300);
}

TEST(EventWriter, flushes_at_once_where_asked_to_and_at_the_end) {
  const TestFolder folder;
  std::string path;
  uintmax_t before = 0;
  {
    EventWriter writer(folder.path(), {.resumed_after = {}, .flush_every = {}, .flush_bytes = 1 << 20});
    path = writer.path();
    before = fs::file_size(path);
    writer.scalar("loss", 1, 0.5);
    EXPECT_GT(fs::file_size(path), before);
  }
  {
    EventWriter writer(folder.path());
    path = writer.path();
    before = fs::file_size(path);
    writer.scalar("loss", 1, 0.5);
  }
  EXPECT_GT(fs::file_size(path), before);
}

TEST(EventWriter, tells_of_a_full_disk_and_loses_nothing_once_there_is_room) {
  const TestFolder whole_folder;
  const TestFolder folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  std::string path;
  {
    EventWriter writer(folder.path());
    path = writer.path();
    for (int step = 0; step < 100; ++step) writer.scalar("loss", step, step);
    const rlimit narrow{.rlim_cur = 1001, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &narrow), 0);
    expect_error(ErrorKind::Overloaded, HasSubstr("byte 1001"), [&] { writer.flush(); });
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    writer.flush();
  }
  std::signal(SIGXFSZ, handler);
  TUTTI_NEEDS_ORACLES();
  EXPECT_EQ(seen_by_tensorboard(folder.path())["scalars"]["loss"].size(), 100U);
}

TEST(EventWriter, names_the_path_that_cannot_be_used) {
  const TestFolder folder;
  replace_file(folder / "file", "");
  expect_error(ErrorKind::InvalidArgument, HasSubstr(folder / "file"),
               [&] { EventWriter writer(folder / "file"); });
}

TEST(EventWriter, is_read_by_tensorboard) {
  TUTTI_NEEDS_ORACLES();
  const TestFolder folder;
  {
    EventWriter writer(folder.path());
    for (const int64_t step : {int64_t{0}, int64_t{1}, int64_t{300}, int64_t{1} << 40}) {
      writer.scalar("train/loss", step, 0.5 * static_cast<double>(step % 7));
    }
    writer.scalar("a \"quoted\" näme", 3, -1e30);
    writer.text("flags", 0, "`--lanes 4`\n\nmore");
  }
  json seen = seen_by_tensorboard(folder.path());
  EXPECT_EQ(seen["versions"], json({"brain.Event:2"}));
  EXPECT_EQ(seen["starts"], json::array({0}));
  EXPECT_EQ(seen["scalars"]["train/loss"], json({{0, 0.0}, {1, 0.5}, {300, 3.0}, {int64_t{1} << 40, 1.0}}));
  EXPECT_EQ(seen["scalars"]["a \"quoted\" näme"], json::array({{3, static_cast<double>(-1e30F)}}));
  EXPECT_EQ(seen["texts"]["flags"], json::array({json::array({0, {"`--lanes 4`\n\nmore"}})}));
}

TEST(EventWriter, marks_a_resume_so_that_dead_steps_are_forgotten) {
  TUTTI_NEEDS_ORACLES();
  const TestFolder folder;
  {
    EventWriter writer(folder.path());
    for (int64_t step = 1; step <= 5; ++step) writer.scalar("loss", step, 1);
  }
  {
    EventWriter writer(folder.path(), {.resumed_after = 3});
    for (int64_t step = 4; step <= 6; ++step) writer.scalar("loss", step, 2);
  }
  json seen = seen_by_tensorboard(folder.path());
  EXPECT_EQ(seen["starts"], json({0, 4}));
  EXPECT_EQ(seen["scalars"]["loss"], json({{1, 1.0}, {2, 1.0}, {3, 1.0}, {4, 2.0}, {5, 2.0}, {6, 2.0}}));
}

TEST(EventWriter, makes_tensorboard_forget_a_run_that_is_started_anew) {
  TUTTI_NEEDS_ORACLES();
  const TestFolder folder;
  {
    EventWriter writer(folder.path());
    for (int64_t step = 0; step <= 5; ++step) writer.scalar("loss", step, 1);
  }
  {
    EventWriter writer(folder.path());
    writer.scalar("loss", 1, 2);
  }
  EXPECT_EQ(seen_by_tensorboard(folder.path())["scalars"]["loss"], json::array({{1, 2.0}}));
}

TEST(EventWriter, takes_a_histogram_wider_than_a_double) {
  const TestFolder folder;
  EventWriter writer(folder.path());
  writer.histogram("far apart", 1, torch::tensor({-1.7e308, 1.7e308}, torch::kDouble));
  writer.histogram("close", 1, torch::tensor({1.0, std::nextafter(1.0, 2.0), 5e-324}, torch::kDouble));
  writer.flush();
  EXPECT_GT(fs::file_size(writer.path()), 200U);
}

TEST(EventWriter, gives_tensorboard_the_histogram_that_numbers_have) {
  TUTTI_NEEDS_ORACLES();
  const TestFolder folder;
  const torch::Tensor values = torch::arange(6400, torch::kFloat).reshape({80, 80}).t();
  {
    EventWriter writer(folder.path());
    writer.histogram("even", 1, values);
    writer.histogram("odd", 1, torch::tensor({-1.0, 0.25, 3.0, std::nan(""), static_cast<double>(INFINITY)}));
    writer.histogram("equal", 1, torch::full({10}, 2.5, torch::kBFloat16));
    writer.histogram("whole", 1, torch::tensor({1, 2, 3}, torch::kLong));
    writer.histogram("none", 1, torch::full({3}, std::nan("")));
    writer.histogram("none", 1, torch::ones({0}));
    writer.histogram("far apart", 1, torch::tensor({-3e38F, 3e38F}));
  }
  json seen = seen_by_tensorboard(folder.path())["histograms"];
  const auto total = [&](const char* tag) {
    double sum = 0;
    for (const auto& bucket : seen[tag][0][1]) sum += bucket[2].get<double>();
    return sum;
  };
  for (const auto& bucket : seen["even"][0][1]) EXPECT_EQ(bucket[2], 100) << bucket;
  EXPECT_EQ(seen["even"][0][1].size(), 64U);
  EXPECT_EQ(total("odd"), 3);
  EXPECT_EQ(total("equal"), 10);
  EXPECT_EQ(total("whole"), 3);
  EXPECT_EQ(total("far apart"), 2);
  EXPECT_EQ(seen["odd"][0][1].front()[0], -1.0);
  EXPECT_EQ(seen["odd"][0][1].back()[1], 3.0);
  EXPECT_FALSE(seen.contains("none"));
}

// The counts of thresholds 0, 0.5 and 1 for probabilities 0.2 and 0.7 of class 1, 0.4, 0.4 and 0.6 of class
// 0.
CurveCounts few_counts() {
  return {.true_positives = {2, 1, 0},
          .false_positives = {3, 1, 0},
          .true_negatives = {0, 2, 3},
          .false_negatives = {0, 1, 2}};
}

// TensorBoard leaves out the thresholds above which there is no example.
TEST(EventWriter, gives_tensorboard_pr_curves) {
  TUTTI_NEEDS_ORACLES();
  const TestFolder folder;
  {
    EventWriter writer(folder.path());
    writer.scalar("test_auc", 7, 0.75);
    writer.pr_curve("test_auc", 7, few_counts());
    writer.pr_curve("test_auc", 9, {{0, 0}, {1e9, 0.5}, {0, 0}, {0, 0}});
  }
  json seen = seen_by_tensorboard(folder.path());
  EXPECT_EQ(seen["scalars"]["test_auc"].size(), 1U);
  const json curves = seen["pr_curves"]["test_auc/pr_curves"];
  ASSERT_EQ(curves.size(), 2U);
  const json& curve = curves[0][1];
  EXPECT_EQ(curves[0][0], 7);
  EXPECT_EQ(curve["true_positives"], json({2, 1}));
  EXPECT_EQ(curve["false_positives"], json({3, 1}));
  EXPECT_EQ(curve["true_negatives"], json({0, 2}));
  EXPECT_EQ(curve["false_negatives"], json({0, 1}));
  EXPECT_EQ(curve["thresholds"], json({0.0, 0.5}));
  EXPECT_EQ(curve["precision"], json({static_cast<double>(0.4F), 0.5}));
  EXPECT_EQ(curve["recall"], json({1.0, 0.5}));
  EXPECT_EQ(curves[1][1]["recall"], json::array({0.0})) << "there are no examples of class 1";
}

TEST(EventWriter, is_used_by_several_threads) {
  TUTTI_NEEDS_ORACLES();
  const TestFolder folder;
  {
    EventWriter writer(folder.path(), {.resumed_after = {}, .flush_bytes = 100});
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread)
      threads.emplace_back([&writer, thread] {
        for (int step = 0; step < 200; ++step) writer.scalar(std::to_string(thread), step, step);
      });
    for (std::thread& thread : threads) thread.join();
  }
  json seen = seen_by_tensorboard(folder.path())["scalars"];
  for (const char* thread : {"0", "1", "2", "3"}) EXPECT_EQ(seen[thread].size(), 200U) << thread;
}

TEST(EventStream, keeps_events_until_a_training_opens_its_file) {
  TUTTI_NEEDS_ORACLES();
  const TestFolder folder;
  {
    const auto stream = std::make_shared<EventStream>("");
    const Events events(stream);
    EXPECT_TRUE(static_cast<bool>(events));
    events.scalar("mine", 1, 0.5);
    events.text("note", 1, "before the training");
    EXPECT_EQ(files_in(folder.path()), 0U);
    const auto writer = stream->open(folder.path());
    writer->scalar("loss", 1, 2);
    events.scalar("mine", 2, 1.5);
    events.histogram("values", 2, torch::arange(10));
    events.histogram("values", 2, torch::ones({0}));
    events.pr_curve("mine", 2, few_counts());
  }
  json seen = seen_by_tensorboard(folder.path());
  EXPECT_EQ(seen["scalars"]["mine"], json({{1, 0.5}, {2, 1.5}}));
  EXPECT_EQ(seen["scalars"]["loss"].size(), 1U);
  EXPECT_EQ(seen["texts"]["note"].size(), 1U);
  EXPECT_EQ(seen["histograms"]["values"].size(), 1U);
  EXPECT_TRUE(seen["pr_curves"].contains("mine/pr_curves"));
}

TEST(EventStream, writes_at_its_end_if_no_training_has_opened_a_file) {
  const TestFolder folder;
  { EventStream(folder / "unused"); }
  Events(std::make_shared<EventStream>("")).scalar("of a worker", 1, 1);
  EXPECT_FALSE(fs::exists(folder / "unused"));
  Events(std::make_shared<EventStream>(folder / "run")).scalar("mine", 1, 1);
  EXPECT_EQ(files_in(folder / "run"), 1U);
  replace_file(folder / "file", "");
  Events(std::make_shared<EventStream>(folder / "file")).scalar("mine", 1, 1);  // cannot be written
  TUTTI_NEEDS_ORACLES();
  json seen = seen_by_tensorboard(folder / "run");
  EXPECT_EQ(seen["scalars"]["mine"].size(), 1U);
  EXPECT_TRUE(seen["starts"].empty()) << "TensorBoard would forget what other files have";
}

TEST(EventStream, that_is_dropped_keeps_nothing) {
  const TestFolder folder;
  const auto stream = std::make_shared<EventStream>(folder / "run");
  const Events events(stream);
  events.scalar("mine", 1, 1);
  stream->drop();
  EXPECT_FALSE(static_cast<bool>(events));
  events.scalar("mine", 2, 1);
  EXPECT_FALSE(fs::exists(folder / "run"));
  EXPECT_FALSE(static_cast<bool>(Events()));
  Events().image("nothing", 1, torch::Tensor());
  // A task that takes over from the chief writes again.
  stream->open(folder / "run");
  EXPECT_TRUE(static_cast<bool>(events));
}

TEST(EventStream, begins_a_new_file_for_a_run_that_was_set_back) {
  TUTTI_NEEDS_ORACLES();
  const TestFolder folder;
  {
    EventStream stream("");
    const auto first = stream.open(folder.path());
    for (int64_t step = 1; step <= 5; ++step) stream.add(scalar_event("mine", step, 1));
    stream.open(folder.path(), {.resumed_after = 3});
    for (int64_t step = 4; step <= 6; ++step) stream.add(scalar_event("mine", step, 2));
  }
  EXPECT_EQ(seen_by_tensorboard(folder.path())["scalars"]["mine"],
            json({{1, 1.0}, {2, 1.0}, {3, 1.0}, {4, 2.0}, {5, 2.0}, {6, 2.0}}));
}

}  // namespace
}  // namespace tutti::store
