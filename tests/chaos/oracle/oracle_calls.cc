#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "weft/tests/chaos/oracle/oracle_parts.h"

namespace weft::chaos {
namespace {

struct Token {
  const Incarnation* caller = nullptr;
  uint64_t called = 0;
  uint64_t whom = 0;
  uint64_t told_at = 0;
  uint32_t allowed_ms = 0;
  uint32_t told = 0;      // how often
  uint32_t executed = 0;  // how often
  uint32_t ran = 2;
  Flavour flavour = Flavour::kCall;
  bool ok = false;
};
using Tokens = absl::flat_hash_map<uint64_t, Token>;

Tokens gather(const std::vector<Incarnation>& incarnations, Findings& findings) {
  Tokens tokens;
  for (const Incarnation& incarnation : incarnations) {
    for (const Record& record : incarnation.records) {
      if (record.kind == RecordKind::kCalled) {
        Token& token = tokens[record.token];
        token.caller = &incarnation;
        token.called = record.time;
        token.whom = record.value;
        token.allowed_ms = record.detail;
        token.flavour = static_cast<Flavour>(record.code);
      } else if (record.kind == RecordKind::kTold) {
        Token& token = tokens[record.token];
        ++token.told;
        token.told_at = record.time;
        token.ran = record.detail;
        token.ok = record.code == 0;
      } else if (record.kind == RecordKind::kExecuted) {
        ++tokens[record.token].executed;
      } else if (record.kind == RecordKind::kBroken) {
        ++findings.broken;
        findings.violate(absl::StrCat("promise ", record.code, " (ledger.h, Broken) was broken in ",
                                      absl::Hex(record.token), " at process ", incarnation.spawn));
      }
    }
  }
  return tokens;
}

// Returns for how long between `begin` and `end` the process was stopped.
uint64_t stopped_between(const Incarnation& incarnation, uint64_t begin, uint64_t end) {
  uint64_t total = 0;
  for (const Span& span : incarnation.stopped) {
    const uint64_t from = std::max(begin, span.begin);
    const uint64_t until = std::min(end, span.end);
    if (until > from) total += until - from;
  }
  return total;
}

void judge_time(uint64_t number, const Token& token, const OracleOptions& options,
                Findings& findings) {
  const Incarnation& incarnation = *token.caller;
  const uint64_t until = token.told > 0 ? token.told_at : incarnation.ended;
  const uint64_t waited = until > token.called ? until - token.called : 0;
  const uint64_t used =
      waited - std::min(waited, stopped_between(incarnation, token.called, until));
  if (token.told > 0) {
    findings.longest = std::max(findings.longest, std::chrono::nanoseconds(used));
  }
  const uint64_t limit =
      uint64_t{token.allowed_ms} * 1'000'000 + static_cast<uint64_t>(options.slack.count());
  const bool never = token.told == 0 && incarnation.end == Incarnation::End::kInOrder;
  if (used <= limit && !never) return;
  ++findings.hanging;
  findings.violate(absl::StrCat("call ", absl::Hex(number), " of process ", incarnation.spawn,
                                " was ", token.told > 0 ? "told after " : "open for ",
                                used / 1'000'000, " ms, it was given ", token.allowed_ms, " ms"));
}

void judge_truth(uint64_t number, const Token& token, Findings& findings) {
  if (token.executed > 1) {
    ++findings.twice;
    findings.violate(absl::StrCat(absl::Hex(number), " was executed ", token.executed, " times"));
  }
  const bool said_no = token.told > 0 && !token.ok && token.ran == 0;
  const bool said_yes = token.told > 0 && (token.ok || token.ran == 1);
  std::string what;
  if (token.caller == nullptr) {
    what = token.told > 0 ? "was told and never called" : "was executed and never called";
  } else if (token.told > 1) {
    what = absl::StrCat("was told ", token.told, " times");
  } else if (said_no && token.executed > 0) {
    what = "was executed, and its caller told that it was not";
  } else if (token.flavour == Flavour::kCall && said_yes && token.executed == 0) {
    what = "was not executed, and its caller told that it was";
  }
  if (what.empty()) return;
  ++findings.wrong_told;
  findings.violate(absl::StrCat(absl::Hex(number), " ", what));
}

// A server's counter must hold each step that trainers were told was applied. It must hold none
// that was refused. Of the other steps it may hold any number.
void judge_counters(const std::vector<Incarnation>& incarnations, const Tokens& tokens,
                    Findings& findings) {
  struct Steps {
    uint64_t applied = 0, unknown = 0;
  };
  absl::flat_hash_map<uint64_t, Steps> steps;  // by the server's id
  for (const auto& [number, token] : tokens) {
    if (token.flavour != Flavour::kStep || token.caller == nullptr) continue;
    Steps& of = steps[token.whom];
    if (token.told > 0 && token.ok) {
      ++of.applied;
    } else if (token.told == 0 || token.ran != 0) {
      ++of.unknown;
    }
  }
  for (const Incarnation& incarnation : incarnations) {
    for (const Record& record : incarnation.records) {
      if (record.kind != RecordKind::kGauge ||
          record.code != static_cast<uint16_t>(Gauge::kCounter)) {
        continue;
      }
      const Steps of = steps[incarnation.id];
      if (record.value >= of.applied && record.value <= of.applied + of.unknown) continue;
      ++findings.counters;
      findings.violate(absl::StrCat("the counter of process ", incarnation.spawn, " is ",
                                    record.value, "; its trainers were told of ", of.applied,
                                    " steps, and of ", of.unknown, " that may have been applied"));
    }
  }
}

}  // namespace

void judge_calls(const std::vector<Incarnation>& incarnations, const OracleOptions& options,
                 Findings& findings) {
  const Tokens tokens = gather(incarnations, findings);
  for (const auto& [number, token] : tokens) {
    if (token.caller != nullptr) {
      ++findings.calls;
      if (token.told > 0) ++(token.ok ? findings.ok : findings.failed);
      judge_time(number, token, options, findings);
    }
    judge_truth(number, token, findings);
  }
  judge_counters(incarnations, tokens, findings);
}

}  // namespace weft::chaos
