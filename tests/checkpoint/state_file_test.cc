#include "weft/checkpoint/state_file.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class StateFileTest : public testing::Test {
 protected:
  StateFileTest() {
    std::string pattern = (fs::temp_directory_path() / "weft_state_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    path_ = (folder_ / "state.safetensors").string();
  }
  ~StateFileTest() override { fs::remove_all(folder_); }

  std::string bytes() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }
  void write(const std::string& json, const std::string& data) const {
    std::string length(8, '\0');
    const uint64_t size = json.size();
    std::memcpy(length.data(), &size, 8);
    write(length + json + data);
  }
  std::string load_error() const {
    const absl::StatusOr<StateFile> state = load_tensors(path_);
    return state.ok() ? "loaded" : state.status().ToString();
  }
  int files() const { return static_cast<int>(std::distance(fs::directory_iterator(folder_), {})); }

  fs::path folder_;
  std::string path_;
};

void expect_same(const at::Tensor& a, const at::Tensor& b) {
  ASSERT_EQ(a.scalar_type(), b.scalar_type());
  ASSERT_EQ(a.sizes(), b.sizes());
  const auto* bytes = static_cast<const char*>(a.const_data_ptr());
  EXPECT_TRUE(std::equal(bytes, bytes + a.nbytes(), static_cast<const char*>(b.const_data_ptr())));
}

TEST_F(StateFileTest, KeepsEveryDtypeBitForBit) {
  TensorMap tensors;
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,
                                    at::kInt, at::kShort, at::kChar, at::kByte, at::kBool}) {
    tensors[c10::toString(type)] = at::arange(-3, 4, at::kFloat).to(type);
  }
  // LibTorch has hardly any arithmetic for these types, so they are filled byte by byte.
  for (const at::ScalarType type : {at::kUInt64, at::kUInt32, at::kUInt16, at::kFloat8_e4m3fn,
                                    at::kFloat8_e5m2, at::kFloat8_e8m0fnu}) {
    at::Tensor tensor = at::empty({7}, type);
    auto* bytes = static_cast<uint8_t*>(tensor.mutable_data_ptr());
    for (size_t i = 0; i < tensor.nbytes(); ++i) bytes[i] = static_cast<uint8_t>(37 * i);
    tensors[c10::toString(type)] = tensor;
  }
  tensors["nan"] = at::full({3}, std::numeric_limits<double>::quiet_NaN(), at::kFloat);
  tensors["scalar"] = at::scalar_tensor(2.5, at::kDouble);
  tensors["empty"] = at::empty({0, 3}, at::kLong);
  ASSERT_TRUE(save_tensors(path_, tensors, {{"step", "7"}, {"note", "a \"b\"\n"}}).ok());
  const absl::StatusOr<StateFile> state = load_tensors(path_);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->metadata, (Metadata{{"step", "7"}, {"note", "a \"b\"\n"}}));
  ASSERT_EQ(state->tensors.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) expect_same(state->tensors.at(name), tensor);
}

TEST_F(StateFileTest, SavesViewsAsWhatTheyShow) {
  const at::Tensor base = at::arange(24, at::kFloat).view({4, 6});
  const at::Tensor turned = base.t().slice(0, 1, 6, 2);
  const at::Tensor needs_grad = at::ones({2}, at::kFloat).requires_grad_();
  ASSERT_TRUE(save_tensors(path_, {{"turned", turned}, {"same", base}, {"g", needs_grad}}).ok());
  const absl::StatusOr<StateFile> state = load_tensors(path_);
  ASSERT_TRUE(state.ok()) << state.status();
  expect_same(state->tensors.at("turned"), turned.contiguous());
  EXPECT_FALSE(state->tensors.at("g").requires_grad());
}

TEST_F(StateFileTest, StartsEveryTensorAtAMultipleOfItsElementSize) {
  ASSERT_TRUE(save_tensors(path_, {{"a", at::ones({3}, at::kByte)},
                                   {"b", at::ones({1}, at::kDouble)},
                                   {"c", at::ones({3}, at::kHalf)}})
                  .ok());
  const std::string text = bytes();
  uint64_t header = 0;
  std::memcpy(&header, text.data(), 8);
  EXPECT_EQ(header % 8, 0u);
  EXPECT_THAT(text, AllOf(HasSubstr(R"("b":{"dtype":"F64","shape":[1],"data_offsets":[0,8]})"),
                          HasSubstr(R"("c":{"dtype":"F16","shape":[3],"data_offsets":[8,14]})"),
                          HasSubstr(R"("a":{"dtype":"U8","shape":[3],"data_offsets":[14,17]})")));
}

