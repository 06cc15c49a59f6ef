#include "weft/rpc/same_host/same_host_transport.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <unistd.h>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/rpc/transport/hello.h"
#include "weft/rpc/transport/status_wire.h"

namespace weft {

using rpc_internal::Arrival;
using rpc_internal::Introduction;
using rpc_internal::PairMemory;
using rpc_internal::Reading;
using rpc_internal::WakePage;
using rpc_internal::WakeSlot;

namespace {

constexpr char kAnswered[] = "weft/answered-by-peer";

// A socket's buffer has room for an introduction, so sends need not wait.
constexpr LocalSocket::TimePoint kNow = LocalSocket::TimePoint::min();

// Blocks that are lent to a process must come back when it dies, so its end must be seen.
absl::Status check_process(const LocalSocket& socket) {
  if (socket.process_descriptor() >= 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the kernel does not report the end of process ", socket.peer_process()));
}

uint64_t quarter_of_memory() {
  return static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) / 4;
}

// Moves the reply out of the frames, if it is among them.
void take_reply(uint64_t call, std::vector<Frame>& frames, std::optional<Frame>& reply) {
  const auto found = std::find_if(frames.begin(), frames.end(), [call](const Frame& frame) {
    return frame.header.kind == FrameKind::kReply && frame.header.call == call;
  });
  if (found == frames.end()) return;
  reply = std::move(*found);
  frames.erase(found);
}

uint64_t random_number() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

}  // namespace

bool answered_by_peer(const absl::Status& status) {
  return status.GetPayload(kAnswered).has_value();
}

absl::Status answer_of_peer(absl::Status status) {
  status.SetPayload(kAnswered, absl::Cord());
  return status;
}

SameHostTransport::SameHostTransport(Clock& clock, SameHostTransportOptions options)
    : clock_(clock),
      options_(std::move(options)),
      arena_(std::make_shared<BlockArena>(BlockArena::Options{
          .cap = std::min(options_.arena_bytes,
                          quarter_of_memory() / std::max(options_.workers, 1u))})),
      connections_(WakeBits::kSlots) {
  for (uint32_t slot = WakeBits::kSlots; slot > 0; --slot) free_slots_.push_back(slot - 1);
}

SameHostTransport::~SameHostTransport() { stop(); }

// ---- from outside

absl::Status SameHostTransport::listen() {
  if (!listened_.has_value()) listened_ = begin_to_listen();
  return *listened_;
}

absl::Status SameHostTransport::begin_to_listen() {
  WEFT_ASSIGN_OR_RETURN(page_, WakePage::create());
  reading_ = std::make_shared<Reading>(
      page_, options_.spin,
      Reading::Visits{[this](size_t slot) { visit(slot); },
                      [this](size_t slot, Reading::Awaited& awaited) { take(slot, awaited); },
                      [this](size_t slot, WorkerId peer) {
                        const ConnectionOfHost& connection = connections_[slot];
                        return connection != nullptr && connection->peer().id == peer;
                      }});
  WEFT_ASSIGN_OR_RETURN(LocalListener listener, LocalListener::create());
  address_ = rpc_internal::local_address(listener.name());
  arrivals_.emplace(
      clock_, watcher_, std::move(listener), options_.most_waiting, [this](Arrival arrival) {
        reading_->post(
            [this, arrival = std::move(arrival)]() mutable { answer(std::move(arrival)); });
      });
  WEFT_RETURN_IF_ERROR(watcher_->start());
  serving_.emplace([this] { return serve_one(); });
  if (absl::Status started = serving_->started(); !started.ok()) {
    watcher_->stop();
    return started;
  }
  tidy_later();
  watcher_->post([this] { arrivals_->accept(); });
  return absl::OkStatus();
}

std::string SameHostTransport::address() const { return address_; }

absl::Status SameHostTransport::start(PeerIdentity self, TransportSink* sink) {
  WEFT_RETURN_IF_ERROR(listen());
  {
    MutexLock lock(mutex_);
    self_ = std::move(self);
    sink_ = sink;
  }
  watcher_->post([this] { arrivals_->answer(); });
  return absl::OkStatus();
}

void SameHostTransport::connect(const std::string& address, const PeerIdentity& expected,
                                TimePoint deadline, ConnectCallback callback) {
  watcher_->post([this, address, expected, deadline, callback = std::move(callback)]() mutable {
    dial(address, expected, deadline, std::move(callback));
  });
}

void SameHostTransport::stop_first() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  if (!serving_.has_value()) return;
  reading_->close();
  reading_->post([this] {
    for (const ConnectionOfHost& each : connections_) {
      if (each != nullptr) each->close();
    }
  });
  {
    const TimePoint deadline = std::chrono::steady_clock::now() + options_.grace;
    MutexLock lock(mutex_);
    while (open_ > 0 && changed_.wait_until(mutex_, deadline)) {
    }
  }
  // No handshake is under way from here on.
  watcher_->stop();
  arrivals_.reset();  // from now on dials are refused
  reading_->post([this] {
    for (const ConnectionOfHost& each : connections_) {
      if (each != nullptr) each->abort(absl::UnavailableError("the transport has stopped"));
    }
    MutexLock lock(mutex_);
    ended_ = true;
  });
  serving_->join();
  {
    MutexLock lock(mutex_);
    if (tidy_timer_.has_value()) clock_.cancel(*tidy_timer_);
  }
  // Blocks that peers still have are theirs: the memory is freed when they drop it.
  arena_->remove_all_sources();
  watched_.clear();
  for (auto& [number, dial] : dials_) {
    if (dial.timer.has_value()) clock_.cancel(*dial.timer);
  }
  dials_.clear();
}

