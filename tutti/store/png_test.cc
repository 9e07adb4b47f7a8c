#include "tutti/store/png.h"

#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/base/test_oracle.h"
#include "tutti/store/event_file.h"

namespace tutti::store {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Returns the decoded images that TensorBoard reads: {tag: [[step, [height, width, channels], [bytes]],
// ...]}.
json images_in(const std::string& folder) {
  const OracleAnswer answer = ask_oracle("check_images.py", {folder});
  EXPECT_EQ(answer.status, 0) << answer.output;
  return answer.status == 0 ? json::parse(answer.output.substr(answer.output.rfind("\n{") + 1)) : json();
}

json list_of(const torch::Tensor& pixels) {
  const torch::Tensor bytes = pixels.contiguous();
  return std::vector<int>(bytes.data_ptr<uint8_t>(), bytes.data_ptr<uint8_t>() + bytes.numel());
}

TEST(Png, an_image_is_read_by_tensorboard_as_it_was) {
  TUTTI_NEEDS_ORACLES();
  const TestFolder folder;
  const torch::Tensor grey = torch::randint(0, 256, {5, 7}, torch::kByte);
  const torch::Tensor large = torch::randint(0, 256, {3, 300, 200}, torch::kByte);
  {
    EventWriter writer(folder.path());
    writer.image("grey", 1, grey);
    writer.image("one channel", 1, grey.unsqueeze(0));
    for (const int64_t channels : {2, 3, 4})
      writer.image(fmt::format("{} channels", channels), 7,
                   large.slice(1, 0, 4).repeat({2, 1, 1}).slice(0, 0, channels));
    writer.image("turned", 2, large.permute({0, 2, 1}));
    writer.image("floats", 3, torch::tensor({{0.0, 0.5, 1.0, 1.0004}}, torch::kDouble));
    writer.image("floats", 4, torch::tensor({{0.25F}}).to(torch::kBFloat16));
  }
  const json seen = images_in(folder.path());
  EXPECT_EQ(seen["grey"], json::array({json::array({1, {5, 7, 1}, list_of(grey)})}));
  EXPECT_EQ(seen["one channel"], seen["grey"]);
  for (const int64_t channels : {2, 3, 4}) {
    const torch::Tensor image = large.slice(1, 0, 4).repeat({2, 1, 1}).slice(0, 0, channels);
    EXPECT_EQ(seen[fmt::format("{} channels", channels)],
              json::array({json::array({7, {4, 200, channels}, list_of(image.permute({1, 2, 0}))})}));
  }
  EXPECT_EQ(seen["turned"],
            json::array({json::array({2, {200, 300, 3}, list_of(large.permute({2, 1, 0}))})}));
  EXPECT_EQ(seen["floats"][0], json::array({3, {1, 4, 1}, {0, 128, 255, 255}}));
  EXPECT_EQ(seen["floats"][1], json::array({4, {1, 1, 1}, {64}}));
}

TEST(Png, refuses_what_is_no_image) {
  const TestFolder folder;
  EventWriter writer(folder.path());
  const auto refused = [&](const torch::Tensor& image, const char* text) {
    EXPECT_THAT(error_of(ErrorKind::InvalidArgument, [&] { writer.image("x", 1, image); }), HasSubstr(text));
  };
  refused(torch::zeros({2, 3, 4, 4}), "[2, 3, 4, 4]");
  refused(torch::zeros({5, 4, 4}), "1 to 4 channels");
  refused(torch::zeros({4}), "[4]");
  refused(torch::zeros({0, 4}), "[0, 4]");
  refused(torch::full({2, 2}, 255.0), "values from 255 to 255");
  refused(torch::full({2, 2}, std::nan("")), "expected floats from 0 to 1");
  refused(torch::zeros({2, 2}, torch::kLong), "int64");
}

}  // namespace
}  // namespace tutti::store
