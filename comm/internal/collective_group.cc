#include "weft/comm/internal/collective_group.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/executor.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/shm/wait_word.h"

namespace weft::internal {
namespace {

using Clock = std::chrono::steady_clock;

std::string label_of(const Record& record) {
  std::string label(record.label, strnlen(record.label, kLabelBytes));
  // Written by another process: it may be anything.
  for (char& one : label) {
    if (std::isprint(static_cast<unsigned char>(one)) == 0) one = '?';
  }
  const uint32_t dims = std::min(record.dims, kMostDims);
  if (dims > 0) {
    absl::StrAppend(&label, " of shape [", absl::StrJoin(record.shape, record.shape + dims, ", "),
                    "]");
  }
  if (record.root >= 0) absl::StrAppend(&label, " with root ", record.root);
  if (record.fingerprint != 0) absl::StrAppend(&label, " layout ", absl::Hex(record.fingerprint));
  return label;
}

bool same(const Record& one, const Record& other) {
  return std::memcmp(one.label, other.label, kLabelBytes) == 0 && one.root == other.root &&
         one.dims == other.dims && one.fingerprint == other.fingerprint &&
         std::equal(one.shape, one.shape + std::min(one.dims, kMostDims), other.shape);
}

// The part [begin, end) of what the parts are together.
void copy_out(const std::vector<Operation::Part>& parts, uint64_t begin, uint64_t end,
              std::byte* to) {
  uint64_t at = 0;
  for (const Operation::Part& part : parts) {
    const uint64_t from = std::max(begin, at), until = std::min(end, at + part.size);
    if (from < until) {
      std::memcpy(to, part.data + (from - at), until - from);
      to += until - from;
    }
    at += part.size;
  }
}

// The reverse of copy_out.
void copy_in(const std::byte* from, const std::vector<Operation::Part>& parts, uint64_t begin,
             uint64_t end) {
  uint64_t at = 0;
  for (const Operation::Part& part : parts) {
    const uint64_t first = std::max(begin, at), until = std::min(end, at + part.size);
    if (first < until) {
      std::memcpy(part.data + (first - at), from, until - first);
      from += until - first;
    }
    at += part.size;
  }
}

}  // namespace

CollectiveGroup::CollectiveGroup(std::shared_ptr<Mesh> mesh, Options options)
    : mesh_(std::move(mesh)),
      options_(options),
      lanes_(*mesh_),
      records_(mesh_->size()),
      sources_(mesh_->size()),
      spin_(options.spin),
      background_([this] { run_in_background(); }) {}

CollectiveGroup::~CollectiveGroup() {
  abort(absl::CancelledError(absl::StrCat("rank ", rank(), " has left the group")));
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    background_needed_.notify_all();
    calls_there_.notify_all();
  }
  mesh_->mine().doorbell.ring();
  background_.join();
  std::vector<std::thread> callers;
  {
    MutexLock lock(mutex_);
    callers.swap(callers_);
  }
  for (std::thread& caller : callers) caller.join();
  mesh_->leave();
}

// ---- from outside

std::shared_ptr<CollectiveGroup::Work> CollectiveGroup::start(Operation operation,
                                                              TimePoint deadline) {
  auto work = std::make_shared<Work>();
  work->operation_ = std::move(operation);
  work->deadline_ = deadline;
  Finished finished;
  {
    MutexLock lock(mutex_);
    queue_.push_back(work);
    if (!failure_.ok()) {
      fail(failure_);
    } else if (queue_.size() == 1) {
      while (advance()) {
      }  // the others need not wait until somebody waits here
    }
    wake_background();
    finished.swap(finished_);
  }
  tell(finished);
  return work;
}

std::shared_ptr<CollectiveGroup::Work> CollectiveGroup::send(Lanes::Message message,
                                                             TimePoint deadline) {
  return transfer(true, std::move(message), deadline);
}

std::shared_ptr<CollectiveGroup::Work> CollectiveGroup::receive(Lanes::Message message,
                                                                TimePoint deadline) {
  return transfer(false, std::move(message), deadline);
}

