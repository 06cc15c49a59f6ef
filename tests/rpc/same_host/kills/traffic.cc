#include "weft/tests/rpc/same_host/kills/traffic.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft::testing {
namespace {

constexpr size_t kCallsAtOnce = 6;
constexpr Nanoseconds kCallLimit = std::chrono::seconds(30);

SameHostTransportOptions small_arena() {
  SameHostTransportOptions options;
  options.arena_bytes = uint64_t{24} << 20;  // now and then there is no block
  options.tidy_every = std::chrono::milliseconds(20);
  options.unused_for = std::chrono::milliseconds(100);
  return options;
}

// The numbers of a frame: its payloads' sizes, and then the words of their content.
uint64_t next_number(uint64_t& state) {  // splitmix64
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

std::vector<size_t> sizes_of(uint64_t seed) {
  std::vector<size_t> sizes(next_number(seed) % 3);
  for (size_t& size : sizes) {
    const uint64_t kind = next_number(seed) % 10, number = next_number(seed);
    size = kind < 4 ? number % 2000 : kind < 8 ? number % 200000 : number % 3000000;
  }
  return sizes;
}

std::vector<std::byte> content_of(uint64_t seed, size_t index, size_t size) {
  uint64_t state = seed ^ (index + 1) * 0x2545f4914f6cdd1du;
  std::vector<std::byte> content(size + sizeof(uint64_t));
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
    const uint64_t word = next_number(state);
    std::memcpy(content.data() + at, &word, sizeof(word));
  }
  content.resize(size);
  return content;
}

}  // namespace

KillTestWorker::KillTestWorker(WorkerId id, std::string name, uint64_t seed,
                               std::function<void(const std::string&)> on_fault)
    : id_(id),
      name_(std::move(name)),
      on_fault_(std::move(on_fault)),
      executor_(clock_, {.name = name_, .threads = 2}),
      transport_(clock_, small_arena()),
      random_(seed) {}

KillTestWorker::~KillTestWorker() {
  agent_->stop();
  transport_.stop();
  executor_.stop();
}

absl::Status KillTestWorker::start(std::vector<WorkerInfo> others) {
  WEFT_RETURN_IF_ERROR(transport_.listen());
  rpc_internal::AgentOptions options;
  options.group = "kills";
  options.self = info();
  agent_ = std::make_unique<rpc_internal::Agent>(options, transport_, clock_, executor_);
  agent_->set_call_handler([this](const IncomingCallPtr& call) {
    executor_.schedule([this, call] {
      call->taken();
      serve(call);
    });
  });
  rpc_internal::MembershipHooks hooks;
  hooks.admit = [this](const WorkerInfo& joiner) {
    agent_->add_member(joiner);
    return absl::OkStatus();
  };
  hooks.suspect = [this](WorkerId peer, const absl::Status& why) {
    agent_->declare_dead(peer, why);
  };
  agent_->set_membership(std::move(hooks));
  others.push_back(info());
  return agent_->start(std::move(others));
}

// ---- calls

void KillTestWorker::begin_traffic(const WorkerInfo& peer) {
  {
    MutexLock lock(mutex_);
    peers_[peer.id].name = peer.name;
  }
  for (size_t i = 0; i < kCallsAtOnce; ++i) start_call(peer.id);
}

void KillTestWorker::start_call(WorkerId peer) {
  {
    MutexLock lock(mutex_);
    ++peers_[peer].open;
  }
  const uint64_t seed = random();
  Frame frame = make_frame(peer, seed);
  frame.header.function = kEcho + random() % 3;
  agent_->call(peer, std::move(frame), "kill test", clock_.now() + kCallLimit,
               [this, peer, seed](absl::StatusOr<Frame> reply) {
                 // The reply may come inside call(), so the next call is a new task.
                 executor_.schedule([this, peer, seed, reply = std::move(reply)]() mutable {
                   end_call(peer, seed, std::move(reply));
                 });
               });
}

