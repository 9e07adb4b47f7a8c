#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/config.h"
#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/base/test_run.h"
#include "tutti/base/text.h"

namespace tutti::flags_test {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

using Variables = std::map<std::string, std::string>;

std::optional<std::string> parse(FlagSet& set, std::vector<const char*> arguments,
                                 const Variables& variables = {}) {
  arguments.insert(arguments.begin(), "/usr/bin/prog");
  return set.parse(static_cast<int>(arguments.size()), arguments.data(), Environment(variables));
}

// Returns the standard flags after parsing these arguments and variables.
RunConfig standard(const std::vector<const char*>& arguments, const Variables& variables = {},
                   RunConfig config = {}) {
  FlagSet set("A program.");
  add_standard_flags(set, config);
  EXPECT_EQ(parse(set, arguments, variables), std::nullopt);
  return config;
}

template <class Matcher>
void expect_refused(const Matcher& text, const std::vector<const char*>& arguments,
                    const Variables& variables = {}) {
  expect_error(ErrorKind::InvalidArgument, text, [&] { standard(arguments, variables); });
}

// A config file with the arguments that name it.
class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text) : path_(folder_ / "run.json") { std::ofstream(path_) << text; }
  const char* path() const { return path_.c_str(); }

 private:
  TestFolder folder_;
  std::string path_;
};

RunConfig from_file(const std::string& text, std::vector<const char*> arguments = {},
                    const Variables& variables = {}) {
  const ConfigFile file(text);
  arguments.insert(arguments.begin(), {"--config", file.path()});
  return standard(arguments, variables);
}

template <class Matcher>
void expect_file_refused(const Matcher& text, const std::string& file) {
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("run.json"), text), [&] { from_file(file); });
}

TEST(RunConfig, are_their_defaults_where_nothing_is_said) {
  const RunConfig config = standard({});
  EXPECT_EQ(config.training.batch, 32);
  EXPECT_EQ(config.compute.precision, "fp32");
  EXPECT_EQ(config.cluster.task, std::nullopt);
}

TEST(RunConfig, come_from_the_command_line) {
  const RunConfig config =
      standard({"--lanes", "4", "--batch=50", "--strategy", "ps-async", "--seed=-7", "--data", "/d x"});
  EXPECT_EQ(config.training.lanes, 4);
  EXPECT_EQ(config.training.batch, 50);
  EXPECT_EQ(config.training.strategy, "ps-async");
  EXPECT_EQ(config.training.seed, -7);
  EXPECT_EQ(config.data.path, "/d x");
}

TEST(RunConfig, take_hyphens_and_underscores_for_one) {
  for (const char* name : {"--cluster_spec", "--cluster-spec"})
    EXPECT_EQ(standard({name, "a|b:1"}).cluster.spec, "a|b:1");
  for (const char* name : {"--checkpoint-every", "--checkpoint_every"}) {
    EXPECT_EQ(standard({name, "5"}).checkpoints.every, "5");
    EXPECT_EQ(standard({(std::string(name) + "=7s").c_str()}).checkpoints.every, "7s");
  }
  EXPECT_EQ(standard({"--task-id", "3"}).cluster.task, 3);
  EXPECT_EQ(standard({"--task_index", "3"}).cluster.task, 3);
}

TEST(RunConfig, leave_values_as_they_are) {
  EXPECT_EQ(standard({"--data=--a-b=c-d"}).data.path, "--a-b=c-d");
  EXPECT_EQ(standard({"--data", "--no-such-flag"}).data.path, "--no-such-flag");
  EXPECT_EQ(standard({"--data", "[1]"}).data.path, "[1]");
  EXPECT_EQ(standard({"--data", "'x' \"y\" \\ \n %s {} \xc3\xa9"}).data.path,
            "'x' \"y\" \\ \n %s {} \xc3\xa9");
  EXPECT_EQ(standard({"--cluster_spec", R"({"worker":["h:1"]})"}).cluster.spec, R"({"worker":["h:1"]})");
  EXPECT_EQ(standard({"--data", "-"}).data.path, "-");
  EXPECT_EQ(standard({"--data", "-5"}).data.path, "-5");
  EXPECT_EQ(standard({"--data", "--"}).data.path, "--");
  EXPECT_EQ(standard({"--data=a=b=c"}).data.path, "a=b=c");
  const std::string huge(1 << 20, 'x');
  EXPECT_EQ(standard({"--data", huge.c_str()}).data.path, huge);
}

