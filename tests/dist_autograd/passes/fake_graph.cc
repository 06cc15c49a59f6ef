#include "weft/tests/dist_autograd/passes/fake_graph.h"

#include <algorithm>
#include <utility>

namespace weft::dist_autograd_internal {

WorkerId worker_id(int worker) { return {static_cast<uint32_t>(worker), 1}; }

// ---- Program

int Program::leaf(int worker) {
  values.push_back({.worker = worker});
  return static_cast<int>(values.size()) - 1;
}

int Program::op(int worker, std::vector<Input> inputs) {
  values.push_back({.worker = worker, .inputs = std::move(inputs)});
  return static_cast<int>(values.size()) - 1;
}

std::vector<int> Program::send(int from, int to, std::vector<int> sources, bool arrives) {
  Transfer transfer{.id = {worker_id(from), id_base + transfers.size() + 1},
                    .from = from,
                    .to = to,
                    .sources = std::move(sources)};
  for (uint32_t slot = 0; arrives && slot < transfer.sources.size(); ++slot) {
    transfer.recvs.push_back(static_cast<int>(values.size()));
    values.push_back({.worker = to, .transfer = static_cast<int>(transfers.size()), .slot = slot});
  }
  transfers.push_back(std::move(transfer));
  return transfers.back().recvs;
}

namespace {

struct Generator {
  Random& random;
  Program& program;
  int workers;
  std::vector<std::vector<int>> usable;  // by worker: values that later work may use

  std::vector<int> pick(const std::vector<int>& from, size_t most) {
    std::vector<int> picked;
    const size_t count = 1 + below(random, most);
    for (size_t i = 0; i < count; ++i) {
      // Late values are chosen more often, so that graphs get deep.
      const size_t reach = std::min<size_t>(from.size(), 5);
      const bool late = chance(random, 70);
      picked.push_back(late ? from[from.size() - 1 - below(random, reach)]
                            : from[below(random, from.size())]);
    }
    return picked;
  }

  int op(int worker, const std::vector<int>& candidates) {
    std::vector<Program::Input> inputs;
    for (int value : pick(candidates, 3)) {
      inputs.push_back({value, 1 + below(random, 1000), chance(random, 6)});
    }
    return program.op(worker, std::move(inputs));
  }

