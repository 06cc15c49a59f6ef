// Runs every file of tests/rref/scenarios on whole RRefDrivers with real agents over inproc.
//
// The commands are the same, and so is the log except for its order. If a driver cannot be made to
// do something, it is not in the log: a `core:` command in the file says so, and why. Events that
// cannot be seen from outside a driver are left out of the comparison (DriverScenario::visible).
// After each file everything is dropped, and nothing may be left.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "weft/tests/rref/driver_world.h"
#include "weft/tests/rref/scenario.h"
#include "weft/tests/rref/scenario_names.h"

namespace weft::rref_internal {
namespace {

using Words = std::vector<std::string>;
using Kind = DriverWorld::Kind;
using Packet = DriverWorld::Packet;
using Node = DriverWorld::Node;

// Thrown if a command uses a handle whose carrier is not confirmed yet. In a call such a handle
// does not exist yet (B5), but in a reply it does.
struct NeedsEarlyCarrier {
  uint64_t carrier;
};

// The meaning of `duplicate`. With kFrames, a frame comes twice and the session drops the copy.
// With kMessages, the sender sends the message again in a new frame, so the driver gets it twice.
enum class Repeats { kFrames, kMessages };

// Counts how often each worker of the file restarts. Its later incarnations are members from the
// start.
std::map<uint32_t, uint32_t> restarts_in(const std::string& path) {
  std::map<uint32_t, uint32_t> restarts;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("restart ")) ++restarts[ScenarioNames::index(line.substr(8))];
  }
  return restarts;
}

class DriverScenario : public ScenarioTarget, private ScenarioNames {
 public:
  DriverScenario(Repeats repeats, std::map<uint32_t, uint32_t> restarts, std::set<uint64_t> early)
      : repeats_(repeats), restarts_(std::move(restarts)), early_(std::move(early)) {}

  std::string_view kind() const override {
    return repeats_ == Repeats::kFrames ? "driver" : "repeating driver";
  }

  std::string execute(const Words& words) override {
    log_.clear();
    if (words[0] == "workers") {
      start(words);
    } else if (words[0] == "deliver" && words[1] == "all") {
      while (!world_->network().empty()) hand_over(0);
    } else if (words[0] == "deliver") {
      on_packet(words, [&](size_t p) { hand_over(p); });
    } else if (words[0] == "duplicate") {
      on_packet(words, [&](size_t p) {
        if (repeats_ == Repeats::kFrames) {
          world_->duplicate(p);
        } else {
          require(world_->repeat(p));
        }
      });
    } else if (words[0] == "withdraw") {
      on_packet(words, [&](size_t p) { require(world_->withdraw(p)); });
    } else if (words[0] == "discard") {
      on_packet(words, [&](size_t p) { world_->deliver(p, /*unread=*/true); });
    } else if (words[0] == "timeout") {
      on_packet(words, [&](size_t p) { require(world_->time_out(p)); });
    } else if (words[0] == "kill") {
      world_->kill(node(words[1]));
    } else if (words[0] == "restart") {
      world_->restart(index(words[1]));
    } else if (words[0] == "network") {
      for (const Packet& packet : world_->network()) line(describe(packet));
    } else if (words[0] == "expect") {
      expect(words);
    } else if (words[0][0] == 'w') {
      at_worker(node(words[0]), words);
    } else {
      return "error: unknown command\n";
    }
    world_->settle();
    return std::exchange(log_, "");
  }

  bool accepts(const std::string& expected, const std::string& log) override {
    return sorted_visible(expected) == sorted_visible(log);
  }