std::optional<Payload> SameHostTransport::shared_memory(size_t bytes) {
  if (bytes < rpc_internal::PayloadLender::kLeast) return std::nullopt;  // it is never lent
  std::optional<BlockArena::Block> block = arena_->allocate_ahead(bytes);
  if (!block.has_value()) return std::nullopt;
  return Payload{.data = block->data, .size = bytes, .owner = std::move(block->owner)};
}

// ---- the watcher's thread: dials

void SameHostTransport::dial(const std::string& address, const PeerIdentity& expected,
                             TimePoint deadline, ConnectCallback callback) {
  absl::StatusOr<Dial> begun = begin_dial(address, expected);
  if (!begun.ok()) return fail(std::move(callback), begun.status());
  begun->callback = std::move(callback);
  const uint64_t number = next_dial_++;
  if (deadline != kNever) {
    begun->timer = clock_.call_at(deadline, [this, watcher = watcher_, number] {
      watcher->post([this, number] {
        give_up(number, absl::DeadlineExceededError("no answer before the deadline"));
      });
    });
  }
  const int descriptor = begun->socket.descriptor();
  dials_.emplace(number, *std::move(begun));
  if (!watcher_->watch(descriptor, Watcher::Event::kReadable,
                       [this, number] { receive_welcome(number); })) {
    give_up(number, absl::ResourceExhaustedError("no memory to watch a local connection"));
  }
}

absl::StatusOr<SameHostTransport::Dial> SameHostTransport::begin_dial(
    const std::string& address, const PeerIdentity& expected) {
  WEFT_ASSIGN_OR_RETURN(const std::string name, rpc_internal::listener_at(address));
  WEFT_ASSIGN_OR_RETURN(LocalSocket socket, LocalSocket::connect(name, kNow));
  WEFT_RETURN_IF_ERROR(check_process(socket));
  const std::optional<WakeSlot> slot = take_slot();
  if (!slot.has_value()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this worker has ", WakeBits::kSlots, " local connections"));
  }
  // Slots are given out from 0 on, so the number tells roughly how many connections there are.
  const size_t ring_bytes = slot->slot < options_.full_rings
                                ? options_.ring_bytes
                                : std::max(options_.ring_bytes / 4, kLeastRingBytes);
  absl::StatusOr<PairMemory> created = PairMemory::create(ring_bytes);
  if (!created.ok()) {
    free_slot(slot->slot);
    return created.status();
  }
  auto memory = std::make_shared<PairMemory>(*std::move(created));
  const uint64_t nonce = random_number();
  memory->nonce().store(nonce, std::memory_order_relaxed);
  Introduction introduction;
  introduction.slot = slot->slot;
  introduction.ring_bytes = static_cast<uint32_t>(ring_bytes);
  introduction.hello = rpc_internal::hello_of(self());
  introduction.hello.set_expected(expected.id.bits());
  const int descriptors[] = {memory->descriptor(), page_->descriptor()};
  const absl::Status sent = socket.send(encode_introduction(introduction), descriptors, kNow);
  if (!sent.ok()) {
    free_slot(slot->slot);
    return sent;
  }
  return Dial{std::move(socket), std::move(memory), *slot, nonce, expected, nullptr, {}};
}