  // Returns the values that the caller got back, or nothing if the call failed.
  std::vector<int> call(int from, int depth) {
    const int to = chance(random, 12) ? from : static_cast<int>(below(random, workers));
    const std::vector<int> arguments = pick(usable[from], 3);
    const unsigned fate = below(random, 100);
    if (fate < 8) {  // it failed before it arrived
      program.send(from, to, arguments, false);
      return {};
    }
    std::vector<int> received = program.send(from, to, arguments);
    std::vector<int> local = usable[to];
    local.insert(local.end(), received.begin(), received.end());
    std::vector<int> made;
    for (size_t i = 0, n = 1 + below(random, 2); i < n; ++i) {
      made.push_back(op(to, local));
      local.push_back(made.back());
    }
    if (chance(random, 25)) usable[to].push_back(made.back());  // its function keeps it
    if (depth < 4 && chance(random, 40)) {
      const std::vector<int> kept = std::exchange(usable[to], local);
      const std::vector<int> inner = call(to, depth + 1);
      usable[to] = kept;
      made.insert(made.end(), inner.begin(), inner.end());
    }
    if (fate < 14) return {};                                                     // it threw
    std::vector<int> result = program.send(to, from, pick(made, 2), fate >= 18);  // reply lost
    if (fate >= 18 && fate < 32) return {};  // nobody uses the result
    return result;
  }
};

}  // namespace

Program Program::random(Random& random, int workers) {
  Program program;
  program.initiator = static_cast<int>(below(random, workers));
  Generator generator{random, program, workers, std::vector<std::vector<int>>(workers)};
  for (int worker = 0; worker < workers; ++worker) {
    for (size_t i = 0, n = 1 + below(random, 2); i < n; ++i) {
      generator.usable[worker].push_back(program.leaf(worker));
    }
  }
  const int home = program.initiator;
  std::vector<int>& mine = generator.usable[home];
  for (size_t i = 0, n = 2 + below(random, 7); i < n; ++i) {
    if (chance(random, 40)) {
      mine.push_back(generator.op(home, mine));
    } else {
      const std::vector<int> result = generator.call(home, 1);
      mine.insert(mine.end(), result.begin(), result.end());
    }
  }
  const int loss = generator.op(home, mine);
  program.roots.push_back({loss, 1 + below(random, 9)});
  if (chance(random, 20)) program.roots.push_back({mine[below(random, mine.size())], 3});
  return program;
}

std::map<int, uint64_t> Program::truth(const std::vector<Root>& from) const {
  std::vector<std::optional<uint64_t>> gradients(values.size());
  auto add = [&](int value, uint64_t gradient) {
    gradients[value] = gradients[value].value_or(0) + gradient;
  };
  for (const Root& root : from) add(root.value, root.gradient);
  std::map<int, uint64_t> leaves;
  for (int i = static_cast<int>(values.size()) - 1; i >= 0; --i) {
    if (!gradients[i]) continue;
    const Value& value = values[i];
    if (value.transfer >= 0) {
      add(transfers[value.transfer].sources[value.slot], *gradients[i]);
    } else if (value.inputs.empty()) {
      leaves[i] = *gradients[i];
    }
    for (const Input& input : value.inputs) {
      if (!input.undefined) add(input.value, input.weight * *gradients[i]);
    }
  }
  return leaves;
}

// ---- FakeGraph

FakeGraph::FakeGraph(const Program& program, int worker, const std::vector<SendId>& sources,
                     std::string* broken)
    : FakeGraph(program, worker,
                worker == program.initiator ? program.roots : std::vector<Program::Root>(), sources,
                broken) {}

FakeGraph::FakeGraph(const Program& program, int worker, std::vector<Program::Root> roots,
                     const std::vector<SendId>& sources, std::string* broken)
    : program_(program),
      worker_(worker),
      roots_(std::move(roots)),
      broken_(broken),
      nodes_(program.values.size()) {
  auto enter = [&](int value, size_t source) {
    ++nodes_[value].waits_for;
    visit(value);
    mark(value, source);
  };
  for (const Program::Root& root : roots_) enter(root.value, 0);
  for (const SendId& send : sources) {
    const size_t index = source_index_.size() + 1;
    source_index_[send] = index;
    for (int value : transfer(send).sources) enter(value, index);
  }
}

const Program::Transfer& FakeGraph::transfer(const SendId& send) const {
  return program_.transfers.at(send.number - program_.id_base - 1);
}

void FakeGraph::violation(std::string what) {
  if (broken_->empty()) {
    *broken_ = "worker " + std::to_string(worker_) + ": " + std::move(what);
  }
}

void FakeGraph::visit(int value) {
  std::vector<int> todo{value};
  while (!todo.empty()) {
    const int next = todo.back();
    todo.pop_back();
    if (std::exchange(nodes_[next].visited, true)) continue;
    if (program_.values[next].transfer >= 0) ++groups_[program_.values[next].transfer].unresolved;
    for (const Program::Input& input : program_.values[next].inputs) {
      ++nodes_[input.value].waits_for;
      todo.push_back(input.value);
    }
  }
}

void FakeGraph::mark(int value, size_t source) {
  std::vector<int> todo{value};
  while (!todo.empty()) {
    const int next = todo.back();
    todo.pop_back();
    if (nodes_[next].reached_by[source]) continue;
    nodes_[next].reached_by[source] = true;
    for (const Program::Input& input : program_.values[next].inputs) todo.push_back(input.value);
  }
}

void FakeGraph::resolve_source(const SendId& send, bool fed) {
  auto index = source_index_.find(send);
  if (index == source_index_.end()) return violation("no such source " + send.to_string());
  if (!resolved_.emplace(send, fed).second) {
    violation((fed ? "I3: fed twice or after its cancel: " : "cancelled after it was fed: ") +
              send.to_string());
  }
  resolved_sources_[index->second] = true;
}

void FakeGraph::feed_roots() {
  resolved_sources_[0] = true;
  for (const Program::Root& root : roots_) give(root.value, root.gradient);
  run_ready();
}

void FakeGraph::feed(const GradEntry& entry) {
  resolve_source(entry.send, true);
  const std::vector<int>& targets = transfer(entry.send).sources;
  size_t next = 0;
  for (uint32_t slot = 0; slot < targets.size(); ++slot) {
    std::optional<uint64_t> gradient;
    if (next < entry.present.size() && entry.present[next] == slot) {
      gradient = static_cast<const IntGradients&>(*entry.gradients).values[next++];
    }
    give(targets[slot], gradient);
  }
  run_ready();
}

void FakeGraph::cancel(const SendId& send) {
  resolve_source(send, false);
  for (int value : transfer(send).sources) give(value, std::nullopt);
  run_ready();
}

void FakeGraph::give(int value, std::optional<uint64_t> gradient) {
  Node& node = nodes_[value];
  if (node.resolved) violation("a gradient came after the node ran: " + std::to_string(value));
  if (gradient) {
    node.gradient += *gradient;
    node.present = true;
  }
  if (--node.waits_for == 0) ready_.push_back(value);
}

void FakeGraph::run_ready() {
  while (!ready_.empty() && !failed_) {
    const int value = ready_.back();
    ready_.pop_back();
    run(value);
  }
}

void FakeGraph::run(int value) {
  Node& node = nodes_[value];
  const Program::Value& what = program_.values[value];
  node.resolved = true;
  if (node.present) {
    if (fail_after_ >= 0 && fail_after_-- == 0) {
      failed_ = true;
      return;
    }
    if (std::exchange(node.ran, true)) violation("I1: ran twice: " + std::to_string(value));
    if ((node.reached_by & ~resolved_sources_).any()) {
      violation("I2: ran before all its sources were decided: " + std::to_string(value));
    }
  }
  if (what.transfer >= 0) {
    if (--groups_.at(what.transfer).unresolved == 0) answer(what.transfer);
  } else if (what.inputs.empty() && node.present) {
    stage_[value] += node.gradient;
  }
  for (const Program::Input& input : what.inputs) {
    const bool given = node.present && !input.undefined;
    give(input.value, given ? std::optional<uint64_t>(input.weight * node.gradient) : std::nullopt);
  }
}

void FakeGraph::answer(int index) {
  const Program::Transfer& transfer = program_.transfers[index];
  groups_.at(index).answered = true;
  GradEntry entry{.send = transfer.id, .slots = static_cast<uint32_t>(transfer.recvs.size())};
  std::vector<uint64_t> gradients;
  for (uint32_t slot = 0; slot < entry.slots; ++slot) {
    const Node& node = nodes_[transfer.recvs[slot]];
    if (!node.present) continue;
    entry.present.push_back(slot);
    gradients.push_back(node.gradient);
  }
  entry.gradients = std::make_unique<IntGradients>(std::move(gradients));
  outputs_[transfer.id.creator].push_back(std::move(entry));
}

std::vector<PeerGradients> FakeGraph::take_outputs() {
  std::vector<PeerGradients> taken;
  for (auto& [peer, entries] : outputs_) taken.push_back({peer, std::move(entries)});
  outputs_.clear();
  return taken;
}

bool FakeGraph::waiting() const {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (!node.present) continue;
    if (!node.ran) return true;
    const int transfer = program_.values[i].transfer;
    if (transfer >= 0 && !groups_.at(transfer).answered) return true;
  }
  return false;
}

void FakeGraph::walk(int value, std::map<WorkerId, std::vector<SendId>>& found) {
  std::vector<int> todo{value};
  while (!todo.empty()) {
    const int next = todo.back();
    todo.pop_back();
    if (std::exchange(nodes_[next].walked, true)) continue;
    const Program::Value& what = program_.values[next];
    if (what.transfer >= 0 && !std::exchange(groups_.at(what.transfer).walked, true)) {
      const Program::Transfer& transfer = program_.transfers[what.transfer];
      found[transfer.id.creator].push_back(transfer.id);
    }
    for (const Program::Input& input : what.inputs) todo.push_back(input.value);
  }
}

std::vector<PeerSends> FakeGraph::discover(bool from_roots, const std::vector<SendId>& sources) {
  std::map<WorkerId, std::vector<SendId>> found;
  if (from_roots) {
    for (const Program::Root& root : roots_) walk(root.value, found);
  }
  for (const SendId& send : sources) {
    for (int value : transfer(send).sources) walk(value, found);
  }
  std::vector<PeerSends> reached;
  for (auto& [peer, sends] : found) reached.push_back({peer, std::move(sends)});
  return reached;
}

}  // namespace weft::dist_autograd_internal
