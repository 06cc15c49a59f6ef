// A byte ring and a return ring whose shared memory a peer overwrites. The input is a byte for the
// size of the ring and then a sequence of steps: of both ends, and of the peer that writes anything
// anywhere. Before the peer's first step, what is read is what was written. After it, an end may
// refuse, and then refuses for good.
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "weft/shm/byte_ring.h"
#include "weft/shm/return_ring.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

constexpr uint16_t kLastKind = 7;

class Run {
 public:
  explicit Run(Bytes input)
      : input_(input),
        size_(size_t{256} << input_.below(3)),
        bytes_(std::make_unique<std::byte[]>(size_)),
        header_(std::make_unique<RingHeader>()),
        returns_(std::make_unique<ReturnRing>()),
        writer_(*header_, {bytes_.get(), size_}),
        reader_(*header_, {bytes_.get(), size_}, kLastKind),
        borrower_(*returns_),
        owner_(*returns_) {}

  void play() {
    while (!input_.empty()) step();
    // The peer can publish no more than the rings hold.
    for (size_t left = 0; read(); ++left) require(left <= size_ / 16, "a ring that does not end");
    for (size_t left = 0; take(); ++left) {
      require(left <= ReturnRing::kSlots, "a return ring that does not end");
    }
  }

 private:
  void step() {
    switch (input_.below(12)) {
      case 0:
        overwrite(bytes_.get(), size_);
        break;
      case 1:
        overwrite(reinterpret_cast<std::byte*>(header_.get()), sizeof(*header_));
        break;
      case 2:
        overwrite(reinterpret_cast<std::byte*>(returns_.get()), sizeof(*returns_));
        break;
      case 3:
        move_position();
        break;
      case 4:
      case 5:
        write();
        break;
      case 6:
        if (writer_.commit()) published_ = written_.size();
        break;
      case 7:
        allow(writer_.request_space().status(), writer_failure_);
        break;
      case 8:
        read();
        break;
      case 9:
        reader_.release();
        break;
      case 10:
        push();
        break;
      case 11:
        if (input_.flag()) allow(owner_.request_wake().status(), owner_failure_);
        take();
    }
  }

  // ---- The peer

  void overwrite(std::byte* memory, size_t size) {
    honest_ = false;
    const size_t offset = input_.number<uint16_t>() % size;
    const std::string_view text = input_.take(input_.below(64));
    std::memcpy(memory + offset, text.data(), std::min(text.size(), size - offset));
  }
  void move_position() {
    honest_ = false;
    const int64_t by = input_.number<int8_t>();
    switch (input_.below(4)) {
      case 0:
        header_->tail += static_cast<uint64_t>(by * 16);
        break;
      case 1:
        header_->head += static_cast<uint64_t>(by * 16);
        break;
      case 2:
        returns_->tail += static_cast<uint64_t>(by);
        break;
      case 3:
        returns_->head += static_cast<uint64_t>(by);
        break;
    }
  }

  // ---- The ends

  // An end refuses with a reason, only because of the peer, and for good.
  void allow(const absl::Status& status, absl::Status& failure) {
    if (absl::IsFailedPrecondition(status)) return;  // request_space() before commit()
    require(failure.ok() || status == failure, "an end that goes on after it has refused");
    if (status.ok()) return;
    require(!honest_, "an honest peer was refused");
    require_refusal(status);
    failure = status;
  }

  void write() {
    const uint16_t kind = static_cast<uint16_t>(1 + input_.below(kLastKind));
    const size_t size = input_.below(256) % (writer_.largest() + 1);
    const auto room = writer_.reserve(kind, size);
    allow(room.status(), writer_failure_);
    if (!room.ok() || !room->has_value()) return;
    const std::span<std::byte> content = **room;
    require(content.size() == size, "room of another size");
    require(content.data() >= bytes_.get() && content.data() + size <= bytes_.get() + size_,
            "room outside the ring");
    std::string text(input_.take(size));
    text.resize(size, static_cast<char>(kind));
    std::memcpy(content.data(), text.data(), size);
    if (honest_) written_.emplace_back(kind, std::move(text));
  }

  bool read() {
    const auto record = reader_.next();
    allow(record.status(), reader_failure_);
    if (!record.ok() || !record->has_value()) {
      require(!honest_ || published_ == 0, "a record is lost");
      return false;
    }
    const auto& [kind, content] = **record;
    const std::string text(reinterpret_cast<const char*>(content.data()), content.size());
    require(kind >= 1 && kind <= kLastKind, "an unknown kind");
    require(text.size() <= largest_in_ring(size_), "a record beyond the limit");
    if (honest_) {
      require(published_ > 0 && written_.front() == std::pair(kind, text), "a record has changed");
      written_.pop_front();
      --published_;
    }
    return true;
  }

  void push() {
    if (honest_ && returned_.size() == ReturnRing::kSlots) return;
    const Lending block{input_.number<uint8_t>(), input_.number<uint8_t>(),
                        input_.number<uint16_t>()};
    allow(borrower_.push(block).status(), borrower_failure_);
    if (honest_) returned_.push_back(block);
  }

  bool take() {
    std::vector<Lending> taken(1 + input_.below(16));
    const absl::StatusOr<size_t> count = owner_.take(taken);
    allow(count.status(), owner_failure_);
    if (!count.ok()) return false;
    require(*count <= taken.size(), "more returns than fit");
    for (size_t i = 0; honest_ && i < *count; ++i) {
      require(!returned_.empty() && returned_.front() == taken[i], "a return has changed");
      returned_.pop_front();
    }
    return *count != 0;
  }

  Bytes input_;
  const size_t size_;
  const std::unique_ptr<std::byte[]> bytes_;
  const std::unique_ptr<RingHeader> header_;
  const std::unique_ptr<ReturnRing> returns_;
  RingWriter writer_;
  RingReader reader_;
  ReturnWriter borrower_;
  ReturnReader owner_;
  bool honest_ = true;  // nobody has overwritten anything yet
  std::deque<std::pair<uint16_t, std::string>> written_;
  size_t published_ = 0;  // of these
  std::deque<Lending> returned_;
  absl::Status writer_failure_, reader_failure_, borrower_failure_, owner_failure_;
};

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  weft::fuzz::Run(weft::fuzz::Bytes(data, size)).play();
  return 0;
}