  // Drops everything and returns what is left.
  std::string finish() {
    if (world_ == nullptr) return "no workers\n";
    for (Node* dead : world_->killed()) {
      for (Node* node : world_->live()) world_->announce_death(*node, dead->id);
    }
    do {
      while (!world_->network().empty()) world_->deliver(0);
      for (Node* node : world_->live()) {
        while (!node->slots.empty()) {
          world_->finish(*node, node->slots.begin()->first, absl::OkStatus());
        }
        node->watched.clear();
        node->handles.clear();
      }
      world_->settle();
    } while (!world_->network().empty());
    log_.clear();
    for (Node* node : world_->live()) {
      const OwnershipGauges g = node->driver->gauges();
      const uint64_t left = g.owners + g.forks + g.users + g.pending_users + g.pending_children +
                            g.tombstones + g.parked_fetches + g.parked_forks;
      if (left != 0 || !node->driver->drained()) {
        line(absl::StrCat(name(node->id), " keeps: owners ", g.owners, ", forks ", g.forks,
                          ", users ", g.users, ", pending ", g.pending_users, ", children ",
                          g.pending_children, ", tombstones ", g.tombstones, ", fetches ",
                          g.parked_fetches, ", parked ", g.parked_forks));
        for (const Leak& leak : node->driver->leaks()) line(rename(leak.to_string()));
      }
      if (const size_t calls = node->agent->info().pending_calls; calls != 0) {
        line(absl::StrCat(name(node->id), " waits for ", calls, " calls"));
      }
    }
    if (world_->values() != 0) line(absl::StrCat(world_->values(), " values are alive"));
    return log_;
  }

 private:
  class World final : public DriverWorld {
   public:
    World(DriverScenario& target, size_t workers, OwnershipLimits limits)
        : DriverWorld(workers, limits, target.restarts_, target.early_), target_(target) {
      start_all();
    }

   private:
    void on_event(const Happened& happened) override { target_.happened(happened); }
    DriverScenario& target_;
  };

  void start(const Words& words) {
    set_workers(std::stoul(words[1]));
    OwnershipLimits limits;
    for (size_t i = 2; i + 1 < words.size(); i += 2) {
      if (words[i] == "parked") limits.parked_per_worker = std::stoul(words[i + 1]);
      if (words[i] == "tombstones") limits.tombstones_per_creator = std::stoul(words[i + 1]);
    }
    world_ = std::make_unique<World>(*this, std::stoul(words[1]), limits);
  }

  void at_worker(Node& at, const Words& words) {
    const std::string& verb = words[1];
    if (at.killed) {
      log_ = "error: it is dead\n";
    } else if (verb == "own") {
      auto made = world_->own(at);
      if (!made.ok()) return refused(made.status());
      set(words[3], made->rref);
    } else if (verb == "remote") {
      auto made = world_->remote(at, node(words[2]).id);
      if (!made.ok()) return refused(made.status());
      set(words[4], made->rref);
      name(made->fork);
    } else if (verb == "finish") {
      std::vector<RRefHandlePtr> holding;
      if (words.size() > 4) holding.push_back(handle(at, words[4]));
      world_->finish(at, rref(words[2]), absl::OkStatus(), std::move(holding));
    } else if (verb == "fail") {
      world_->finish(at, rref(words[2]), absl::UnknownError("the function threw"));
    } else if (verb == "send" || verb == "reply") {
      std::vector<RRefHandlePtr> handles;
      for (const std::string& each : split(words[2])) handles.push_back(handle(at, each));
      const auto sent = world_->send(at, handles, node(words[4]), verb == "reply");
      if (!sent.ok()) return refused(sent.status());
      for (const Reference& each : *sent) name(each.fork);
    } else if (verb == "drop") {
      const RRefHandlePtr dropped = handle(at, words[2]);
      let_go(at, dropped);
      world_->drop(at, dropped);
    } else if (verb == "fetch") {
      world_->fetch(at, rref(words[2]), node(words[4]).id);
    } else if (verb == "hears") {
      WorkerId dead = node(words[2]).id;
      if (words.size() > 4) dead.incarnation = std::stoul(words[4]);
      world_->announce_death(at, dead);
    } else if (verb == "shutdown") {
      for (const RRefHandlePtr& each : at.handles) let_go(at, each);
      world_->begin_shutdown(at);
    } else if (verb == "close") {
      world_->close(at);
    } else if (verb == "leaks") {
      for (const Leak& leak : at.driver->leaks()) line(rename(leak.to_string()));
    } else {
      log_ = "error: unknown verb\n";
    }
  }

