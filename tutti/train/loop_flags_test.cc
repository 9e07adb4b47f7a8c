// Every standard flag in a training loop of one's own without servers (servers_test has those with servers).
// What the log and the report say has to be what was done: a flag has an effect, or the log says that it has
// none, or it is refused.
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "tutti/base/file.h"
#include "tutti/base/test_folder.h"
#include "tutti/cluster/threads.h"
#include "tutti/lanes/sampler.h"
#include "tutti/store/weight_hashes.h"
#include "tutti/train/loop.h"
#include "tutti/train/test_training.h"

namespace tutti::loop_flags::loop_flags_test {
namespace {

using ::testing::HasSubstr;

// What can be seen of a loop from outside.
struct Seen {
  std::string error;
  std::string log;
  nlohmann::json report;
  std::string hash;
  std::set<std::string> checkpoints;
  std::set<int64_t> hashed;  // steps
  bool has_trace = false;
  bool has_timeline = false;
  uintmax_t event_bytes = 0;
  torch::ScalarType computed_in = torch::kFloat32;
  int threads = 0;
  bool operator==(const Seen&) const = default;
};

struct Net : TestNet {
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor prediction = TestNet::forward(x);
    computed_in = prediction.scalar_type();
    return prediction;
  }
  torch::ScalarType computed_in = torch::kFloat32;
};

void train(const Context& ctx, Seen& seen, std::optional<int64_t> nan_at) {
  torch::manual_seed(ctx.config().training.seed);
  const auto net = std::make_shared<Net>();
  const data::Feed feed = test_feed(20).shuffle();
  Parameters params(*net);
  DistributedOptimizer opt(ctx, params, torch::optim::AdamOptions(0.01));
  const RunConfig::Training& config = ctx.config().training;
  const data::Sampler sampler(feed.size(), {.seed = config.seed,
                                            .lanes = opt.all_lanes(),
                                            .batch = config.batch,
                                            .drop_remainder = config.drop_remainder});
  Loop loop(ctx, params, opt, {.steps_per_epoch = 3});
  std::vector<int64_t> examples;
  while (loop.goes_on()) {
    for (const int64_t lane : opt.lanes_of_step()) {
      sampler.examples(loop.step(), lane, examples);
      if (examples.empty()) {
        opt.add_lane(0);
        continue;
      }
      const Batch batch = feed.read(examples);
      opt.zero_grad();
      const torch::Tensor prediction = net->forward(batch["image"]);
      torch::Tensor loss = torch::cross_entropy_loss(prediction, batch["label"]);
      if (loop.step() == nan_at) loss = loss * std::nan("");
      opt.backward(loss, batch.size());
    }
    opt.step();
    seen.threads = torch::get_num_threads();
  }
  seen.hash = params.sha256();
  seen.computed_in = net->computed_in;
}

// Runs a loop of three steps with these arguments, and with a log directory and a report.
Seen run(const std::vector<std::string>& arguments, std::optional<int64_t> nan_at = {}) {
  const TestFolder folder;
  RunConfig config = test_flags();
  config.training.lanes = 2;
  config.training.steps = 3;
  config.output.log_level = "info";
  config.checkpoints.logdir = folder / "run";
  config.output.report = folder / "report.json";
  FlagSet set("");
  add_standard_flags(set, config);
  std::vector<const char*> argv = {"program"};
  std::vector<std::string> all = arguments;
  for (std::string& argument : all) {
    if (const size_t at = argument.find("FOLDER"); at != std::string::npos)
      argument.replace(at, 6, folder.path());
    argv.push_back(argument.c_str());
  }
  Seen seen;
  ::testing::internal::CaptureStderr();
  try {
    EXPECT_FALSE(set.parse(static_cast<int>(argv.size()), argv.data(), Environment()));
    train(Context(config, Identity{}, set.values()), seen, nan_at);
  } catch (const Error& error) {
    seen.error = error.what();
  }
  seen.log = ::testing::internal::GetCapturedStderr();
  torch::set_num_threads(1);
  for (const std::string& report : {folder / "report.json", folder / "other.json"}) {
    if (std::filesystem::exists(report)) seen.report = nlohmann::json::parse(read_file(report));
  }
  seen.has_timeline = std::filesystem::exists(folder / "timeline.json");
  for (const std::string& logdir : {folder / "run", folder / "other"}) {
    for (const auto& [step, hash] : store::read_weight_hashes(logdir)) seen.hashed.insert(step);
    if (!std::filesystem::exists(logdir)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(logdir)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("ckpt-")) seen.checkpoints.insert(name);
      if (name.starts_with("trace")) seen.has_trace = true;
      if (name.find("tfevents") != std::string::npos) seen.event_bytes = entry.file_size();
    }
  }
  return seen;
}

