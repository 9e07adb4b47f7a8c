// An adversary with a seed kills, stops and continues the tasks and launchers of a job, tells them to end,
// cuts its network, fills its disk and damages its checkpoints. A job that may end for this reason is started
// again, as an operator would. The weights always have the bits of a training that nobody has disturbed, and
// nothing is left behind. TUTTI_TEST_CHAOS="100..300" runs other seeds, with more events (`./dev chaos`).
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/chaos/job.h"
#include "tests/together.h"
#include "tutti/base/file.h"
#include "tutti/base/text.h"

namespace tutti::testing::chaos_test {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::chrono::minutes kDeadline{6};  // a job that takes longer hangs

struct Plan {
  int64_t begin = 0;
  int64_t end = 6;  // one seed for each kind of job
  int events = 3;
  int64_t steps = 300;
};

Plan plan() {
  const char* const text = std::getenv("TUTTI_TEST_CHAOS");
  if (text == nullptr) return {};
  const std::string range = text;
  const size_t dots = range.find("..");
  return {parse_int(range.substr(0, dots)).value(), parse_int(range.substr(dots + 2)).value(), 20, 3000};
}

void pause_for(int64_t most, std::mt19937_64& random) {
  constexpr int64_t kLeast = 20;
  std::this_thread::sleep_for(
      milliseconds(kLeast + static_cast<int64_t>(random() % static_cast<uint64_t>(most))));
}

// A kind of job that is disturbed. The seed draws the kind.
struct Kind {
  std::string name;
  bool has_servers = false;
  bool has_rows = false;
  bool has_small_disk = false;
  size_t nodes = 1;
  bool on_hosts = false;
};
const std::array kKinds = {
    Kind{.name = "members"},
    Kind{.name = "nodes", .nodes = 2},
    Kind{.name = "rows", .has_rows = true},
    Kind{.name = "servers", .has_servers = true},
    Kind{.name = "disk", .has_small_disk = true},
    Kind{.name = "hosts", .nodes = 2, .on_hosts = true},
};

class Chaos : public ::testing::TestWithParam<Kind> {
 protected:
  void run(int64_t seed, const Plan& plan);

  const Kind kind_ = GetParam();

 private:
  // One way to disturb the job. strike() returns false if it is impossible now.
  struct Blow {
    std::string name;
    int weight = 1;
    std::function<bool()> strike;
  };

  void set_up(int64_t seed, const Plan& plan);
  Flags program(int64_t steps) const;
  void list_blows();
  void add_blows_to_tasks();
  void add_blows_to_launchers();
  void add_blows_to_files();
  std::optional<pid_t> any(const std::string& kind);
  bool kill_server_with_copy();
  bool damage_newest();
  void disturb(const Plan& plan);
  void heal();
  // Returns true when the job has ended well. Starts it again if a blow may have ended it.
  bool has_ended_well();
  void look_after_nodes();
  void expect_nothing_is_left();