TEST(RunConfig, can_be_empty) {
  RunConfig defaults;
  defaults.checkpoints.logdir = "/tmp/x";
  EXPECT_EQ(standard({"--logdir", ""}, {}, defaults).checkpoints.logdir, "");
  EXPECT_EQ(standard({"--logdir="}, {}, defaults).checkpoints.logdir, "");
  EXPECT_EQ(standard({"--logdir=", "--steps", "3"}, {}, defaults).training.steps, 3);
  EXPECT_EQ(standard({}, {{"TUTTI_LOGDIR", ""}}, defaults).checkpoints.logdir, "");
}

TEST(RunConfig, take_negative_numbers) {
  EXPECT_EQ(standard({"--seed", "-3"}).training.seed, -3);
  double rate = 0;
  FlagSet set("x");
  set.add("--rate", rate, "r");
  parse(set, {"--rate", "-.5"});
  EXPECT_EQ(rate, -0.5);
  parse(set, {"--rate=-1e-3"});
  EXPECT_EQ(rate, -1e-3);
}

TEST(RunConfig, the_last_of_a_repeated_flag_counts) {
  EXPECT_EQ(standard({"--lanes", "2", "--lanes=3", "--lanes", "4"}).training.lanes, 4);
  EXPECT_EQ(standard({"--task_id", "1", "--task_index", "2"}).cluster.task, 2);
}

TEST(RunConfig, every_value_of_a_repeated_flag_is_checked) {
  expect_refused(HasSubstr("'x'"), {"--lanes", "x", "--lanes", "4"});
}

TEST(RunConfig, the_command_line_goes_before_variables_before_the_file_before_defaults) {
  const std::string file = R"({"lanes": 1, "batch": 1, "steps": 1})";
  const RunConfig config = from_file(file, {"--lanes", "3"}, {{"TUTTI_LANES", "2"}, {"TUTTI_BATCH", "2"}});
  EXPECT_EQ(config.training.lanes, 3);
  EXPECT_EQ(config.training.batch, 2);
  EXPECT_EQ(config.training.steps, 1);
  EXPECT_EQ(config.training.seed, 1);
}

TEST(RunConfig, an_unknown_flag_is_refused_with_the_nearest) {
  expect_refused(AllOf(HasSubstr("unknown flag '--lane'"), HasSubstr("did you mean '--lanes'?")),
                 {"--lane", "3"});
  expect_refused(HasSubstr("did you mean '--checkpoint-every'?"), {"--checkpoint-evry=5"});
  expect_refused(HasSubstr("did you mean '--task_id'?"), {"--taskid=5"});
  expect_refused(HasSubstr("did you mean '--lanes'?"), {"-lanes", "3"});
  expect_refused(AllOf(HasSubstr("'--wibble-wobble'"), Not(HasSubstr("mean"))), {"--wibble-wobble"});
  expect_refused(HasSubstr("'-x'"), {"-x"});
  expect_refused(HasSubstr("'---lanes'"), {"---lanes", "3"});
  expect_refused(HasSubstr("'--=3'"), {"--=3"});
  expect_refused(HasSubstr("'--LANES'"), {"--LANES", "3"});
}

TEST(RunConfig, an_argument_that_belongs_to_no_flag_is_refused) {
  expect_refused(HasSubstr("'train'"), {"train"});
  expect_refused(HasSubstr("'4'"), {"--lanes", "3", "4"});
  expect_refused(HasSubstr("''"), {""});
  expect_refused(HasSubstr("'--lanes'"), {"--", "--lanes", "3"});
  EXPECT_EQ(standard({"--lanes", "3", "--"}).training.lanes, 3);
}

struct Arguments {
  std::string input = "none";
  std::vector<std::string> outputs;
  int64_t lanes = 0;
};

Arguments positional(const std::vector<const char*>& given) {
  Arguments arguments;
  FlagSet set("A program.");
  set.add("--lanes", arguments.lanes, "");
  set.add_positional("INPUT", arguments.input, "what is read");
  set.add_positional("OUTPUT", arguments.outputs, "what is written");
  EXPECT_EQ(parse(set, given), std::nullopt);
  return arguments;
}

TEST(RunConfig, a_program_may_have_arguments_of_its_own) {
  EXPECT_EQ(positional({"--lanes", "3"}).input, "none");
  const Arguments given = positional({"in", "--lanes", "3", "-4", "--", "--out"});
  EXPECT_EQ(given.input, "in");
  EXPECT_EQ(given.lanes, 3);
  EXPECT_EQ(given.outputs, (std::vector<std::string>{"-4", "--out"}));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("unknown flag '--lane'"), [] {
    positional({"in", "--lane", "3"});
  });
}

