#include <cmath>
#include <sys/resource.h>
#include <unistd.h>

#include <fmt/format.h>

#include "tutti/base/file.h"
#include "tutti/base/text.h"
#include "tutti/base/version.h"
#include "tutti/web/status.h"

// metrics_text(): the figures for Prometheus
// (https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format).
namespace tutti::web {
namespace {

using Labels = std::vector<std::pair<std::string_view, std::string>>;

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\' || c == '"') result += '\\';
    if (c == '\n')
      result += "\\n";
    else
      result += c;
  }
  return result;
}

std::string text_of(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

// Writes the lines of the text. The samples of a metric have to follow its head.
class Lines {
 public:
  void head(std::string_view name, std::string_view type, std::string_view help) {
    text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  void sample(std::string_view name, const Labels& labels, double value) {
    std::string in_braces;
    for (const auto& [label, text] : labels)
      in_braces += fmt::format("{}{}=\"{}\"", in_braces.empty() ? "" : ",", label, escaped(text));
    text_ += in_braces.empty() ? fmt::format("{} {}\n", name, text_of(value))
                               : fmt::format("{}{{{}}} {}\n", name, in_braces, text_of(value));
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// The label that tells several trainings of a process apart; an only one needs none.
Labels labels_of(const std::string& training) {
  return training.empty() ? Labels() : Labels{{"training", training}};
}

struct Figure {
  const char* name;
  const char* type;
  const char* help;
  std::optional<double> (*of)(const TrainingStatus& training);
};

constexpr Figure kFigures[] = {
    {"tutti_training", "gauge", "1 while steps are made, else 0.",
     [](const TrainingStatus& t) -> std::optional<double> { return t.phase == Phase::Training ? 1 : 0; }},
    {"tutti_step", "gauge", "Steps of the run that are done.",
     [](const TrainingStatus& t) -> std::optional<double> { return t.step; }},
    {"tutti_end_step", "gauge", "The step after which the training ends, if that is known.",
     [](const TrainingStatus& t) -> std::optional<double> { return t.end_step; }},
    {"tutti_epoch", "gauge", "The pass over the examples, from 0.",
     [](const TrainingStatus& t) -> std::optional<double> { return t.epoch; }},
    {"tutti_steps_total", "counter", "Steps that this process has made.",
     [](const TrainingStatus& t) -> std::optional<double> { return t.steps; }},
    {"tutti_examples_total", "counter", "Examples in the steps that this process has made.",
     [](const TrainingStatus& t) -> std::optional<double> { return t.examples; }},
    {"tutti_loss", "gauge", "The mean loss of a recent step.",
     [](const TrainingStatus& t) { return t.loss; }},
    {"tutti_learning_rate", "gauge", "The learning rate of the last step.",
     [](const TrainingStatus& t) -> std::optional<double> { return t.learning_rate; }},
    {"tutti_workers", "gauge", "Workers that train together.",
     [](const TrainingStatus& t) -> std::optional<double> { return t.workers; }},
    {"tutti_restarts_total", "counter", "How often the run was resumed.",
     [](const TrainingStatus& t) -> std::optional<double> { return t.restarts; }},
    {"tutti_checkpoint_step", "gauge", "The step of the last checkpoint that this process has written.",
     [](const TrainingStatus& t) -> std::optional<double> { return t.checkpoint_step; }},
    {"tutti_checkpoint_timestamp_seconds", "gauge", "When that checkpoint was written.",
     [](const TrainingStatus& t) -> std::optional<double> {
       return t.checkpoint_step ? std::optional(t.checkpoint_time) : std::nullopt;
     }},
};

void add_step_times(Lines& lines, const Status& status) {
  lines.head("tutti_step_seconds", "histogram", "How long steps take, without evaluations.");
  for (const auto& [name, training] : status.trainings) {
    const auto bucket = [&, &name = name](const std::string& bound, int64_t count) {
      Labels labels = labels_of(name);
      labels.emplace_back("le", bound);
      lines.sample("tutti_step_seconds_bucket", labels, static_cast<double>(count));
    };
    for (size_t i = 0; i < StepTimes::kBounds.size(); ++i)
      bucket(text_of(StepTimes::kBounds[i]), training.times.counts[i]);
    bucket("+Inf", training.times.count);
    lines.sample("tutti_step_seconds_sum", labels_of(name), training.times.sum);
    lines.sample("tutti_step_seconds_count", labels_of(name), static_cast<double>(training.times.count));
  }
}

void add_changes(Lines& lines, const Status& status) {
  lines.head("tutti_worker_changes_total", "counter",
             "Workers that were lost, have left as planned, or have joined since the run began.");
  for (const auto& [name, training] : status.trainings) {
    for (const auto& [change, count] :
         {std::pair("lost", training.workers_lost), std::pair("left", training.workers_left),
          std::pair("joined", training.workers_joined)}) {
      Labels labels = labels_of(name);
      labels.emplace_back("change", change);
      lines.sample("tutti_worker_changes_total", labels, static_cast<double>(count));
    }
  }
}

void add_values(Lines& lines, const Status& status) {
  lines.head("tutti_evaluation", "gauge", "A value of the last evaluation.");
  for (const auto& [name, training] : status.trainings) {
    for (const auto& [of_value, value] : training.values) {
      Labels labels = labels_of(name);
      labels.emplace_back("value", of_value);
      lines.sample("tutti_evaluation", labels, value);
    }
  }
}

// The usual names of what every process has.
void add_process(Lines& lines, const Status& status) {
  const std::vector<std::string> pages = split(read_system_file("/proc/self/statm"), ' ');
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  if (const auto resident = pages.size() > 1 ? parse_int(pages[1]) : std::nullopt) {
    lines.head("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.");
    lines.sample("process_resident_memory_bytes", {},
                 static_cast<double>(*resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  }
  lines.head("process_cpu_seconds_total", "counter", "User and system CPU time in seconds.");
  lines.sample("process_cpu_seconds_total", {}, seconds(usage.ru_utime) + seconds(usage.ru_stime));
  lines.head("process_start_time_seconds", "gauge", "When the process was started.");
  lines.sample("process_start_time_seconds", {}, status.started.unix);
}

}  // namespace

std::string metrics_text(const Status& status, const Moment& now) {
  Lines lines;
  lines.head("tutti_info", "gauge", "Always 1; the labels tell what runs where.");
  lines.sample("tutti_info",
               {{"version", std::string(version())}, {"task", status.task}, {"device", status.device}}, 1);
  lines.head("tutti_healthy", "gauge", "1 if /healthz says that all is well, else 0.");
  lines.sample("tutti_healthy", {}, trouble_of(status, now).empty() ? 1 : 0);
  for (const Figure& figure : kFigures) {
    lines.head(figure.name, figure.type, figure.help);
    for (const auto& [name, training] : status.trainings) {
      if (const auto value = figure.of(training)) lines.sample(figure.name, labels_of(name), *value);
    }
  }
  add_step_times(lines, status);
  add_changes(lines, status);
  add_values(lines, status);
  add_process(lines, status);
  return lines.text();
}

}  // namespace tutti::web
