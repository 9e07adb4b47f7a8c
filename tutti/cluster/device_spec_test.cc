#include "tutti/cluster/device_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string canonical(std::string_view text) { return DeviceSpec::parse(text).to_string(); }

std::string merged(std::string_view outer, std::string_view inner) {
  return merge(DeviceSpec::parse(outer), DeviceSpec::parse(inner)).to_string();
}

TEST(DeviceSpec, reads_every_field) {
  const auto spec = DeviceSpec::parse("/job:worker/replica:0/task:2/device:GPU:1");
  EXPECT_EQ(spec.job, "worker");
  EXPECT_EQ(spec.replica, 0);
  EXPECT_EQ(spec.task, 2);
  EXPECT_EQ(spec.device_type, "GPU");
  EXPECT_EQ(spec.device_index, 1);
  EXPECT_EQ(spec.to_string(), "/job:worker/replica:0/task:2/device:GPU:1");
}

TEST(DeviceSpec, fields_stand_in_any_order) {
  EXPECT_EQ(canonical("/device:GPU:1/task:2/replica:0/job:worker"),
            "/job:worker/replica:0/task:2/device:GPU:1");
  EXPECT_EQ(canonical("/gpu:1/job:worker"), "/job:worker/device:GPU:1");
}

TEST(DeviceSpec, has_short_forms) {
  EXPECT_EQ(canonical("/gpu:0"), "/device:GPU:0");
  EXPECT_EQ(canonical("/GPU:0"), "/device:GPU:0");
  EXPECT_EQ(canonical("/Cpu:3"), "/device:CPU:3");
  EXPECT_EQ(canonical("/cpu"), "/device:CPU:*");
  EXPECT_EQ(canonical("/device:gpu"), "/device:GPU:*");
  EXPECT_EQ(canonical("/device:xla_gpu:2"), "/device:XLA_GPU:2");
}

TEST(DeviceSpec, a_star_leaves_a_field_open) {
  EXPECT_EQ(canonical("/job:*/replica:*/task:*/device:*:*"), "/");
  EXPECT_EQ(canonical("/job:*/task:1/cpu:*"), "/task:1/device:CPU:*");
  EXPECT_EQ(canonical("/device:*"), "/");
  EXPECT_EQ(canonical("/device:*:0"), "/device:*:0");
  EXPECT_EQ(DeviceSpec::parse("/cpu:*").device_index, std::nullopt);
}

TEST(DeviceSpec, may_be_empty) {
  EXPECT_EQ(DeviceSpec::parse(""), DeviceSpec());
  EXPECT_EQ(DeviceSpec::parse("/"), DeviceSpec());
  EXPECT_EQ(DeviceSpec().to_string(), "/");
}

TEST(DeviceSpec, reads_back_what_it_writes) {
  for (const char* text :
       {"/", "/job:a_1/task:0", "/replica:0", "/device:GPU:*", "/device:*:2", "/job:B/device:CPU:0"}) {
    EXPECT_EQ(canonical(text), text);
  }
}

TEST(DeviceSpec, quotes_the_bad_piece_and_the_whole) {
  const std::pair<const char*, const char*> cases[] = {
      {"/jbo:worker/gpu:0", "'jbo:worker'"},
      {"/job:worker/gpuu:0", "'gpuu:0'"},
      {"/job", "'job'"},
      {"/job:", "'job:'"},
      {"/job:a:b", "'job:a:b'"},
      {"/job:2a", "'job:2a'"},
      {"/job:a-b", "'job:a-b'"},
      {"/task:x", "'task:x'"},
      {"/task:-1", "'task:-1'"},
      {"/task:", "'task:'"},
      {"/task:99999999999", "'task:99999999999'"},
      {"/replica:0/replica:0", "'replica:0' gives the replica a second time"},
      {"/job:*/job:a", "'job:a' gives the job a second time"},
      {"/cpu:0/gpu:0", "'gpu:0' gives the device a second time"},
      {"/gpu:0/device:GPU:0", "'device:GPU:0'"},
      {"/device", "'device'"},
      {"/device:GPU:0:1", "'device:GPU:0:1'"},
      {"/device:2:0", "'device:2:0'"},
      {"/gpu:", "'gpu:'"},
      {"/gpu:0:1", "'gpu:0:1'"},
      {"//", "''"},
      {"/gpu:0/", "''"},
      {"/job:a//gpu:0", "''"},
      {"/JOB:a", "'JOB:a'"},
      {"/ gpu:0", "' gpu:0'"},
  };
  for (const auto& [text, piece] : cases) {
    expect_error(ErrorKind::InvalidArgument,
                 AllOf(HasSubstr("'" + std::string(text) + "'"), HasSubstr(piece)),
                 [text = text] { DeviceSpec::parse(text); });
  }
  expect_error(ErrorKind::InvalidArgument, HasSubstr("did you mean 'task'?"),
               [] { DeviceSpec::parse("/tsak:1"); });
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("'gpu:0'"), HasSubstr("begin with '/'")),
               [] { DeviceSpec::parse("gpu:0"); });
}

