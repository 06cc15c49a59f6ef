#include "weft/examples/support/fashion_mnist.h"

#include <filesystem>
#include <string>
#include <unistd.h>
#include <zlib.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::examples {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class FashionMnistTest : public testing::Test {
 protected:
  FashionMnistTest() {
    std::string pattern = (fs::temp_directory_path() / "weft_fashion_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    write_part("train", 5);
    write_part("t10k", 3);
  }
  ~FashionMnistTest() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& content) const {
    const gzFile file = ::gzopen((folder_ / name).string().c_str(), "wb");
    ::gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    ::gzclose(file);
  }
  // Picture i holds the value i everywhere and has label i.
  void write_part(const std::string& part, char count, char side = 28) const {
    std::string images("\0\0\x08\x03\0\0\0\0\0\0\0\0\0\0\0\0", 16);
    images[7] = count;
    images[11] = images[15] = side;
    for (char i = 0; i < count; ++i) images.append(side * side, i);
    write(part + "-images-idx3-ubyte.gz", images);
    write_labels(part, count);
  }
  void write_labels(const std::string& part, char count, char first = 0) const {
    std::string labels("\0\0\x08\x01\0\0\0\0", 8);
    labels[7] = count;
    for (char i = 0; i < count; ++i) labels.push_back(static_cast<char>(first + i));
    write(part + "-labels-idx1-ubyte.gz", labels);
  }
  std::string error() const {
    const absl::StatusOr<FashionMnist> data = load_fashion_mnist(folder_.string());
    return data.ok() ? "loaded" : data.status().ToString();
  }

  fs::path folder_;
};

TEST_F(FashionMnistTest, LoadsBothParts) {
  const absl::StatusOr<FashionMnist> data = load_fashion_mnist(folder_.string());
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train.images.sizes(), (at::IntArrayRef{5, 28, 28}));
  EXPECT_EQ(data->train.images.scalar_type(), at::kByte);
  EXPECT_EQ(data->train.labels.scalar_type(), at::kLong);
  EXPECT_EQ(data->test.size(), 3);
  EXPECT_EQ(data->train.images[4][27][27].item<int>(), 4);
  EXPECT_EQ(data->train.labels[4].item<int>(), 4);
}

TEST_F(FashionMnistTest, NormalisesBatchesAndKeepsPicturesWithTheirLabels) {
  const FashionMnist data = load_fashion_mnist(folder_.string()).value();
  const Batch batch = make_batch(data.train, {3, 0});
  EXPECT_EQ(batch.images.sizes(), (at::IntArrayRef{2, 1, 28, 28}));
  EXPECT_EQ(batch.images.scalar_type(), at::kFloat);
  EXPECT_NEAR(batch.images[0][0][5][5].item<float>(), (3 / 255.0 - 0.2860) / 0.3530, 1e-5);
  EXPECT_EQ(batch.labels[0].item<int>(), 3);
  EXPECT_EQ(batch.labels[1].item<int>(), 0);
  const Batch rows = make_batch(data.train, 1, 4);
  EXPECT_EQ(rows.labels.size(0), 3);
  EXPECT_TRUE(rows.images[2].equal(batch.images[0]));
  EXPECT_EQ(data.train.images[3][0][0].item<int>(), 3);  // the data are not normalised in place
}

TEST_F(FashionMnistTest, NamesTheFileAndThePackageWhenOneIsMissing) {
  fs::remove(folder_ / "t10k-labels-idx1-ubyte.gz");
  EXPECT_THAT(error(), AllOf(HasSubstr("NOT_FOUND"), HasSubstr("t10k-labels-idx1-ubyte.gz"),
                             HasSubstr("dataset-fashion-mnist")));
}

TEST_F(FashionMnistTest, NamesTheDamagedFile) {
  const fs::path images = folder_ / "train-images-idx3-ubyte.gz";
  fs::resize_file(images, fs::file_size(images) - 6);
  EXPECT_THAT(error(), AllOf(HasSubstr("DATA_LOSS"), HasSubstr(images.string()),
                             HasSubstr("dataset-fashion-mnist")));
}

TEST_F(FashionMnistTest, RefusesFilesThatDoNotBelongTogether) {
  write_labels("train", 4);
  EXPECT_THAT(error(), AllOf(HasSubstr("5 pictures"), HasSubstr("4 labels")));
  write_labels("train", 5, 6);
  EXPECT_THAT(error(), HasSubstr("label 4 is 10"));
  write_part("train", 5, 27);
  EXPECT_THAT(error(), HasSubstr("27 x 27"));
}

TEST(FashionMnistPackageTest, HasTheMeanAndDeviationThatWeNormaliseBy) {
  const absl::StatusOr<FashionMnist> data = load_fashion_mnist();
  if (!data.ok()) GTEST_SKIP() << data.status();
  EXPECT_EQ(data->train.size(), 60'000);
  EXPECT_EQ(data->test.size(), 10'000);
  double sum = 0;
  double squares = 0;
  for (int64_t i = 0; i < 60; ++i) {
    const at::Tensor part = make_batch(data->train, i * 1000, (i + 1) * 1000).images;
    sum += part.mean().item<double>() / 60;
    squares += part.square().mean().item<double>() / 60;
  }
  EXPECT_NEAR(sum, 0, 1e-3);
  EXPECT_NEAR(squares - sum * sum, 1, 2e-3);
}

}  // namespace
}  // namespace weft::examples
