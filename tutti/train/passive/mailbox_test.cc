#include "tutti/train/passive/mailbox.h"

#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tutti/base/test_errors.h"

namespace tutti::passive::mailbox_test {
namespace {

using rpc::Caller;
using rpc::Message;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr milliseconds kLong{60000};

Caller caller(uint64_t id) { return {.id = id, .hello = Json::object(), .address = "here"}; }

// Sends a request from a thread of its own.
std::future<Message> ask(Mailbox& mailbox, const Caller& who, const std::string& method) {
  return std::async(std::launch::async, [&mailbox, who, method] {
    const Message request{{{"from", who.id}}, {}};
    return mailbox.serve(who, method, request);
  });
}

TEST(Mailbox, hands_out_requests_one_by_one_and_answers_each) {
  Mailbox mailbox;
  auto first = ask(mailbox, caller(1), "one");
  auto request = mailbox.next(kLong);
  ASSERT_TRUE(request);
  EXPECT_EQ(*request->method, "one");
  EXPECT_EQ(request->message->head.at("from"), 1);
  EXPECT_TRUE(mailbox.is_there(1));
  auto second = ask(mailbox, caller(2), "two");
  mailbox.answer({{{"answer", 1}}, {}});
  EXPECT_EQ(first.get().head.at("answer"), 1);
  request = mailbox.next(kLong);
  ASSERT_TRUE(request);
  EXPECT_EQ(*request->method, "two");
  mailbox.refuse(std::make_exception_ptr(Error(ErrorKind::InvalidArgument, "not today")));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("not today"), [&] { second.get(); });
}

TEST(Mailbox, has_nothing_where_nobody_has_asked) {
  Mailbox mailbox;
  EXPECT_FALSE(mailbox.next(milliseconds(1)));
}

TEST(Mailbox, forgets_what_nobody_waits_for_any_more) {
  Mailbox mailbox;
  auto taken = ask(mailbox, caller(1), "taken");
  ASSERT_TRUE(mailbox.next(kLong));
  auto waiting = ask(mailbox, caller(2), "waiting");
  while (!mailbox.is_there(2)) std::this_thread::yield();
  mailbox.gone(caller(2));
  expect_error(ErrorKind::PeerLost, HasSubstr("has closed the connection"), [&] { waiting.get(); });
  // A request that was taken stays valid until it is answered.
  mailbox.gone(caller(1));
  EXPECT_FALSE(mailbox.is_there(1));
  EXPECT_EQ(taken.wait_for(milliseconds(0)), std::future_status::timeout);
  mailbox.answer({});
  taken.get();
  EXPECT_FALSE(mailbox.next(milliseconds(1)));
}

}  // namespace
}  // namespace tutti::passive::mailbox_test