void KillTestWorker::end_call(WorkerId peer, uint64_t seed, absl::StatusOr<Frame> reply) {
  std::string name;
  {
    MutexLock lock(mutex_);
    name = peers_[peer].name;
  }
  if (reply.ok()) {
    if (reply->body != absl::StrCat(seed)) fault("a reply to another call");
    check(*reply, absl::StrCat("a reply of ", name));
    start_call(peer);
  } else if (!absl::IsUnavailable(reply.status()) || worker_of(reply.status()) != name) {
    fault(absl::StrCat("a call to ", name, " failed with: ", reply.status().ToString()));
  }
  MutexLock lock(mutex_);
  Peer& state = peers_[peer];
  state.replies += reply.ok() ? 1 : 0;
  --state.open;
}

size_t KillTestWorker::open_calls(WorkerId peer) const {
  MutexLock lock(mutex_);
  const auto found = peers_.find(peer);
  return found == peers_.end() ? 0 : found->second.open;
}

uint64_t KillTestWorker::replies(WorkerId peer) const {
  MutexLock lock(mutex_);
  const auto found = peers_.find(peer);
  return found == peers_.end() ? 0 : found->second.replies;
}

// ---- the peer's calls

void KillTestWorker::serve(const IncomingCallPtr& call) {
  check(call->frame(), "a call");
  switch (call->header().function) {
    case kEcho:
      return answer(call);
    case kOverwrite: {
      // The arguments are this worker's now, and nobody may see what it writes.
      Frame reply = make_frame(call->from(), std::stoull(call->frame().body));
      for (const Payload& payload : call->frame().payloads) {
        if (payload.size > 0) std::memset(payload.data, 0xee, payload.size);
      }
      return call->reply(std::move(reply));
    }
    default: {
      const uint64_t seed = random();
      Frame nested = make_frame(call->from(), seed);
      nested.header.function = kEcho;
      nested.header.flags = kFlagNested;
      agent_->call(call->from(), std::move(nested), "kill test, nested", clock_.now() + kCallLimit,
                   [this, call](absl::StatusOr<Frame> reply) {
                     executor_.schedule([this, call, reply = std::move(reply)] {
                       if (reply.ok()) check(*reply, "a nested reply");
                       answer(call);
                     });
                   });
    }
  }
}

// Sends the arguments back, in the memory in which they came.
void KillTestWorker::answer(const IncomingCallPtr& call) {
  Frame reply;
  reply.body = call->frame().body;
  reply.payloads = std::move(call->frame().payloads);
  call->reply(std::move(reply));
}

// ---- frames

Frame KillTestWorker::make_frame(WorkerId to, uint64_t seed) {
  Frame frame;
  frame.body = absl::StrCat(seed);
  const std::vector<size_t> sizes = sizes_of(seed);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::vector<std::byte> content = content_of(seed, i, sizes[i]);
    Payload payload;
    switch (random() % 3) {
      case 0:  // a tensor of shared_empty, given away
        if (std::optional<Payload> shared = agent_->shared_memory(sizes[i])) {
          payload = *std::move(shared);
          payload.given = true;
        }
        break;
      case 1:  // a copy of a tensor that its user keeps
        if (std::optional<Payload> copy = agent_->copy_payload(to, content.data(), sizes[i])) {
          payload = *std::move(copy);
        }
        break;
      default:
        break;
    }
    if (payload.data == nullptr) {
      const auto owner = std::make_shared<std::vector<std::byte>>(sizes[i]);
      payload = {.data = owner->data(), .size = sizes[i], .owner = owner};
    }
    std::copy(content.begin(), content.end(), payload.data);
    frame.payloads.push_back(std::move(payload));
  }
  return frame;
}

void KillTestWorker::check(const Frame& frame, const std::string& where) {
  uint64_t seed = 0;
  if (!absl::SimpleAtoi(frame.body, &seed)) return fault(where + " without a seed");
  const std::vector<size_t> sizes = sizes_of(seed);
  if (frame.payloads.size() != sizes.size()) return fault(where + " with other payloads");
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Payload& payload = frame.payloads[i];
    const std::vector<std::byte> content = content_of(seed, i, sizes[i]);
    if (payload.size != sizes[i] ||
        (sizes[i] > 0 && std::memcmp(payload.data, content.data(), sizes[i]) != 0)) {
      return fault(absl::StrCat(where, ": payload ", i, " of seed ", seed, " is corrupt"));
    }
  }
}

uint64_t KillTestWorker::random() {
  MutexLock lock(mutex_);
  return random_();
}

}  // namespace weft::testing
