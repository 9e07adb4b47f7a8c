#pragma once

#include <algorithm>
#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/few_digits.h"
#include "tests/tool.h"
#include "tutti/base/file.h"

namespace tutti::testing {

// Reads the flags and calls `train`, which sets `loss` and `metrics` for $x; then writes the report. It has 8
// steps. $dir is the run's folder, $top the sweep's, $step the step of its end, and $words all arguments.
inline constexpr const char* kProgram = R"(
words="$*"
for flag; do
  case $flag in
    --print-config) echo '{'; echo '  "steps": 8'; echo '}'; exit ;;
    --x=wrong) echo "x: 'wrong' is not a number" >&2; exit 2 ;;
    --x=*) x=${flag#*=} ;;
    --logdir=*) dir=${flag#*=} ;;
    --report=*) report=${flag#*=} ;;
    --stop-after=*) step=${flag#*=} ;;
  esac
done
top=$dir/..
complete=false
if [ "$step" = 0 ]; then step=8; complete=true; fi
loss=$x
metrics="{\"accuracy\": 0.$x}"
echo "$step" >> "$dir/starts"
train
echo "{\"steps\": $step, \"complete\": $complete, \"loss\": $loss, \"weights_sha256\": \"w$x\"," \
  "\"metrics\": $metrics}" > "$report"
)";

class SweepOf : public ::testing::Test {
 protected:
  // `train` is the script's function of that name.
  Words command(const Words& flags, const std::string& train = ":") const {
    return Words{program_path("tutti"), "sweep", "--logdir", top_} + flags +
           Words{"--", "sh", "-c", "train() {\n" + train + "\n}\n" + kProgram, "program"};
  }
  ProgramResult sweep(const Words& flags, const std::string& train = ":") const {
    return run_program(command(flags, train), {mark_}, Crashes::AskedFor);
  }
  nlohmann::json results() const { return nlohmann::json::parse(read_file(top_ + "/sweep.json")); }
  // The last step of each process of a run.
  std::string starts(int run) const {
    std::string text = read_file(fmt::format("{}/run-{}/starts", top_, run));
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  }
  bool has_file(const std::string& name) const { return std::filesystem::exists(top_ + "/" + name); }
  bool nobody_is_left() const {
    return eventually([this] { return processes_with(mark_).empty(); });
  }

  TestFolder folder_;
  const std::string top_ = folder_ / "sweep";
  const std::string mark_ = "MARK_OF_THIS_TEST=" + folder_.path();
};

// The weights of the example after all its steps, in one process.
inline std::string weights_of(const std::string& folder, const Words& flags) {
  const std::string report = folder + "/straight.json";
  const ProgramResult result = run_program(Words{program_path("mnist"), "--report", report} + flags);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(read_file(report)).at("weights_sha256").get<std::string>();
}

}  // namespace tutti::testing