// The flag changes what can be seen, in this way.
struct Acts {
  std::function<bool(const Seen& base, const Seen& seen)> as_it_says;
};
struct IsNamed {};    // a line of the log says that it does nothing
struct IsRefused {};  // an error names it
// It is read by something else than the loop: by what, and where that is tested.
struct IsOfOthers {
  const char* whom;
};

struct Case {
  std::string flag;
  std::vector<std::string> given;
  std::variant<Acts, IsNamed, IsRefused, IsOfOthers> how;
};

Acts reports(const char* key, nlohmann::json value) {
  return {[key = std::string(key), value = std::move(value)](const Seen& base, const Seen& seen) {
    return seen.report.at(key) == value && base.report.value(key, nlohmann::json()) != value;
  }};
}

Acts logs(const char* text) {
  return {[text = std::string(text)](const Seen& base, const Seen& seen) {
    return seen.log.find(text) != std::string::npos && base.log.find(text) == std::string::npos;
  }};
}

const Acts kChangesTheWeights = {[](const Seen& base, const Seen& seen) { return seen.hash != base.hash; }};

std::vector<Case> cases() {
  const char* const discovery = "discover(), in identity_test.cc";
  const char* const connection = "connect(), in connect_test.cc";
  return {
      {"--strategy", {"--strategy", "ps-sync"}, IsRefused{}},
      {"--lanes", {"--lanes", "4"}, reports("lanes", 4)},
      {"--batch", {"--batch", "2"}, kChangesTheWeights},
      {"--steps", {"--steps", "5"}, reports("steps", 5)},
      {"--epochs", {"--epochs", "2"}, reports("steps", 6)},
      {"--stop-after", {"--stop-after", "2"}, reports("steps", 2)},
      {"--drop-remainder", {"--no-drop-remainder"}, kChangesTheWeights},
      {"--seed", {"--seed", "2"}, kChangesTheWeights},
      {"--precision", {"--precision", "bf16"}, Acts{[](const Seen& base, const Seen& seen) {
         return seen.report.at("precision") == "bf16" && seen.log.find("bf16 on cpu") != std::string::npos &&
                seen.computed_in == torch::kBFloat16 && base.computed_in == torch::kFloat32 &&
                seen.hash != base.hash;
       }}},
      {"--layout", {"--layout", "channels-last"}, IsRefused{}},
      {"--nan-guard", {"--no-nan-guard"}, Acts{[](const Seen&, const Seen&) {
         return run({}, 1).error.find("--no-nan-guard") != std::string::npos &&
                run({"--no-nan-guard"}, 1).report.at("steps") == 3;
       }}},
      {"--audit", {"--audit", "1"}, reports("audits", {{"made", 3}, {"found", nlohmann::json::array()}})},
      {"--audit-action", {"--audit-action", "redo"}, IsNamed{}},
      {"--device", {"--device", "cuda:0"}, IsRefused{}},  // there is none, or the net is not on it
      {"--threads", {"--threads", "2"}, Acts{[](const Seen& base, const Seen& seen) {
         return seen.threads == 2 && base.threads == 1 && seen.log.find("2 threads") != std::string::npos;
       }}},
      {"--kernels", {"--kernels", "libtorch"}, Acts{[](const Seen& base, const Seen& seen) {
         const std::string text = "the same kernels on every processor";
         return base.log.find(text) != std::string::npos && seen.log.find(text) == std::string::npos;
       }}},
      {"--mixed-machines", {}, IsOfOthers{"DistributedOptimizer, which compares the workers"}},
      {"--inter-op-threads", {}, IsOfOthers{"Context, which can set it once in a process"}},
      {"--reduce", {"--reduce", "fast"}, IsNamed{}},
      {"--wire-precision", {"--wire-precision", "bf16"}, IsNamed{}},
      {"--error-feedback", {"--no-error-feedback"}, IsNamed{}},
      {"--optimizer-state", {}, IsOfOthers{"workers, in loop_test.cc"}},
      {"--replicas", {"--replicas", "0"}, IsNamed{}},
      {"--comm", {}, IsOfOthers{connection}},
      {"--timeout", {}, IsOfOthers{connection}},
      {"--message-checksums", {"--message-checksums", "on"}, IsNamed{}},
      {"--start-timeout", {}, IsOfOthers{"servers, evaluators and RemoteModule"}},
      {"--placement", {"--placement", "greedy"}, IsNamed{}},
      {"--log-placement", {"--log-placement"}, logs("conv.weight")},
      {"--staleness", {"--staleness", "3"}, IsNamed{}},
      {"--overlap", {"--no-overlap"}, IsNamed{}},
      {"--backup", {"--backup", "1"}, IsNamed{}},
      {"--tls-cert", {"--tls-cert", "a.pem"}, IsNamed{}},
      {"--tls-key", {"--tls-key", "a.pem"}, IsNamed{}},
      {"--tls-ca", {"--tls-ca", "a.pem"}, IsNamed{}},
      {"--secret", {}, IsOfOthers{connection}},
      {"--insecure", {}, IsOfOthers{connection}},
      {"--allow-programs", {}, IsOfOthers{"servers"}},
      {"--data", {}, IsOfOthers{"the program"}},
      {"--bad-rows", {}, IsOfOthers{"distributed_feed(), in table_feed_test.cc"}},
      {"--feed-timeout", {}, IsOfOthers{"data::BatchQueue, with which Loop::measure() reads"}},
      {"--logdir",
       {"--logdir", "FOLDER/other", "--checkpoint-every", "1"},
       Acts{[](const Seen&, const Seen& seen) {
         return seen.checkpoints == std::set<std::string>{"ckpt-1", "ckpt-2", "ckpt-3"};
       }}},
      {"--resume", {"--resume", "must"}, IsRefused{}},
      {"--checkpoint-every", {"--checkpoint-every", "2"}, Acts{[](const Seen& base, const Seen& seen) {
         return seen.checkpoints.contains("ckpt-2") && !base.checkpoints.contains("ckpt-2");
       }}},
      {"--keep", {"--keep", "1", "--checkpoint-every", "1"}, Acts{[](const Seen&, const Seen& seen) {
         return seen.checkpoints == std::set<std::string>{"ckpt-3"};
       }}},
      {"--checkpoint-rows", {"--checkpoint-rows", "changed"}, IsNamed{}},
      {"--hash-every", {"--hash-every", "2"}, Acts{[](const Seen& base, const Seen& seen) {
         return seen.hashed == std::set<int64_t>{2} && base.hashed.empty();
       }}},
      {"--export", {"--export", "FOLDER/exports"}, IsRefused{}},
      {"--export-from", {"--export-from", "run"}, IsNamed{}},
      {"--summary-every", {"--summary-every", "1"}, Acts{[](const Seen& base, const Seen& seen) {
         return seen.event_bytes > base.event_bytes;
       }}},
      {"--profile-steps", {"--profile-steps", "1..2"}, Acts{[](const Seen& base, const Seen& seen) {
         return seen.has_trace && !base.has_trace;
       }}},
      {"--timeline", {"--timeline", "FOLDER/timeline.json"}, Acts{[](const Seen& base, const Seen& seen) {
         return seen.has_timeline && !base.has_timeline;
       }}},
      {"--report", {"--report", "FOLDER/other.json"}, Acts{[](const Seen&, const Seen& seen) {
         return seen.report.at("steps") == 3;
       }}},
      {"--web", {"--web", "0"}, logs("has a page at http://127.0.0.1:")},
      {"--log", {"--log", "live"}, Acts{[](const Seen& base, const Seen& seen) {
         return seen.log.find('\r') != std::string::npos && base.log.find('\r') == std::string::npos;
       }}},
      {"--log-level", {"--log-level", "error"}, Acts{[](const Seen& base, const Seen& seen) {
         return seen.log.empty() && !base.log.empty();
       }}},
      {"--config", {}, IsOfOthers{"FlagSet, in flags_test.cc"}},
      {"--cluster_spec", {}, IsOfOthers{discovery}},
      {"--job_name", {}, IsOfOthers{discovery}},
      {"--task_index", {}, IsOfOthers{discovery}},
  };
}

