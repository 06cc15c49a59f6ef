// Runs every file of tests/rref/scenarios on the bare cores. The file controls the network.

#include <algorithm>
#include <filesystem>
#include <functional>
#include <variant>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "weft/base/overloaded.h"
#include "weft/tests/rref/core_world.h"
#include "weft/tests/rref/scenario.h"
#include "weft/tests/rref/scenario_names.h"

namespace weft::rref_internal {
namespace {

using Words = std::vector<std::string>;

class CoreScenario : public CoreWorld, public ScenarioTarget, private ScenarioNames {
 public:
  std::string_view kind() const override { return "core"; }

  std::string execute(const Words& words) override {
    log_.clear();
    if (words[0] == "workers") {
      set_workers(std::stoul(words[1]));
      OwnershipLimits limits;
      for (size_t i = 2; i + 1 < words.size(); i += 2) {
        if (words[i] == "parked") limits.parked_per_worker = std::stoul(words[i + 1]);
        if (words[i] == "tombstones") limits.tombstones_per_creator = std::stoul(words[i + 1]);
      }
      for (uint32_t i = 1; i <= std::stoul(words[1]); ++i) add_worker(i, limits);
    } else if (words[0] == "deliver" && words[1] == "all") {
      while (!network().empty()) hand_over(0);
    } else if (words[0] == "deliver") {
      on_packet(words, 1, [&](size_t p) { hand_over(p); });
    } else if (words[0] == "duplicate") {
      on_packet(words, 1, [&](size_t p) { duplicate(p); });
    } else if (words[0] == "withdraw") {
      on_packet(words, 1, [&](size_t p) { withdraw(p); });
    } else if (words[0] == "discard") {
      on_packet(words, 1, [&](size_t p) { discard(p); });
    } else if (words[0] == "timeout") {
      on_packet(words, 1, [&](size_t p) { time_out(p); });
    } else if (words[0] == "kill") {
      kill(index(words[1]));
    } else if (words[0] == "restart") {
      restart(index(words[1]));
    } else if (words[0] == "network") {
      for (const Packet& packet : network()) line(describe(packet));
    } else if (words[0] == "expect") {
      expect(words);
    } else if (words[0][0] == 'w') {
      at_worker(index(words[0]), words);
    } else {
      return "error: unknown command\n";
    }
    return log_;
  }

 private:
  void at_worker(uint32_t at, const Words& words) {
    const std::string& verb = words[1];
    if (worker(at).core == nullptr) {
      log_ = "error: it is dead\n";
      return;
    }
    if (verb == "own") {  // w1 own -> r1
      auto handle = own(at, kType);
      if (!handle.ok()) return refused(handle.status());
      set(words[3], handle->rref);
    } else if (verb == "remote") {  // w1 remote w2 -> r1
      auto handle = remote(at, index(words[2]), kType);
      if (!handle.ok()) return refused(handle.status());
      set(words[4], handle->rref);
      name(handle->fork);
    } else if (verb == "finish") {  // w2 finish r1 [holding r2]
      std::vector<Handle> holding;
      if (words.size() > 4) holding.push_back(handle(at, words[4]));
      finish(at, ScenarioNames::rref(words[2]), absl::OkStatus(), holding);
    } else if (verb == "fail") {
      finish(at, ScenarioNames::rref(words[2]), absl::UnknownError("the function threw"));
    } else if (verb == "send" || verb == "reply") {  // w1 send r1,r2 to w3
      std::vector<Handle> handles;
      for (const std::string& r : split(words[2])) handles.push_back(handle(at, r));
      const absl::Status status = send(at, handles, index(words[4]), verb == "reply");
      if (!status.ok()) return refused(status);
      for (const Reference& r : std::get<Carrier>(network().back().body).references) name(r.fork);
    } else if (verb == "drop") {
      drop(at, handle(at, words[2]));
    } else if (verb == "fetch") {  // w1 fetch r1 from w2
      (void)fetch(at, handle(at, words[2]), worker(index(words[4])).id);
    } else if (verb == "hears") {  // w1 hears w2 died [1]: an incarnation
      WorkerId dead = worker(index(words[2])).id;
      if (words.size() > 4) dead.incarnation = std::stoul(words[4]);
      announce_death(at, dead);
    } else if (verb == "shutdown") {
      begin_shutdown(at);
    } else if (verb == "close") {
      close(at);
    } else if (verb == "leaks") {
      for (const Leak& leak : worker(at).core->leaks()) line(rename(leak.to_string()));
    } else {
      log_ = "error: unknown verb\n";
    }
  }

  // expect owners w2 0 | expect confirmed w1 r1 yes | expect holds w1 r1 2
  void expect(const Words& words) {
    Worker& at = worker(index(words[2]));
    std::string found;
    if (words[1] == "confirmed") {
      found = at.core->confirmed(handle(at.id.index, words[3])) ? "yes" : "no";
    } else if (words[1] == "holds") {
      found = std::to_string(std::count_if(
          at.handles.begin(), at.handles.end(),
          [&](const Handle& handle) { return handle.rref == ScenarioNames::rref(words[3]); }));
    } else if (words[1] == "drained") {
      found = at.core->drained() ? "yes" : "no";
    } else {
      found = std::to_string(ScenarioNames::gauge(at.core->gauges(), words[1]));
    }
    if (found != words.back()) {
      log_ = "WRONG: " + words[1] + " of " + words[2] + " is " + found + "\n";
    }
  }

