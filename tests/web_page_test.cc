// Tests the page of a run (--web) and `tutti status` as users see them: with curl, Prometheus and a browser.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tests/browser.h"
#include "tests/together.h"
#include "tutti/base/file.h"
#include "tutti/base/ports.h"
#include "tutti/web/http.h"

namespace tutti::testing::web_page_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::chrono::seconds kPatience{60};

// A run that would last for days.
const Flags kLong = {"--net", "odd", "--steps", "100000000", "--batch", "4", "--checkpoint-every", "50"};

std::string found_in_path(const std::string& program) {
  for (const char* folder : {"/usr/bin/", "/usr/local/bin/", "/bin/"}) {
    if (std::filesystem::exists(folder + program)) return folder + program;
  }
  const char* given = std::getenv("TUTTI_TEST_PROMETHEUS");  // a folder
  const std::string there = given == nullptr ? "" : std::string(given) + "/" + program;
  return !there.empty() && std::filesystem::exists(there) ? there : "";
}

ProgramResult status(const Words& arguments, const Words& environment = {}) {
  return run_program(Words{program_path("tutti"), "status"} + arguments, environment);
}

// A training with a page.
class WebRun {
 public:
  explicit WebRun(const Words& command, const Words& environment = {}) : program_(command, environment) {
    const std::string before = "has a page at http://";
    program_.wait_for_error(before);
    const size_t begin = program_.err().find(before) + before.size();
    address_ = program_.err().substr(begin, program_.err().find('/', begin) - begin);
  }
  const std::string& address() const { return address_; }
  RunningProgram& program() { return program_; }

  web::Answer get(const std::string& path, const std::string& secret = "") const {
    return web::get(address_, path, secret, kPatience);
  }
  json status() const { return json::parse(get("/status.json").body); }
  // Waits for a checkpoint, and a loss.
  void await_steps() const {
    EXPECT_TRUE(eventually([&] {
      const json now = status().at("trainings");
      return !now.empty() && !now[0].at("checkpoint_step").is_null() && !now[0].at("loss").is_null();
    }));
  }

 private:
  RunningProgram program_;
  std::string address_;
};

TEST(WebPage, tells_how_a_job_of_several_workers_goes) {
  const TestFolder folder;
  WebRun run(training(2, with(kLong, {"--lanes", "4", "--web", "0", "--logdir", folder / "run"})));
  run.await_steps();
  const json now = run.status();
  const json& training = now.at("trainings").at(0);
  EXPECT_EQ(now.at("trouble"), "");
  EXPECT_EQ(training.at("phase"), "training");
  EXPECT_EQ(training.at("workers"), 2);
  EXPECT_EQ(training.at("lanes"), 4);
  EXPECT_EQ(training.at("end_step"), 100000000);
  EXPECT_EQ(training.at("folder"), folder / "run");
  EXPECT_EQ(training.at("examples").get<int64_t>(), 16 * training.at("steps").get<int64_t>());
  EXPECT_GT(run.status().at("trainings").at(0).at("step"), training.at("checkpoint_step"));
  EXPECT_EQ(run.get("/healthz").body, "ok\n");
  EXPECT_THAT(run.get("/metrics").body,
              AllOf(ContainsRegex("\ntutti_step [0-9]+\n"), HasSubstr("\ntutti_workers 2\n")));
  EXPECT_EQ(run.get("/other").status, 404);

  const ProgramResult by_folder = status({folder / "run"});
  EXPECT_EQ(by_folder.exit_code, 0) << by_folder.err;
  EXPECT_THAT(by_folder.out, AllOf(HasSubstr("training ("), ContainsRegex("workers +2"), HasSubstr("ckpt-")));
  const ProgramResult by_address = status({run.address(), "--json"});
  EXPECT_EQ(by_address.exit_code, 0) << by_address.err;
  EXPECT_EQ(json::parse(by_address.out).at("trainings").at(0).at("workers"), 2);

  ::kill(run.program().pid(), SIGTERM);
  EXPECT_EQ(run.program().wait(), 128 + SIGTERM);
  const ProgramResult stopped = status({folder / "run"});
  EXPECT_EQ(stopped.exit_code, 1);
  EXPECT_THAT(stopped.out, HasSubstr("interrupted ("));
}