  void expect(const Words& words) {
    Node& at = node(words[2]);
    std::string found;
    if (words[1] == "confirmed") {
      const auto held = std::find_if(at.handles.begin(), at.handles.end(), [&](const auto& each) {
        return each->rref() == rref(words[3]);
      });
      found = held != at.handles.end() && at.driver->confirmed((*held)->handle()) ? "yes" : "no";
    } else if (words[1] == "holds") {
      size_t count = 0;
      for (const RRefHandlePtr& each : at.handles) count += each->rref() == rref(words[3]);
      // A call that has not started holds the references that it will be given.
      for (const auto& [carrier, handles] : at.waiting) {
        for (const auto& each : handles) count += each.handle.rref == rref(words[3]);
      }
      found = std::to_string(count);
    } else if (words[1] == "drained") {
      found = at.driver->drained() ? "yes" : "no";
    } else {
      found = std::to_string(ScenarioNames::gauge(at.driver->gauges(), words[1]));
    }
    if (found != words.back()) {
      log_ = "WRONG: " + words[1] + " of " + words[2] + " is " + found + "\n";
    }
  }

  void on_packet(const Words& words, const std::function<void(size_t)>& act) {
    const Words pair = absl::StrSplit(words[1], "->");
    size_t skip = words.size() > 2 ? std::stoul(words[2]) - 1 : 0;
    for (size_t i = 0; i < world_->network().size(); ++i) {
      const Packet& packet = world_->network()[i];
      if (packet.from.index != index(pair[0]) || packet.to.index != index(pair[1])) continue;
      if (skip-- == 0) return act(i);
    }
    log_ = "error: no such packet\n";
  }
  void require(bool possible) {
    if (!possible) log_ = "error: not with such a packet\n";
  }

  void hand_over(size_t position) {
    line("[" + describe(world_->network()[position]) + "]");
    world_->deliver(position);
  }

  // Writes an event of the DriverWorld in the words of the core's log.
  void happened(const DriverWorld::Happened& it) {
    using What = DriverWorld::Happened::What;
    const std::string who = name(it.at);
    switch (it.what) {
      case What::kSent:
        return line(who + " -> " + name(it.packet->to) + " " +
                    rename(to_string(*it.packet->message)));
      case What::kConfirmed:
        return line(who + " confirmed " + name(it.handle));
      case What::kLost:
        return line(who + " loses " + name(it.handle) + ": " + text(it.status));
      case What::kStarts:
        // Its references are dropped with it, before a test can ask what became of each.
        for (const Handle& each : it.handles) {
          if (!it.status.ok()) unseen_.insert(who + " loses " + name(each));
        }
        return line(who + (it.status.ok() ? " may start" : " must not start: " + text(it.status)));
      case What::kRuns:
        return line(who + " runs the function of " + name(it.handle.rref));
      case What::kRepeated:
        return line(who + " has already accepted " + name(it.handle.rref));
      case What::kRefuses:
        return line(who + " refuses to create " + name(it.handle.rref));
      case What::kGives:
        return line(who + (it.status.ok() ? " gives " : " cannot give ") + name(it.handle.rref) +
                    (it.status.ok() ? "" : ": " + text(it.status)));
      case What::kFrees:
        return line(who + " frees " + name(it.handle.rref));
    }
  }

  std::string describe(const Packet& packet) {
    std::string what;
    switch (packet.kind) {
      case Kind::kControl:
        what = rename(to_string(*packet.message));
        break;
      case Kind::kCreation:
        what = "creation of " + name(packet.rref) + " " + name(packet.fork);
        break;
      case Kind::kCreationRefused:
        what = "creation refused";
        break;
      case Kind::kCarrier:
      case Kind::kReply:
        what = packet.kind == Kind::kReply ? "reply with" : "call with";
        for (const Reference& r : packet.references)
          what += " " + name(r.rref) + " " + name(r.fork);
        break;
      case Kind::kFetch:
        what = "fetch " + name(packet.rref);
        break;
      case Kind::kValue:
        what = "value of " + name(packet.rref) +
               (packet.status.ok() ? "" : ": " + text(packet.status));
        break;
    }
    return name(packet.from) + " => " + name(packet.to) + " " + what;
  }