std::shared_ptr<CollectiveGroup::Work> CollectiveGroup::transfer(bool send, Lanes::Message message,
                                                                 TimePoint deadline) {
  auto work = std::make_shared<Work>();
  work->deadline_ = deadline;
  work->memory_ = std::exchange(message.memory, nullptr);
  Finished finished;
  {
    MutexLock lock(mutex_);
    transfers_.push_back(work);
    if (!failure_.ok()) {
      fail(failure_);
    } else {
      // Called by lanes_, with the lock held, before the group ends.
      message.done = [this, one = work.get()](int peer) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        const auto at = std::find_if(transfers_.begin(), transfers_.end(),
                                     [one](const auto& other) { return other.get() == one; });
        std::shared_ptr<Work> work = std::move(*at);
        transfers_.erase(at);
        work->peer_ = peer;
        finish(std::move(work), absl::OkStatus());
      };
      absl::Status taken;
      if (send) {
        lanes_.send(std::move(message));
      } else {
        taken = lanes_.receive(std::move(message));
      }
      if (!taken.ok()) {
        fail(std::move(taken));
      } else {
        while (advance_lanes()) {
        }
      }
    }
    wake_background();
    finished.swap(finished_);
  }
  tell(finished);
  return work;
}

absl::Status CollectiveGroup::wait(const std::shared_ptr<Work>& work, TimePoint deadline) {
  while (!work->done()) {
    {
      MutexLock lock(mutex_);
      ++followers_;
      if (leading_) mesh_->mine().doorbell.advance();  // the group's own thread gives way
      bool in_time = true;
      while (!work->done() && leading_ && in_time) in_time = moved_on_.wait_until(mutex_, deadline);
      --followers_;
      if (work->done()) break;
      if (!in_time) return absl::DeadlineExceededError("not done yet");
      leading_ = true;
    }
    lead(work.get(), deadline);
    if (!work->done() && Clock::now() >= deadline) {
      return absl::DeadlineExceededError("not done yet");
    }
  }
  return work->status();
}

void CollectiveGroup::abort(absl::Status reason) {
  Finished finished;
  {
    MutexLock lock(mutex_);
    if (failure_.ok()) fail(std::move(reason));
    finished.swap(finished_);
  }
  tell(finished);
}

absl::Status CollectiveGroup::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

// ---- who does the work

// As the leader, until the work is done (null: until nothing is under way, or somebody waits).
void CollectiveGroup::lead(const Work* work, TimePoint deadline) {
  for (;;) {
    Finished finished;
    bool over;
    Goal goal;
    {
      MutexLock lock(mutex_);
      while (advance_all()) {
      }
      finished.swap(finished_);
      over = work != nullptr ? work->done() || Clock::now() >= deadline
                             : nothing_under_way() || followers_ > 0 || stopping_;
      goal = goal_;
      if (over) {
        leading_ = false;
        moved_on_.notify_all();
      }
    }
    tell(finished);
    if (over) return;
    if (look_for(goal)) continue;
    const WaitWord::Sleeper sleeper(mesh_->mine().doorbell);
    TimePoint until = std::min(deadline, Clock::now() + kLook);
    {
      MutexLock lock(mutex_);
      if (advance() || advance_lanes() || nothing_under_way()) continue;
      if (work != nullptr ? work->done() : followers_ > 0 || stopping_) continue;
      if (!queue_.empty()) until = std::min(until, queue_.front()->deadline_);
    }
    const TimePoint asleep = Clock::now();
    {
      const BlockingSection waiting;
      sleeper.sleep(until);
    }
    const Nanoseconds slept = Clock::now() - asleep;
    MutexLock lock(mutex_);
    if (goal_.counter != nullptr && reached(goal_.counter->load(), goal_.number)) {
      spin_.slept(slept);
    }
    // First what those have left that are gone.
    while (advance() || advance_lanes()) {
    }
    look_around();
  }
}

// True once the counter that is waited for has moved; false if it is time to sleep.
bool CollectiveGroup::look_for(const Goal& goal) {
  if (goal.counter == nullptr || !spin_.worth_while()) return false;
  const TimePoint start = Clock::now();
  TimePoint last = start;
  for (int looks = 1;; ++looks) {
    if (reached(goal.counter->load(), goal.number)) {
      spin_.found(Clock::now() - start);
      return true;
    }
    pause_spinning();
    if (looks % kLooks != 0) continue;
    std::this_thread::yield();
    const TimePoint now = Clock::now();
    if (now - last > SpinPolicy::kLongBreak) {
      spin_.disturbed();
      return false;
    }
    if (now - start > spin_.limit()) break;
    last = now;
  }
  spin_.in_vain();
  return false;
}

