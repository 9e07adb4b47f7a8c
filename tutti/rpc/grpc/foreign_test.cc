// Tests servers and callers of Tutti together with other users of gRPC.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/version.h"
#include "tutti/rpc/channel.h"
#include "tutti/rpc/grpc/common.h"
#include "tutti/rpc/host.h"
#include "tutti/rpc/test_service.h"

namespace tutti::rpc {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Returns the status that a foreign caller gets after it has sent these bytes.
grpc::Status told(const Host& host, const std::string& method,
                  const std::map<std::string, std::string>& metadata, const std::string& bytes) {
  grpc::CompletionQueue queue;
  const auto next = [&] {
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return ok;
  };
  grpc::GenericStub stub(grpc::CreateChannel(address_of(host), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  for (const auto& [key, value] : metadata) context.AddMetadata(key, value);
  const auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(&context);
  next();
  const grpc::Slice slice(bytes);
  call->Write(grpc::ByteBuffer(&slice, 1), &context);
  next();
  grpc::ByteBuffer answer;
  do {
    call->Read(&answer, &context);
  } while (next());
  grpc::Status status;
  call->Finish(&status, &context);
  next();
  return status;
}

class Foreign : public testing::Test {
 protected:
  TestService service_;
  const Host host_{{}, service_};
};

TEST_F(Foreign, callers_of_another_protocol_are_told_both_versions) {
  const auto status = told(host_, kMethod, {{kVersionKey, "9.8.7"}, {kProtocolKey, "99"}}, "x");
  EXPECT_THAT(status.error_message(),
              AllOf(HasSubstr("Tutti 9.8.7"), HasSubstr("protocol 99"),
                    HasSubstr("Tutti " + std::string(version())), HasSubstr("protocol 1")));
  EXPECT_EQ(status.error_details(), "InvalidArgument");
}

TEST_F(Foreign, callers_that_are_not_tutti_are_told_so) {
  EXPECT_THAT(told(host_, "/some.Service/Method", {}, "x").error_message(),
              HasSubstr("but the client is another program"));
  EXPECT_THAT(told(host_, kMethod, {}, "x").error_message(), HasSubstr("but the client is another program"));
}

TEST_F(Foreign, messages_beyond_a_chunk_are_refused_unread) {
  const auto status =
      told(host_, kMethod, {{kVersionKey, "1"}, {kProtocolKey, "1"}}, std::string(100000000, 'x'));
  EXPECT_FALSE(status.ok());
  Channel channel(address_of(host_));
  EXPECT_NO_THROW(channel.call("nothing", {}));
}

TEST(ForeignServer, is_an_error_that_says_so) {
  int port = 0;
  grpc::ServerBuilder builder;
  grpc::CallbackGenericService service;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  const auto server = builder.BuildAndStart();
  Channel channel("127.0.0.1:" + std::to_string(port), {.who = "ps/0"});
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("ps/0: "), HasSubstr("not one of Tutti")),
               [&] { channel.connect(kEventually); });
}

}  // namespace
}  // namespace tutti::rpc
