#include "weft/bench/contestants/block.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "weft/base/mutex.h"
#include "weft/base/status.h"
#include "weft/bench/report/statistics.h"

namespace weft::bench {
namespace {

constexpr double kWarmUpPart = 0.1;  // of the block's time, in addition to it
constexpr int64_t kFewestCalls = 2;
constexpr double kAlonePart = 1.0 / 3;  // of a mixed block: the stream without small calls
// Fraction of a step without DDP. The time of communication is a difference of two such times, so
// noise can make it small or negative. Ratios are not computed from smaller values.
constexpr double kLeastCommunicationShare = 0.01;

absl::Status run_once(Client& client, const Row& row) {
  switch (row.work) {
    case Work::kAdd:
    case Work::kAddAfterIdle:
      return client.add();
    case Work::kSend:
      return client.send(row.amount);
    case Work::kEcho:
      return client.echo(row.amount);
    case Work::kAutograd:
      return client.autograd_round(/*depth=*/1, /*width=*/1);
    case Work::kAutogradDepth:
      return client.autograd_round(static_cast<int>(row.amount), /*width=*/1);
    case Work::kAutogradWidth:
      return client.autograd_round(/*depth=*/1, static_cast<int>(row.amount));
    case Work::kRref:
      return client.rref_life();
    case Work::kAddInFlight:
    case Work::kGive:
    case Work::kMixed:
    case Work::kAllToAllAdd:
    case Work::kAllToAllSend:
    case Work::kAllReduce:
    case Work::kDdpStep:
    case Work::kTwoCalls:
    case Work::kOneCall:
    case Work::kBatched1:
    case Work::kBatched16:
    case Work::kPipeline:
      break;
  }
  return absl::InternalError("not an operation that one client runs one at a time");
}

double bytes_per_call(const Row& row) {
  if (row.work == Work::kSend) return static_cast<double>(row.amount);
  if (row.work == Work::kEcho) return 2.0 * static_cast<double>(row.amount);
  return 0;
}

absl::StatusOr<BlockResult> run_one_at_a_time(Client& client, const Row& row, double seconds,
                                              Clock& clock) {
  const Usage usage_before = usage_of_this_process();
  const TimePoint warm_from = clock.now();
  int64_t warm_calls = 0;
  if (row.work != Work::kAddAfterIdle) {
    do {
      WEFT_RETURN_IF_ERROR(run_once(client, row));
      ++warm_calls;
    } while (seconds_between(warm_from, clock.now()) < seconds * kWarmUpPart);
  }

  const int64_t fewest = row.work == Work::kAddAfterIdle ? 1 : kFewestCalls;
  if (row.work == Work::kAddAfterIdle) seconds = 0;
  std::vector<double> latencies_us;
  latencies_us.reserve(1 << 16);
  const TimePoint begin = clock.now();
  TimePoint now = begin;
  int64_t calls = 0;
  while (calls < fewest || seconds_between(begin, now) < seconds) {
    WEFT_RETURN_IF_ERROR(run_once(client, row));
    const TimePoint then = std::exchange(now, clock.now());
    latencies_us.push_back(seconds_between(then, now) * 1e6);
    ++calls;
  }
  return BlockResult{.calls = calls,
                     .seconds = seconds_between(begin, now),
                     .median_us = median(latencies_us),
                     .p99_us = quantile(latencies_us, 0.99),
                     .bytes = bytes_per_call(row) * static_cast<double>(calls),
                     .all_calls = warm_calls + calls,
                     .usage = usage_of_this_process() - usage_before};
}

// Counts only from the moment when all slots have been used once until the time is over. So neither
// filling nor draining the window is part of the rate.
absl::StatusOr<BlockResult> run_in_flight(Client& client, int depth, double seconds, Clock& clock) {
  const Usage usage_before = usage_of_this_process();
  for (int slot = 0; slot < depth; ++slot) WEFT_RETURN_IF_ERROR(client.start_add(slot));
  const auto turn = [&](int slot) -> absl::Status {
    WEFT_RETURN_IF_ERROR(client.finish_add(slot));
    return client.start_add(slot);
  };
  for (int slot = 0; slot < depth; ++slot) WEFT_RETURN_IF_ERROR(turn(slot));

  const TimePoint begin = clock.now();
  TimePoint now = begin;
  int64_t calls = 0;
  while (calls < kFewestCalls || seconds_between(begin, now) < seconds) {
    WEFT_RETURN_IF_ERROR(turn(static_cast<int>(calls % depth)));
    ++calls;
    now = clock.now();
  }
  for (int64_t slot = calls; slot < calls + depth; ++slot) {
    WEFT_RETURN_IF_ERROR(client.finish_add(static_cast<int>(slot % depth)));
  }
  return BlockResult{.calls = calls,
                     .seconds = seconds_between(begin, now),
                     .all_calls = calls + 2 * depth,
                     .usage = usage_of_this_process() - usage_before};
}

// A small call follows each gift, so that both meet the same machine.
absl::StatusOr<BlockResult> run_gives(Client& client, int64_t bytes, double seconds, Clock& clock) {
  const Usage usage_before = usage_of_this_process();
  std::vector<double> gives_us, calls_us;
  TimePoint begin = clock.now();
  int64_t warm_gives = 0;
  do {
    WEFT_RETURN_IF_ERROR(client.give(bytes));
    WEFT_RETURN_IF_ERROR(client.add());
    ++warm_gives;
  } while (seconds_between(begin, clock.now()) < seconds * kWarmUpPart);

  begin = clock.now();
  TimePoint now = begin;
  int64_t gives = 0;
  while (gives < kFewestCalls || seconds_between(begin, now) < seconds) {
    const TimePoint start = now;
    WEFT_RETURN_IF_ERROR(client.give(bytes));
    const TimePoint middle = clock.now();
    WEFT_RETURN_IF_ERROR(client.add());
    now = clock.now();
    gives_us.push_back(seconds_between(start, middle) * 1e6);
    calls_us.push_back(seconds_between(middle, now) * 1e6);
    ++gives;
  }
  return BlockResult{.calls = gives,
                     .seconds = seconds_between(begin, now),
                     .median_us = median(gives_us),
                     .p99_us = quantile(gives_us, 0.99),
                     .bytes = static_cast<double>(bytes * gives),
                     .all_calls = 2 * (warm_gives + gives),
                     .usage = usage_of_this_process() - usage_before,
                     .small_call_us = median(calls_us)};
}

double rate_of_stream(int64_t sends, int64_t bytes, double seconds) {
  return static_cast<double>(sends * bytes) / seconds * 1e-9;
}

// Sends tensors one after the other, on a thread of its own, until it is destroyed. The destructor
// waits for the send that is under way.
class TensorStream {
 public:
  TensorStream(Client& client, int64_t bytes, Clock& clock)
      : client_(client), bytes_(bytes), clock_(clock), begin_(clock.now()) {
    thread_ = std::thread([this] { send_until_stopped(); });
  }
  ~TensorStream() {
    {
      MutexLock lock(mutex_);
      stopped_ = true;
    }
    thread_.join();
  }
  TensorStream(const TensorStream&) = delete;
  TensorStream& operator=(const TensorStream&) = delete;