TEST(DeviceSpec, the_inner_scope_wins_field_by_field) {
  EXPECT_EQ(merged("/job:worker/task:1", "/gpu:0"), "/job:worker/task:1/device:GPU:0");
  EXPECT_EQ(merged("/job:worker/task:1/gpu:0", "/job:ps"), "/job:ps/task:1/device:GPU:0");
  EXPECT_EQ(merged("/job:worker/replica:0/task:1", "/replica:1/task:2"), "/job:worker/replica:1/task:2");
  EXPECT_EQ(merged("/gpu:0", "/gpu:1"), "/device:GPU:1");
  EXPECT_EQ(merged("/gpu:1", "/gpu:*"), "/device:GPU:1");
  EXPECT_EQ(merged("/gpu:1", "/device:*:2"), "/device:GPU:2");
  EXPECT_EQ(merged("/job:a/gpu:1", "/"), "/job:a/device:GPU:1");
  EXPECT_EQ(merged("/", "/job:a/gpu:1"), "/job:a/device:GPU:1");
}

TEST(DeviceSpec, another_type_of_device_clears_the_index) {
  EXPECT_EQ(merged("/gpu:1", "/cpu:*"), "/device:CPU:*");
  EXPECT_EQ(merged("/gpu:1", "/cpu:0"), "/device:CPU:0");
  EXPECT_EQ(merged("/job:worker/task:1/gpu:1", "/cpu"), "/job:worker/task:1/device:CPU:*");
  EXPECT_EQ(merged("/device:*:1", "/cpu"), "/device:CPU:1");
}

TEST(DeviceSpec, matches_where_every_field_of_the_pattern_agrees) {
  const auto device = DeviceSpec::parse("/job:worker/replica:0/task:2/device:GPU:1");
  for (const char* pattern : {"/", "/job:worker", "/job:worker/task:2", "/gpu", "/gpu:1", "/device:*:1"}) {
    EXPECT_TRUE(matches(DeviceSpec::parse(pattern), device)) << pattern;
  }
  for (const char* pattern :
       {"/job:ps", "/task:1", "/replica:1", "/cpu", "/gpu:0", "/job:worker/task:2/gpu:0"}) {
    EXPECT_FALSE(matches(DeviceSpec::parse(pattern), device)) << pattern;
  }
  EXPECT_FALSE(matches(device, DeviceSpec::parse("/job:worker")))
      << "an open field of the device is no match";
}

TEST(DeviceSpec, is_compatible_where_no_field_disagrees) {
  const auto compatible = [](std::string_view a, std::string_view b) {
    const bool forth = is_compatible(DeviceSpec::parse(a), DeviceSpec::parse(b));
    EXPECT_EQ(forth, is_compatible(DeviceSpec::parse(b), DeviceSpec::parse(a)));
    return forth;
  };
  EXPECT_TRUE(compatible("/job:worker", "/gpu:0"));
  EXPECT_TRUE(compatible("/job:worker/gpu", "/task:1/gpu:0"));
  EXPECT_FALSE(compatible("/job:worker", "/job:ps/gpu:0"));
  EXPECT_FALSE(compatible("/gpu:0", "/gpu:1"));
  EXPECT_FALSE(compatible("/gpu", "/cpu"));
  EXPECT_FALSE(compatible("/task:0", "/task:1"));
  EXPECT_FALSE(compatible("/replica:0", "/replica:1"));
}

TEST(Device, auto_takes_a_gpu_in_turn_and_else_the_cpu) {
  EXPECT_EQ(choose_device("auto", 0, 0).str(), "cpu");
  EXPECT_EQ(choose_device("auto", 3, 0).str(), "cpu");
  EXPECT_EQ(choose_device("auto", 3, 8).str(), "cuda:3");
  EXPECT_EQ(choose_device("auto", 5, 4).str(), "cuda:1");
  EXPECT_EQ(choose_device("auto", 5, 1).str(), "cuda:0");
}

TEST(Device, is_what_was_asked_for) {
  for (const char* text : {"cpu", "/cpu:0", "/cpu", "/CPU:0", "/device:CPU:0", "cpu:0"}) {
    EXPECT_EQ(choose_device(text, 3, 8).str(), "cpu") << text;
  }
  for (const char* text : {"cuda:2", "gpu:2", "/gpu:2", "/GPU:2", "/device:GPU:2", "/device:cuda:2"}) {
    EXPECT_EQ(choose_device(text, 3, 8).str(), "cuda:2") << text;
  }
  for (const char* text : {"cuda", "gpu", "/gpu", "/gpu:*", "/device:GPU"}) {
    EXPECT_EQ(choose_device(text, 5, 4).str(), "cuda:1") << text;
  }
}

TEST(Device, a_gpu_that_is_not_there_says_what_to_do) {
  for (const char* text : {"cuda", "cuda:0", "/gpu:0"}) {
    expect_error(
        ErrorKind::InvalidArgument,
        AllOf(HasSubstr("'" + std::string(text) + "'"), HasSubstr("--device cpu"), HasSubstr("tutti doctor")),
        [&] { choose_device(text, 0, 0); });
  }
  expect_error(ErrorKind::InvalidArgument, HasSubstr("there are 2 GPUs"),
               [] { choose_device("cuda:2", 0, 2); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("there is 1 GPU "),
               [] { choose_device("/gpu:1", 0, 1); });
}

TEST(Device, other_names_are_refused) {
  expect_error(ErrorKind::InvalidArgument, HasSubstr("did you mean 'cuda'?"),
               [] { choose_device("cdua", 0, 1); });
  for (const char* text : {"", "CPU", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "cpu:1", "/cpu:1", "tpu",
                           "/device:TPU:0", "/", "/gpux:0", "/job:worker/gpu:0", "/task:1", "Auto"}) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr("'"), [&] { choose_device(text, 0, 4); });
  }
}

}  // namespace
}  // namespace tutti