void CollectiveGroup::run_in_background() {
  uint32_t seen = 0;
  int idle = 0;
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      if (!ticking_) {
        background_needed_.wait(mutex_);
        seen = operations_;
        idle = 0;
        continue;
      }
      if (!urgent_) background_needed_.wait_until(mutex_, Clock::now() + kPatience);
      if (stopping_) return;
      // Whoever started it had time to wait for it.
      const bool at_once = std::exchange(urgent_, false) && !leading_ && !nothing_under_way();
      if (!at_once && (nothing_under_way() || operations_ != seen || leading_)) {
        idle = operations_ == seen && nothing_under_way() ? idle + 1 : 0;
        if (idle == kMostIdle) ticking_ = false;
        seen = operations_;
        continue;
      }
      leading_ = true;
    }
    lead(nullptr, TimePoint::max());
  }
}

void CollectiveGroup::tell(Finished& finished) {
  for (const std::shared_ptr<Work>& work : finished) {
    work->operation_.memory = nullptr;
    work->memory_ = nullptr;
  }
}

void CollectiveGroup::when_done(const std::shared_ptr<Work>& work, std::function<void()> then) {
  MutexLock lock(mutex_);
  if (work->done()) return call_soon(std::move(then));
  work->then_.push_back(std::move(then));
  // Nobody may wait for it in any other way.
  urgent_ = true;
  background_needed_.notify_all();
}

void CollectiveGroup::call_soon(std::function<void()> call) {
  calls_.push_back(std::move(call));
  if (idle_callers_ > 0) {
    calls_there_.notify_all();
  } else if (callers_.size() < kMostCallers) {
    callers_.emplace_back([this] { run_calls(); });
  }
}

void CollectiveGroup::run_calls() {
  for (;;) {
    std::function<void()> call;
    {
      MutexLock lock(mutex_);
      ++idle_callers_;
      while (calls_.empty() && !stopping_) calls_there_.wait(mutex_);
      --idle_callers_;
      if (calls_.empty()) return;
      call = std::move(calls_.front());
      calls_.pop_front();
    }
    try {
      call();
    } catch (const std::exception& error) {
      log_error("a callback of a collective threw: ", error.what());
    }
  }
}

bool CollectiveGroup::on_own_thread() const {
  const std::thread::id here = std::this_thread::get_id();
  if (here == background_.get_id()) return true;
  MutexLock lock(mutex_);
  return std::any_of(callers_.begin(), callers_.end(),
                     [here](const std::thread& one) { return one.get_id() == here; });
}

bool CollectiveGroup::nothing_under_way() const { return queue_.empty() && transfers_.empty(); }

void CollectiveGroup::wake_background() {
  if (ticking_ || nothing_under_way()) return;
  ticking_ = true;
  background_needed_.notify_all();
}

bool CollectiveGroup::advance_all() {
  const bool moved = advance();
  if (transfers_.empty()) return moved;
  return advance_lanes() || moved;
}

bool CollectiveGroup::advance_lanes() {
  if (!failure_.ok()) return false;
  absl::StatusOr<bool> moved = lanes_.advance();
  if (moved.ok()) return *moved;
  fail(moved.status());
  return true;
}

// ---- one operation

bool CollectiveGroup::advance() {
  if (queue_.empty() || !failure_.ok()) return false;
  switch (phase_) {
    case Phase::kPublish:
      return publish();
    case Phase::kMeet:
      return meet();
    case Phase::kSlots:
      return take_slots();
    case Phase::kArenas:
      return take_arenas();
    case Phase::kLeaveArenas:
      return leave_arenas();
    case Phase::kPieces:
      return move_pieces();
  }
  return false;
}

