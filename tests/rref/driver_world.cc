#include "weft/tests/rref/driver_world.h"

#include <algorithm>
#include <utility>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/proto/weft.pb.h"
#include "weft/rpc/transport/status_wire.h"
#include "weft/rref/internal/rref_wire.h"

namespace weft::rref_internal {
using What = DriverWorld::Happened::What;

DriverWorld::DriverWorld(size_t workers, OwnershipLimits limits,
                         const std::map<uint32_t, uint32_t>& restarts,
                         std::set<uint64_t> early_carriers)
    : early_carriers_(std::move(early_carriers)) {
  // The filter sees frames in the order in which they are sent; the transports see them as they
  // arrive.
  wires_.set_filter([this](const FrameHeader& header) {
    sent_[{header.source.bits(), header.destination.bits()}][header.sequence] = next_order_++;
    return InprocNetwork::Fate::kDeliver;
  });
  for (uint32_t index = 1; index <= workers; ++index) {
    incarnations_[index] = 1;
    const auto more = restarts.find(index);
    const uint32_t incarnations = 1 + (more == restarts.end() ? 0 : more->second);
    for (uint32_t incarnation = 1; incarnation <= incarnations; ++incarnation)
      add_node({index, incarnation}, limits);
  }
}

void DriverWorld::start_all() {
  for (const auto& [index, incarnation] : incarnations_) start(node(index));
  settle();
}

DriverWorld::~DriverWorld() {
  ending_ = true;
  for (auto& [id, node] : nodes_) node->transport->freeze();
  for (auto& [id, node] : nodes_) node->agent->stop();
  for (auto& [id, node] : nodes_) node->driver->close();
  executor_.run_all();
}

void DriverWorld::add_node(WorkerId id, const OwnershipLimits& limits) {
  auto node = std::make_unique<Node>();
  Node& at = *node;
  at.id = id;
  at.transport = std::make_unique<testing::HeldTransport>(
      wires_, [this, &at](const ConnectionPtr& connection, Frame& frame) {
        return keep(at, connection, frame);
      });
  EXPECT_TRUE(at.transport->listen().ok());
  rpc_internal::AgentOptions options;
  options.group = "test";
  options.self = {id, absl::StrCat("w", id.index), at.transport->address()};
  at.agent = std::make_unique<rpc_internal::Agent>(options, *at.transport, clock_, executor_);
  at.agent->set_call_handler([this, &at](const std::shared_ptr<rpc_internal::IncomingCall>& call) {
    if (call->from() == at.id && !at.killed) {  // no wire holds it, so it waits here
      Packet packet;
      packet.order = next_order_++;
      packet.from = packet.to = at.id;
      packet.call = call;
      describe(call->frame(), packet);
      network_.push_back(std::move(packet));
    } else {
      serve(at, call, unread_);
    }
  });
  at.driver = std::make_shared<RRefDriver>(*at.agent, executor_, limits);
  at.driver->attach(nullptr);
  nodes_[{id.index, id.incarnation}] = std::move(node);
}

// The group is static: it knows the later incarnations of its workers from the start.
void DriverWorld::start(Node& at) {
  std::vector<WorkerInfo> members;
  for (const auto& [id, node] : nodes_) members.push_back(node->agent->self());
  EXPECT_TRUE(at.agent->start(members).ok());
  at.started = true;
}

std::vector<DriverWorld::Node*> DriverWorld::live() {
  std::vector<Node*> live;
  for (const auto& [id, node] : nodes_) {
    if (node->started && !node->killed) live.push_back(node.get());
  }
  return live;
}

std::vector<DriverWorld::Node*> DriverWorld::killed() {
  std::vector<Node*> killed;
  for (const auto& [id, node] : nodes_) {
    if (node->killed) killed.push_back(node.get());
  }
  return killed;
}

// ---- The network ----

wire::Meta DriverWorld::meta_of(const Frame& frame) {
  wire::Meta meta;
  EXPECT_TRUE(meta.ParseFromString(frame.meta));
  return meta;
}

std::vector<std::string> DriverWorld::wires_of(const Frame& frame) {
  const wire::Meta meta = meta_of(frame);
  return {meta.references().begin(), meta.references().end()};
}

std::vector<Reference> DriverWorld::references_of(const std::vector<std::string>& wires) {
  std::vector<Reference> references;
  for (const std::string& wire : wires) {
    absl::StatusOr<Reference> reference = decode_reference(wire);
    EXPECT_TRUE(reference.ok()) << reference.status();
    references.push_back(*std::move(reference));
  }
  return references;
}

// Reads from a call's frame what the scenario's log needs.
void DriverWorld::describe(const Frame& frame, Packet& packet) {
  const wire::Meta meta = meta_of(frame);
  if (frame.header.function == kCreate) {
    packet.kind = Kind::kCreation;
    const absl::StatusOr<Creation> creation = decode_creation(meta.creation());
    packet.rref = creation->rref;
    packet.fork = creation->fork;
  } else if (frame.header.function == kToHere) {
    packet.kind = Kind::kFetch;
    packet.rref = decode_target(meta.target())->rref;
  } else {
    packet.kind = Kind::kCarrier;
    packet.references = references_of(wires_of(frame));
  }
}

bool DriverWorld::keep(Node& at, const ConnectionPtr& connection, Frame& frame) {
  const FrameHeader& header = frame.header;
  Packet packet;
  packet.from = header.source;
  packet.to = header.destination;
  if (header.kind == FrameKind::kPost) {
    if (header.function != static_cast<uint64_t>(rpc_internal::Topic::kRRef)) return false;
    packet.message = *decode_message(frame.body);
  } else if (header.kind == FrameKind::kCall) {
    if (header.function == kAsk) return false;
    describe(frame, packet);
  } else if (header.kind == FrameKind::kReply) {
    const auto found = calls_.find({at.id, header.call});
    if (found == calls_.end()) return false;
    const Outgoing& call = *found->second;
    const bool error = (header.flags & kFlagError) != 0;
    if (error) packet.status = rpc_internal::decode_status(meta_of(frame).status());
    if (call.kind == Kind::kCreation && error) {
      packet.kind = Kind::kCreationRefused;
    } else if (call.kind == Kind::kFetch) {
      packet.kind = Kind::kValue;
      packet.rref = call.rref;
    } else if (call.kind == Kind::kReply) {
      packet.kind = Kind::kReply;
      packet.references = references_of(wires_of(frame));
    } else {
      return false;  // the reply to a carrier means nothing to references
    }
  } else {
    return false;
  }
  packet.order = sent_[{header.source.bits(), header.destination.bits()}][header.sequence];
  packet.connection = connection;
  packet.frame = std::move(frame);
  const auto later = std::find_if(network_.begin(), network_.end(),
                                  [&](const Packet& other) { return other.order > packet.order; });
  const Packet& kept = *network_.insert(later, std::move(packet));
  if (kept.message && !repeating_ && !ending_)
    on_event({kept.from, What::kSent, {}, absl::OkStatus(), &kept});
  return true;
}

void DriverWorld::deliver(size_t position, bool unread) {
  Packet packet = std::move(network_.at(position));
  network_.erase(network_.begin() + position);
  Node& to = *nodes_.at({packet.to.index, packet.to.incarnation});
  if (packet.call != nullptr) {
    if (!to.killed) serve(to, packet.call, unread);
  } else {
    unread_ = unread;
    to.transport->let_through(packet.connection, std::move(packet.frame));
    unread_ = false;
  }
  settle();
}

void DriverWorld::duplicate(size_t position) {
  Packet copy = network_.at(position);
  copy.order = next_order_++;
  network_.push_back(std::move(copy));
}

bool DriverWorld::repeat(size_t position) {
  const Packet& packet = network_.at(position);
  Node& from = *nodes_.at({packet.from.index, packet.from.incarnation});
  repeating_ = true;
  if (packet.kind == Kind::kControl) {
    from.agent->post(packet.to, rpc_internal::Topic::kRRef, packet.frame.body);
  } else if (packet.kind == Kind::kCreation) {
    auto call = std::make_shared<Outgoing>();
    call->to = packet.to;
    Frame frame;
    frame.meta = packet.frame.meta;
    frame.header.function = kCreate;
    make_call(from, call, std::move(frame));
  } else {
    return false;
  }
  executor_.run_all();
  repeating_ = false;
  return true;
}

void DriverWorld::give_up(Outgoing& call) {
  Node& from = *nodes_.at({call.from.index, call.from.incarnation});
  if (from.killed) return;
  call.failure = absl::DeadlineExceededError("creation timed out");
  from.agent->cancel(call.to, call.id);
  settle();
}

bool DriverWorld::withdraw(size_t position) {
  const Packet packet = std::move(network_.at(position));
  network_.erase(network_.begin() + position);
  const uint64_t number =
      packet.call != nullptr ? packet.call->header().call : packet.frame.header.call;
  const auto found = calls_.find({packet.from, number});
  if (packet.kind == Kind::kReply || found == calls_.end()) return false;
  found->second->carried.clear();
  if (packet.call != nullptr) packet.call->reply(Frame());  // the agent of both ends forgets it
  give_up(*found->second);
  return true;
}

bool DriverWorld::time_out(size_t position) {
  const Packet& packet = network_.at(position);
  const auto found = calls_.find({packet.from, packet.frame.header.call});
  if (packet.kind == Kind::kReply || found == calls_.end()) return false;
  give_up(*found->second);
  return true;
}

// ---- Starts and deaths of workers ----

void DriverWorld::kill(Node& at) {
  at.killed = true;
  at.transport->freeze();
}

void DriverWorld::restart(uint32_t index) {
  ++incarnations_[index];
  start(node(index));
  settle();
}

void DriverWorld::announce_death(Node& at, WorkerId dead) {
  at.agent->declare_dead(dead, absl::UnavailableError("was killed"));
  settle();
}

void DriverWorld::begin_shutdown(Node& at) {
  at.ended = true;
  at.driver->begin_shutdown();
  at.handles.clear();
  at.watched.clear();
  settle();
}

void DriverWorld::close(Node& at) {
  at.ended = true;
  at.driver->close();
  at.handles.clear();
  at.watched.clear();
  settle();
}

void DriverWorld::settle() {
  do {
    executor_.run_all();
    for (Node* node : live()) watch(*node);
  } while (executor_.run_all() > 0);
}

void DriverWorld::watch_for_confirmation(Node& at, std::vector<Watch>& watched) {
  for (Watch& watch : watched) {
    if (watch.confirmed || !at.driver->confirmed(watch.handle)) continue;
    watch.confirmed = true;
    event(at, What::kConfirmed, watch.handle);
  }
}

void DriverWorld::watch(Node& at) {
  for (auto& [carrier, watched] : at.waiting) watch_for_confirmation(at, watched);
  if (at.ended) return;
  watch_for_confirmation(at, at.watched);
  std::vector<std::pair<Handle, absl::Status>> lost;
  for (const Watch& watch : at.watched) {
    absl::Status status = at.driver->usable(watch.handle);
    if (!status.ok()) lost.emplace_back(watch.handle, std::move(status));
  }
  for (const auto& [handle, status] : lost) {
    event(at, What::kLost, handle, status);
    // clang 14 does not let a lambda capture a structured binding by itself.
    const auto is_lost = [&lost_handle = handle](const Handle& each) {
      return each == lost_handle;
    };
    std::erase_if(at.watched, [&](const Watch& watch) { return is_lost(watch.handle); });
    std::erase_if(at.handles, [&](const RRefHandlePtr& each) { return is_lost(each->handle()); });
  }
  for (auto it = at.early.begin(); it != at.early.end();) {
    absl::Status status;
    bool all = true;
    for (const Watch& watch : it->second) {
      const auto how = std::find_if(lost.begin(), lost.end(),
                                    [&](const auto& each) { return each.first == watch.handle; });
      if (how != lost.end()) status.Update(how->second);
      all = all && at.driver->confirmed(watch.handle);
    }
    if (all || !status.ok()) {
      event(at, What::kStarts, {}, status);
      it = at.early.erase(it);
    } else {
      ++it;
    }
  }
}

void DriverWorld::event(Node& at, What what, const Handle& handle, const absl::Status& status) {
  if (!ending_) on_event({at.id, what, handle, status, nullptr});
}

}  // namespace weft::rref_internal
