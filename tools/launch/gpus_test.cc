#include "tools/launch/gpus.h"

#include <gmock/gmock.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"

namespace tutti::gpus_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Gpus : public testing::Test {
 protected:
  // Creates a machine with only these files in /dev.
  void put(const std::vector<std::string>& devices) {
    std::filesystem::create_directories(root_ / "dev");
    for (const std::string& device : devices) root_.write("dev/" + device, "");
  }
  std::vector<std::string> with(const std::map<std::string, std::string>& variables) const {
    return visible_gpus(Environment(variables), root_.path());
  }
  std::vector<std::string> cuda(const std::string& list) const {
    return with({{"CUDA_VISIBLE_DEVICES", list}});
  }
  std::vector<std::string> container(const std::string& list) const {
    return with({{"NVIDIA_VISIBLE_DEVICES", list}});
  }

  const TestFolder root_;
};

TEST_F(Gpus, without_a_word_are_those_in_dev) {
  EXPECT_THAT(with({}), IsEmpty());  // without /dev
  put({"null", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia"});
  EXPECT_THAT(with({}), IsEmpty());
  put({"nvidia0", "nvidia1", "nvidia12"});
  EXPECT_THAT(with({}), ElementsAre("0", "1", "2"));
}

TEST_F(Gpus, CUDAs_list_goes_first) {
  put({"nvidia0", "nvidia1", "nvidia2", "nvidia3"});
  EXPECT_THAT(with({{"CUDA_VISIBLE_DEVICES", "3,1"}, {"NVIDIA_VISIBLE_DEVICES", "all"}}),
              ElementsAre("3", "1"));
  EXPECT_THAT(with({{"CUDA_VISIBLE_DEVICES", ""}, {"NVIDIA_VISIBLE_DEVICES", "all"}}), IsEmpty());
}

TEST_F(Gpus, in_CUDAs_list_are_believed_where_the_machine_does_not_tell) {
  EXPECT_THAT(cuda("5"), ElementsAre("5"));
  EXPECT_THAT(cuda(" 0, 01 ,2"), ElementsAre("0", "1", "2"));
}

TEST_F(Gpus, CUDAs_list_ends_where_CUDA_ends_it) {
  put({"nvidia0", "nvidia1", "nvidia2", "nvidia3"});
  EXPECT_THAT(cuda("1,-1,2"), ElementsAre("1"));
  EXPECT_THAT(cuda("2,4,1"), ElementsAre("2"));
  EXPECT_THAT(cuda("0,,1"), ElementsAre("0"));
  EXPECT_THAT(cuda("1,two,3"), ElementsAre("1"));
  EXPECT_THAT(cuda("0,GPU-1,1"), ElementsAre("0"));
  EXPECT_THAT(cuda("GPU-1,0"), ElementsAre("GPU-1"));
  EXPECT_THAT(cuda("1,99999999999999999999999"), ElementsAre("1"));
  for (const char* none : {"", " ", "-1", "NoDevFiles", "none", "void", ",", ",0", "4"}) {
    EXPECT_THAT(cuda(none), IsEmpty()) << none;
  }
}

TEST_F(Gpus, keep_their_own_names) {
  EXPECT_THAT(cuda("GPU-8932f937,GPU-0c1f"), ElementsAre("GPU-8932f937", "GPU-0c1f"));
  const std::string older = "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0";
  EXPECT_THAT(cuda("MIG-7a1b," + older), ElementsAre("MIG-7a1b", older));
  EXPECT_THAT(container("MIG-7a1b," + older), ElementsAre("MIG-7a1b", older));
}

TEST_F(Gpus, that_are_named_but_not_there_are_a_warning) {
  const auto warning = [&](const std::vector<std::string>& gpus) {
    testing::internal::CaptureStderr();
    warn_of_missing_gpus(gpus, Log(LogLevel::Warning), root_.path());
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(warning(cuda("0,1")),
              AllOf(HasSubstr("CUDA_VISIBLE_DEVICES"), HasSubstr("names 2 GPUs"), HasSubstr("shows none")));
  EXPECT_THAT(warning(container("4")), HasSubstr("names 1 GPU,"));
  EXPECT_THAT(warning(cuda("GPU-8932f937")), HasSubstr("shows none"));
  EXPECT_EQ(warning({}), "");
  for (const char* device : {"dxg", "nvhost-gpu", "nvgpu", "nvidia0"}) {
    put({device});
    EXPECT_EQ(warning(cuda("0")), "") << device;
    std::filesystem::remove(root_ / ("dev/" + std::string(device)));
  }
}

TEST_F(Gpus, named_twice_are_refused) {
  for (const char* list : {"1,1", "0,1,00", "GPU-a,GPU-a"}) {
    expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr(list), HasSubstr("twice")), [&] { cuda(list); });
  }
}

TEST_F(Gpus, of_a_container_count_from_0) {
  EXPECT_THAT(container("3"), ElementsAre("0"));
  EXPECT_THAT(container("2,5,7"), ElementsAre("0", "1", "2"));
  EXPECT_THAT(container("2,2"), ElementsAre("0"));
  EXPECT_THAT(container("GPU-a,GPU-b"), ElementsAre("GPU-a", "GPU-b"));
}

TEST_F(Gpus, of_a_container_may_be_all_or_none) {
  EXPECT_THAT(container("all"), IsEmpty());
  put({"nvidia0", "nvidia1"});
  EXPECT_THAT(container("all"), ElementsAre("0", "1"));
  EXPECT_THAT(container("none"), IsEmpty());
}

TEST_F(Gpus, are_looked_for_where_the_container_runtime_keeps_out_of_it) {
  for (const char* text : {"", "void", "/var/run/nvidia-container-devices", "0:1", "nvidia.com/gpu=0"}) {
    EXPECT_THAT(container(text), IsEmpty()) << text;
  }
  put({"nvidia4"});
  for (const char* text : {"", "void", "/var/run/nvidia-container-devices", "0:1", "nvidia.com/gpu=0"}) {
    EXPECT_THAT(container(text), ElementsAre("0")) << text;
  }
}

}  // namespace
}  // namespace tutti::gpus_test