  const TestFolder folder_;
  nlohmann::json undisturbed_;
  std::mt19937_64 random_;
  std::unique_ptr<TwoHosts> hosts_;
  std::unique_ptr<SmallDisk> disk_;
  std::string logdir_;  // as the job knows it; "": it has none
  std::string report_;
  std::string logdir_outside_;
  std::unique_ptr<ChaosJob> job_;
  std::vector<Blow> blows_;
  std::map<std::string, int> struck_;
  std::set<std::string> damaged_;
  bool has_copies_ = false;  // servers have copies, and no checkpoint
  std::string failure_;      // why the job has ended although it must not
  bool is_done_ = false;
  bool may_end_ = false;  // since a blow that ends jobs
  bool is_cut_ = false;
};

Flags Chaos::program(int64_t steps) const {
  Flags flags = {together_program(), "--net", "normed", "--lanes", "8", "--batch", "4"};
  if (kind_.has_rows)
    flags = {program_path("../test/tables_program"),
             "--lanes",
             "8",
             "--batch",
             "4",
             "--dynamic",
             "--rows",
             "840",
             "--replace-oldest",
             "--clip-norm",
             "0.05",
             "--average",
             "0.9"};
  const int64_t all = kind_.has_rows ? steps / 3 : steps;  // which validates often
  return with(flags, {"--threads", "1", "--steps", std::to_string(all)});
}

void Chaos::set_up(int64_t seed, const Plan& plan) {
  random_.seed(static_cast<uint64_t>(seed));
  is_done_ = may_end_ = is_cut_ = false;
  struck_.clear();
  damaged_.clear();
  const auto drawn = [&](uint64_t one_in) { return random_() % one_in == 0; };
  const std::string name = fmt::format("{}", seed);
  report_ = folder_ / fmt::format("report-{}.json", seed);
  has_copies_ = kind_.has_servers && drawn(2);
  const bool saves =
      !has_copies_ && (kind_.has_rows || kind_.has_servers || kind_.has_small_disk || drawn(2));
  logdir_ = logdir_outside_ = saves ? folder_ / fmt::format("run-{}", seed) : "";
  JobSetting setting{.launch = {},
                     .program = with(program(plan.steps), {"--timeout", "5", "--report", report_})};
  const auto add = [&](const Flags& flags) { setting.program = with(setting.program, flags); };
  if (saves) {
    fs::create_directories(logdir_);
    add({"--logdir", logdir_, "--checkpoint-every", kind_.has_small_disk ? "20" : "50"});
  }
  if (drawn(2)) add({"--own-loop"});
  if (kind_.has_servers) {
    setting.launch = {"--ps", "2", "-n", "3", "--restarts", "1000"};
    if (has_copies_) setting.launch = with(setting.launch, {"--min", "1"});
    add({"--strategy", "ps-sync", "--start-timeout", "30"});
  } else {
    setting.launch = {"-n", kind_.nodes == 2 ? "2" : "4", "--min", "1", "--restarts", "1000"};
    if (!kind_.on_hosts && drawn(2)) add({"--comm", "tcp"});
    if (!drawn(3)) add({"--audit", "2"});  // no change of the workers is a wrong result
  }
  setting.nodes = kind_.nodes;
  if (kind_.on_hosts) hosts_ = std::make_unique<TwoHosts>();
  if (kind_.has_small_disk) {
    constexpr int kMegabytes = 4;
    disk_ = std::make_unique<SmallDisk>(logdir_, kMegabytes);
    logdir_outside_ = disk_->outside();
  }
  setting.hosts = hosts_.get();
  setting.disk = disk_.get();
  job_ = std::make_unique<ChaosJob>(setting, name);
}

std::optional<pid_t> Chaos::any(const std::string& kind) {
  const std::vector<pid_t> all = job_->tasks(kind);
  if (all.empty()) return std::nullopt;
  return all[random_() % all.size()];
}

void Chaos::list_blows() {
  blows_.clear();
  add_blows_to_tasks();
  add_blows_to_launchers();
  add_blows_to_files();
}

// Kills no server before the last one has its part again. There is no checkpoint to go back to.
bool Chaos::kill_server_with_copy() {
  job_->read();
  const std::string log = job_->err();
  size_t at = log.find("received");  // the run has begun
  for (int kills = struck_["kill a server"]; kills > 0 && at != std::string::npos; --kills)
    at = log.find("restarting ps/", at + 1);
  for (const char* line : {"has its part of the parameters again", "going on at step"}) {
    if (at != std::string::npos && struck_["kill a server"] > 0) at = log.find(line, at);
  }
  const auto pid = at == std::string::npos ? std::nullopt : any("ps");
  return pid && job_->strike(*pid, SIGKILL);
}

void Chaos::add_blows_to_tasks() {
  const auto strike = [this](const std::string& kind, int signal) {
    const auto pid = any(kind);
    return pid && job_->strike(*pid, signal);
  };
  const auto slow = [this](const std::string& kind) {
    const auto pid = any(kind);
    if (!pid || !job_->strike(*pid, SIGSTOP)) return false;
    pause_for(400, random_);
    kill(*pid, SIGCONT);
    return true;
  };
  blows_.push_back({"kill a worker", 6, [=] { return strike("worker", SIGKILL); }});
  blows_.push_back({"slow a worker", 2, [=] { return slow("worker"); }});
  if (kind_.has_servers) {
    blows_.push_back({"kill a server", 4,
                      [=, this] { return has_copies_ ? kill_server_with_copy() : strike("ps", SIGKILL); }});
    blows_.push_back({"slow a server", 1, [=] { return slow("ps"); }});
    return;
  }
  blows_.push_back({"stop a worker", 1, [=] { return strike("worker", SIGSTOP); }});
  blows_.push_back({"tell a worker to leave", 1, [=, this] {
                      may_end_ = true;  // if it is the last one
                      return strike("worker", SIGTERM);
                    }});
  if (logdir_.empty()) return;
  blows_.push_back({"kill all workers", 1, [this] {
                      const std::vector<pid_t> all = job_->tasks("worker");
                      for (const pid_t pid : all) job_->strike(pid, SIGKILL);
                      return !all.empty();
                    }});
}

void Chaos::add_blows_to_launchers() {
  const auto strike = [this](size_t node, int signal) { return job_->strike(job_->launcher(node), signal); };
  if (kind_.nodes > 1) {
    blows_.push_back({"kill the second launcher", 3, [=] { return strike(1, SIGKILL); }});
    blows_.push_back({"stop the second launcher", 1, [=, this] {
                        if (!strike(1, SIGSTOP)) return false;
                        pause_for(1500, random_);
                        job_->continue_stopped();
                        return true;
                      }});
  }
  if (kind_.on_hosts) {
    blows_.push_back({"cut or mend the cable", 3, [this] {
                        is_cut_ ? hosts_->west().plug() : hosts_->west().unplug();
                        is_cut_ = !is_cut_;
                        may_end_ = true;  // if those beside the list are lost too
                        return true;
                      }});
  }
  if (logdir_.empty()) return;
  for (const int signal : {SIGKILL, SIGTERM}) {
    blows_.push_back({signal == SIGKILL ? "kill the launcher" : "tell the launcher to end", 1, [=, this] {
                        may_end_ = true;
                        return strike(0, signal);
                      }});
  }
}

void Chaos::add_blows_to_files() {
  if (logdir_.empty()) return;
  blows_.push_back({"damage the newest checkpoint", kind_.has_small_disk ? 3 : 1, [this] {
                      if (!damage_newest()) return false;
                      may_end_ = true;
                      job_->kill_all();
                      return true;
                    }});
  if (!kind_.has_small_disk) return;
  blows_.push_back({"fill the disk for a while", 3, [this] {
                      disk_->fill();
                      pause_for(1500, random_);
                      disk_->free();
                      may_end_ = true;
                      return true;
                    }});
}

// Truncates a file, changes a byte, or removes the manifest or another file. The checkpoint before stays
// whole, without which the job would refuse to go on.
bool Chaos::damage_newest() {
  std::map<int64_t, std::string> whole;  // by step
  std::error_code none;
  for (fs::directory_iterator entry(logdir_outside_, none), end; !none && entry != end;
       entry.increment(none)) {
    const std::string name = entry->path().filename();
    const auto step = name.starts_with("ckpt-") ? parse_int(name.substr(5)) : std::nullopt;
    if (step && !damaged_.contains(name)) whole[*step] = name;
  }
  if (whole.size() < 2) return false;
  const std::string newest = whole.rbegin()->second;
  std::vector<fs::path> files;
  for (fs::directory_iterator entry(logdir_outside_ + "/" + newest, none), end; !none && entry != end;
       entry.increment(none))
    files.push_back(entry->path());
  if (files.empty()) return false;
  std::sort(files.begin(), files.end());
  const fs::path file = files[random_() % files.size()];
  const auto size = fs::file_size(file, none);
  if (none || size == 0) return false;
  switch (random_() % 4) {
    case 0:
      fs::remove(file, none);
      break;
    case 1:
      fs::remove(file.parent_path() / "manifest.json", none);
      break;
    case 2:
      fs::resize_file(file, random_() % size, none);
      break;
    default: {
      std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
      bytes.seekg(static_cast<std::streamoff>(random_() % size));
      const std::streampos at = bytes.tellg();
      const auto byte = static_cast<char>(bytes.get());
      bytes.seekp(at);
      bytes.put(static_cast<char>(byte ^ 0x10));
    }
  }
  damaged_.insert(newest);
  return true;
}

// The second launcher comes again when it has ended, unless its host is cut off.
void Chaos::look_after_nodes() {
  for (size_t node = 1; node < kind_.nodes; ++node) {
    if (!is_cut_ && !job_->has_ended()) job_->start(node);
  }
}

bool Chaos::has_ended_well() {
  if (is_done_) return true;
  job_->read();
  look_after_nodes();
  if (!job_->has_ended()) return false;
  const int code = job_->wait();
  is_done_ = code == 0;
  if (is_done_) return true;
  // A job whose work is done fails if it loses a worker then.
  if (!may_end_ && !fs::exists(report_)) {
    failure_ = fmt::format("the job has ended with {}: {}", code, job_->err());
    return is_done_ = true;
  }
  may_end_ = is_cut_;
  job_->start(0);
  return false;
}

void Chaos::disturb(const Plan& plan) {
  constexpr int64_t kLongestPeace = 600;
  int weights = 0;
  for (const Blow& blow : blows_) weights += blow.weight;
  const auto begin = steady_clock::now();
  for (int done = 0; done < plan.events && steady_clock::now() < begin + kDeadline;) {
    pause_for(kLongestPeace, random_);
    if (has_ended_well()) return;
    auto drawn = static_cast<int>(random_() % static_cast<uint64_t>(weights));
    auto blow = blows_.begin();
    while (drawn >= blow->weight) drawn -= (blow++)->weight;
    if (!blow->strike()) continue;
    ++struck_[blow->name];
    ++done;
  }
}

void Chaos::heal() {
  job_->continue_stopped();
  if (is_cut_) hosts_->west().plug();
  is_cut_ = false;
}

void Chaos::expect_nothing_is_left() {
  for (size_t node = 1; node < kind_.nodes; ++node) {
    if (const pid_t pid = job_->launcher(node); pid > 0) kill(pid, SIGTERM);  // it may wait for the next job
  }
  EXPECT_TRUE(eventually([this] {
    job_->read();
    return job_->processes().empty();
  })) << job_->err();
  for (const pid_t pid : job_->processes())
    ADD_FAILURE() << fmt::format("{} is left, in the state {}: {}", pid, state_of(pid),
                                 read_system_file(fmt::format("/proc/{}/cmdline", pid)));
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    EXPECT_FALSE(name.starts_with("tutti") && !name.starts_with("tutti-test-")) << name;
  }
  if (logdir_.empty()) return;
  for (const auto& entry : fs::directory_iterator(logdir_outside_))
    EXPECT_THAT(entry.path().filename(), ::testing::Not(::testing::StartsWith(".tutti"))) << job_->err();
}

