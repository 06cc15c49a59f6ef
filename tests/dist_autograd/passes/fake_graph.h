// A recorded forward over several workers with integer gradients, and one worker's part of its
// backward.
//
// It stands for LocalGraph and LibTorch's graph, and is so small that the exact gradients are
// known.
//
// Thread safety: none.
// Lifetime: the Program and `broken` outlive a FakeGraph.
#pragma once

#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "weft/dist_autograd/passes/pass_actions.h"

namespace weft::dist_autograd_internal {

// The work that a pass's strand holds for its local graph.
using LocalWork =
    std::variant<backward::FeedRoots, backward::Feed, backward::Discover, backward::CancelSends>;

using Random = std::mt19937_64;
inline uint64_t below(Random& random, uint64_t n) { return random() % n; }
inline bool chance(Random& random, unsigned percent) { return below(random, 100) < percent; }

struct IntGradients : GradientPayload {
  explicit IntGradients(std::vector<uint64_t> v) : values(std::move(v)) {}
  std::vector<uint64_t> values;  // one per present slot
};

// The values are made in order, so an input is always earlier than its user. Arithmetic wraps, so
// that sums over paths are exact whatever their size.
class Program {
 public:
  struct Input {
    int value = 0;
    uint64_t weight = 1;
    bool undefined = false;  // backward gives no gradient along this edge
  };
  struct Value {
    int worker = 0;
    std::vector<Input> inputs{};
    int transfer = -1;  // of a received value: its transfer; `slot` is its slot there
    uint32_t slot = 0;
  };
  struct Transfer {
    SendId id;
    int from = 0, to = 0;
    std::vector<int> sources{};  // values on `from`, one per slot
    std::vector<int> recvs{};    // values on `to`; none if the message never arrived
  };
  struct Root {
    int value = 0;
    uint64_t gradient = 1;
  };

  int leaf(int worker);
  int op(int worker, std::vector<Input> inputs);
  std::vector<int> send(int from, int to, std::vector<int> sources, bool arrives = true);

  // Makes a random program over `workers` workers: nested calls, diamonds and self-calls. At least
  // a fifth of its calls are unused, failed or cancelled.
  static Program random(Random& random, int workers);

  // The gradients of all leaves that these roots reach, by leaf.
  std::map<int, uint64_t> truth(const std::vector<Root>& from) const;
  std::map<int, uint64_t> truth() const { return truth(roots); }

  int initiator = 0;
  std::vector<Root> roots;
  std::vector<Value> values;
  std::vector<Transfer> transfers;
  uint64_t id_base = 0;  // keeps the send ids of several programs apart
};

WorkerId worker_id(int worker);

// Runs one pass on one worker. It checks I1, I2 and I3 while it runs; `broken` gets the first
// violation.
class FakeGraph {
 public:
  FakeGraph(const Program& program, int worker, const std::vector<SendId>& sources,
            std::string* broken);
  // The pass starts from these roots instead of the program's. The program may grow while the pass
  // runs.
  FakeGraph(const Program& program, int worker, std::vector<Program::Root> roots,
            const std::vector<SendId>& sources, std::string* broken);

  void feed_roots();
  void feed(const GradEntry& entry);
  void cancel(const SendId& send);
  std::vector<PeerSends> discover(bool from_roots, const std::vector<SendId>& sources);
  bool waiting() const;
  std::vector<PeerGradients> take_outputs();

  // Lets a node throw after so many more nodes. The rest of the action is lost.
  void fail_after(int nodes) { fail_after_ = nodes; }
  bool failed() const { return failed_; }
  bool ran_a_leaf() const { return !stage_.empty(); }
  const std::map<int, uint64_t>& stage() const { return stage_; }

 private:
  static constexpr size_t kMaxSources = 192;
  using Mask = std::bitset<kMaxSources>;
  struct Node {
    bool visited = false, walked = false, present = false, ran = false, resolved = false;
    int waits_for = 0;
    uint64_t gradient = 0;
    Mask reached_by;
  };
  struct Group {  // the received values of one transfer
    int unresolved = 0;
    bool walked = false, answered = false;
  };

  const Program::Transfer& transfer(const SendId& send) const;
  void visit(int value);
  void mark(int value, size_t source);
  void walk(int value, std::map<WorkerId, std::vector<SendId>>& found);
  void resolve_source(const SendId& send, bool fed);
  void give(int value, std::optional<uint64_t> gradient);
  void run_ready();
  void run(int value);
  void answer(int transfer);
  void violation(std::string what);

  const Program& program_;
  const int worker_;
  const std::vector<Program::Root> roots_;  // empty on workers other than the initiator
  std::string* const broken_;
  std::map<SendId, size_t> source_index_;  // index 0 stands for the roots
  Mask resolved_sources_;
  std::map<SendId, bool> resolved_;  // true: it was fed; false: it was cancelled
  std::vector<Node> nodes_;
  std::map<int, Group> groups_;
  std::vector<int> ready_;
  std::map<WorkerId, std::vector<GradEntry>> outputs_;
  std::map<int, uint64_t> stage_;
  int fail_after_ = -1;
  bool failed_ = false;
};

}  // namespace weft::dist_autograd_internal
