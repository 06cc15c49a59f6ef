// The ledger of one incarnation of a chaos worker: what it did and was told. It survives kill -9.
//
// Each record is one write of 32 bytes to a file that only this incarnation appends to. So a record
// is there whole or not at all. Times are CLOCK_MONOTONIC, which is one clock for all processes of
// a machine.
//
// Thread safety: all methods of LedgerWriter may be called from any thread. A LedgerTail belongs to
// one.
// Errors: std::system_error if a file cannot be opened. If a record cannot be written, the process
// exits with code 4, because a ledger with a hole proves nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::chaos {

enum class RecordKind : uint16_t {
  kJoined = 1,    // token: the WorkerId of this incarnation, value: spawn
  kCalled = 2,    // token, value: callee, detail: ms that it may take, code: Flavour
  kTold = 3,      // token, code: status, detail: ran (0 no, 1 yes, 2 maybe)
  kExecuted = 4,  // token, value: the caller
  kDeath = 5,     // token: WorkerId of a peer that is gone; detail: 0 if it left in order
  kGauge = 6,     // code: Gauge, value
  kCeased = 7,    // it makes no more calls, and none is open
  kQuiet = 8,     // detail: 1 if it holds nothing any more; the gauges before say what
  kBroken = 9,    // a promise was broken; code: Broken, token: of the call
  kSaved = 10,    // a checkpoint; token: its step, code: status
  kLeft = 11,     // how its shutdown went; code: status
};

// The kind of operation behind a token. It decides what the oracle requires.
enum class Flavour : uint16_t {
  kCall = 0,    // executed exactly as often as its result says
  kCreate = 1,  // a `remote`: its result says whether it was accepted, executed at most once
  kStep = 2,    // an optimizer's step on the counter of `value`; never executed under its token
  kPass = 3,    // anything else that a worker waits for
};

enum class Gauge : uint16_t {
  kReferences = 0,
  kPendingReferences = 1,
  kOwnedValues = 2,
  kForks = 3,
  kContexts = 4,
  kPasses = 5,
  kRecordedSends = 6,
  kPendingCalls = 7,
  kRunningCalls = 8,
  kCells = 9,  // objects of the workload that exist
  kThreadsBefore = 10,
  kThreadsAfter = 11,
  kDescriptorsBefore = 12,
  kDescriptorsAfter = 13,
  kFilesLeft = 14,
  kCounter = 15,  // steps that this worker's counter has seen
};
inline constexpr int kGauges = 16;

enum class Broken : uint16_t {
  kArgument = 1,    // a function got other bytes than were sent
  kResult = 2,      // a caller got other bytes than were sent
  kGradient = 3,    // not the value that one process computes
  kDeadObject = 4,  // a method ran on an object that was destroyed
  kCheckpoint = 5,  // a complete step cannot be loaded, or is not what was saved
};

struct Record {
  uint64_t time = 0;  // ns
  uint64_t token = 0;
  uint64_t value = 0;
  uint32_t detail = 0;
  RecordKind kind = RecordKind::kJoined;
  uint16_t code = 0;
};
static_assert(sizeof(Record) == 32, "a page holds whole records");

// Exit codes of a worker that exits by itself; 0 if it left in good order.
inline constexpr int kExitHang = 3;  // a wait lasted more than twice its bound
inline constexpr int kExitNoLedger = 4;
inline constexpr int kExitFenced = 10;  // alone: declared dead, or cut off from all others
inline constexpr int kExitNotJoined = 12;
inline constexpr int kExitNotQuiet = 13;  // its shutdown returned an error

uint64_t monotonic_ns();

class LedgerWriter {
 public:
  explicit LedgerWriter(const std::string& path);
  ~LedgerWriter();
  LedgerWriter(const LedgerWriter&) = delete;
  LedgerWriter& operator=(const LedgerWriter&) = delete;

  // Sets the time of the record.
  void append(Record record) const;

 private:
  const int file_;
};

// Reads a ledger while it grows.
class LedgerTail {
 public:
  // A file that does not exist yet is empty.
  explicit LedgerTail(std::string path) : path_(std::move(path)) {}
  ~LedgerTail();
  LedgerTail(LedgerTail&& other) noexcept;
  LedgerTail& operator=(LedgerTail&&) = delete;

  // Appends the records that were written since the last read. Returns their number.
  size_t read(std::vector<Record>& records);

 private:
  std::string path_;
  int file_ = -1;
  uint64_t position_ = 0;
};

}  // namespace weft::chaos
