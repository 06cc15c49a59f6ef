#include "weft/shm/blocks/borrowed_segments.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "weft/base/mutex.h"
#include "weft/base/status.h"

namespace weft {
namespace {

constexpr uint64_t kLentUnit = BlockTable::kUnit;

// A range of units in a segment.
struct UnitRange {
  uint32_t begin = 0;
  uint32_t end = 0;  // behind the last one

  // `size` is above 0.
  static UnitRange of(uint64_t offset, uint64_t size) {
    return {static_cast<uint32_t>(offset / kLentUnit),
            static_cast<uint32_t>((offset + size - 1) / kLentUnit + 1)};
  }
  uint64_t offset() const { return begin * kLentUnit; }
  uint64_t bytes() const { return (end - begin) * kLentUnit; }
};

bool same_file(const SealedMemory& a, const SealedMemory& b) {
  struct stat one = {}, other = {};
  return ::fstat(a.descriptor(), &one) == 0 && ::fstat(b.descriptor(), &other) == 0 &&
         one.st_dev == other.st_dev && one.st_ino == other.st_ino && a.size() == b.size();
}

absl::Status wrong_descriptor(const Lending& lending, uint64_t size, std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("a block of ", size, " bytes (", lending.to_string(), ") ", std::string(why)));
}

}  // namespace

class BorrowedSegments::State : public std::enable_shared_from_this<State> {
 public:
  explicit State(Limits limits) : limits_(limits) {}

  absl::Status add_segment(uint32_t number, SealedMemory memory) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status check_room(uint32_t number, uint64_t size) const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return room_for(number, size);
  }
  // The BorrowedSegments is destroyed. Blocks keep their own segments.
  void close() ABSL_LOCKS_EXCLUDED(mutex_) {
    std::map<uint32_t, std::shared_ptr<Segment>> unused;  // unmapped without the lock
    MutexLock lock(mutex_);
    unused.swap(segments_);
  }
  absl::Status retire_segment(uint32_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Block> borrow(const Lending& lending, uint64_t size,
                               std::shared_ptr<ReturnSink> sink, TimePoint now)
      ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t copy_out(uint64_t bytes, TimePoint borrowed_until) ABSL_LOCKS_EXCLUDED(mutex_);
  Gauges gauges() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class BorrowedSegments::Loan;

  // A segment and its borrowed ranges. Blocks keep it alive. The State's mutex guards all but the
  // memory.
  struct Segment {
    SealedMemory memory;
    std::vector<uint32_t> generations;      // of each unit: that of its last lending
    std::map<uint32_t, uint32_t> borrowed;  // end by begin; they do not overlap
    std::map<uint32_t, uint32_t> shadowed;  // end by begin; they do not overlap
  };
  using Ranges = std::map<uint32_t, uint32_t>;

  absl::Status room_for(uint32_t number, uint64_t size) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool overlaps(const Ranges& ranges, UnitRange range);
  absl::StatusOr<std::shared_ptr<Loan>> enter(const Lending& lending, uint64_t size, TimePoint now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes a block off the table. The caller gives it back afterwards: before this, the peer could
  // not lend it again.
  void forget(const Loan& loan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  mutable Mutex mutex_;
  std::map<uint32_t, std::shared_ptr<Segment>> segments_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_serial_ ABSL_GUARDED_BY(mutex_) = 0;
  // All borrowed blocks, in the order in which they came.
  std::map<uint64_t, std::weak_ptr<Loan>> by_age_ ABSL_GUARDED_BY(mutex_);
  Gauges gauges_ ABSL_GUARDED_BY(mutex_);
};

// One block that is borrowed, or was copied out. One thread at a time changes the members that are
// not const: the one that enters the block, the one that has set busy_, and the destructor.
class BorrowedSegments::Loan {
 public:
  Loan(std::shared_ptr<State> state, std::shared_ptr<State::Segment> segment,
       const Lending& lending, uint64_t size)
      : state_(std::move(state)), segment_(std::move(segment)), lending_(lending), size_(size) {}
  ~Loan();

  std::byte* data() const { return memory().data() + (lending_.offset - start()); }
  uint64_t size() const { return size_; }
  UnitRange range() const { return UnitRange::of(lending_.offset, size_); }
  // The block lies in a shadowed range.
  absl::Status map_apart();
  bool copy_out();

 private:
  friend class State;

  const SealedMemory& memory() const { return apart_.data() ? apart_ : segment_->memory; }
  uint64_t start() const { return apart_.data() ? range().offset() : 0; }
  // The pages of the block, as offsets in memory().
  std::pair<size_t, size_t> pages() const;

  const std::shared_ptr<State> state_;
  const std::shared_ptr<State::Segment> segment_;
  const Lending lending_;
  const uint64_t size_;
  uint64_t serial_ = 0;
  TimePoint since_;
  bool busy_ = false;  // guarded by the State's mutex: a thread maps it apart, or copies it out
  std::shared_ptr<ReturnSink> sink_;
  SealedMemory apart_;       // the mapping of this block alone
  bool remapped_ = false;    // some or all pages are private
  bool given_back_ = false;  // it was copied out
};

// ---- segments

absl::Status BorrowedSegments::State::room_for(uint32_t number, uint64_t size) const {
  if (size == 0 || size % kLentUnit != 0 || size > BlockTable::kLargestSegment) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment ", number, " has ", size, " bytes, which is not possible"));
  }
  if (const auto known = segments_.find(number); known != segments_.end()) {
    if (known->second->memory.size() == size) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("segment ", number, " was handed over before with other memory"));
  }
  if (segments_.size() == kMostSegments || size > limits_.mapped_bytes - gauges_.mapped_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("segment ", number, " of ", size, " bytes: ", segments_.size(),
                     " segments of ", gauges_.mapped_bytes, " bytes were handed over"));
  }
  return absl::OkStatus();
}

