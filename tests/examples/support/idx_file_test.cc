#include "weft/examples/support/idx_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <zlib.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::examples {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class IdxFileTest : public testing::Test {
 protected:
  IdxFileTest() {
    std::string pattern = (fs::temp_directory_path() / "weft_idx_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    path_ = (folder_ / "images.gz").string();
  }
  ~IdxFileTest() override { fs::remove_all(folder_); }

  void write(const std::string& content) const {
    const gzFile file = ::gzopen(path_.c_str(), "wb");
    ::gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    ::gzclose(file);
  }
  std::string error(int dimensions = 3) const {
    const absl::StatusOr<IdxFile> file = read_idx_file(path_, dimensions);
    return file.ok() ? "loaded" : file.status().ToString();
  }

  fs::path folder_;
  std::string path_;
};

const std::string kTwoByTwo(
    "\0\0\x08\x03\0\0\0\x01\0\0\0\x02\0\0\0\x02"
    "abcd",
    20);

TEST_F(IdxFileTest, ReadsShapeAndValues) {
  write(kTwoByTwo);
  const absl::StatusOr<IdxFile> file = read_idx_file(path_, 3);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->shape, ElementsAre(1, 2, 2));
  EXPECT_THAT(file->values, ElementsAre('a', 'b', 'c', 'd'));
}

TEST_F(IdxFileTest, NamesTheFileThatIsMissing) {
  EXPECT_THAT(error(), AllOf(HasSubstr("NOT_FOUND"), HasSubstr(path_)));
}

TEST_F(IdxFileTest, RefusesAnotherMagicAndAnotherNumberOfDimensions) {
  write(kTwoByTwo);
  EXPECT_THAT(error(1), AllOf(HasSubstr("DATA_LOSS"), HasSubstr("magic number is 803, not 801")));
  write("PK\x03\x04 a zip file, say");
  EXPECT_THAT(error(), HasSubstr("magic"));
}

TEST_F(IdxFileTest, RefusesSizesThatDoNotFit) {
  for (size_t size = 0; size < kTwoByTwo.size(); ++size) {
    write(kTwoByTwo.substr(0, size));
    EXPECT_THAT(error(), AllOf(HasSubstr("DATA_LOSS"), HasSubstr("early"))) << size;
  }
  write(kTwoByTwo + "e");
  EXPECT_THAT(error(), HasSubstr("more than its header says"));
  std::string huge = kTwoByTwo;
  for (int i = 4; i < 16; ++i) huge[i] = '\xFF';
  write(huge);
  EXPECT_THAT(error(), HasSubstr("dimension 0 of size 4294967295"));
  std::string none = kTwoByTwo;
  none[7] = 0;
  write(none);
  EXPECT_THAT(error(), HasSubstr("dimension 0 of size 0"));
}

TEST_F(IdxFileTest, APromisedGigabyteTakesNoMemoryBeforeItComes) {
  std::string promise = kTwoByTwo;
  promise[4] = '\x40';  // 2^30 values: the most that are allowed
  promise[7] = 0;
  promise[11] = promise[15] = 1;
  write(promise);
  struct rusage before, after;
  ::getrusage(RUSAGE_SELF, &before);
  EXPECT_THAT(error(), HasSubstr("early"));
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 512 << 10);  // in KiB
}

TEST_F(IdxFileTest, NeverTakesOtherValuesFromADamagedFile) {
  write(kTwoByTwo);
  std::ifstream in(path_, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  size_t refused = 0;
  for (size_t at = 10; at < whole.size(); ++at) {  // after gzip's unused flags and times
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    std::ofstream(path_, std::ios::binary) << damaged;
    const absl::StatusOr<IdxFile> file = read_idx_file(path_, 3);
    if (file.ok()) {  // padding bits between the data and the checksum
      EXPECT_THAT(file->values, ElementsAre('a', 'b', 'c', 'd')) << at;
    } else {
      EXPECT_THAT(error(), AllOf(HasSubstr("DATA_LOSS"), HasSubstr(path_))) << at;
      ++refused;
    }
  }
  EXPECT_GE(refused, whole.size() - 11);
  for (size_t size = 10; size < whole.size(); ++size) {
    std::ofstream(path_, std::ios::binary) << whole.substr(0, size);
    EXPECT_THAT(error(), HasSubstr("DATA_LOSS")) << size;
  }
}

}  // namespace
}  // namespace weft::examples
