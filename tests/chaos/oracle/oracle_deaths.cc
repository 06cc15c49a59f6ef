#include <algorithm>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/tests/chaos/oracle/oracle_parts.h"

namespace weft::chaos {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
// A connection counts as in use if a message passed on it within this time.
constexpr uint64_t kInUse = kSecond;
// A worker that lives this much longer than a peer must have noticed the peer's death.
constexpr uint64_t kMustHaveNoticed = 10 * kSecond;
// A hang shorter than this need not be noticed.
constexpr uint64_t kNoticedHang = 3 * kSecond;
// The longest time from a disturbance until a worker that was given up because of it has exited.
constexpr uint64_t kAftermath = 20 * kSecond;

// The contacts of one incarnation with others, in order of time.
class Traffic {
 public:
  explicit Traffic(const Incarnation& incarnation) {
    for (const Record& record : incarnation.records) {
      if (record.kind != RecordKind::kCalled && record.kind != RecordKind::kExecuted) continue;
      if (record.value != 0 && record.value != incarnation.id) {
        moments_.push_back({record.time, record.value});
      }
    }
    std::sort(moments_.begin(), moments_.end());
  }
  // True if there was contact shortly before `time`; with any peer if `peer` is 0.
  bool before(uint64_t time, uint64_t peer) const {
    const uint64_t from = time - std::min(time, kInUse);
    auto moment = std::lower_bound(moments_.begin(), moments_.end(), Moment{from, 0});
    for (; moment != moments_.end() && moment->first <= time; ++moment) {
      if (peer == 0 || moment->second == peer) return true;
    }
    return false;
  }

 private:
  using Moment = std::pair<uint64_t, uint64_t>;  // time, peer
  std::vector<Moment> moments_;
};

// True if other workers than the victim may be declared dead because of this fault.
bool disturbs_others(FaultKind kind) {
  switch (kind) {
    case FaultKind::kKill:
    case FaultKind::kFailPoint:
    case FaultKind::kStop:
    case FaultKind::kStoreCut:
    case FaultKind::kFullDisk:
    case FaultKind::kLeave:
    case FaultKind::kProxyHang:    // one connection is cut, which causes no death
    case FaultKind::kThreadLimit:  // calls are refused, which causes no death
      return false;
    default:
      return true;
  }
}

class Judge {
 public:
  Judge(const std::vector<Incarnation>& incarnations, const std::vector<Injection>& injections,
        Findings& findings)
      : incarnations_(incarnations), injections_(injections), findings_(findings) {
    traffic_.reserve(incarnations.size());
    for (const Incarnation& incarnation : incarnations) traffic_.emplace_back(incarnation);
  }

  void judge() {
    for (const Injection& injection : injections_) {
      ++findings_.injected[static_cast<size_t>(injection.kind)];
      if (is_effective(injection)) ++findings_.effective[static_cast<size_t>(injection.kind)];
      measure(injection);
    }
    for (const Incarnation& incarnation : incarnations_) {
      if (incarnation.fenced && !had_a_reason(incarnation)) {
        ++findings_.false_deaths;
        findings_.violate(absl::StrCat("process ", incarnation.spawn,
                                       " was given up, and nothing was done to it"));
      }
    }
    std::sort(findings_.crash_ms.begin(), findings_.crash_ms.end());
    std::sort(findings_.hang_ms.begin(), findings_.hang_ms.end());
  }

 private:
  std::optional<size_t> place_of(uint32_t spawn) const {
    for (size_t i = 0; i < incarnations_.size(); ++i) {
      if (incarnations_[i].spawn == spawn) return i;
    }
    return std::nullopt;
  }

  bool is_effective(const Injection& injection) const {
    if (injection.effect != Injection::Effect::kByTraffic) {
      return injection.effect == Injection::Effect::kYes;
    }
    if (injection.kind == FaultKind::kFullDisk) return some_save_failed(injection.span);
    const std::optional<size_t> victim = place_of(injection.spawn);
    return victim && traffic_[*victim].before(injection.span.begin, 0);
  }

