#include "weft/tests/chaos/plan.h"

#include <algorithm>
#include <array>

#include "weft/tests/chaos/dice.h"

namespace weft::chaos {
namespace {

using std::chrono::milliseconds;

// How long a victim may need to recover: death record, new incarnation, join.
constexpr milliseconds kRecovery{3000};

struct Names {
  std::string_view shown, option;  // no option: --only cannot name it
};

// By FaultKind.
constexpr std::array<Names, kFaultKinds> kNames = {{
    {"kill -9", "kill"},
    {"kill -9, stop, delay at a fail point", ""},
    {"SIGSTOP", "stop"},
    {"partition", "partition"},
    {"one-way cut", "one-way"},
    {"isolation", "isolate"},
    {"store cut off", "store-cut"},
    {"packet loss", "loss"},
    {"TCP reset", "reset"},
    {"proxy delays", "proxy-delay"},
    {"proxy truncates", "proxy-truncate"},
    {"hung stream", "hung-stream"},
    {"proxy flips bits", ""},
    {"full disk", "full-disk"},
    {"file descriptor limit", "file-limit"},
    {"memory limit", "memory-limit"},
    {"thread limit", "thread-limit"},
    {"leave and join", "leave"},
}};

// How often a kind is drawn compared with the others.
uint64_t weight_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::kKill:
      return 6;
    case FaultKind::kStop:
    case FaultKind::kPartition:
    case FaultKind::kReset:
      return 3;
    case FaultKind::kFailPoint:
      return 0;  // chosen when a process starts (fail_point_for)
    default:
      return 2;
  }
}

FaultKind draw_kind(Dice& dice, const std::vector<FaultKind>& kinds) {
  uint64_t total = 0;
  for (const FaultKind kind : kinds) total += weight_of(kind);
  uint64_t drawn = dice.between(1, std::max<uint64_t>(total, 1));
  for (const FaultKind kind : kinds) {
    if (drawn <= weight_of(kind)) return kind;
    drawn -= weight_of(kind);
  }
  return FaultKind::kKill;
}

bool needs_proxy(FaultKind kind) {
  return kind == FaultKind::kProxyDelay || kind == FaultKind::kProxyTruncate ||
         kind == FaultKind::kProxyHang || kind == FaultKind::kProxyFlip;
}

