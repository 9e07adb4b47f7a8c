// Measures the cost of a span of the timeline, as rows of a Markdown table.
//   bench_timeline
#include "tutti/base/timeline.h"

#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

using tutti::Activity;
using tutti::SpanScope;
using tutti::Timeline;

constexpr int64_t kSpans = 2'000'000;

// Prevents the compiler from seeing that there is no timeline.
void spans(Timeline* volatile* timeline) {
  for (int64_t n = 0; n < kSpans; ++n)
    const SpanScope scope(*timeline, Activity::Wait, "all_reduce", n, "gradients");
}

// Returns the time per span in each of `count` concurrent threads.
double nanoseconds_each(Timeline* given, int count) {
  Timeline* volatile timeline = given;
  std::vector<std::thread> threads;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) threads.emplace_back([&timeline] { spans(&timeline); });
  for (std::thread& thread : threads) thread.join();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kSpans;
}

}  // namespace

int main() {
  std::printf("## The timeline\n\nThe cost of one span, without and with --timeline.\n\n");
  std::printf("| timeline | threads | ns a span |\n|---|---:|---:|\n");
  for (const int threads : {1, 2}) {
    Timeline timeline;
    std::printf("| off | %d | %.1f |\n", threads, nanoseconds_each(nullptr, threads));
    std::printf("| on | %d | %.0f |\n", threads, nanoseconds_each(&timeline, threads));
  }
}
