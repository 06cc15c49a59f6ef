#include <algorithm>

#include "absl/strings/str_cat.h"
#include "weft/tests/chaos/oracle/oracle_parts.h"

namespace weft::chaos {
namespace {

// A call that hangs in LibTorch's store client keeps the thread of worker/rendezvous.cc, the thread
// of the worker that waits for it, and the socket.
constexpr uint64_t kHungThreads = 2;
constexpr uint64_t kHungDescriptors = 1;
// gRPC threads of a process in which a thread was refused. gRPC must not shut down there
// (rpc/transport/grpc_transport.cc).
constexpr uint64_t kGrpcThreads = 8;
// The first pause of TCP before it retransmits, plus what a busy machine adds.
constexpr uint64_t kResent = 2'000'000'000;

// Tells whether a call to the store that began during a cut may hang when this incarnation exits.
// TCP doubles its pauses. So the call gets through at the latest when the cut has been over for as
// long as it lasted.
bool store_may_hang(const Incarnation& incarnation, const std::vector<Injection>& injections) {
  return std::any_of(injections.begin(), injections.end(),
                     [&incarnation](const Injection& injection) {
                       const auto [begin, end] = injection.span;
                       return cuts_store(injection.kind) && injection.slot == incarnation.slot &&
                              incarnation.joined < end && incarnation.ended > begin &&
                              incarnation.ended < end + (end - begin) + kResent;
                     });
}

bool threads_were_refused(const Incarnation& incarnation,
                          const std::vector<Injection>& injections) {
  return std::any_of(
      injections.begin(), injections.end(), [&incarnation](const Injection& injection) {
        return injection.kind == FaultKind::kThreadLimit && injection.slot == incarnation.slot &&
               incarnation.joined < injection.span.end && incarnation.ended > injection.span.begin;
      });
}

void judge_leftovers(const Incarnation& incarnation, const std::vector<Injection>& injections,
                     Findings& findings) {
  std::array<uint64_t, kGauges> last{};
  bool quiet = false, seen_after = false;
  uint32_t empty = 0;
  for (const Record& record : incarnation.records) {
    if (record.kind == RecordKind::kGauge && record.code < kGauges) {
      last[record.code] = record.value;
      seen_after |= record.code == static_cast<uint16_t>(Gauge::kThreadsAfter);
    } else if (record.kind == RecordKind::kQuiet) {
      quiet = true;
      empty = record.detail;
    }
  }
  const auto gauge = [&last](Gauge which) { return last[static_cast<size_t>(which)]; };
  if (incarnation.until_the_end && !(quiet && empty == 1)) {
    uint64_t left = 0;
    std::string which;
    for (int i = 0; i <= static_cast<int>(Gauge::kCells); ++i) {
      left += last[i];
      if (last[i] != 0) absl::StrAppend(&which, " gauge ", i, " = ", last[i]);
    }
    findings.leaked += std::max<uint64_t>(left, 1);
    findings.violate(absl::StrCat("process ", incarnation.spawn,
                                  quiet ? " keeps at the end:" : " never came to rest", which));
  }
  if (!seen_after) return;
  const bool hung = store_may_hang(incarnation, injections);
  const auto above = [&](Gauge after, Gauge before, uint64_t allowed, const char* what,
                         uint64_t& count) {
    const uint64_t most = gauge(before) + allowed;
    if (gauge(after) <= most) return;
    count += gauge(after) - most;
    findings.violate(absl::StrCat("process ", incarnation.spawn, " ended with ", gauge(after), " ",
                                  what, ", it began with ", gauge(before),
                                  hung ? ", and the store was cut off from it" : ""));
  };
  const uint64_t of_grpc = threads_were_refused(incarnation, injections) ? kGrpcThreads : 0;
  above(Gauge::kThreadsAfter, Gauge::kThreadsBefore, of_grpc + (hung ? kHungThreads : 0), "threads",
        findings.threads);
  above(Gauge::kDescriptorsAfter, Gauge::kDescriptorsBefore, hung ? kHungDescriptors : 0,
        "descriptors", findings.descriptors);
  if (gauge(Gauge::kFilesLeft) > 0) {
    findings.files += gauge(Gauge::kFilesLeft);
    findings.violate(absl::StrCat("process ", incarnation.spawn, " left ", gauge(Gauge::kFilesLeft),
                                  " files beside its checkpoints"));
  }
}

}  // namespace

void judge_leftovers(const std::vector<Incarnation>& incarnations,
                     const std::vector<Injection>& injections, Findings& findings) {
  for (const Incarnation& incarnation : incarnations)
    judge_leftovers(incarnation, injections, findings);
}

}  // namespace weft::chaos