bool CollectiveGroup::publish() {
  if (!all_reached(&Board::consumed, operations_ + 1 - kSlots)) return false;
  const Operation& operation = queue_.front()->operation_;
  Slot& slot = mesh_->mine().slots[operations_ % kSlots];
  Record& record = slot.record;
  record.number = operations_;
  std::memset(record.label, 0, kLabelBytes);
  std::memcpy(record.label, operation.label.data(), std::min(operation.label.size(), kLabelBytes));
  record.root = operation.root;
  record.dims = static_cast<uint32_t>(operation.shape.size());
  std::copy_n(operation.shape.begin(), std::min<size_t>(record.dims, kMostDims), record.shape);
  record.bytes = operation.bytes();
  record.fingerprint = operation.fingerprint;
  if (record.bytes <= kSlotBytes) {
    record.place = Place::kSlot;
    copy_out(operation.parts, 0, record.bytes, slot.data);
  } else if (operation.resident.has_value()) {
    record.place = Place::kArena;
    record.arena = operation.resident->arena;
    record.offset = operation.resident->offset;
  } else {
    record.place = Place::kPrivate;
  }
  uint64_t offset = 0;
  for (size_t other = 0; other < operation.shares.size(); ++other) {
    mesh_->lane(rank(), static_cast<int>(other)).shares[operations_ % kSlots] = {
        offset, operation.shares[other]};
    offset += operation.shares[other];
  }
  move(&Board::published, operations_ + 1);
  phase_ = Phase::kMeet;
  return true;
}

bool CollectiveGroup::meet() {
  if (!all_reached(&Board::published, operations_ + 1)) return false;
  for (int other = 0; other < size(); ++other) {
    records_[other] = mesh_->board(other).slots[operations_ % kSlots].record;
  }
  absl::Status same = compare();
  if (same.ok()) same = place_pulls();
  if (!same.ok()) {
    fail(std::move(same));
    return true;
  }
  bool all_in_slots = true, any_private = false;
  uint64_t largest = 0;
  for (const Record& record : records_) {
    all_in_slots = all_in_slots && record.place == Place::kSlot;
    any_private = any_private || record.place == Place::kPrivate;
    if (record.place != Place::kSlot) largest = std::max(largest, record.bytes);
  }
  for (int other = 0; other < size(); ++other) {
    sources_[other] = mesh_->board(other).slots[operations_ % kSlots].data;
  }
  pieces_ = pieces_staged_ = pieces_taken_ = 0;
  piece_reduced_ = false;
  if (all_in_slots) {
    phase_ = Phase::kSlots;
  } else if (any_private) {
    pieces_ = (largest + kStageBytes - 1) / kStageBytes;
    phase_ = Phase::kPieces;
  } else {
    if (!all_are_well()) return true;
    for (int other = 0; other < size(); ++other) {
      const Record& record = records_[other];
      if (record.place != Place::kArena) continue;
      absl::StatusOr<std::byte*> at =
          options_.arenas->locate(other, record.arena, record.offset, record.bytes);
      if (!at.ok()) {
        fail(prepend(absl::StrCat("rank ", other, ": "), at.status()));
        return true;
      }
      sources_[other] = *at;
    }
    phase_ = Phase::kArenas;
  }
  return true;
}

// The records of all ranks are of one operation, and can be what this rank takes them for.
absl::Status CollectiveGroup::compare() const {
  const Operation& operation = queue_.front()->operation_;
  const Record& mine = records_[rank()];
  for (int other = 0; other < size(); ++other) {
    const Record& record = records_[other];
    if (record.number != mine.number) {
      return absl::InternalError(absl::StrCat("rank ", other, " is at operation ", record.number,
                                              ", rank ", rank(), " at ", mine.number));
    }
    if (!same(record, mine) ||
        (operation.sum != Operation::Sum::kNone && record.bytes != mine.bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the ranks called different operations: rank ", rank(), " ", label_of(mine),
                       ", ", mine.bytes, " bytes, rank ", other, " ", label_of(record), ", ",
                       record.bytes, " bytes (operation ", mine.number, " of the group)"));
    }
    if (record.place > Place::kPrivate ||
        (record.place == Place::kSlot) != (record.bytes <= kSlotBytes) ||
        record.bytes > kMostBytes ||
        (record.place == Place::kArena && options_.arenas == nullptr)) {
      return absl::InternalError(absl::StrCat("rank ", other, " published a damaged record"));
    }
  }
  return absl::OkStatus();
}