void SameHostTransport::receive_welcome(uint64_t number) {
  const auto found = dials_.find(number);
  if (found == dials_.end()) return;
  absl::StatusOr<LocalSocket::Message> message = found->second.socket.receive(kNow);
  if (absl::IsDeadlineExceeded(message.status())) return;
  watcher_->unwatch(found->second.socket.descriptor());
  Dial dial = std::move(found->second);
  dials_.erase(found);
  if (dial.timer.has_value()) clock_.cancel(*dial.timer);
  absl::StatusOr<WakeSlot> there =
      message.ok() ? check_welcome(dial, *std::move(message)) : message.status();
  if (!there.ok()) {
    free_slot(dial.here.slot);
    return fail(std::move(dial.callback), std::move(there).status());
  }
  const ConnectionOfHost connection =
      make_connection(std::move(dial.memory), PairMemory::kDialler, std::move(dial.socket),
                      dial.here, *std::move(there), dial.expected);
  reading_->post([this, connection, callback = std::move(dial.callback)]() mutable {
    callback(ConnectionPtr(connection));
    install(connection);
  });
}

absl::StatusOr<WakeSlot> SameHostTransport::check_welcome(Dial& dial,
                                                          LocalSocket::Message message) {
  WEFT_ASSIGN_OR_RETURN(const Introduction welcome,
                        rpc_internal::decode_introduction(message.bytes));
  if (welcome.hello.has_refused()) {
    return answer_of_peer(rpc_internal::decode_status(welcome.hello.refused()));
  }
  if (WorkerId::from_bits(welcome.hello.worker()) != dial.expected.id) {
    return answer_of_peer(absl::FailedPreconditionError(
        absl::StrCat("worker '", welcome.hello.name(), "' answers there")));
  }
  WEFT_RETURN_IF_ERROR(rpc_internal::common_protocol(welcome.hello, self().protocols).status());
  if (welcome.nonce != dial.nonce + 1 || message.descriptors.size() != 1) {
    return absl::FailedPreconditionError("the far end does not see the same memory");
  }
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<WakePage> page,
                        WakePage::adopt(std::move(message.descriptors[0])));
  dial.expected.role = welcome.hello.role();
  return WakeSlot{std::move(page), welcome.slot};
}

void SameHostTransport::give_up(uint64_t number, absl::Status why) {
  const auto found = dials_.find(number);
  if (found == dials_.end()) return;
  if (found->second.timer.has_value()) clock_.cancel(*found->second.timer);
  watcher_->unwatch(found->second.socket.descriptor());
  free_slot(found->second.here.slot);
  fail(std::move(found->second.callback), std::move(why));
  dials_.erase(found);
}

// ---- the watcher's thread: ends

void SameHostTransport::watch_end(const ConnectionOfHost& connection) {
  SameHostConnection* const key = connection.get();
  // The map holds the connection, so its descriptors stay open while they are watched.
  watched_.emplace(key, Watched{connection});
  const LocalSocket& socket = connection->socket();
  const int process = socket.process_descriptor();
  if (!watcher_->watch(socket.descriptor(), Watcher::Event::kHungUp,
                       [this, key] { far_end_gone(key); }) ||
      !watcher_->watch(process, Watcher::Event::kReadable, [this, key] { process_ended(key); })) {
    connection->abort(absl::ResourceExhaustedError("no memory to watch a local connection"));
  }
}

void SameHostTransport::far_end_gone(SameHostConnection* connection) {
  // The socket stays hung up, so it is not watched after the first report.
  watcher_->unwatch(connection->socket().descriptor());
  Watched& watched = watched_.at(connection);
  watched.far_end_gone = true;
  connection->far_end_gone();
  if (watched.over) connection->settle();
  forget_if_done(connection);
}

void SameHostTransport::process_ended(SameHostConnection* connection) {
  watcher_->unwatch(connection->socket().process_descriptor());
  watched_.at(connection).process_ended = true;
  connection->lender().peer_gone();
  // A forked child of the process may keep the socket open.
  far_end_gone(connection);
}

void SameHostTransport::over(SameHostConnection* connection) {
  Watched& watched = watched_.at(connection);
  watched.over = true;
  if (watched.far_end_gone) connection->settle();
  forget_if_done(connection);
}

void SameHostTransport::forget_if_done(SameHostConnection* connection) {
  const auto found = watched_.find(connection);
  const Watched& watched = found->second;
  if (!watched.over || !watched.far_end_gone) return;
  if (!watched.process_ended && !connection->lender().all_returned()) return;
  watcher_->unwatch(connection->socket().process_descriptor());
  connection->lender().forget();
  free_slot(connection->here().slot);
  watched_.erase(found);
}