  // These cannot be seen from outside: the end of a value that never existed, and what becomes of a
  // reference that its program has dropped or never got.
  bool visible(const std::string& line) const {
    for (const std::string& unseen : unseen_) {
      if (line == unseen || line.starts_with(unseen + ":")) return false;
    }
    const Words words = absl::StrSplit(line, ' ');
    return words.size() != 3 || words[1] != "frees" || world_->had_value(rref(words[2]));
  }
  std::multiset<std::string> sorted_visible(const std::string& log) const {
    std::multiset<std::string> lines;
    for (const std::string& line : Words(absl::StrSplit(log, '\n', absl::SkipEmpty()))) {
      if (visible(line)) lines.insert(line);
    }
    return lines;
  }

  void let_go(Node& at, const RRefHandlePtr& handle) {
    if (at.driver->confirmed(handle->handle())) return;
    unseen_.insert(name(at.id) + " confirmed " + name(handle->handle()));
    for (const auto& [carrier, watched] : at.early) {
      for (const auto& each : watched) {
        if (each.handle != handle->handle()) continue;
        unseen_.insert(name(at.id) + " may start");
        unseen_.insert(name(at.id) + " must not start");
      }
    }
  }
  RRefHandlePtr handle(Node& at, const std::string& name) {
    for (const RRefHandlePtr& each : at.handles) {
      if (each->rref() == rref(name)) return each;
    }
    for (const auto& [carrier, handles] : at.waiting) {
      for (const auto& each : handles) {
        if (each.handle.rref == rref(name)) throw NeedsEarlyCarrier{carrier};
      }
    }
    ADD_FAILURE() << ScenarioNames::name(at.id) << " has no " << name;
    return nullptr;
  }
  Node& node(const std::string& worker) { return world_->node(index(worker)); }

  void refused(const absl::Status& status) { line("refused: " + text(status)); }
  // The driver adds the worker's name to the core's text; this removes it again.
  std::string text(const absl::Status& status) const {
    std::string text = ScenarioNames::text(status);
    for (uint32_t i = 1; i <= 9; ++i) {
      absl::StrReplaceAll({{absl::StrCat(" (worker 'w", i, "')"), ""}}, &text);
    }
    return text;
  }
  void line(std::string text) {
    while (text.ends_with(' ')) text.pop_back();
    log_ += text + "\n";
  }

  const Repeats repeats_;
  const std::map<uint32_t, uint32_t> restarts_;
  const std::set<uint64_t> early_;
  std::string log_;
  std::set<std::string> unseen_;
  std::unique_ptr<World> world_;
};

std::string folder() { return std::string(WEFT_SOURCE_DIR) + "/tests/rref/scenarios"; }

std::vector<std::string> files_with(const std::string& command) {
  std::vector<std::string> files;
  for (const std::string& file : scenario_files(folder())) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
      if (!line.starts_with(command)) continue;
      files.push_back(file);
      break;
    }
  }
  return files;
}

std::string stem_of(const ::testing::TestParamInfo<std::string>& info) {
  return std::filesystem::path(info.param).stem().string();
}

void play(const std::string& file, Repeats repeats) {
  std::set<uint64_t> early;
  while (true) {
    DriverScenario target(repeats, restarts_in(file), early);
    try {
      EXPECT_EQ(run_scenario(file, target), "");
      EXPECT_EQ(target.finish(), "");
      return;
    } catch (const NeedsEarlyCarrier& needs) {
      ASSERT_TRUE(early.insert(needs.carrier).second);
    }
  }
}

class DriverScenarioTest : public ::testing::TestWithParam<std::string> {};

TEST_P(DriverScenarioTest, GoesAsOnTheCoreAndLeavesNothing) { play(GetParam(), Repeats::kFrames); }

INSTANTIATE_TEST_SUITE_P(Files, DriverScenarioTest, ::testing::ValuesIn(scenario_files(folder())),
                         stem_of);

// G4, without the session's help.
class RepeatingDriverScenarioTest : public ::testing::TestWithParam<std::string> {};

TEST_P(RepeatingDriverScenarioTest, GoesAsOnTheCoreAndLeavesNothing) {
  play(GetParam(), Repeats::kMessages);
}

INSTANTIATE_TEST_SUITE_P(Files, RepeatingDriverScenarioTest,
                         ::testing::ValuesIn(files_with("duplicate ")), stem_of);

}  // namespace
}  // namespace weft::rref_internal