// What this rank takes is there, at every rank.
absl::Status CollectiveGroup::place_pulls() {
  Operation& operation = queue_.front()->operation_;
  for (Operation::Pull& pull : operation.pulls) {
    uint64_t size = pull.size;
    if (pull.share) {
      const Share share = mesh_->lane(pull.from, rank()).shares[operations_ % kSlots];
      pull.offset = share.offset;
      size = share.size;
    }
    const uint64_t there = records_[pull.from].bytes;
    if (size != pull.size || pull.offset > there || pull.size > there - pull.offset) {
      return absl::InvalidArgumentError(absl::StrCat(
          label_of(records_[rank()]), ": rank ", rank(), " takes ", pull.size, " bytes from rank ",
          pull.from, ", which brings ", size, " of ", there, " for it"));
    }
  }
  return absl::OkStatus();
}

bool CollectiveGroup::take_slots() {
  take_whole();
  finish_operation();
  return true;
}

bool CollectiveGroup::take_arenas() {
  take_whole();
  if (!all_are_well()) return true;
  move(&Board::turned, operations_ + 1);
  phase_ = Phase::kLeaveArenas;
  return true;
}

// Who has given up may use its tensors again: what is read there is not what it brought. (What this
// rank writes there while another one gives up cannot be helped.)
bool CollectiveGroup::all_are_well() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int other = 0; other < size(); ++other) {
    if (other == rank() || mesh_->board(other).failed.load() == 0) continue;
    fail(end_of(other));
    return false;
  }
  return true;
}

bool CollectiveGroup::leave_arenas() {
  if (!all_reached(&Board::turned, operations_ + 1)) return false;
  finish_operation();
  return true;
}

// All contributions lie at `sources_`, whole.
void CollectiveGroup::take_whole() {
  const Operation& operation = queue_.front()->operation_;
  for (const Operation::Pull& pull : operation.pulls) {
    if (pull.size > 0) std::memcpy(pull.to, sources_[pull.from] + pull.offset, pull.size);
  }
  switch (operation.sum) {
    case Operation::Sum::kNone:
      break;
    case Operation::Sum::kHere:
      sum(0, operation.first, operation.count, {&operation.sum_to, 1});
      break;
    case Operation::Sum::kEverywhere: {
      const uint64_t count = operation.bytes() / operation.element_bytes;
      if (phase_ == Phase::kArenas) {
        // Each adds up its own part, for all.
        const uint64_t begin = part_begin(count, rank()), end = part_begin(count, rank() + 1);
        targets_.clear();
        for (std::byte* source : sources_) {
          targets_.push_back(source + begin * operation.element_bytes);
        }
        sum(0, begin, end - begin, targets_);
      } else {
        sum_to_parts(0, count);
      }
      break;
    }
  }
}

// Elements [first, first + count) of all contributions, where `sources_` begin with element
// `base`.
void CollectiveGroup::sum(uint64_t base, uint64_t first, uint64_t count,
                          std::span<std::byte* const> targets) {
  if (count == 0) return;
  const Operation& operation = queue_.front()->operation_;
  shifted_.clear();
  for (const std::byte* source : sources_) {
    shifted_.push_back(source + (first - base) * operation.element_bytes);
  }
  operation.kernel(shifted_, targets, count);
}

// The same, to where this rank's own contribution came from.
void CollectiveGroup::sum_to_parts(uint64_t first, uint64_t count) {
  if (count == 0) return;
  const Operation& operation = queue_.front()->operation_;
  const uint64_t begin = first * operation.element_bytes;
  if (operation.parts.size() == 1) {
    std::byte* target = operation.parts[0].data + begin;
    sum(first, first, count, {&target, 1});
    return;
  }
  const uint64_t bytes = count * operation.element_bytes;
  if (scratch_.size() < bytes) scratch_.resize(kStageBytes);
  std::byte* target = scratch_.data();
  sum(first, first, count, {&target, 1});
  copy_in(target, operation.parts, begin, begin + bytes);
}

// ---- piece by piece

bool CollectiveGroup::move_pieces() {
  if (pieces_taken_ == pieces_) {
    pieces_before_ += static_cast<uint32_t>(pieces_);
    finish_operation();
    return true;
  }
  const bool staged = stage_piece();
  return take_piece() || staged;
}