  // deliver w1->w2 [2]: the first, or the n-th, packet in flight between the two.
  void on_packet(const Words& words, size_t first, const std::function<void(size_t)>& act) {
    const std::string& pair = words[first];
    const size_t arrow = pair.find("->");
    const uint32_t from = index(pair.substr(0, arrow));
    const uint32_t to = index(pair.substr(arrow + 2));
    size_t skip = words.size() > first + 1 ? std::stoul(words[first + 1]) - 1 : 0;
    for (size_t i = 0; i < network().size(); ++i) {
      if (network()[i].from.index != from || network()[i].to.index != to) continue;
      if (skip-- == 0) return act(i);
    }
    log_ = "error: no such packet\n";
  }

  void hand_over(size_t position) {
    const Packet& packet = network()[position];
    line("[" + describe(packet) + "]");
    if (const auto* refused = std::get_if<CreationRefused>(&packet.body)) name(refused->fork);
    deliver(position);
  }

  void on_action(Worker& at, const Action& action) override {
    const std::string who = name(at.id);
    std::visit(
        Overloaded{
            [&](const Send& send) {
              line(who + " -> " + name(send.to) + " " + rename(to_string(send.message)));
            },
            [&](const Free& free) { line(who + " frees " + name(free.rref)); },
            [&](const Confirmed& confirmed) { line(who + " confirmed " + name(confirmed.handle)); },
            [&](const AllConfirmed& all) {
              line(who + (all.status.ok() ? " may start" : " must not start: " + text(all.status)));
            },
            [&](const Lost& lost) {
              line(who + " loses " + name(lost.handle) + ": " + text(lost.status));
            },
            [&](const FetchReady& ready) { line(who + " gives " + name(ready.rref)); },
            [&](const FetchFailed& failed) {
              line(who + " cannot give " + name(failed.rref) + ": " + text(failed.status));
            },
        },
        action);
  }

  void on_accept(Worker& at, const CreationCall& call, Acceptance result) override {
    const char* what = result == Acceptance::kRun         ? " runs the function of "
                       : result == Acceptance::kDuplicate ? " has already accepted "
                                                          : " refuses to create ";
    line(name(at.id) + what + name(call.rref));
  }

  void on_receive(Worker& at, WaiterId, const Carrier&,
                  const std::vector<Received>& results) override {
    for (const Received& result : results) {
      if (result.status.ok()) continue;
      line(name(at.id) + " gets no " + name(result.handle.rref) + ": " + text(result.status));
    }
  }

  std::string describe(const Packet& packet) {
    std::string what;
    if (const auto* message = std::get_if<Message>(&packet.body)) {
      what = rename(to_string(*message));
    } else if (const auto* call = std::get_if<CreationCall>(&packet.body)) {
      what = "creation of " + name(call->rref) + " " + name(call->fork);
    } else if (std::holds_alternative<CreationRefused>(packet.body)) {
      what = "creation refused";
    } else if (const auto* carrier = std::get_if<Carrier>(&packet.body)) {
      what = carrier->reply ? "reply with" : "call with";
      for (const Reference& r : carrier->references) {
        what += " " + name(r.rref) + " " + name(r.fork);
      }
    } else if (const auto* fetch = std::get_if<Fetch>(&packet.body)) {
      what = "fetch " + name(fetch->rref);
    } else if (const auto* reply = std::get_if<FetchReply>(&packet.body)) {
      what =
          "value of " + name(reply->rref) + (reply->status.ok() ? "" : ": " + text(reply->status));
    }
    return name(packet.from) + " => " + name(packet.to) + " " + what;
  }

  Handle handle(uint32_t at, const std::string& rref) {
    for (const Handle& handle : worker(at).handles) {
      if (handle.rref == ScenarioNames::rref(rref)) return handle;
    }
    return Handle{ScenarioNames::rref(rref), ForkId()};
  }

  void refused(const absl::Status& status) { line("refused: " + text(status)); }
  void line(std::string text) {
    while (text.ends_with(' ')) text.pop_back();
    log_ += text + "\n";
  }

  const TypeTag kType{7, "tensor"};
  std::string log_;
};

std::string folder() { return std::string(WEFT_SOURCE_DIR) + "/tests/rref/scenarios"; }

class OwnershipScenario : public testing::TestWithParam<std::string> {};

TEST_P(OwnershipScenario, GivesExactlyItsLog) {
  CoreScenario target;
  EXPECT_EQ(run_scenario(GetParam(), target), "");
}

INSTANTIATE_TEST_SUITE_P(Files, OwnershipScenario, testing::ValuesIn(scenario_files(folder())),
                         [](const auto& info) {
                           return std::filesystem::path(info.param).stem().string();
                         });

TEST(ScenarioFormat, PrintsBackWhatItReads) {
  const std::string text = "# why\na b\n----\nlog\n---- driver\n\nc\n---- driver\nother log\n";
  EXPECT_EQ(print_scenario(parse_scenario(text)), text);
}

}  // namespace
}  // namespace weft::rref_internal