TEST(RunConfig, more_arguments_than_a_program_has_are_refused) {
  std::string input;
  FlagSet set("A program.");
  set.add_positional("INPUT", input, "what is read");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'second' does not belong to a flag"), [&] {
    static_cast<void>(parse(set, {"first", "second"}));
  });
  EXPECT_THAT(parse(set, {"--help"}).value_or(""),
              AllOf(HasSubstr("[FLAGS] [INPUT]\n"), HasSubstr("  INPUT"), HasSubstr("what is read")));
}

TEST(RunConfig, a_flag_without_its_value_is_refused) {
  expect_refused(AllOf(HasSubstr("--lanes needs a value"), HasSubstr("the command line ends")), {"--lanes"});
  expect_refused(HasSubstr("--log-level needs a value"), {"--batch", "2", "--log_level"});
  expect_refused(AllOf(HasSubstr("--logdir needs a value"), HasSubstr("'--steps' follows")),
                 {"--logdir", "--steps", "5"});
}

TEST(RunConfig, a_value_that_cannot_be_read_is_quoted_with_its_origin) {
  expect_refused(
      AllOf(HasSubstr("--lanes: 'four'"), HasSubstr("the command line"), HasSubstr("a whole number")),
      {"--lanes", "four"});
  expect_refused(AllOf(HasSubstr("--lanes: '4.5'"), HasSubstr("variable TUTTI_LANES")), {},
                 {{"TUTTI_LANES", "4.5"}});
  expect_file_refused(AllOf(HasSubstr("--lanes: \"4\""), HasSubstr("run.json, key 'lanes'")),
                      R"({"lanes": "4"})");
  for (const char* text : {"", " 4", "4 ", "0x4", "1e3", "+4", "99999999999999999999", "4,5", "inf"}) {
    expect_refused(HasSubstr("'" + std::string(text) + "'"), {"--seed", text});
  }
}

TEST(RunConfig, a_bad_value_is_an_error_also_where_another_overrides_it) {
  expect_refused(HasSubstr("TUTTI_LANES"), {"--lanes", "4"}, {{"TUTTI_LANES", "x"}});
}

TEST(RunConfig, choices_suggest_the_nearest) {
  expect_refused(AllOf(HasSubstr("--precision: 'fp23'"), HasSubstr("one of fp32, bf16"),
                       HasSubstr("did you mean 'fp32'?")),
                 {"--precision", "fp23"});
  expect_refused(HasSubstr("did you mean 'allreduce'?"), {"--strategy", "all-reduce"});
  expect_refused(HasSubstr("one of auto, never, must"), {"--resume", "Auto"});
  expect_refused(HasSubstr("did you mean 'warning'?"), {"--log-level", "warn ing"});
  expect_refused(HasSubstr("TUTTI_STRATEGY"), {}, {{"TUTTI_STRATEGY", ""}});
}

TEST(RunConfig, standard_ones_have_limits) {
  expect_refused(HasSubstr("'-1' (from the command line) is not a whole number from 0 to 1048576"),
                 {"--lanes", "-1"});
  expect_refused(HasSubstr("--lanes"), {"--lanes", "9223372036854775807"});
  expect_refused(HasSubstr("a whole number from 1 to 1000000000"), {"--batch", "0"});
  expect_refused(HasSubstr("--steps: '-5'"), {"--steps=-5"});
  expect_refused(HasSubstr("--epochs"), {"--epochs", "-5"});
  expect_refused(HasSubstr("--threads"), {"--threads", "-5"});
  expect_refused(HasSubstr("--task_index"), {"--task_id", "-1"});
  expect_refused(HasSubstr("--batch: 'x'"), {"--batch", "x"});
  expect_refused(HasSubstr("steps (500) or of seconds (600s), or auto"), {"--checkpoint-every", "10m"});
  EXPECT_EQ(standard({"--checkpoint-every", "0"}).checkpoints.every, "0");
  EXPECT_EQ(standard({"--seed", "-9223372036854775808"}).training.seed, std::numeric_limits<int64_t>::min());
}

TEST(RunConfig, seconds_are_finite_and_fit_into_a_clock) {
  for (const char* name : {"--timeout", "--start-timeout", "--feed-timeout"}) {
    for (const char* text : {"0", "-1", "nan", "inf", "1e10", "1e20", "1e308"})
      expect_refused(AllOf(HasSubstr(name), HasSubstr("is not a number above 0, at most 1000000")),
                     {name, text});
  }
  EXPECT_EQ(standard({"--timeout", "1e6"}).network.timeout, 1e6);
}

TEST(RunConfig, steps_to_profile_are_a_range) {
  for (const char* text : {"", "x", "-1", "5..5", "5..4", "1..2..3", "9223372036854775807"})
    expect_refused(HasSubstr("a step (10) or a range of steps (10..12)"), {"--profile-steps", text});
  EXPECT_EQ(standard({"--profile-steps", "10..12"}).output.profile_steps, "10..12");
}

