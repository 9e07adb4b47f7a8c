#include "tools/machine.h"

#include <gmock/gmock.h>

namespace tutti::machine_test {
namespace {

using Level = Finding::Level;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kGiB = uint64_t{1} << 30;

std::string mapping(const std::string& path) {
  return "7f0000000000-7f0000001000 r-xp 00000000 fe:00 1234                       " + path + "\n";
}

TEST(Doctor, recognises_openblas_behind_the_common_name) {
  const std::string path = "/usr/lib/x86_64-linux-gnu/openblas-pthread/libblas.so.3";
  const Finding finding = check_blas(mapping("/usr/lib/libc.so.6") + mapping(path), BuiltInBlas::No);
  EXPECT_EQ(finding.level, Level::Ok);
  EXPECT_THAT(finding.found, HasSubstr(path));
}

TEST(Doctor, calls_the_reference_blas_bad_and_says_what_to_install) {
  const Finding finding =
      check_blas(mapping("/usr/lib/x86_64-linux-gnu/blas/libblas.so.3.11.0"), BuiltInBlas::No);
  EXPECT_EQ(finding.level, Level::Bad);
  EXPECT_THAT(finding.advice, HasSubstr("libopenblas0-pthread"));
}

TEST(Doctor, is_content_with_a_blas_inside_libtorch) {
  EXPECT_EQ(check_blas("", BuiltInBlas::Mkl).level, Level::Ok);
  EXPECT_EQ(check_blas(mapping("[heap]"), BuiltInBlas::No).level, Level::Ok);
}

TEST(Doctor, reads_the_vector_units_of_the_first_core) {
  const std::string cpuinfo = "processor\t: 0\nflags\t\t: fpu avx avx2 amx_bf16 avx512f\nbugs\t: amx_fake\n";
  const Finding finding = check_vector_units(cpuinfo);
  EXPECT_EQ(finding.level, Level::Ok);
  EXPECT_EQ(finding.found, "avx2, amx_bf16, avx512f");
}

TEST(Doctor, says_what_it_has_measured_of_bf16_and_draws_no_conclusion) {
  const Finding finding = check_bf16({{"a layer", 2e-3, 1.5e-3}, {"another", 1e-3, 3e-3}}, 1);
  EXPECT_EQ(finding.level, Level::Ok);
  EXPECT_EQ(
      finding.found,
      "measured here, forward and backward with 1 thread: a layer 1.50 ms, in fp32 2.00 ms; another 3.00 "
      "ms, in fp32 1.00 ms");
}

TEST(Doctor, warns_of_a_cpu_without_vector_units_it_knows) {
  EXPECT_EQ(check_vector_units("").level, Level::Warning);
  EXPECT_EQ(check_vector_units("processor: 0\nflags\t: fpu sse2").level, Level::Warning);
}

TEST(Doctor, warns_where_workers_can_share_no_memory_or_reach_no_other_host) {
  EXPECT_EQ(check_shared_memory("").level, Level::Ok);
  EXPECT_EQ(check_shared_memory("no /proc").level, Level::Warning);
  EXPECT_EQ(check_network(false).level, Level::Ok);
}

TEST(Doctor, tells_gpus_that_are_there_from_those_that_can_be_used) {
  EXPECT_EQ(check_gpus(0, 0, CudaBuild::No).level, Level::Ok);
  EXPECT_EQ(check_gpus(2, 0, CudaBuild::No).level, Level::Warning);
  EXPECT_EQ(check_gpus(2, 1, CudaBuild::Yes).level, Level::Bad);
  EXPECT_EQ(check_gpus(2, 2, CudaBuild::Yes).level, Level::Ok);
}

TEST(Doctor, says_whether_gradients_go_from_gpu_to_gpu) {
  EXPECT_EQ(check_between_gpus(0, NcclBuild::No).level, Level::Ok);
  EXPECT_EQ(check_between_gpus(2, NcclBuild::No).level, Level::Warning);
  EXPECT_EQ(check_between_gpus(0, NcclBuild::Yes).level, Level::Ok);
  EXPECT_THAT(check_between_gpus(2, NcclBuild::Yes).found, HasSubstr("--comm auto or nccl"));
}

TEST(Doctor, warns_of_few_cores_little_memory_few_ports_and_few_files) {
  EXPECT_EQ(check_cores(1, 8).level, Level::Warning);
  EXPECT_EQ(check_cores(8, 8).level, Level::Ok);
  EXPECT_EQ(check_memory(kGiB, 8 * kGiB).level, Level::Warning);
  EXPECT_EQ(check_port_range("32768\t60999\n").level, Level::Ok);
  EXPECT_EQ(check_port_range("60000\t60010\n").level, Level::Warning);
  EXPECT_EQ(check_port_range("nonsense").level, Level::Warning);
  EXPECT_EQ(check_open_files(256).level, Level::Warning);
}

TEST(Doctor, has_advice_wherever_something_is_not_fine_and_only_there) {
  for (const Finding& finding :
       {check_cores(1, 8), check_memory(1, 2), check_shared_memory("x"), check_open_files(1),
        check_gpus(1, 0, CudaBuild::Yes), check_between_gpus(1, NcclBuild::No), check_vector_units("")}) {
    EXPECT_FALSE(finding.advice.empty()) << finding.about;
  }
  EXPECT_THAT(check_cores(2, 2).advice, IsEmpty());
}

}  // namespace
}  // namespace tutti::machine_test