// The first chief comes back as a worker, opens no page, and is the last one that is left.
TEST(WebPage, moves_to_the_next_chief_with_all_changes_of_the_workers) {
  const TestFolder folder;
  const HeldPorts port(1);
  const std::string mark = fmt::format("TUTTI_TEST_MARK={}", ::getpid());
  const std::string report = folder / "report.json";
  WebRun run(Words{program_path("tutti"), "run", "-n", "3", "--min", "1", "--restarts", "1", "--",
                   together_program(), "--threads", "1"} +
                 kLong +
                 Words{"--lanes", "4", "--web", std::to_string(port.numbers()[0]), "--logdir", folder / "run",
                       "--report", report},
             {mark});
  run.await_steps();
  const auto kill_worker = [&](int worker) {
    for (const pid_t pid : processes_with(Words{mark, "TUTTI_TASK_INDEX=" + std::to_string(worker)}))
      ::kill(pid, SIGKILL);
  };
  // Waits until as many steps are made by the workers that are left.
  const auto await = [&](int workers, int lost, int joined) {
    int64_t before = -1;
    EXPECT_TRUE(eventually([&] {
      try {
        const json now = run.status().at("trainings").at(0);
        const bool are_there = now.at("workers") == workers && now.at("workers_lost") == lost &&
                               now.at("workers_joined") == joined;
        if (are_there && before < 0) before = now.at("step");
        return are_there && now.at("step") > before;
      } catch (const std::exception&) {
        return false;  // nobody listens at the moment, or nothing has begun
      }
    })) << run.program().err();
  };
  kill_worker(0);
  await(3, 1, 1);
  EXPECT_EQ(json_of(folder / "run/run.json").at("web"), run.address());
  kill_worker(1);
  await(2, 2, 1);
  kill_worker(2);
  await(1, 3, 1);
  EXPECT_THAT(run.get("/metrics").body,
              AllOf(HasSubstr("\ntutti_workers 1\n"),
                    HasSubstr("\ntutti_worker_changes_total{change=\"lost\"} 3\n")));
  const json files = json_of(folder / "run/run.json");
  EXPECT_EQ(files.at("web"), run.address());
  EXPECT_EQ(files.at("workers"), 1);
  EXPECT_EQ(files.at("end_step"), 100000000);
  const std::string events = run.status().at("events").dump();
  ::kill(run.program().pid(), SIGTERM);
  EXPECT_EQ(run.program().wait(), 128 + SIGTERM);
  const std::string changes = json_of(report).at("changes").dump();
  for (const char* change :
       {"worker/0 is gone", "worker/0 has come", "worker/1 is gone", "worker/2 is gone"}) {
    EXPECT_THAT(events, HasSubstr(change));
    EXPECT_THAT(changes, HasSubstr(change));
  }
  EXPECT_THAT(run.program().err(), Not(HasSubstr("this run has no page")));
  EXPECT_THAT(status({folder / "run"}).out,
              AllOf(ContainsRegex("workers +1\n"), HasSubstr("with 1 worker: worker/2 is gone")));
}

TEST(Status, tells_the_error_with_which_the_chief_has_ended) {
  const TestFolder folder;
  run_program(training(2, {"--steps", "20", "--fail-at", "5", "--logdir", folder / "run"}));
  const ProgramResult result = status({folder / "run"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("died ("), HasSubstr("the chief has ended with an error: "),
                                HasSubstr("the disk is on fire")));
}

TEST(WebPage, speaks_http_with_curl) {
  const std::string curl = found_in_path("curl");
  if (curl.empty()) GTEST_SKIP() << "NOT TESTED: no curl (apt install curl)";
  WebRun run(training(1, with(kLong, {"--web", "0"})));
  const std::string url = "http://" + run.address();
  const auto ask = [&](const Words& arguments) {
    return run_program(Words{curl, "--silent", "--show-error", "--noproxy", "*", "--max-time", "60"} +
                       arguments)
        .out;
  };
  EXPECT_THAT(ask({"--include", url + "/healthz"}),
              AllOf(HasSubstr("HTTP/1.1 200 OK"), HasSubstr("\r\n\r\nok\n")));
  EXPECT_THAT(ask({"--head", url + "/"}),
              AllOf(HasSubstr("Content-Type: text/html"), Not(HasSubstr("<html"))));
  EXPECT_THAT(ask({"--include", "--data", "x=y", url + "/"}), HasSubstr("HTTP/1.1 400"));
  EXPECT_THAT(ask({"--include", "--request", "DELETE", url + "/"}), HasSubstr("HTTP/1.1 405"));
  EXPECT_THAT(ask({"--include", "--header", "Host: evil.example", url + "/"}), HasSubstr("HTTP/1.1 403"));
  EXPECT_THAT(ask({"--include", "--header", "X: " + std::string(9000, 'x'), url + "/"}),
              HasSubstr("HTTP/1.1 431"));
}

