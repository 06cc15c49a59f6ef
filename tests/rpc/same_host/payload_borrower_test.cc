// The segments that a peer hands over through the socket of a connection.
#include "weft/rpc/same_host/connection/payload_borrower.h"

#include <chrono>
#include <fcntl.h>
#include <fstream>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/rpc/same_host/connection/segment_message.h"

namespace weft {
namespace {

using rpc_internal::PairMemory;
using rpc_internal::PayloadBorrower;
using rpc_internal::SegmentMessage;
using rpc_internal::WakePage;
using ::testing::HasSubstr;

class PayloadBorrowerTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kSize = uint64_t{1} << 20;
  static constexpr uint64_t kMost = 8 * kSize;

  PayloadBorrowerTest() {
    LocalListener listener = LocalListener::create().value();
    owner_ = std::make_unique<LocalSocket>(LocalSocket::connect(listener.name(), soon()).value());
    here_ = std::make_unique<LocalSocket>(listener.accept(soon()).value());
    borrower_.use(*here_);
  }
  static LocalSocket::TimePoint soon() {
    return std::chrono::steady_clock::now() + std::chrono::seconds(20);
  }
  void hand_over(uint32_t number, int descriptor, uint64_t size) {
    const SegmentMessage message = {number, 0, size};
    const int descriptors[] = {descriptor};
    ASSERT_TRUE(owner_->send(message.bytes(), descriptors, soon()).ok());
  }
  // How many mappings of memory with this name the process has.
  static size_t mappings(const std::string& name) {
    size_t count = 0;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("memfd:" + name) != std::string::npos) ++count;
    }
    return count;
  }

  ManualClock clock_;
  rpc_internal::BufferPool pool_;
  const std::shared_ptr<PairMemory> memory_ =
      std::make_shared<PairMemory>(PairMemory::create(4096).value());
  const std::shared_ptr<WakePage> page_ = WakePage::create().value();
  PayloadBorrower borrower_{
      std::make_shared<BorrowedSegments>(BorrowedSegments::Limits{.mapped_bytes = kMost}),
      memory_,
      PairMemory::kDialler,
      rpc_internal::WakeSlot{page_, 3},
      pool_,
      clock_};
  std::unique_ptr<LocalSocket> owner_, here_;
};

// Otherwise a peer that does so again and again would hold the serving thread for ever.
TEST_F(PayloadBorrowerTest, ASegmentThatIsHandedOverTwiceIsRefused) {
  const SealedMemory segment = SealedMemory::create("borrower-test", kSize).value();
  hand_over(1, segment.descriptor(), kSize);
  hand_over(1, segment.descriptor(), kSize);
  const absl::Status refused = borrower_.borrow({2, 1, 0}, 100).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("twice"));
}

// All pages of a segment are allocated when it is mapped. The peer's memory may have none yet.
TEST_F(PayloadBorrowerTest, ASegmentBeyondTheLimitIsRefusedBeforeItsPagesAreAllocated) {
  const FileDescriptor hollow(::memfd_create("borrower-hollow", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(hollow.get(), static_cast<off_t>(2 * kMost)), 0);
  ASSERT_EQ(::fcntl(hollow.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  hand_over(1, hollow.get(), 2 * kMost);
  EXPECT_TRUE(absl::IsResourceExhausted(borrower_.borrow({1, 1, 0}, 100).status()));
  struct stat state = {};
  ASSERT_EQ(::fstat(hollow.get(), &state), 0);
  EXPECT_EQ(state.st_blocks, 0);
}

TEST_F(PayloadBorrowerTest, AfterTheEndOnlySegmentsWithBlocksStayMapped) {
  const SealedMemory used = SealedMemory::create("borrower-used", kSize).value();
  const SealedMemory idle = SealedMemory::create("borrower-idle", kSize).value();
  hand_over(1, used.descriptor(), kSize);
  hand_over(2, idle.descriptor(), kSize);
  absl::StatusOr<Payload> payload = borrower_.borrow({1, 1, 0}, 100);
  ASSERT_TRUE(payload.ok()) << payload.status();
  EXPECT_EQ(mappings("borrower-used"), 2u);
  EXPECT_EQ(mappings("borrower-idle"), 2u);
  borrower_.end();
  EXPECT_EQ(mappings("borrower-used"), 2u);
  EXPECT_EQ(mappings("borrower-idle"), 1u);
  payload = Payload{};
  EXPECT_EQ(mappings("borrower-used"), 1u);
}

}  // namespace
}  // namespace weft