// A flag that is added without a range fails here.
TEST(RunConfig, every_standard_number_but_the_seed_shows_its_range) {
  RunConfig config;
  FlagSet set("x");
  add_standard_flags(set, config);
  const std::string help = parse(set, {"--help"}).value_or("");
  size_t numbers = 0;
  std::string text;  // of one flag
  const auto check = [&] {
    const bool is_number = text.find(" N ") != std::string::npos || text.find(" X ") != std::string::npos;
    if (!is_number || text.find("--seed") != std::string::npos) return;
    ++numbers;
    EXPECT_THAT(text, testing::ContainsRegex("\\((-?[0-9]+ +to|above) ")) << text;
  };
  for (const std::string& line : split(help, '\n')) {
    if (line.starts_with("  --")) {
      check();
      text.clear();
    }
    text += line + " ";
  }
  check();
  EXPECT_EQ(numbers, 18U);
}

TEST(RunConfig, a_placement_is_one_of_three) {
  EXPECT_EQ(standard({}).servers.placement, "round-robin");
  for (const char* text : {"round-robin", "greedy", "split:65536", "split:4M"})
    EXPECT_EQ(standard({"--placement", text}).servers.placement, text);
  for (const char* text : {"", "random", "split", "split:", "split:0", "split:-4", "split:4X"})
    expect_refused(AllOf(HasSubstr("--placement: '" + std::string(text) + "'"), HasSubstr("split:4M")),
                   {"--placement", text});
}

TEST(RunConfig, of_parameter_servers_have_limits) {
  EXPECT_EQ(standard({"--staleness", "0"}).servers.staleness, 0);
  EXPECT_EQ(standard({"--staleness", "-1"}).servers.staleness, -1);
  EXPECT_EQ(standard({}).network.start_timeout, 120);
  EXPECT_TRUE(standard({"--log-placement"}).output.log_placement);
  expect_refused(HasSubstr("a whole number from -1 to"), {"--staleness", "-2"});
  expect_refused(HasSubstr("--backup"), {"--backup", "-1"});
  expect_refused(HasSubstr("--inter-op-threads"), {"--inter-op-threads", "-1"});
  expect_refused(HasSubstr("a number above 0, at most 1000000"), {"--start-timeout", "0"});
}

TEST(RunConfig, a_secret_comes_from_a_variable_and_is_not_shown) {
  EXPECT_EQ(standard({}, {{"TUTTI_SECRET", "open sesame"}}).security.secret, "open sesame");
  RunConfig config;
  FlagSet set("x");
  add_standard_flags(set, config);
  const auto help = parse(set, {"--secret", "open sesame", "--help"}, {{"TUTTI_SECRET", "open sesame"}});
  EXPECT_THAT(help.value_or(""), AllOf(HasSubstr("TUTTI_SECRET"), Not(HasSubstr("sesame"))));
}

TEST(RunConfig, steps_and_epochs_exclude_each_other) {
  expect_refused(AllOf(HasSubstr("--steps 5"), HasSubstr("--epochs 2"), HasSubstr("contradict")),
                 {"--steps", "5", "--epochs", "2"});
  EXPECT_EQ(standard({"--steps", "5", "--epochs", "0"}).training.steps, 5);
}

TEST(RunConfig, steps_on_the_command_line_replace_epochs_from_elsewhere) {
  RunConfig defaults;
  defaults.training.epochs = 3;
  const RunConfig over_default = standard({"--steps", "5"}, {}, defaults);
  EXPECT_EQ(over_default.training.steps, 5);
  EXPECT_EQ(over_default.training.epochs, 0);
  const RunConfig over_file = from_file(R"({"steps": 9})", {"--epochs", "2"});
  EXPECT_EQ(over_file.training.steps, 0);
  EXPECT_EQ(over_file.training.epochs, 2);
  const RunConfig over_variable = standard({"--steps", "5"}, {{"TUTTI_EPOCHS", "7"}});
  EXPECT_EQ(over_variable.training.epochs, 0);
  // A 0 means "not set" and replaces nothing.
  EXPECT_EQ(standard({"--steps", "0"}, {}, defaults).training.epochs, 3);
}