TEST(WebPage, needs_the_secret_on_other_addresses) {
  const Flags flags = with(kLong, {"--web", "0.0.0.0:0"});
  const ProgramResult open = run_program(training(1, flags));
  EXPECT_EQ(open.exit_code, 2);
  EXPECT_THAT(open.err, HasSubstr("without a secret"));
  const ProgramResult unknown = run_program(training(2, flags));  // tutti run has made one that nobody knows
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("without a secret"));
  const WebRun run(training(1, flags), {"TUTTI_SECRET=a secret"});
  EXPECT_EQ(run.get("/").status, 401);
  EXPECT_EQ(run.get("/", "b secret").status, 401);
  EXPECT_EQ(run.get("/", "a secret").status, 200);
  EXPECT_EQ(run.get("/metrics?secret=a%20secret").status, 200);
  EXPECT_EQ(status({run.address()}).exit_code, 2);
  EXPECT_EQ(status({run.address()}, {"TUTTI_SECRET=a secret"}).exit_code, 0);
}

TEST(WebPage, does_not_change_the_bits_and_a_port_in_use_does_not_stop_the_run) {
  const TestFolder folder;
  const Flags flags = {"--net", "odd", "--steps", "20", "--lanes", "2"};
  const std::string straight = hash_of(on_workers(1, flags), folder);
  EXPECT_EQ(hash_of(on_workers(2, with(flags, {"--web", "0"})), folder), straight);
  const WebRun other(training(1, with(kLong, {"--web", "0"})));
  const std::string report = folder / "report.json";
  const ProgramResult result =
      run_program(training(1, with(flags, {"--web", other.address(), "--report", report})));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, AllOf(HasSubstr("this run has no page"), HasSubstr("is in use")));
  EXPECT_EQ(json_of(report).at("weights_sha256"), straight);
}

TEST(Status, tells_how_a_run_has_ended) {
  const TestFolder folder;
  const ProgramResult none = status({folder.path()});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("no run is there"));
  const ProgramResult missing = status({folder / "missing"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("there is no " + folder / "missing"));
  EXPECT_EQ(status({"127.0.0.1:" + std::to_string(free_ports(1).front())}).exit_code, 10);

  const Flags flags = {"--net", "odd", "--steps", "20", "--logdir", folder / "run", "--summary-every", "5"};
  ASSERT_EQ(run_program(training(1, flags)).exit_code, 0);
  const ProgramResult complete = status({folder / "run"});
  EXPECT_EQ(complete.exit_code, 0) << complete.err;
  EXPECT_THAT(status({folder.path()}).err, HasSubstr("; trainings with a name are in " + folder / "run"));
  EXPECT_THAT(complete.out,
              AllOf(HasSubstr("complete ("), ContainsRegex("step +20 of 20"),
                    ContainsRegex("loss +[0-9.]+ after step 20"), ContainsRegex("checkpoint +step 20, ")));

  WebRun run(training(1, with(kLong, {"--web", "0", "--logdir", folder / "killed"})));
  run.await_steps();
  ::kill(run.program().pid(), SIGKILL);
  EXPECT_EQ(run.program().wait(), 128 + SIGKILL);
  const ProgramResult killed = status({folder / "killed"});
  EXPECT_EQ(killed.exit_code, 1);
  EXPECT_THAT(killed.out,
              AllOf(HasSubstr("died ("), HasSubstr("run the program again"), HasSubstr("checkpoint")));
}