bool CollectiveGroup::stage_piece() {
  if (pieces_staged_ == pieces_ || pieces_staged_ - pieces_taken_ == kStages) return false;
  const uint32_t piece = pieces_before_ + static_cast<uint32_t>(pieces_staged_);
  if (!all_reached(&Board::unstaged, piece + 1 - kStages)) return false;
  const Record& mine = records_[rank()];
  const uint64_t begin = pieces_staged_ * kStageBytes;
  if (mine.place != Place::kSlot && begin < mine.bytes) {
    copy_out(queue_.front()->operation_.parts, begin, std::min(begin + kStageBytes, mine.bytes),
             mesh_->mine().stages[piece % kStages]);
  }
  ++pieces_staged_;
  move(&Board::staged, piece + 1);
  return true;
}

bool CollectiveGroup::take_piece() {
  if (pieces_taken_ == pieces_staged_) return false;
  const uint32_t piece = pieces_before_ + static_cast<uint32_t>(pieces_taken_);
  if (!all_reached(&Board::staged, piece + 1)) return false;
  const Operation& operation = queue_.front()->operation_;
  const uint64_t begin = pieces_taken_ * kStageBytes, end = begin + kStageBytes;
  const auto stage_of = [&](int other) { return mesh_->board(other).stages[piece % kStages]; };
  if (operation.sum != Operation::Sum::kNone) {
    for (int other = 0; other < size(); ++other) sources_[other] = stage_of(other);
  }
  const uint64_t width = operation.element_bytes;
  if (operation.sum == Operation::Sum::kEverywhere) {
    const uint64_t first = begin / width;
    const uint64_t count = std::min(end, operation.bytes()) / width - first;
    if (size() <= kAllAddUp) {
      sum_to_parts(first, count);
    } else {
      // Each adds up a part, in its own stage, and takes the other parts from theirs.
      if (!piece_reduced_) {
        const uint64_t from = part_begin(count, rank()), until = part_begin(count, rank() + 1);
        std::byte* target = stage_of(rank()) + from * width;
        sum(first, first + from, until - from, {&target, 1});
        piece_reduced_ = true;
        move(&Board::reduced, piece + 1);
      }
      if (!all_reached(&Board::reduced, piece + 1)) return false;
      piece_reduced_ = false;
      for (int other = 0; other < size(); ++other) {
        const uint64_t from = part_begin(count, other) * width;
        const uint64_t until = part_begin(count, other + 1) * width;
        copy_in(stage_of(other) + from, operation.parts, begin + from, begin + until);
      }
    }
  } else if (operation.sum == Operation::Sum::kHere) {
    const uint64_t first = std::max(begin / width, operation.first);
    const uint64_t last = std::min(end / width, operation.first + operation.count);
    if (first < last) {
      std::byte* target = operation.sum_to + (first - operation.first) * width;
      sum(begin / width, first, last - first, {&target, 1});
    }
  }
  for (const Operation::Pull& pull : operation.pulls) {
    if (records_[pull.from].place == Place::kSlot) {
      if (pieces_taken_ == 0 && pull.size > 0) {
        std::memcpy(pull.to, sources_[pull.from] + pull.offset, pull.size);
      }
      continue;
    }
    const uint64_t from = std::max(begin, pull.offset),
                   until = std::min(end, pull.offset + pull.size);
    if (from < until) {
      std::memcpy(pull.to + (from - pull.offset), stage_of(pull.from) + (from - begin),
                  until - from);
    }
  }
  ++pieces_taken_;
  move(&Board::unstaged, piece + 1);
  return true;
}

// ---- the end of it

void CollectiveGroup::finish_operation() {
  ++operations_;
  move(&Board::consumed, operations_);
  // These keep up, so that numbers never lie half their range apart.
  mesh_->mine().turned.value.store(operations_, std::memory_order_seq_cst);
  mesh_->mine().reduced.value.store(pieces_before_, std::memory_order_seq_cst);
  goal_ = {};
  awaited_ = nullptr;
  std::shared_ptr<Work> work = std::move(queue_.front());
  queue_.pop_front();
  finish(std::move(work), absl::OkStatus());
  phase_ = Phase::kPublish;
}

void CollectiveGroup::finish(std::shared_ptr<Work> work, absl::Status status) {
  work->status_ = std::move(status);
  work->done_.store(true, std::memory_order_release);
  for (std::function<void()>& then : std::exchange(work->then_, {})) call_soon(std::move(then));
  // What the work holds ends outside of the lock.
  finished_.push_back(std::move(work));
  if (followers_ > 0) moved_on_.notify_all();
}