TEST(RunConfig, an_unknown_variable_is_refused_with_the_nearest) {
  expect_refused(AllOf(HasSubstr("unknown variable TUTTI_LANE:"), HasSubstr("did you mean 'TUTTI_LANES'?")),
                 {}, {{"TUTTI_LANE", "3"}});
  expect_refused(HasSubstr("did you mean 'TUTTI_TASK_INDEX'?"), {}, {{"TUTTI_TASK_INDX", "3"}});
  expect_refused(HasSubstr("did you mean 'TUTTI_LANES'?"), {}, {{"TUTTI_lanes", "3"}});
  expect_refused(HasSubstr("TUTTI_HELP"), {}, {{"TUTTI_HELP", "1"}});
  expect_refused(HasSubstr("TUTTI_"), {}, {{"TUTTI_", "1"}});
}

TEST(RunConfig, variables_of_others_are_left_alone) {
  EXPECT_EQ(standard({}, {{"TUTTI_TEST_BIN", "x"},
                          {"TUTTI_LIBTORCH", "x"},
                          {"TUTTI", "x"},
                          {"_TUTTI_JOB_1_2", "x"},
                          {"LANES", "9"}})
                .training.lanes,
            0);
}

TEST(RunConfig, the_file_takes_every_type) {
  const RunConfig config = from_file(
      R"({"lanes": 4, "log-level": "debug", "checkpoint_every": 500, "data": "", "task-index": 0, "seed": -3})");
  EXPECT_EQ(config.training.lanes, 4);
  EXPECT_EQ(config.output.log_level, "debug");
  EXPECT_EQ(config.checkpoints.every, "500");
  EXPECT_EQ(config.cluster.task, 0);
  EXPECT_EQ(config.training.seed, -3);
}

TEST(RunConfig, the_file_can_come_from_a_variable) {
  const ConfigFile file(R"({"lanes": 5})");
  EXPECT_EQ(standard({}, {{"TUTTI_CONFIG", file.path()}}).training.lanes, 5);
  const ConfigFile other(R"({"lanes": 6})");
  const RunConfig config = standard({"--config", other.path()}, {{"TUTTI_CONFIG", file.path()}});
  EXPECT_EQ(config.training.lanes, 6);
  EXPECT_EQ(config.config_file, other.path());
  EXPECT_EQ(standard({"--config", ""}, {{"TUTTI_CONFIG", file.path()}}).training.lanes, 0);
}

TEST(RunConfig, the_file_cannot_name_another) {
  expect_file_refused(HasSubstr("cannot name another"), R"({"config": "x.json"})");
}

TEST(RunConfig, an_unknown_key_is_refused_with_the_nearest) {
  expect_file_refused(AllOf(HasSubstr("unknown key 'lane'"), HasSubstr("did you mean 'lanes'?")),
                      R"({"lane": 1})");
  expect_file_refused(HasSubstr("unknown key 'help'"), R"({"help": true})");
  expect_file_refused(HasSubstr("unknown key ''"), R"({"": true})");
  expect_file_refused(HasSubstr("unknown key '--lanes'"), R"({"--lanes": 1})");
}

TEST(RunConfig, wrong_types_and_broken_files_are_refused) {
  expect_file_refused(HasSubstr("true (from"), R"({"device": true})");
  expect_file_refused(HasSubstr("null"), R"({"device": null})");
  expect_file_refused(HasSubstr("\\u0000"), R"({"logdir": "a\u0000b"})");
  expect_file_refused(HasSubstr("[1]"), R"({"lanes": [1]})");
  expect_file_refused(HasSubstr("1.5"), R"({"lanes": 1.5})");
  expect_file_refused(HasSubstr("18446744073709551615"), R"({"seed": 18446744073709551615})");
  expect_file_refused(HasSubstr("'-1'"), R"({"lanes": -1})");
  expect_file_refused(HasSubstr("expected an object"), "[1, 2]");
  expect_file_refused(HasSubstr("line 1"), R"({"lanes": )");
  expect_file_refused(HasSubstr("line 1"), "");
  expect_file_refused(HasSubstr("occurs twice"), R"({"lanes": 1, "lanes": 2})");
  expect_file_refused(HasSubstr("lanes"), R"({"task_index": 1, "lanes": {"a": 1}})");
}

TEST(RunConfig, one_flag_written_twice_in_the_file_counts_by_its_last) {
  EXPECT_EQ(from_file(R"({"log-level": "debug", "log_level": "error"})").output.log_level, "error");
}

TEST(RunConfig, a_file_that_is_not_there_is_named) {
  const TestFolder folder;
  expect_refused(HasSubstr("none.json"), {"--config", (folder / "none.json").c_str()});
  expect_refused(HasSubstr(folder.path()), {"--config", folder.path().c_str()});
}