  bool some_save_failed(const Span& span) const {
    constexpr auto kFull = static_cast<uint16_t>(absl::StatusCode::kResourceExhausted);
    for (const Incarnation& incarnation : incarnations_) {
      for (const Record& record : incarnation.records) {
        if (record.kind == RecordKind::kSaved && record.code == kFull &&
            record.time >= span.begin && record.time <= span.end + kSecond) {
          return true;
        }
      }
    }
    return false;
  }

  // True if no other fault overlaps whose effect could mix with this one.
  bool is_clean(const Injection& injection, uint64_t window) const {
    for (const Injection& other : injections_) {
      if (&other == &injection) continue;
      if (other.span.begin < injection.span.begin + window &&
          other.span.end + kSecond > injection.span.begin) {
        return false;
      }
    }
    return true;
  }

  void measure(const Injection& injection) {
    const bool crash = injection.kind == FaultKind::kKill;
    const bool hang =
        (injection.kind == FaultKind::kStop || injection.kind == FaultKind::kIsolate) &&
        injection.span.end - injection.span.begin >= kNoticedHang;
    const std::optional<size_t> victim = place_of(injection.spawn);
    if ((!crash && !hang) || !victim || incarnations_[*victim].id == 0) return;
    const bool clean = is_clean(injection, crash ? kSecond / 2 : kNoticedHang);
    const uint64_t id = incarnations_[*victim].id, begin = injection.span.begin;
    for (size_t i = 0; i < incarnations_.size(); ++i) {
      const Incarnation& incarnation = incarnations_[i];
      if (i == *victim || incarnation.id == 0 || incarnation.joined + kSecond > begin) continue;
      if (incarnation.ended < begin + 4 * kSecond || !traffic_[i].before(begin, id)) continue;
      const std::optional<uint64_t> noticed = noticed_at(incarnation, id, begin);
      if (noticed && clean) {
        (crash ? findings_.crash_ms : findings_.hang_ms)
            .push_back(static_cast<double>(*noticed - begin) / 1e6);
      }
      const bool should = crash ? incarnation.ended > begin + kMustHaveNoticed : clean;
      if (!noticed && should && !already_gone(incarnation, id, begin)) {
        ++findings_.unnoticed;
        findings_.violate(absl::StrCat("process ", incarnation.spawn,
                                       " never noticed the end of process ", injection.spawn));
      }
    }
  }

  static std::optional<uint64_t> noticed_at(const Incarnation& incarnation, uint64_t id,
                                            uint64_t from) {
    for (const Record& record : incarnation.records) {
      if (record.kind == RecordKind::kDeath && record.token == id && record.time >= from) {
        return record.time;
      }
    }
    return std::nullopt;
  }
  static bool already_gone(const Incarnation& incarnation, uint64_t id, uint64_t before) {
    return std::any_of(
        incarnation.records.begin(), incarnation.records.end(), [&](const Record& record) {
          return record.kind == RecordKind::kDeath && record.token == id && record.time < before;
        });
  }

  bool had_a_reason(const Incarnation& incarnation) const {
    for (const Injection& injection : injections_) {
      if (injection.span.begin > incarnation.ended ||
          injection.span.end + kAftermath < incarnation.ended) {
        continue;
      }
      if (disturbs_others(injection.kind)) return true;
      const bool long_stop =
          injection.kind == FaultKind::kStop && injection.span.end - injection.span.begin > kSecond;
      if (injection.spawn == incarnation.spawn && long_stop) return true;
    }
    return false;
  }

  const std::vector<Incarnation>& incarnations_;
  const std::vector<Injection>& injections_;
  Findings& findings_;
  std::vector<Traffic> traffic_;  // parallel to incarnations_
};

}  // namespace

void judge_deaths(const std::vector<Incarnation>& incarnations,
                  const std::vector<Injection>& injections, Findings& findings) {
  Judge(incarnations, injections, findings).judge();
}

}  // namespace weft::chaos