milliseconds draw_length(Dice& dice, FaultKind kind) {
  switch (kind) {
    case FaultKind::kStop:
      if (dice.one_in(3)) return milliseconds(200);
      if (dice.one_in(2)) return milliseconds(900);
      return milliseconds(dice.spread(200, 30'000));
    case FaultKind::kPartition:
    case FaultKind::kOneWay:
    case FaultKind::kIsolate:
    case FaultKind::kStoreCut:
      return milliseconds(dice.spread(300, 15'000));
    case FaultKind::kLoss:
    case FaultKind::kProxyDelay:
      return milliseconds(dice.spread(2000, 15'000));
    case FaultKind::kReset:
    case FaultKind::kProxyTruncate:
    case FaultKind::kProxyHang:
    case FaultKind::kProxyFlip:
      return milliseconds(dice.spread(100, 2000));
    case FaultKind::kFullDisk:
    case FaultKind::kFileLimit:
    case FaultKind::kMemoryLimit:
      return milliseconds(dice.spread(1000, 5000));
    case FaultKind::kThreadLimit:  // idle threads last for 10 s
      return milliseconds(dice.spread(5000, 20'000));
    case FaultKind::kKill:
    case FaultKind::kFailPoint:
    case FaultKind::kLeave:
      return milliseconds(0);
  }
  return milliseconds(0);
}

uint64_t draw_number(Dice& dice, FaultKind kind) {
  static const std::vector<uint64_t> losses = {1, 10, 50, 200};
  switch (kind) {
    case FaultKind::kLoss:
      return dice.among(losses);
    case FaultKind::kProxyDelay:
      return dice.spread(2, 500);
    case FaultKind::kFileLimit:
      return dice.between(0, 8);
    case FaultKind::kMemoryLimit:
      return dice.between(8, 128);
    case FaultKind::kThreadLimit:
      return dice.between(0, 2);
    default:
      return dice.between(1, 1'000'000);
  }
}

}  // namespace

std::string_view to_string(FaultKind kind) { return kNames[static_cast<size_t>(kind)].shown; }

std::optional<FaultKind> named_fault(std::string_view name) {
  for (size_t kind = 0; kind < kNames.size(); ++kind) {
    if (!name.empty() && kNames[kind].option == name) return static_cast<FaultKind>(kind);
  }
  return std::nullopt;
}

std::vector<std::string> fault_names() {
  std::vector<std::string> names;
  for (const Names& kind : kNames) {
    if (!kind.option.empty()) names.emplace_back(kind.option);
  }
  return names;
}

bool cuts_store(FaultKind kind) {
  return kind == FaultKind::kIsolate || kind == FaultKind::kStoreCut;
}

std::vector<Fault> make_plan(const PlanOptions& options) {
  Dice dice(options.seed);
  std::vector<Fault> plan;
  if (options.kinds.empty() || options.workers == 0) return plan;
  const milliseconds calm = std::min(options.length / 5, milliseconds(12'000));
  const milliseconds end = options.length - calm;
  std::vector<milliseconds> free_at(options.workers, milliseconds(0));
  milliseconds now{1000};
  while (true) {
    now += milliseconds(dice.between(300, 1500));
    if (now >= end) return plan;
    const FaultKind kind = draw_kind(dice, options.kinds);
    std::vector<size_t> able;
    for (size_t slot = 0; slot < options.workers; ++slot) {
      const bool proxied =
          std::find(options.proxied.begin(), options.proxied.end(), slot) != options.proxied.end();
      if (free_at[slot] <= now && (proxied || !needs_proxy(kind))) able.push_back(slot);
    }
    const auto busy =
        std::count_if(free_at.begin(), free_at.end(), [now](milliseconds at) { return at > now; });
    if (able.empty() || 2 * static_cast<size_t>(busy + 1) > options.workers) continue;
    Fault fault{kind, dice.among(able), now, std::min(draw_length(dice, kind), end - now), {}, 0};
    fault.number = draw_number(dice, kind);
    if (kind == FaultKind::kPartition || kind == FaultKind::kOneWay || kind == FaultKind::kReset) {
      for (size_t slot = 0; slot < options.workers; ++slot) {
        if (slot != fault.slot && dice.one_in(2)) fault.others.push_back(slot);
      }
      if (fault.others.empty()) fault.others.push_back((fault.slot + 1) % options.workers);
    }
    free_at[fault.slot] = now + fault.length + kRecovery;
    if (options.apart) now += fault.length + *options.apart;
    plan.push_back(std::move(fault));
  }
}

const std::vector<std::string>& fail_points() {
  static const std::vector<std::string> points = {
      // rpc: a message on its way out and in, what becomes of a peer, the group
      "agent.call.numbered",
      "agent.call.sent",
      "agent.cancel.numbered",
      "agent.post.numbered",
      "agent.reply.finished",
      "agent.reply.numbered",
      "agent.peer.ended",
      "agent.resend",
      "agent.frames.arrived",
      "agent.frames.accepted",
      "agent.frames.admitted",
      "runtime.call.packed",
      "runtime.creation.accepted",
      "runtime.function.begins",
      "runtime.function.ended",
      "join.published",
      "member.admitted",
      "death_record.appended",
      "death_record.one.told",
      // rref
      "rref.fork.next",
      "rref.forked",
      "rref.arrived",
      "rref.adopted",
      "rref.decided",
      "rref.value.next",
      "rref.release.next",
      // dist_autograd
      "autograd.decided",
      "autograd.arrived",
      "autograd.pass.engaged",
      "autograd.pass.merged",
      "autograd.context.dropped",
      // dist_optim
      "step.prepared",
      "step.committed",
      "step.one.told",
      "shard.prepared",
      "shard.commit.begins",
      "shard.commit.ended",
      "shard.caller.died",
      // checkpoints
      "checkpoint.shard.written",
      "checkpoint.manifest.next",
      "checkpoint.prune.next",
      "file.rename.next",
      "file.renamed",
  };
  return points;
}

std::optional<std::string> fail_point_for(uint64_t seed, uint64_t spawn) {
  Dice dice(seed * 0x9E3779B97F4A7C15ull + spawn);
  if (dice.one_in(3)) return std::nullopt;
  std::string text = dice.among(fail_points());
  text += ":" + std::to_string(dice.spread(1, 400)) + ":";
  switch (dice.between(0, 9)) {
    case 0:
      return text + "stop";
    case 1:
      return text + "delay" + std::to_string(dice.spread(1, 500));
    default:
      return text + "kill";
  }
}

}  // namespace weft::chaos