class Switches : public testing::Test {
 protected:
  Switches() : set_("Switches.") {
    set_.add("--verbose,-v", verbose_, "say more");
    set_.add("--use-color", color_, "in color");
    set_.add("--name", name_, "a name");
    set_.add("--config", config_, "a file");
  }
  void parse_all(const std::vector<const char*>& arguments, const Variables& variables = {}) {
    ASSERT_EQ(parse(set_, arguments, variables), std::nullopt);
  }
  FlagSet set_;
  bool verbose_ = false;
  bool color_ = true;
  std::string name_;
  std::string config_;
};

TEST_F(Switches, have_a_positive_and_a_negative_form) {
  parse_all({"--verbose", "--no-use-color"});
  EXPECT_TRUE(verbose_);
  EXPECT_FALSE(color_);
  parse_all({"--no_verbose", "--use_color"});
  EXPECT_FALSE(verbose_);
  EXPECT_TRUE(color_);
  parse_all({"-v"});
  EXPECT_TRUE(verbose_);
  parse_all({"--verbose", "--no-verbose"});
  EXPECT_FALSE(verbose_);
}

TEST_F(Switches, take_a_value_behind_an_equals_sign_only) {
  parse_all({"--verbose=true", "--use-color=off"});
  EXPECT_TRUE(verbose_);
  EXPECT_FALSE(color_);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'true'"), [&] { parse_all({"--verbose", "true"}); });
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("'maybe'"), HasSubstr("true or false")),
               [&] { parse_all({"--verbose=maybe"}); });
  expect_error(ErrorKind::InvalidArgument, testing::_, [&] { parse_all({"--no-verbose=maybe"}); });
}

TEST_F(Switches, come_from_variables_and_files) {
  for (const char* yes : {"1", "true", "TRUE", "yes", "on"}) {
    verbose_ = false;
    parse_all({}, {{"TUTTI_VERBOSE", yes}});
    EXPECT_TRUE(verbose_) << yes;
  }
  for (const char* no : {"0", "false", "No", "off"}) {
    parse_all({}, {{"TUTTI_USE_COLOR", no}});
    EXPECT_FALSE(color_) << no;
  }
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'2'"), [&] {
    parse_all({}, {{"TUTTI_VERBOSE", "2"}});
  });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("''"), [&] { parse_all({}, {{"TUTTI_VERBOSE", ""}}); });
  const ConfigFile file(R"({"verbose": true, "use-color": false})");
  verbose_ = false;
  color_ = true;
  parse_all({"--config", file.path()});
  EXPECT_TRUE(verbose_);
  EXPECT_FALSE(color_);
  const ConfigFile wrong(R"({"verbose": 1})");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("true or false"), [&] {
    parse_all({"--config", wrong.path()});
  });
}

TEST_F(Switches, an_unknown_negative_form_is_suggested_too) {
  expect_error(ErrorKind::InvalidArgument, HasSubstr("did you mean '--no-verbose'?"),
               [&] { parse_all({"--no-verbos"}); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'--no-name'"), [&] { parse_all({"--no-name"}); });
}

TEST(RunConfig, numbers_are_finite) {
  double rate = 0;
  FlagSet set("x");
  set.add("--rate", rate, "r");
  parse(set, {"--rate", "1e-4"});
  EXPECT_EQ(rate, 1e-4);
  for (const char* text : {"nan", "inf", "-inf", "1e999", "", "0,5"}) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr("a number"), [&] { parse(set, {"--rate", text}); });
  }
}

TEST(RunConfig, help_lists_every_flag_in_its_group_with_its_default) {
  RunConfig config;
  config.training.batch = 77;
  FlagSet set("Draws digits.");
  add_standard_flags(set, config);
  bool color = true;
  set.group("Mine");
  set.add("--color", color, "in color");
  for (const char* ask : {"--help", "-h"}) {
    const std::string help = parse(set, {"--lanes", "3", ask}).value_or("");
    EXPECT_THAT(help, testing::StartsWith("Draws digits.\n\nUsage: prog [FLAGS]\n"));
    for (const char* text : {"--strategy single|allreduce|ps-sync|ps-async|in-graph", "--batch N",
                             "default: 77)", "--task_index, --task_id N", "\nCluster:\n", "\nMine:\n",
                             "--color, --no-color", "(default: true)", "--version", "(default: 600s)"}) {
      EXPECT_THAT(help, HasSubstr(text));
    }
    for (const std::string& line : split(help, '\n')) EXPECT_LE(line.size(), 110U) << line;
  }
  EXPECT_EQ(config.training.lanes, 0) << "help sets nothing";
}

TEST(RunConfig, help_comes_before_mistakes_in_variables_and_files) {
  RunConfig config;
  FlagSet set("x");
  add_standard_flags(set, config);
  EXPECT_TRUE(parse(set, {"--help", "--config", "/none"}, {{"TUTTI_WRONG", "1"}}).has_value());
}

