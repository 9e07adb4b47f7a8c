#include "tools/launch/meeting_words.h"

#include <gmock/gmock.h>

namespace tutti::meeting_words_test {
namespace {

const std::string kPrint(64, 'a');
const std::string kKey(32, 'b');

std::string without_newline(std::string line) {
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  line.pop_back();
  return line;
}

TEST(MeetingProof, both_ends_know_the_secret) {
  MeetingProof host("secret");
  auto guest = MeetingProof::of_caller("secret", without_newline(host.challenge()));
  ASSERT_TRUE(guest);
  const auto hello = host.read(Side::Caller, without_newline(guest->line(Side::Caller, "I am 1")));
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->text, "I am 1");
  EXPECT_TRUE(hello->proved);
  const auto answer = guest->read(Side::Listener, without_newline(host.line(Side::Listener, "")));
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->proved);
}

TEST(MeetingProof, proves_nothing_with_another_secret_text_or_connection) {
  const auto proved = [](MeetingProof& host, const std::string& line) {
    const auto said = host.read(Side::Caller, line);
    return said && said->proved;
  };
  MeetingProof host("secret");
  MeetingProof other_host("secret");
  const auto guest = MeetingProof::of_caller("secret", without_newline(host.challenge()));
  auto stranger = MeetingProof::of_caller("", without_newline(host.challenge()));
  const std::string line = without_newline(guest->line(Side::Caller, "I am 1"));
  EXPECT_TRUE(proved(host, line));
  EXPECT_FALSE(proved(host, without_newline(stranger->line(Side::Caller, "I am 1"))));
  EXPECT_FALSE(proved(host, without_newline(guest->line(Side::Listener, "I am 1"))));
  EXPECT_FALSE(proved(other_host, line));
  for (size_t i = 0; i < line.size(); ++i) {
    std::string changed = line;
    changed[i] = changed[i] == '0' ? '1' : '0';
    EXPECT_FALSE(proved(host, changed)) << i;
    EXPECT_FALSE(proved(host, line.substr(0, i))) << i;
  }
  const auto refusal = stranger->read(Side::Listener, without_newline(MeetingProof::refusal()));
  ASSERT_TRUE(refusal);
  EXPECT_FALSE(refusal->proved);
  for (const char* bad : {"", "tutti-run/3", "tutti-run/3 ", "tutti-run/2 00000000000000000000000000000000",
                          "tutti-run/3 0000000000000000000000000000000g"})
    EXPECT_FALSE(MeetingProof::of_caller("secret", bad)) << bad;
}

TEST(MeetingWords, read_back_what_was_said) {
  const Hello hello{3, 8, std::chrono::milliseconds(1500), kPrint};
  EXPECT_EQ(read_hello(to_text(hello)), hello);
  for (const Answer& answer : {Answer{.workers = {1, 4096, 2}, .launch = kKey},
                               Answer{Answer::Kind::Late, {}, "worker/1 (h:1), worker/2"},
                               Answer{Answer::Kind::No, {}, "another cluster"}}) {
    EXPECT_EQ(read_answer(to_text(answer)), answer);
  }
}

TEST(MeetingWords, a_hello_that_lies_or_is_cut_off_is_none) {
  const std::string good = to_text(Hello{1, 2, std::chrono::milliseconds(3), kPrint});
  ASSERT_TRUE(read_hello(good));
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(read_hello(good.substr(0, length))) << length;
  }
  for (const std::string& bad : std::vector<std::string>{
           "1 1 2 3 " + kPrint, "-1 2 3 " + kPrint, "1 0 3 " + kPrint, "1 4097 3 " + kPrint,
           "1 +2 3 " + kPrint, "1 2.5 3 " + kPrint, "1 2 -3 " + kPrint, "1 2 99999999999999999999 " + kPrint,
           "1  2 3 " + kPrint, "1 2 3 " + std::string(64, 'g'), good + " ", good + "a", " " + good,
           good + "\r", "GET / HTTP/1.1", std::string(1000, ' ')}) {
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
  EXPECT_THAT(to_text(Answer{Answer::Kind::No, {}, "two\nlines"}), testing::EndsWith("two?lines"));
}

}  // namespace
}  // namespace tutti::meeting_words_test