  // Whether its rate can be told, or will never be.
  bool is_measured() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return sends_ >= kFewestCalls || !status_.ok();
  }
  // In GB/s, of the sends that are complete.
  absl::StatusOr<double> rate() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (!status_.ok()) return status_;
    return rate_of_stream(sends_, bytes_, seconds_between(begin_, last_end_));
  }

 private:
  void send_until_stopped() ABSL_LOCKS_EXCLUDED(mutex_) {
    for (bool goes_on = true; goes_on;) {
      const absl::Status sent = client_.send(bytes_);
      const TimePoint end = clock_.now();
      MutexLock lock(mutex_);
      status_ = sent;
      if (sent.ok()) ++sends_;
      last_end_ = end;
      goes_on = sent.ok() && !stopped_;
    }
  }

  Client& client_;
  const int64_t bytes_;
  Clock& clock_;
  const TimePoint begin_;
  std::thread thread_;
  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t sends_ ABSL_GUARDED_BY(mutex_) = 0;
  TimePoint last_end_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<double> rate_of_stream_alone(Client& client, int64_t bytes, double seconds,
                                            Clock& clock) {
  const TimePoint begin = clock.now();
  TimePoint now = begin;
  int64_t sends = 0;
  while (sends < kFewestCalls || seconds_between(begin, now) < seconds) {
    WEFT_RETURN_IF_ERROR(client.send(bytes));
    ++sends;
    now = clock.now();
  }
  return rate_of_stream(sends, bytes, seconds_between(begin, now));
}

// First the stream alone, then the stream with small calls beside it.
absl::StatusOr<BlockResult> run_mixed(Client& client, int64_t bytes, double seconds, Clock& clock) {
  if (!client.mixes()) return absl::UnimplementedError("no calls while it sends");
  const Usage usage_before = usage_of_this_process();
  WEFT_RETURN_IF_ERROR(client.add());
  WEFT_RETURN_IF_ERROR(client.send(bytes));
  WEFT_ASSIGN_OR_RETURN(const double alone,
                        rate_of_stream_alone(client, bytes, seconds * kAlonePart, clock));

  std::vector<double> latencies_us;
  TensorStream stream(client, bytes, clock);
  const TimePoint begin = clock.now();
  TimePoint now = begin;
  while (latencies_us.size() < kFewestCalls ||
         seconds_between(begin, now) < seconds * (1 - kAlonePart) || !stream.is_measured()) {
    WEFT_RETURN_IF_ERROR(client.add());
    const TimePoint then = std::exchange(now, clock.now());
    latencies_us.push_back(seconds_between(then, now) * 1e6);
  }
  WEFT_ASSIGN_OR_RETURN(const double beside, stream.rate());
  const auto calls = static_cast<int64_t>(latencies_us.size());
  return BlockResult{.calls = calls,
                     .seconds = seconds_between(begin, now),
                     .median_us = median(latencies_us),
                     .p99_us = quantile(latencies_us, 0.99),
                     .all_calls = calls,
                     .usage = usage_of_this_process() - usage_before,
                     .stream_gb_per_s = beside,
                     .stream_alone_gb_per_s = alone};
}

}  // namespace

absl::StatusOr<BlockResult> run_block(Client& client, const Row& row, double seconds,
                                      Clock& clock) {
  if (row.work == Work::kAddInFlight) {
    return run_in_flight(client, static_cast<int>(row.amount), seconds, clock);
  }
  if (row.work == Work::kGive) return run_gives(client, row.amount, seconds, clock);
  if (row.work == Work::kMixed) return run_mixed(client, row.amount, seconds, clock);
  return run_one_at_a_time(client, row, seconds, clock);
}

double value_of(const Row& row, const BlockResult& result) {
  if (row.work == Work::kDdpStep) {
    return std::max(result.communication_us, kLeastCommunicationShare * result.local_us);
  }
  if (row.unit == "us") return result.median_us;
  if (row.work == Work::kAllToAllAdd) {
    return static_cast<double>(result.calls * kAllToAllCalls * row.processes) / result.seconds;
  }
  if (row.unit == "GB/s") return result.bytes / result.seconds * 1e-9;
  return static_cast<double>(result.calls) / result.seconds;
}

}  // namespace weft::bench
