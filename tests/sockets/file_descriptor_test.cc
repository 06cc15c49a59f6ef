#include "weft/sockets/file_descriptor.h"

#include <fcntl.h>
#include <utility>

#include <gtest/gtest.h>

namespace weft {
namespace {

FileDescriptor open_one() { return FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }
bool is_open(int number) { return ::fcntl(number, F_GETFD) >= 0; }

TEST(FileDescriptorTest, ClosesWhatItOwns) {
  int number = -1;
  {
    const FileDescriptor file = open_one();
    ASSERT_TRUE(file.valid());
    number = file.get();
    EXPECT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
}

TEST(FileDescriptorTest, MovesItsOwnership) {
  FileDescriptor first = open_one();
  const int number = first.get();
  FileDescriptor second = std::move(first);
  EXPECT_FALSE(first.valid());
  first.reset();
  EXPECT_TRUE(is_open(number));

  FileDescriptor third = open_one();
  const int replaced = third.get();
  third = std::move(second);
  EXPECT_FALSE(is_open(replaced));
  EXPECT_EQ(third.get(), number);
  EXPECT_TRUE(is_open(number));
}

TEST(FileDescriptorTest, HasNothingToCloseWhereNothingWasOpened) {
  FileDescriptor none;
  EXPECT_FALSE(none.valid());
  none.reset();
  const FileDescriptor failed(::open("/nowhere/at/all", O_RDONLY));
  EXPECT_FALSE(failed.valid());
}

}  // namespace
}  // namespace weft