absl::Status BorrowedSegments::State::add_segment(uint32_t number, SealedMemory memory) {
  const uint64_t size = memory.size();
  WEFT_RETURN_IF_ERROR(check_room(number, size));
  auto segment = std::make_shared<Segment>();
  segment->memory = std::move(memory);
  segment->generations.resize(size / kLentUnit, 0);
  MutexLock lock(mutex_);
  if (const auto known = segments_.find(number); known != segments_.end()) {
    if (same_file(known->second->memory, segment->memory)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("segment ", number, " was handed over before with other memory"));
  }
  WEFT_RETURN_IF_ERROR(room_for(number, size));
  segments_[number] = std::move(segment);
  ++gauges_.segments;
  gauges_.mapped_bytes += size;
  return absl::OkStatus();
}

absl::Status BorrowedSegments::State::retire_segment(uint32_t number) {
  std::shared_ptr<Segment> retired;  // unmapped without the lock
  MutexLock lock(mutex_);
  const auto segment = segments_.find(number);
  if (segment == segments_.end()) {
    return absl::NotFoundError(
        absl::StrCat("segment ", number, " is retired and was not handed over"));
  }
  if (!segment->second->borrowed.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment ", number, " is retired while blocks of it are lent"));
  }
  retired = std::move(segment->second);
  segments_.erase(segment);
  --gauges_.segments;
  gauges_.mapped_bytes -= retired->memory.size();
  return absl::OkStatus();
}

// ---- borrowing

bool BorrowedSegments::State::overlaps(const Ranges& ranges, UnitRange range) {
  const auto next = ranges.lower_bound(range.end);
  return next != ranges.begin() && std::prev(next)->second > range.begin;
}

absl::StatusOr<std::shared_ptr<BorrowedSegments::Loan>> BorrowedSegments::State::enter(
    const Lending& lending, uint64_t size, TimePoint now) {
  const auto found = segments_.find(lending.segment);
  if (found == segments_.end()) {
    return wrong_descriptor(lending, size, "is of a segment that was not handed over");
  }
  Segment& segment = *found->second;
  if (lending.offset % kAlignment != 0) {
    return wrong_descriptor(lending, size, "is not aligned to 64 bytes");
  }
  if (size == 0 || lending.offset > segment.memory.size() ||
      size > segment.memory.size() - lending.offset) {
    return wrong_descriptor(lending, size, "is empty or not inside its segment");
  }
  const UnitRange range = UnitRange::of(lending.offset, size);
  if (overlaps(segment.borrowed, range)) {
    return wrong_descriptor(lending, size, "overlaps a block that is lent");
  }
  const auto begin = segment.generations.begin() + range.begin;
  const auto end = segment.generations.begin() + range.end;
  if (const uint32_t last = *std::max_element(begin, end); lending.generation <= last) {
    return wrong_descriptor(lending, size, absl::StrCat("was lent before with generation ", last));
  }
  std::fill(begin, end, lending.generation);
  segment.borrowed[range.begin] = range.end;
  auto loan = std::make_shared<Loan>(shared_from_this(), found->second, lending, size);
  loan->since_ = now;
  // Nobody copies it out before it is mapped.
  loan->busy_ = overlaps(segment.shadowed, range);
  loan->serial_ = ++last_serial_;
  by_age_[loan->serial_] = loan;
  ++gauges_.borrowed_blocks;
  gauges_.borrowed_bytes += size;
  return loan;
}

absl::StatusOr<BorrowedSegments::Block> BorrowedSegments::State::borrow(
    const Lending& lending, uint64_t size, std::shared_ptr<ReturnSink> sink, TimePoint now) {
  std::shared_ptr<Loan> loan;
  bool keep = false, shadowed = false;
  {
    MutexLock lock(mutex_);
    WEFT_ASSIGN_OR_RETURN(loan, enter(lending, size, now));
    loan->sink_ = std::move(sink);
    keep = gauges_.borrowed_bytes <= limits_.kept_bytes;
    shadowed = loan->busy_;
  }
  if (shadowed) {
    WEFT_RETURN_IF_ERROR(loan->map_apart());
    MutexLock lock(mutex_);
    loan->busy_ = false;
    ++gauges_.mapped_apart;
  }
  return Block{loan->data(), static_cast<size_t>(size), loan, keep};
}