void CollectiveGroup::fail(absl::Status reason) {
  if (failure_.ok()) {
    failure_ = std::move(reason);
    Board& mine = mesh_->mine();
    const absl::string_view text = failure_.message();
    std::memcpy(mine.failure, text.data(), std::min(text.size(), sizeof(mine.failure) - 1));
    move(&Board::failed, 1);
    mine.doorbell.ring();
    std::atomic_thread_fence(std::memory_order_seq_cst);  // before tensors are used again
  }
  lanes_.clear();
  for (std::shared_ptr<Work>& work : std::exchange(queue_, {})) finish(std::move(work), failure_);
  for (std::shared_ptr<Work>& work : std::exchange(transfers_, {})) {
    finish(std::move(work), failure_);
  }
}

void CollectiveGroup::look_around() {
  look_at_transfers();
  if (queue_.empty() || !failure_.ok() || awaited_ == nullptr) return;
  std::vector<int> late;
  for (int other = 0; other < size(); ++other) {
    // Who has done its part may have gone.
    if (other == rank() || reached((mesh_->board(other).*awaited_).load(), goal_.number)) continue;
    if (absl::Status end = end_of(other); !end.ok()) {
      if (reached((mesh_->board(other).*awaited_).load(), goal_.number)) continue;
      return fail(std::move(end));
    }
    late.push_back(other);
  }
  if (late.empty()) return;
  const Work& work = *queue_.front();
  if (Clock::now() < work.deadline_) return;
  fail(absl::DeadlineExceededError(
      absl::StrCat(work.operation_.label, " was not done in time: rank ", absl::StrJoin(late, ", "),
                   " did not come, or was late (operation ", operations_, " of the group)")));
}

void CollectiveGroup::look_at_transfers() {
  if (transfers_.empty() || !failure_.ok()) return;
  const std::vector<Lanes::Waiting> all = lanes_.waiting();
  for (const Lanes::Waiting& one : all) {
    absl::Status end = one.peer == Lanes::kAnyone ? end_of_all() : end_of(one.peer);
    if (end.ok()) continue;
    if (advance_lanes()) return;  // what it has left came just now
    return fail(prepend(absl::StrCat(one.what, ": "), end));
  }
  const auto earliest = std::min_element(
      transfers_.begin(), transfers_.end(),
      [](const auto& one, const auto& other) { return one->deadline_ < other->deadline_; });
  if (Clock::now() < (*earliest)->deadline_) return;
  std::vector<std::string> texts;
  for (const Lanes::Waiting& one : all) texts.push_back(one.what);
  fail(absl::DeadlineExceededError(
      absl::StrCat("not done in time, among: ", absl::StrJoin(texts, "; "))));
}

absl::Status CollectiveGroup::end_of_all() const {
  for (int other = 0; other < size(); ++other) {
    if (other != rank() && end_of(other).ok()) return absl::OkStatus();
  }
  return absl::UnavailableError("no other rank is left");
}

absl::Status CollectiveGroup::end_of(int rank) const {
  const Board& board = mesh_->board(rank);
  if (board.failed.load() != 0) {
    std::string why(board.failure, strnlen(board.failure, sizeof(board.failure)));
    for (char& one : why) {
      if (std::isprint(static_cast<unsigned char>(one)) == 0) one = '?';
    }
    return absl::UnavailableError(absl::StrCat("rank ", rank, " has given up: ", why));
  }
  if (!mesh_->gone(rank)) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("rank ", rank, " (process ", mesh_->process(rank), ") has died"));
}

// ---- counters

bool CollectiveGroup::all_reached(Counter Board::*counter, uint32_t goal) {
  for (int other = 0; other < size(); ++other) {
    if (other == rank() || reached((mesh_->board(other).*counter).load(), goal)) continue;
    goal_ = {&(mesh_->board(other).*counter), goal};
    awaited_ = counter;
    return false;
  }
  return true;
}

void CollectiveGroup::move(Counter Board::*counter, uint32_t next) {
  (mesh_->mine().*counter).value.store(next, std::memory_order_seq_cst);
  for (int other = 0; other < size(); ++other) {
    if (other != rank()) mesh_->board(other).doorbell.ring();
  }
}

uint64_t CollectiveGroup::part_begin(uint64_t count, int rank) const {
  return count * static_cast<uint64_t>(rank) / static_cast<uint64_t>(size());
}

}  // namespace weft::internal
