#include "tutti/data/batch.h"

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/test_errors.h"

namespace tutti::data {
namespace {

using testing::HasSubstr;

TEST(Batch, has_no_examples_where_it_has_no_tensors) {
  const Batch batch;
  EXPECT_EQ(batch.size(), 0);
  EXPECT_FALSE(batch.has("image"));
  EXPECT_EQ(batch.to(torch::kCPU).size(), 0);
}

TEST(Batch, gives_tensors_by_name_and_the_first) {
  const Batch batch({{"image", torch::ones({3, 2})}, {"label", torch::zeros({3})}});
  EXPECT_EQ(batch.size(), 3);
  EXPECT_TRUE(batch.has("label"));
  EXPECT_EQ(batch["label"].dim(), 1);
  EXPECT_TRUE(batch.front().is_same(batch["image"]));
}

TEST(Batch, lists_its_names_where_one_is_not_there) {
  const Batch batch({{"image", torch::ones({1})}, {"label", torch::ones({1})}});
  const auto text = error_of(ErrorKind::InvalidArgument, [&] { batch["lable"]; });
  EXPECT_THAT(text, HasSubstr("'lable'"));
  EXPECT_THAT(text, HasSubstr("image, label"));
  error_of(ErrorKind::InvalidArgument, [] { Batch()["image"]; });
  error_of(ErrorKind::InvalidArgument, [] { Batch().front(); });
}

TEST(Batch, refuses_tensors_that_do_not_go_together) {
  EXPECT_THAT(error_of(ErrorKind::InvalidArgument,
                       [] {
                         Batch({{"a", torch::ones({3})}, {"b", torch::ones({4, 3})}});
                       }),
              HasSubstr("'a' has 3 rows, but 'b' has 4"));
  error_of(ErrorKind::InvalidArgument, [] { Batch({{"a", torch::ones({3})}, {"a", torch::ones({3})}}); });
  error_of(ErrorKind::InvalidArgument, [] { Batch({{"a", torch::ones({})}}); });
  error_of(ErrorKind::InvalidArgument, [] { Batch({{"a", torch::Tensor()}}); });
}

}  // namespace
}  // namespace tutti::data