TEST(WebPageInPrometheus, is_scraped_and_is_in_its_format) {
  const std::string prometheus = found_in_path("prometheus");
  const std::string promtool = found_in_path("promtool");
  if (prometheus.empty() || promtool.empty())
    GTEST_SKIP() << "NOT TESTED: no Prometheus (apt install prometheus)";
  const TestFolder folder;
  const WebRun run(training(1, with(kLong, {"--web", "0", "--logdir", folder / "run"})));
  run.await_steps();
  folder.write("metrics", run.get("/metrics").body);
  const ProgramResult checked =
      run_program({"/bin/sh", "-c", promtool + " check metrics < " + (folder / "metrics")});
  EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
  EXPECT_EQ(checked.out + checked.err, "");

  const std::string config =
      folder.write("prometheus.yml",
                   "scrape_configs:\n- job_name: tutti\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\n"
                   "  static_configs: [{targets: ['" +
                       run.address() + "']}]\n");
  const std::string address = "127.0.0.1:" + std::to_string(free_ports(1).front());
  const RunningProgram server({prometheus, "--config.file=" + config,
                               "--storage.tsdb.path=" + (folder / "data"),
                               "--web.listen-address=" + address});
  // Returns the value of a query, or NaN as long as there is none.
  const auto query = [&](const std::string& text) {
    try {
      const json answer = json::parse(web::get(address, "/api/v1/query?query=" + text, "", kPatience).body);
      const json& result = answer.at("data").at("result");
      return result.empty() ? std::nan("") : std::stod(result.at(0).at("value").at(1).get<std::string>());
    } catch (const std::exception&) {
      return std::nan("");  // it has not started yet
    }
  };
  EXPECT_TRUE(eventually([&] { return query("tutti_step") > 0; }));
  EXPECT_TRUE(eventually([&] { return query("rate(tutti_step_seconds_count[1m])") > 0; }));
  EXPECT_EQ(query("up"), 1);
  EXPECT_EQ(query("tutti_healthy"), 1);
  EXPECT_GT(query("tutti_checkpoint_timestamp_seconds"), 1e9);
}

// Texts have enough contrast to what lies behind them (WCAG 2.1: 4.5), and nothing is cut at the right.
constexpr const char* kLook = R"(<script>
setTimeout(() => {
  const numbers = text => text.match(/[\d.]+/g).map(Number);
  const luminance = rgb => rgb.slice(0, 3).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let each = element; each; each = each.parentElement) {
      const color = numbers(getComputedStyle(each).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
  };
  const contrast = element => {
    const [a, b] = [luminance(numbers(getComputedStyle(element).color)), luminance(behind(element))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const texts = [...document.querySelectorAll('body *')].filter(element => element.offsetParent !== null &&
    [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim() !== '') && element.tagName !== 'SCRIPT');
  const pale = texts.filter(element => contrast(element) < 4.5).map(element => element.textContent);
  const root = document.documentElement;
  document.body.append(`LOOKED texts ${texts.length > 20} pale [${pale.join('|')}] wide ${root.scrollWidth > root.clientWidth} ` +
    `back ${getComputedStyle(document.body).backgroundColor} curve ${document.querySelector('polyline').points.length > 1}`);
}, 500);
</script>)";

TEST(WebPageInABrowser, updates_itself_and_can_be_read_in_light_and_dark) {
  const Browser browser;
  if (const std::string why = browser.why_not(); !why.empty()) GTEST_SKIP() << "NOT TESTED: " << why;
  const TestFolder folder;
  const WebRun run(training(1, with(kLong, {"--web", "0", "--logdir", folder / "<b>run"})));
  run.await_steps();
  const ProgramResult live =
      browser.look_at_url("http://" + run.address() + "/", {"--virtual-time-budget=3000"});
  EXPECT_THAT(live.out, AllOf(HasSubstr(">healthy<"), HasSubstr(">training<"),
                              ContainsRegex("<dd>[0-9,]+ of 100,000,000</dd>"),
                              HasSubstr("&lt;b&gt;run/ckpt-"), Not(HasSubstr("<b>run"))));

  // The same page and state, without the run.
  std::string page = run.get("/").body;
  const std::string fetch = "await fetch(";
  ASSERT_NE(page.find(fetch), std::string::npos);
  page.replace(page.find(fetch), fetch.size(),
               "await (async () => new Response(" + json(run.get("/status.json").body).dump() + "))(");
  folder.write("page.html", page + kLook);
  for (const auto& [scheme, back] :
       {std::pair("1", "rgb(255, 255, 255)"), std::pair("0", "rgb(22, 24, 27)")}) {
    const ProgramResult result = browser.look_at_url(
        "file://" + (folder / "page.html"), {"--virtual-time-budget=3000", "--window-size=400,800",
                                             std::string("--blink-settings=preferredColorScheme=") + scheme});
    EXPECT_THAT(result.out,
                HasSubstr(std::string("LOOKED texts true pale [] wide false back ") + back + " curve true"));
  }
  EXPECT_TRUE(browser.is_gone());
}

}  // namespace
}  // namespace tutti::testing::web_page_test