void SameHostTransport::forget_ended() {
  arena_->drain();
  std::vector<SameHostConnection*> ended;
  for (const auto& [connection, watched] : watched_) {
    if (watched.over) ended.push_back(connection);
  }
  for (SameHostConnection* each : ended) {
    each->lender().ask_for_returns();
    forget_if_done(each);
  }
}

void SameHostTransport::tidy() {
  forget_ended();
  arena_->retire_idle(clock_.now() - options_.unused_for);
  for (const auto& [connection, watched] : watched_) connection->tell_dropped();
  tidy_later();
}

void SameHostTransport::tidy_later() {
  MutexLock lock(mutex_);
  if (stopping_) return;
  tidy_timer_ = clock_.call_at(clock_.now() + options_.tidy_every,
                               [this, watcher = watcher_] { watcher->post([this] { tidy(); }); });
}

// ---- the serving thread

bool SameHostTransport::serve_one() {
  if (reading_->work()) return true;
  {
    MutexLock lock(mutex_);
    if (ended_ && open_ == 0) return false;
  }
  reading_->rest();
  return true;
}

void SameHostTransport::answer(Arrival arrival) {
  absl::StatusOr<ConnectionOfHost> opened = open(arrival);
  if (opened.ok()) {
    if (*opened == nullptr) return;
    sink()->on_open(*opened);
    install(*opened);
    return;
  }
  Introduction refusal;
  refusal.hello = rpc_internal::hello_of(self());
  rpc_internal::encode_status(opened.status(), *refusal.hello.mutable_refused());
  // If this fails, the dialler has gone.
  (void)arrival.socket.send(encode_introduction(refusal), {}, kNow);
}

// Returns null if nobody must be told: the dialler has gone, or does not speak this protocol.
absl::StatusOr<SameHostTransport::ConnectionOfHost> SameHostTransport::open(Arrival& arrival) {
  if (arrival.socket.closed_by_peer()) return nullptr;
  const pid_t process = arrival.socket.peer_process();
  absl::StatusOr<Introduction> introduction =
      rpc_internal::decode_introduction(arrival.hello.bytes);
  if (absl::IsPermissionDenied(introduction.status())) return introduction.status();
  if (!introduction.ok() || introduction->ring_bytes == 0 ||
      arrival.hello.descriptors.size() != 2) {
    log_warning(
        "process ", process, " has opened a local connection in a way that is not Weft's: ",
        introduction.ok() ? "descriptors or ring size are wrong" : introduction.status().message());
    return nullptr;
  }
  const PeerIdentity self = this->self();
  const PeerIdentity peer = rpc_internal::identity_of(introduction->hello);
  WEFT_ASSIGN_OR_RETURN(const uint32_t protocol,
                        rpc_internal::common_protocol(introduction->hello, self.protocols));
  if (WorkerId::from_bits(introduction->hello.expected()) != self.id) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker '", self.name, "' (", self.id.to_string(), ") answers there"));
  }
  {
    MutexLock lock(mutex_);
    if (stopping_) return absl::UnavailableError("the worker has stopped");
  }
  WEFT_RETURN_IF_ERROR(sink()->on_accept(peer));
  if (absl::Status known = check_process(arrival.socket); !known.ok()) {
    log_warning("no shared memory with worker '", peer.name, "': ", known.message());
    return nullptr;
  }
  absl::StatusOr<PairMemory> memory =
      PairMemory::adopt(std::move(arrival.hello.descriptors[0]), introduction->ring_bytes);
  absl::StatusOr<std::shared_ptr<WakePage>> page =
      WakePage::adopt(std::move(arrival.hello.descriptors[1]));
  const std::optional<WakeSlot> slot = take_slot();
  if (!memory.ok() || !page.ok() || !slot.has_value()) {
    if (slot.has_value()) free_slot(slot->slot);
    log_warning("no shared memory with worker '", peer.name, "': ",
                !memory.ok() ? memory.status().message()
                : !page.ok() ? page.status().message()
                             : "too many local connections");
    return nullptr;
  }
  Introduction welcome;
  welcome.slot = slot->slot;
  welcome.nonce = memory->nonce().load(std::memory_order_relaxed) + 1;
  welcome.hello = rpc_internal::answer_of(self, protocol);
  const int descriptors[] = {page_->descriptor()};
  if (!arrival.socket.send(encode_introduction(welcome), descriptors, kNow).ok()) {
    free_slot(slot->slot);
    return nullptr;
  }
  return make_connection(std::make_shared<PairMemory>(*std::move(memory)), PairMemory::kAcceptor,
                         std::move(arrival.socket), *slot,
                         WakeSlot{*std::move(page), introduction->slot}, peer);
}

