#include "weft/shm/sealed_memory.h"

#include <algorithm>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>

#include <gtest/gtest.h>

namespace weft {
namespace {

FileDescriptor duplicate(int descriptor) {
  return FileDescriptor(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
}

SealedMemory created(size_t size) {
  absl::StatusOr<SealedMemory> memory = SealedMemory::create("weft-test", size);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return *std::move(memory);
}

TEST(SealedMemoryTest, IsZeroAndWholePages) {
  const SealedMemory memory = created(5000);
  EXPECT_EQ(memory.size() % static_cast<size_t>(::sysconf(_SC_PAGESIZE)), 0u);
  EXPECT_GE(memory.size(), 5000u);
  EXPECT_TRUE(std::all_of(memory.data(), memory.data() + memory.size(),
                          [](std::byte one) { return one == std::byte{0}; }));
}

TEST(SealedMemoryTest, IsSeenByWhoeverAdoptsIt) {
  SealedMemory mine = created(4096);
  absl::StatusOr<SealedMemory> other =
      SealedMemory::adopt(duplicate(mine.descriptor()), mine.size());
  ASSERT_TRUE(other.ok()) << other.status();
  ASSERT_NE(other->data(), mine.data());
  mine.data()[17] = std::byte{42};
  EXPECT_EQ(other->data()[17], std::byte{42});
  other->data()[18] = std::byte{43};
  EXPECT_EQ(mine.data()[18], std::byte{43});
}

TEST(SealedMemoryTest, StaysWithWhoeverStillMapsIt) {
  SealedMemory mine = created(4096);
  absl::StatusOr<SealedMemory> other =
      SealedMemory::adopt(duplicate(mine.descriptor()), mine.size());
  ASSERT_TRUE(other.ok()) << other.status();
  mine.data()[0] = std::byte{7};
  mine = SealedMemory();
  EXPECT_EQ(other->data()[0], std::byte{7});
}

TEST(SealedMemoryTest, NobodyCanPullItAway) {
  const SealedMemory memory = created(4096);
  EXPECT_NE(::ftruncate(memory.descriptor(), 0), 0);
  EXPECT_NE(::ftruncate(memory.descriptor(), 1 << 20), 0);
  EXPECT_LT(::fcntl(memory.descriptor(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(SealedMemoryTest, RefusesWhatIsNotSealed) {
  FileDescriptor open(::memfd_create("weft-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(open.get(), 4096), 0);
  const absl::StatusOr<SealedMemory> adopted = SealedMemory::adopt(std::move(open), 4096);
  EXPECT_TRUE(absl::IsInvalidArgument(adopted.status())) << adopted.status();
}

TEST(SealedMemoryTest, RefusesMemoryThatCouldStillBeSealedAgainstWriting) {
  FileDescriptor open(::memfd_create("weft-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(open.get(), 4096), 0);
  ASSERT_EQ(::fcntl(open.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  const absl::StatusOr<SealedMemory> adopted = SealedMemory::adopt(std::move(open), 4096);
  EXPECT_TRUE(absl::IsInvalidArgument(adopted.status())) << adopted.status();
}

TEST(SealedMemoryTest, RefusesAnotherSizeThanWasSaid) {
  const SealedMemory memory = created(8192);
  for (const size_t said : {size_t{0}, size_t{4096}, size_t{8191}, size_t{1} << 40}) {
    const absl::StatusOr<SealedMemory> adopted =
        SealedMemory::adopt(duplicate(memory.descriptor()), said);
    EXPECT_TRUE(absl::IsInvalidArgument(adopted.status())) << said << ": " << adopted.status();
  }
}

TEST(SealedMemoryTest, RefusesWhatIsNoMemory) {
  FileDescriptor file(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(SealedMemory::adopt(std::move(file), 4096).ok());
  EXPECT_FALSE(SealedMemory::adopt(FileDescriptor(), 4096).ok());
}

TEST(SealedMemoryTest, HasAtLeastOneByte) {
  EXPECT_TRUE(absl::IsInvalidArgument(SealedMemory::create("weft-test", 0).status()));
}

TEST(SealedMemoryTest, RefusesMoreThanTheMachineHas) {
  for (const size_t size : {size_t{1} << 46, SIZE_MAX}) {
    const absl::StatusOr<SealedMemory> memory = SealedMemory::create("weft-test", size);
    EXPECT_TRUE(absl::IsResourceExhausted(memory.status())) << memory.status();
    EXPECT_NE(memory.status().message().find(std::to_string(size)), std::string_view::npos)
        << memory.status();
  }
}

TEST(SealedMemoryTest, LeavesNoDescriptorOpen) {
  const int before = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::close(before);
  {
    SealedMemory memory = created(4096);
    SealedMemory moved = std::move(memory);
    memory = std::move(moved);
  }
  const int after = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::close(after);
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace weft
