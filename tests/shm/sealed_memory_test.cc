#include "weft/shm/sealed_memory.h"

#include <algorithm>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>

#include <gtest/gtest.h>

namespace weft {
namespace {

const auto kPage = static_cast<size_t>(::sysconf(_SC_PAGESIZE));

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

// The field of /proc/self/smaps for the mapping that starts at an address.
std::string field_of(const std::byte* data, const std::string& name) {
  std::ostringstream start;
  start << std::hex << reinterpret_cast<uintptr_t>(data) << '-';
  std::ifstream maps("/proc/self/smaps");
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    found = found || line.rfind(start.str(), 0) == 0;
    if (found && line.rfind(name, 0) == 0) return line.substr(name.size());
  }
  return "";
}

TEST(SealedMemoryTest, IsNotInChildrenAndCoreFiles) {
  const SealedMemory memory = created(4 * kPage);
  ASSERT_TRUE(memory.make_private(kPage, kPage).ok());
  for (const size_t page : {0, 1, 2}) {
    const std::string flags = field_of(memory.data() + page * kPage, "VmFlags:");
    EXPECT_NE(flags.find(" dc"), flags.npos) << flags;
    EXPECT_NE(flags.find(" dd"), flags.npos) << flags;
  }
}

TEST(SealedMemoryTest, TakesNoPageFaultLater) {
  const SealedMemory memory = created(256 * kPage);
  const SealedMemory other =
      SealedMemory::adopt(duplicate(memory.descriptor()), memory.size()).value();
  const SealedMemory again = memory.map_again(0, 256 * kPage).value();
  for (const SealedMemory* one : {&memory, &other, &again}) {
    // In KiB, of the page tables of this process.
    EXPECT_EQ(std::stoul(field_of(one->data(), "Rss:")), 256 * kPage / 1024);
  }
}

TEST(SealedMemoryTest, APartIsMappedAgainElsewhere) {
  const SealedMemory memory = created(4 * kPage);
  SealedMemory part = memory.map_again(kPage, 2 * kPage).value();
  ASSERT_EQ(part.size(), 2 * kPage);
  memory.data()[kPage + 5] = std::byte{5};
  EXPECT_EQ(part.data()[5], std::byte{5});
  const SealedMemory inner = part.map_again(kPage, kPage).value();
  memory.data()[2 * kPage] = std::byte{6};
  EXPECT_EQ(inner.data()[0], std::byte{6});
}

TEST(SealedMemoryTest, APrivatePartKeepsItsContentAndIsSharedAgainLater) {
  SealedMemory mine = created(4 * kPage);
  const SealedMemory other = SealedMemory::adopt(duplicate(mine.descriptor()), mine.size()).value();
  mine.data()[kPage] = std::byte{1};
  ASSERT_TRUE(mine.make_private(kPage, 2 * kPage).ok());
  EXPECT_EQ(mine.data()[kPage], std::byte{1});
  mine.data()[kPage] = std::byte{2};
  EXPECT_EQ(other.data()[kPage], std::byte{1});
  other.data()[2 * kPage] = std::byte{3};
  EXPECT_EQ(mine.data()[2 * kPage], std::byte{0}) << "also a page that this process did not write";
  mine.data()[0] = std::byte{4};
  mine.data()[3 * kPage] = std::byte{4};
  EXPECT_EQ(other.data()[0], std::byte{4}) << "the rest is shared";
  EXPECT_EQ(other.data()[3 * kPage], std::byte{4});
  ASSERT_TRUE(mine.share_again(kPage, 2 * kPage).ok());
  EXPECT_EQ(mine.data()[kPage], std::byte{1});
  EXPECT_EQ(mine.data()[2 * kPage], std::byte{3});
}

TEST(SealedMemoryTest, RefusesPartsThatItDoesNotHave) {
  SealedMemory memory = created(4 * kPage);
  for (const auto& [offset, size] : {std::pair{size_t{1}, kPage},
                                     {size_t{0}, kPage + 1},
                                     {size_t{0}, size_t{0}},
                                     {kPage, 4 * kPage},
                                     {5 * kPage, kPage},
                                     {SIZE_MAX - kPage + 1, 2 * kPage}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(memory.map_again(offset, size).status())) << offset;
    EXPECT_TRUE(absl::IsInvalidArgument(memory.make_private(offset, size))) << offset;
    EXPECT_TRUE(absl::IsInvalidArgument(memory.share_again(offset, size))) << offset;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(SealedMemory().make_private(0, kPage)));
  memory.close_descriptor();
  EXPECT_EQ(memory.descriptor(), -1);
  EXPECT_TRUE(absl::IsInvalidArgument(memory.make_private(0, kPage)));
  memory.data()[0] = std::byte{1};
}

TEST(SealedMemoryTest, LeavesNoDescriptorOpen) {
  const int before = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::close(before);
  {
    SealedMemory memory = created(4096);
    SealedMemory moved = std::move(memory);
    memory = std::move(moved);
    const SealedMemory again = memory.map_again(0, memory.size()).value();
  }
  const int after = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::close(after);
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace weft