TEST(RunConfig, version_names_the_program) {
  FlagSet set("x");
  EXPECT_THAT(parse(set, {"--version"}).value_or(""), AllOf(HasSubstr("prog (Tutti "), EndsWith(")\n")));
}

// The result of --print-config, as a file for --config, has the values of every flag.
TEST(RunConfig, print_config_returns_a_config_file_with_the_same_values) {
  struct Own {
    explicit Own(FlagSet& set) {
      add_standard_flags(set, config);
      set.add("--rate,-r", rate, "a number");
      set.add("--odd_name", text, "a text");
      set.add("--limit", limit, "a number");
    }
    RunConfig config;
    double rate = 0.1;
    std::string text = "\"quoted\" \\ 7";
    double limit = std::numeric_limits<double>::infinity();
  };
  FlagSet first("x");
  const Own given(first);
  const auto printed = parse(first,
                             {"--lanes=4", "--print-config", "--no-nan-guard", "-r", "1e-9", "--batch", "3",
                              "--secret", "hush", "--checkpoint-every", "500"},
                             {{"TUTTI_TIMEOUT", "2.5"}});
  ASSERT_TRUE(printed.has_value());
  EXPECT_THAT(*printed, Not(HasSubstr("hush")));
  EXPECT_THAT(*printed, AllOf(HasSubstr("\"lanes\": 4,"), HasSubstr("\"nan-guard\": false"),
                              HasSubstr("\"checkpoint-every\": \"500\"")));
  const ConfigFile file(*printed);
  FlagSet second("x");
  Own read(second);
  read.rate = 7;
  EXPECT_EQ(parse(second, {"--config", file.path(), "--secret", "hush"}), std::nullopt);
  FlagValues expected = first.values();
  for (FlagValue& flag : expected) {
    if (flag.name == "--config") flag.text = file.path();
  }
  const FlagValues values = second.values();
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i].text, expected[i].text) << values[i].name;
}

TEST(RunConfig, print_config_finds_what_is_wrong_with_any_value_that_is_given) {
  for (const std::vector<const char*>& wrong :
       std::vector<std::vector<const char*>>{{"--batch=0", "--batch=3"},
                                             {"--steps=3", "--epochs=3"},
                                             {"--lnaes=3"},
                                             {"--strategy=allredcue"}}) {
    std::vector<const char*> arguments = wrong;
    arguments.insert(arguments.begin(), "--print-config");
    RunConfig config;
    FlagSet set("x");
    add_standard_flags(set, config);
    expect_error(ErrorKind::InvalidArgument, HasSubstr("--"), [&] { parse(set, arguments); });
  }
}

TEST(RunConfig, a_program_without_arguments_parses) {
  RunConfig config;
  FlagSet set("x");
  add_standard_flags(set, config);
  EXPECT_EQ(set.parse(0, nullptr, Environment()), std::nullopt);
}

TEST(RunConfig, own_requirements_are_kept) {
  std::string even = "2";
  FlagSet set("x");
  set.add("--even", even, "a number");
  set.require("--even", "an even number",
              [](const std::string& text) { return parse_int(text).value_or(1) % 2 == 0; });
  EXPECT_EQ(parse(set, {"--even", "4"}), std::nullopt);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'5' (from the command line) is not an even number"),
               [&] {
                 parse(set, {"--even", "5"});
               });
}

TEST(RunConfig, ranges_stand_in_the_help_and_in_errors) {
  int64_t count = 1;
  double rate = 0.5;
  double share = 0.5;
  std::optional<int64_t> place;
  FlagSet set("x");
  set.add("--count", count, "how many");
  set.between("--count", 1, 8);
  set.add("--rate", rate, "how fast");
  set.at_least("--rate", 0);
  set.add("--share", share, "how much");
  set.above("--share", 0);
  set.add("--place", place, "where");
  set.at_least("--place", 2);
  const std::string help = parse(set, {"--help"}).value_or("");
  for (const char* text :
       {"(1 to 8; default: 1)", "(0 or more; default: 0.5)", "(above 0; default: 0.5)", "(2 or more)"})
    EXPECT_THAT(help, HasSubstr(text));
  const auto expect_bad = [&](const char* flag, const char* value, const char* expects) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr(expects), [&] { parse(set, {flag, value}); });
  };
  expect_bad("--count", "9", "'9' (from the command line) is not a whole number from 1 to 8");
  expect_bad("--count", "2.5", "is not a whole number from 1 to 8");
  expect_bad("--rate", "-1", "'-1' (from the command line) is not a number of 0 or more");
  expect_bad("--rate", "nan", "is not a number of 0 or more");
  expect_bad("--share", "0", "is not a number above 0");
  expect_bad("--place", "1", "is not a whole number of 2 or more");
  EXPECT_EQ(parse(set, {"--count", "8", "--rate", "0", "--share", "1e-300", "--place", "2"}), std::nullopt);
  EXPECT_EQ(count, 8);
  EXPECT_EQ(place, 2);
}

