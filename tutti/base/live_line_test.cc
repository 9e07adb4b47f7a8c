#include "tutti/base/live_line.h"

#include <array>
#include <fcntl.h>
#include <pty.h>
#include <string>
#include <unistd.h>

#include <gmock/gmock.h>

#include "tutti/base/file.h"

namespace tutti::live_line_test {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

// A terminal of 120 columns, which is stderr for its lifetime.
class Terminal {
 public:
  Terminal() : stderr_(dup(STDERR_FILENO)) {
    winsize size{.ws_row = 24, .ws_col = 120, .ws_xpixel = 0, .ws_ypixel = 0};
    int outer = -1;
    int inner = -1;
    if (openpty(&outer, &inner, nullptr, nullptr, &size) != 0) return;
    outer_ = FileDescriptor(outer);
    const FileDescriptor closed(inner);
    dup2(inner, STDERR_FILENO);
    fcntl(outer, F_SETFL, O_NONBLOCK);
  }
  ~Terminal() { dup2(stderr_.get(), STDERR_FILENO); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Returns what was written since the last call.
  std::string take() const {
    std::string text;
    std::array<char, 4096> piece{};
    for (ssize_t count = 0; (count = read(outer_.get(), piece.data(), piece.size())) > 0;)
      text.append(piece.data(), static_cast<size_t>(count));
    return text;
  }

 private:
  FileDescriptor stderr_;
  FileDescriptor outer_;
};

TEST(LiveLine, fits_into_the_columns_of_the_terminal) {
  EXPECT_EQ(fitted_to("step 12", 7), "step 12");
  EXPECT_EQ(fitted_to("step 12", 6), "step 1");
  EXPECT_EQ(fitted_to("step 12", 0), "");
  EXPECT_EQ(fitted_to("größer", 4), "größ");
}

TEST(LiveLine, keeps_the_end_of_a_colour_that_does_not_fit) {
  EXPECT_EQ(fitted_to("[\x1b[32m====\x1b[0m  ]", 3), "[\x1b[32m==\x1b[0m");
}

TEST(LiveLine, replaces_the_text_before_it) {
  EXPECT_EQ(replaced_by("step 12", 80), "\r\x1b[Kstep 12");
  EXPECT_EQ(replaced_by("step 12", 7), "\r\x1b[Kstep 1");
}

// The tests' stderr may be a terminal.
TEST(LiveLine, is_shown_as_it_was_asked_for) {
  EXPECT_TRUE(is_live(kLogLive));
  EXPECT_FALSE(is_live(kLogPlain));
  EXPECT_FALSE(LiveLine(kLogPlain).is_shown());
}

TEST(LiveLine, has_a_bar_of_one_width) {
  const LiveLine line(kLogPlain);
  EXPECT_EQ(line.bar(0), "[>                   ]");
  EXPECT_EQ(line.bar(0.5), "[==========>         ]");
  EXPECT_EQ(line.bar(1), "[====================]");
  EXPECT_EQ(line.bar(7), line.bar(1));
}

TEST(Meter, shows_bytes_beside_the_text_of_the_line) {
  const Terminal terminal;
  LiveLine line(kLogAuto);
  line.show("step 12/500", "  loss 0.5");
  {
    Meter meter(line, "checkpoint 10", Meter::Unit::Bytes, milliseconds(0));
    meter.at(340'000'000, 812'000'000);
    EXPECT_THAT(terminal.take(), HasSubstr("\r\x1b[Kstep 12/500  checkpoint 10 340/812 MB  loss 0.5"));
    line.show("step 13/500", "  loss 0.4");
    EXPECT_EQ(terminal.take(), "\r\x1b[Kstep 13/500  checkpoint 10 340/812 MB  loss 0.4");
  }
  EXPECT_EQ(terminal.take(), "\r\x1b[Kstep 13/500  loss 0.4");
}

TEST(Meter, has_a_bar_if_the_line_has_no_other_text) {
  const Terminal terminal;
  LiveLine line(kLogAuto);
  {
    Meter meter(line, "export", Meter::Unit::Bytes, milliseconds(0));
    meter.at(12'000'000'000, 24'000'000'000);
    EXPECT_THAT(terminal.take(), AllOf(HasSubstr("\r\x1b[Kexport ["), HasSubstr("] 12.0/24.0 GB")));
    line.show("step 1/5", "");
    line.leave();
    EXPECT_THAT(terminal.take(), HasSubstr("\r\x1b[Kstep 1/5\r\n\r\x1b[Kexport ["));
  }
  EXPECT_EQ(terminal.take(), "\r\x1b[K");
}

TEST(Meter, shows_nothing_of_short_work_and_not_every_call) {
  const Terminal terminal;
  LiveLine line(kLogAuto);
  {
    Meter short_work(line, "rows");
    short_work.at(4096, 100'000);
  }
  EXPECT_THAT(terminal.take(), IsEmpty());
  Meter meter(line, "rows", Meter::Unit::Pieces, milliseconds(0));
  meter.at(4096, 100'000);
  EXPECT_THAT(terminal.take(), HasSubstr("] 4,096/100,000"));
  meter.at(8192, 100'000);
  EXPECT_THAT(terminal.take(), IsEmpty());
}

TEST(Meter, tells_a_launcher_that_the_line_is_removed) {
  testing::internal::CaptureStderr();
  {
    LiveLine line(kLogLive);
    Meter meter(line, "rows", Meter::Unit::Pieces, milliseconds(0));
    meter.at(1, 2);
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, testing::EndsWith("] 1/2\r\r"));
}

TEST(OnBytes, are_added_up_to_all_that_there_are) {
  std::vector<int64_t> done;
  const OnBytes on_bytes = counted(
      [&](int64_t bytes, int64_t all) {
        EXPECT_EQ(all, 10);
        done.push_back(bytes);
      },
      10);
  for (int i = 0; i < 3; ++i) on_bytes(4);
  EXPECT_THAT(done, testing::ElementsAre(4, 8, 10));
  EXPECT_FALSE(counted({}, 10));
}

}  // namespace
}  // namespace tutti::live_line_test