TEST(LoopFlags, are_each_in_effect_or_named_or_refused) {
  const Seen base = run({});
  ASSERT_EQ(base.error, "");
  EXPECT_EQ(run({}).hash, base.hash);
  for (const Case& each : cases()) {
    if (std::holds_alternative<IsOfOthers>(each.how)) continue;
    const Seen seen = run(each.given);
    if (std::holds_alternative<IsRefused>(each.how)) {
      EXPECT_THAT(seen.error, HasSubstr(each.flag));
      continue;
    }
    EXPECT_EQ(seen.error, "") << each.flag;
    const std::string name = std::holds_alternative<IsNamed>(each.how) ? each.given.front() : "";
    EXPECT_EQ(seen.log.find("do nothing") != std::string::npos ||
                  seen.log.find("does nothing") != std::string::npos,
              !name.empty())
        << seen.log;
    EXPECT_THAT(seen.log, HasSubstr(name));
    if (!name.empty()) {
      EXPECT_EQ(seen.hash, base.hash) << each.flag;
    } else if (seen.error.empty()) {
      EXPECT_TRUE(std::get<Acts>(each.how).as_it_says(base, seen)) << each.flag << "\n" << seen.log;
    }
  }
}

TEST(LoopFlags, are_all_in_the_table) {
  std::set<std::string> in_table;
  for (const Case& each : cases()) in_table.insert(each.flag);
  for (const FlagValue& flag : values_of(RunConfig()))
    EXPECT_TRUE(in_table.erase(flag.name)) << flag.name << " is new: say what it does in a loop of one's own";
  EXPECT_THAT(in_table, ::testing::IsEmpty());
}

}  // namespace
}  // namespace tutti::loop_flags::loop_flags_test