// A loop of the program's own measures nothing after its end.
nlohmann::json result_in(const nlohmann::json& report) {
  nlohmann::json result;
  for (const char* key : {"steps", "examples", "weights_sha256"})
    result[key] = report.value(key, nlohmann::json());
  const nlohmann::json metrics = report.value("metrics", nlohmann::json::object());
  for (const auto& [name, value] : metrics.items()) {
    if (name.starts_with("validation_")) result[name] = value;
  }
  return result;
}

void Chaos::run(int64_t seed, const Plan& plan) {
  SCOPED_TRACE(fmt::format("{}; again with TUTTI_TEST_CHAOS={}..{}", kind_.name, seed, seed + 1));
  if (undisturbed_.empty()) undisturbed_ = result_in(report_of(program(plan.steps), folder_));
  set_up(seed, plan);
  list_blows();
  disturb(plan);
  heal();
  const auto deadline = steady_clock::now() + kDeadline;
  while (!has_ended_well() && steady_clock::now() < deadline) std::this_thread::sleep_for(milliseconds(20));
  int events = 0;
  std::string all;
  for (const auto& [name, count] : struck_) {
    events += count;
    all += fmt::format(", {} {}", count, name);
  }
  fmt::print("seed {}, {}: {} events{}\n", seed, kind_.name, events, all);
  std::fflush(stdout);
  ASSERT_EQ(failure_, "");
  std::string said;
  for (size_t node = 0; node < kind_.nodes; ++node)
    said += fmt::format("node {}: {}\n", node, job_->err(node));
  ASSERT_TRUE(is_done_) << "it hangs: " << said;
  ASSERT_TRUE(fs::exists(report_)) << job_->err();
  EXPECT_EQ(result_in(json_of(report_)), undisturbed_) << job_->err();
  expect_nothing_is_left();
  job_.reset();
  disk_.reset();
  hosts_.reset();
}

TEST_P(Chaos, ends_with_the_bits_of_an_undisturbed_training) {
  if (const std::string reason = kind_.on_hosts         ? TwoHosts::why_not()
                                 : kind_.has_small_disk ? SmallDisk::why_not()
                                                        : "";
      !reason.empty())
    GTEST_SKIP() << "NOT TESTED: " << reason;
  const Plan plan = chaos_test::plan();
  for (int64_t seed = plan.begin; seed < plan.end && !HasFatalFailure(); ++seed) {
    if (kKinds[static_cast<size_t>(seed) % kKinds.size()].name == kind_.name) run(seed, plan);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Chaos, ::testing::ValuesIn(kKinds),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tutti::testing::chaos_test