void SameHostTransport::install(const ConnectionOfHost& connection) {
  bool stopping = false;
  {
    MutexLock lock(mutex_);
    ++open_;
    stopping = stopping_;
  }
  if (stopping) connection->close();  // the task of stop() may have run before
  const uint32_t slot = connection->here().slot;
  connections_[slot] = connection;
  watcher_->post([this, connection] { watch_end(connection); });
  visit(slot);  // the far end may have signalled before
}

void SameHostTransport::visit(size_t slot) {
  const ConnectionOfHost connection = connections_[slot];
  if (connection == nullptr) {  // the connection is closed, and the far end returns a block
    // Once at a time: a peer may set any bit as often as it likes.
    if (forgetting_.exchange(true)) return;
    watcher_->post([this] {
      forgetting_.store(false);
      forget_ended();
    });
    return;
  }
  std::vector<Frame> frames;
  const SameHostConnection::Found found = connection->read(frames);
  handle(connection, std::move(frames), found);
}

void SameHostTransport::handle(const ConnectionOfHost& connection, std::vector<Frame> frames,
                               const SameHostConnection::Found& found) {
  if (!frames.empty()) sink()->on_frames(connection, std::move(frames));
  const std::optional<absl::Status> ended = connection->act_on(found);
  if (!ended.has_value()) return;
  connections_[connection->here().slot] = nullptr;
  end(connection, *ended);
}

void SameHostTransport::take(size_t slot, Reading::Awaited& awaited) {
  const ConnectionOfHost connection = connections_[slot];
  if (connection == nullptr) {
    awaited.for_serving.push_back([this, slot] { visit(slot); });
    return;
  }
  std::vector<Frame> frames;
  SameHostConnection::Found found = connection->read(frames);
  if (connection->peer().id == awaited.peer) take_reply(awaited.call, frames, awaited.reply);
  if (awaited.reply.has_value()) awaited.connection = connection;
  if (frames.empty() && !connection->must_act_on(found)) return;
  // The reply overtakes these frames. Sessions do not depend on the order of frames.
  awaited.for_serving.push_back(
      [this, connection, frames = std::move(frames), found = std::move(found)]() mutable {
        handle(connection, std::move(frames), found);
      });
}

void SameHostTransport::end(const ConnectionOfHost& connection, const absl::Status& why) {
  sink()->on_closed(connection, why);
  watcher_->post([this, connection] { over(connection.get()); });
  MutexLock lock(mutex_);
  --open_;
  changed_.notify_all();
}

// ---- any thread

SameHostTransport::ConnectionOfHost SameHostTransport::make_connection(
    std::shared_ptr<PairMemory> memory, PairMemory::End end, LocalSocket socket, WakeSlot here,
    WakeSlot there, const PeerIdentity& peer) {
  const PairMemory::End far =
      end == PairMemory::kDialler ? PairMemory::kAcceptor : PairMemory::kDialler;
  auto lender = std::make_shared<rpc_internal::PayloadLender>(arena_, peer.id, memory, end, here);
  lender->begin();
  auto borrower = std::make_unique<rpc_internal::PayloadBorrower>(
      std::make_shared<BorrowedSegments>(BorrowedSegments::Limits{}), memory, far, there, pool_,
      clock_);
  SameHostConnection::Parts parts = {
      std::move(memory), end,  std::move(socket), std::move(here),
      std::move(there),  peer, std::move(lender), std::move(borrower),
      reading_};
  return std::make_shared<SameHostConnection>(std::move(parts), pool_, options_.limits);
}

void SameHostTransport::fail(ConnectCallback callback, absl::Status why) {
  reading_->post([callback = std::move(callback), why = std::move(why)]() mutable {
    callback(std::move(why));
  });
}

std::optional<WakeSlot> SameHostTransport::take_slot() {
  MutexLock lock(mutex_);
  if (free_slots_.empty()) return std::nullopt;
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return WakeSlot{page_, slot};
}

void SameHostTransport::free_slot(uint32_t slot) {
  MutexLock lock(mutex_);
  free_slots_.push_back(slot);
}

PeerIdentity SameHostTransport::self() const {
  MutexLock lock(mutex_);
  return self_;
}

TransportSink* SameHostTransport::sink() const {
  MutexLock lock(mutex_);
  return sink_;
}

}  // namespace weft