TEST(RunConfig, a_file_nested_without_end_is_refused) {
  expect_file_refused(AllOf(HasSubstr("run.json"), HasSubstr("nested more than 100 deep")),
                      std::string(200000, '['));
}

TEST(RunConfig, a_flag_declared_twice_is_a_bug) {
  std::string one;
  FlagSet set("x");
  set.add("--a-b,--alias", one, "first");
  expect_error(ErrorKind::Bug, HasSubstr("--a_b"), [&] { set.add("--a_b", one, "second"); });
  expect_error(ErrorKind::Bug, HasSubstr("--alias"), [&] { set.add("--alias", one, "second"); });
  expect_error(ErrorKind::Bug, HasSubstr("plain"), [&] { set.add("plain", one, "second"); });
  expect_error(ErrorKind::Bug, HasSubstr("--none"), [&] { set.at_least("--none", 1); });
}

TEST(RunConfig, values_are_told_with_their_scope_and_without_the_secret) {
  RunConfig config;
  double rate = 0.1;
  FlagSet set("x");
  set.add("--rate", rate, "learning rate");
  add_standard_flags(set, config);
  ASSERT_FALSE(parse(set, {"--rate", "0.5", "--batch", "7", "--secret", "hush"}));
  const FlagValues values = set.values();
  const auto value = [&](const std::string& name) {
    const auto found =
        std::find_if(values.begin(), values.end(), [&](const FlagValue& flag) { return flag.name == name; });
    EXPECT_NE(found, values.end()) << name;
    return found == values.end() ? FlagValue{} : *found;
  };
  EXPECT_EQ(value("--rate").text, "0.5");
  EXPECT_EQ(value("--rate").scope, FlagScope::Run);  // the default
  EXPECT_EQ(value("--batch").text, "7");
  EXPECT_EQ(value("--batch").scope, FlagScope::Model);
  EXPECT_EQ(value("--steps").scope, FlagScope::Job);
  EXPECT_EQ(value("--secret").text, "(hidden)");
  EXPECT_EQ(value("--secret").scope, FlagScope::Local);
}

// Returns a cell of a Markdown table without its spaces and backquotes.
std::string content_of(std::string cell) {
  std::erase(cell, '`');
  const size_t begin = std::min(cell.find_first_not_of(' '), cell.size());
  return cell.substr(begin, cell.find_last_not_of(' ') + 1 - begin);
}

// Returns the rows of the flags in docs/reference.md as "--batch 32 Model": name, default, scope.
std::vector<std::string> flags_on_the_page() {
  std::vector<std::string> flags;
  bool among_flags = false;
  for (const std::string& line : split(read_file(source_path("docs/reference.md")), '\n')) {
    if (line.starts_with("## ")) among_flags = line == "## Flags";
    if (!among_flags || !line.starts_with("| `--")) continue;
    const std::vector<std::string> cells = split(line, '|');
    EXPECT_EQ(cells.size(), 8U) << line;
    if (cells.size() != 8) continue;
    const std::string names = content_of(cells[1]);
    flags.push_back(fmt::format("{} {} {}", names.substr(0, names.find(',')), content_of(cells[3]),
                                content_of(cells[4])));
  }
  return flags;
}

TEST(RunConfig, the_reference_page_has_every_flag_in_order_with_its_default_and_scope) {
  const std::map<FlagScope, std::string> scopes = {{FlagScope::Local, "Local"},
                                                   {FlagScope::Job, "Job"},
                                                   {FlagScope::Run, "Run"},
                                                   {FlagScope::Model, "Model"}};
  std::vector<std::string> declared;
  for (const FlagValue& flag : values_of({}))
    declared.push_back(fmt::format("{} {} {}", flag.name, flag.text, scopes.at(flag.scope)));
  EXPECT_THAT(flags_on_the_page(), testing::ElementsAreArray(declared));
}

// A new standard flag must state whether tasks may have different values.
TEST(RunConfig, every_standard_flag_has_a_scope_of_its_own) {
  for (const FlagValue& flag : values_of({})) EXPECT_NE(flag.scope, FlagScope::Run) << flag.name;
}

}  // namespace
}  // namespace tutti::flags_test