TEST_F(StateFileTest, ReadsAFileOfAnotherWriter) {
  write(R"({"__metadata__":{"format":"pt"},"w":{"dtype":"I16","shape":[2],"data_offsets":[0,4]}})",
        std::string("\x01\x00\xFF\xFF", 4));
  const absl::StatusOr<StateFile> state = load_tensors(path_);
  ASSERT_TRUE(state.ok()) << state.status();
  expect_same(state->tensors.at("w"), at::tensor({1, -1}, at::kShort));
}

TEST_F(StateFileTest, NamesFileTensorAndFaultOfADamagedFile) {
  write(R"({"fc.weight":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", std::string(8, 'x'));
  EXPECT_THAT(load_error(), AllOf(HasSubstr("DATA_LOSS"), HasSubstr(path_),
                                  HasSubstr("'fc.weight'"), HasSubstr("need 12 bytes")));
  write(R"({"mask":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", std::string("\1\2", 2));
  EXPECT_THAT(load_error(), AllOf(HasSubstr(path_), HasSubstr("'mask'"), HasSubstr("neither 0")));
}

TEST_F(StateFileTest, RefusesEveryTruncation) {
  ASSERT_TRUE(save_tensors(path_, {{"w", at::ones({3}, at::kFloat)}}, {{"k", "v"}}).ok());
  const std::string whole = bytes();
  for (size_t size = 0; size < whole.size(); ++size) {
    write(whole.substr(0, size));
    EXPECT_THAT(load_error(), AllOf(HasSubstr("DATA_LOSS"), HasSubstr(path_))) << size;
  }
  write(whole + "x");
  EXPECT_THAT(load_error(), HasSubstr("belong to none"));
}

TEST_F(StateFileTest, SurvivesEverySingleBitFlip) {
  ASSERT_TRUE(save_tensors(path_,
                           {{"w", at::ones({2, 2}, at::kFloat)}, {"m", at::ones({2}, at::kBool)}},
                           {{"k", "v"}})
                  .ok());
  const std::string whole = bytes();
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    write(flipped);
    const absl::StatusOr<StateFile> state = load_tensors(path_);
    // A flip in a name or in a number may leave a well-formed file. The checksums that notice it
    // belong to the checkpoint, not to this file. A file that loads has as many tensors as it
    // announces.
    if (!state.ok()) {
      EXPECT_EQ(state.status().code(), absl::StatusCode::kDataLoss) << bit << state.status();
    } else {
      EXPECT_EQ(state->tensors.size(), 2u) << bit;
    }
  }
}

TEST_F(StateFileTest, RefusesWhatIsNoRegularFileWithoutBlocking) {
  EXPECT_THAT(load_error(), HasSubstr("NOT_FOUND"));
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(load_error(), AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr(path_)));
  EXPECT_EQ(load_tensors(folder_.string()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(StateFileTest, RefusesTensorsThatTheFormatLacks) {
  const auto error = [this](const at::Tensor& tensor) {
    return save_tensors(path_, {{"odd", tensor}}).ToString();
  };
  EXPECT_THAT(error(at::Tensor()), AllOf(HasSubstr("'odd'"), HasSubstr("undefined")));
  EXPECT_THAT(error(at::ones({1}, at::kComplexFloat)), HasSubstr("ComplexFloat"));
  EXPECT_THAT(error(at::ones({2, 2}).to_sparse()), HasSubstr("not a dense"));
  EXPECT_THAT(error(at::empty({2}, at::TensorOptions(at::kMeta))), HasSubstr("not a dense"));
  EXPECT_EQ(files(), 0);
}

// The file-size limit makes the kernel fail a write in the middle, as a full disk does.
TEST_F(StateFileTest, AWriteThatFailsInTheMiddleLeavesTheOldFile) {
  ASSERT_TRUE(save_tensors(path_, {{"w", at::ones({4}, at::kFloat)}}).ok());
  const std::string before = bytes();
  rlimit old_limit;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const rlimit limit = {8192, old_limit.rlim_max};
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const absl::Status status = save_tensors(path_, {{"w", at::ones({100000}, at::kFloat)}});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(status.ToString(), HasSubstr(path_));
  EXPECT_EQ(bytes(), before);
  EXPECT_EQ(files(), 1);
}

}  // namespace
}  // namespace weft
