#include "tools/launch/meeting_words.h"

#include <gmock/gmock.h>

namespace tutti {
namespace {

const std::string kPrint(64, 'a');
const std::string kKey(32, 'b');

std::string without_newline(std::string line) {
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  line.pop_back();
  return line;
}

TEST(MeetingWords, read_back_what_was_said) {
  const Hello hello{3, 8, std::chrono::milliseconds(1500), kPrint};
  EXPECT_EQ(read_hello(without_newline(to_line(hello))), hello);
  for (const Answer& answer : {Answer{.workers = {1, 4096, 2}, .launch = kKey},
                               Answer{Answer::Kind::Late, {}, "worker/1 (h:1), worker/2"},
                               Answer{Answer::Kind::No, {}, "another cluster"}}) {
    EXPECT_EQ(read_answer(without_newline(to_line(answer))), answer);
  }
}

TEST(MeetingWords, a_hello_that_lies_or_is_cut_off_is_none) {
  const std::string good = without_newline(to_line(Hello{1, 2, std::chrono::milliseconds(3), kPrint}));
  ASSERT_TRUE(read_hello(good));
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(read_hello(good.substr(0, length))) << length;
  }
  for (const std::string& bad : std::vector<std::string>{
           "tutti-run/3 1 2 3 " + kPrint, "tutti-run/2 -1 2 3 " + kPrint, "tutti-run/2 1 0 3 " + kPrint,
           "tutti-run/2 1 4097 3 " + kPrint, "tutti-run/2 1 +2 3 " + kPrint, "tutti-run/2 1 2.5 3 " + kPrint,
           "tutti-run/2 1 2 -3 " + kPrint, "tutti-run/2 1 2 99999999999999999999 " + kPrint,
           "tutti-run/2 1  2 3 " + kPrint, "tutti-run/2 1 2 3 " + std::string(64, 'g'), good + " ",
           good + "a", " " + good, good + "\r", "GET / HTTP/1.1", std::string(1000, ' ')}) {
    EXPECT_FALSE(read_hello(bad)) << bad;
  }
}

TEST(MeetingWords, an_answer_that_lies_is_none) {
  ASSERT_TRUE(read_answer("all " + kKey + " 1"));
  for (const std::string& bad : std::vector<std::string>{
           "", "all", "all ", "all " + kKey, "all " + kKey + " ", "all " + kKey + " 1 ",
           "all " + kKey + " 1  2", "all " + kKey + " 0", "all " + kKey + " 1 -1", "all " + kKey + " 4097",
           "all " + kKey + " 1 x", "all 1", "all 1 2", "all " + kPrint + " 1", "ALL " + kKey + " 1",
           "yes " + kKey + " 1", "HTTP/1.1 400 Bad Request"}) {
    EXPECT_FALSE(read_answer(bad)) << bad;
  }
  EXPECT_FALSE(read_answer("all " + std::string(Answer::kLongest, '1')));
}

TEST(MeetingWords, text_from_the_network_cannot_move_the_cursor) {
  const auto answer = read_answer("no \x1b[2J\x07gone\xff");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->text, "?[2J?gone?");
  EXPECT_LT(read_answer("no " + std::string(100'000, 'x'))->text.size(), 5000U);
  EXPECT_THAT(to_line(Answer{Answer::Kind::No, {}, "two\nlines"}), testing::EndsWith("two?lines\n"));
}

}  // namespace
}  // namespace tutti