absl::Status BorrowedSegments::Loan::map_apart() {
  absl::StatusOr<SealedMemory> mapped =
      segment_->memory.map_again(range().offset(), range().bytes());
  if (!mapped.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("mapping a lent block apart: ", std::string(mapped.status().message())));
  }
  apart_ = *std::move(mapped);
  return absl::OkStatus();
}

void BorrowedSegments::State::forget(const Loan& loan) {
  loan.segment_->borrowed.erase(loan.range().begin);
  by_age_.erase(loan.serial_);
  --gauges_.borrowed_blocks;
  gauges_.borrowed_bytes -= loan.size_;
}

BorrowedSegments::Loan::~Loan() {
  const bool of_segment = apart_.data() == nullptr;
  bool shared = true;
  if (remapped_ && of_segment) {
    const auto [offset, size] = pages();
    // If this fails, the range stays shadowed. That is right, but costs a mapping.
    shared = segment_->memory.share_again(offset, size).ok();
  }
  {
    MutexLock lock(state_->mutex_);
    if (given_back_) {
      state_->gauges_.private_bytes -= size_;
    } else {
      state_->forget(*this);
    }
    if (remapped_ && of_segment) {
      auto& shadowed = segment_->shadowed;
      if (shared) {
        shadowed.erase(range().begin);
      } else {
        shadowed[range().begin] = range().end;
      }
    }
  }
  if (!given_back_) sink_->give_back(lending_);
}

// ---- copying out

std::pair<size_t, size_t> BorrowedSegments::Loan::pages() const {
  static const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = (lending_.offset - start()) / page * page;
  const uint64_t end = (lending_.offset - start() + size_ + page - 1) / page * page;
  return {begin, end - begin};
}

bool BorrowedSegments::Loan::copy_out() {
  static const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  if (kLentUnit % page != 0) return false;  // a page could have bytes of two blocks
  const auto [offset, size] = pages();
  // After an error some pages may be private. They hold what the tensor has, and the next attempt
  // completes the rest.
  remapped_ = true;
  if (!memory().make_private(offset, size).ok()) return false;
  {
    MutexLock lock(state_->mutex_);
    state_->forget(*this);
    if (apart_.data() == nullptr) segment_->shadowed[range().begin] = range().end;
    state_->gauges_.private_bytes += size_;
    state_->gauges_.copied_out_bytes += size_;
  }
  given_back_ = true;
  sink_->give_back(lending_);
  return true;
}

uint64_t BorrowedSegments::State::copy_out(uint64_t bytes, TimePoint borrowed_until) {
  uint64_t given_back = 0;
  uint64_t last = 0;  // serial of the block that was tried last
  // Blocks of which this may have become the last owner. Then they die without the lock.
  std::vector<std::shared_ptr<Loan>> passed;
  while (given_back < bytes) {
    passed.clear();
    std::shared_ptr<Loan> loan;  // if it is the last owner, the block dies here, without the lock
    {
      MutexLock lock(mutex_);
      auto next = by_age_.upper_bound(last);
      for (; next != by_age_.end() && loan == nullptr; ++next) {
        last = next->first;
        passed.push_back(next->second.lock());
        const std::shared_ptr<Loan>& candidate = passed.back();
        if (candidate == nullptr) continue;
        if (candidate->since_ > borrowed_until) return given_back;
        if (!std::exchange(candidate->busy_, true)) loan = candidate;
      }
    }
    if (loan == nullptr) return given_back;
    if (loan->copy_out()) given_back += loan->size();
    MutexLock lock(mutex_);
    loan->busy_ = false;
  }
  return given_back;
}

BorrowedSegments::Gauges BorrowedSegments::State::gauges() const {
  MutexLock lock(mutex_);
  return gauges_;
}

// ---- the public class

BorrowedSegments::BorrowedSegments(Limits limits) : state_(std::make_shared<State>(limits)) {}
BorrowedSegments::~BorrowedSegments() { state_->close(); }

absl::Status BorrowedSegments::add_segment(uint32_t number, SealedMemory memory) {
  return state_->add_segment(number, std::move(memory));
}
absl::Status BorrowedSegments::check_room(uint32_t number, uint64_t size) const {
  return state_->check_room(number, size);
}
absl::Status BorrowedSegments::retire_segment(uint32_t number) {
  return state_->retire_segment(number);
}
absl::StatusOr<BorrowedSegments::Block> BorrowedSegments::borrow(const Lending& lending,
                                                                 uint64_t size,
                                                                 std::shared_ptr<ReturnSink> sink,
                                                                 TimePoint now) {
  return state_->borrow(lending, size, std::move(sink), now);
}
uint64_t BorrowedSegments::copy_out(uint64_t bytes, TimePoint borrowed_until) {
  return state_->copy_out(bytes, borrowed_until);
}
BorrowedSegments::Gauges BorrowedSegments::gauges() const { return state_->gauges(); }

}  // namespace weft
