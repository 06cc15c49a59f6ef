#include "weft/rpc/transport/inproc_transport.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "weft/rpc/transport/frame_codec.h"

namespace weft {
namespace rpc_internal {
namespace {

// A dial. It may have to wait for the other end's `start`.
struct Dial {
  PeerIdentity from;
  std::weak_ptr<InprocEndpoint> dialler;
  PeerIdentity expected;
  // Shared with the deadline's timer. The first to claim it runs the callback.
  struct Answer {
    std::atomic<bool> claimed{false};
    Transport::ConnectCallback callback;
  };
  std::shared_ptr<Answer> answer;

  bool claim() const { return !answer->claimed.exchange(true); }
};

void answer(const Dial& dial, absl::StatusOr<ConnectionPtr> result);

}  // namespace

// The part of a transport that deliveries use. It outlives the transport and knows when that has
// stopped.
struct InprocEndpoint : std::enable_shared_from_this<InprocEndpoint> {
  InprocEndpoint(InprocNetwork& network_in, TransportLimits limits_in)
      : network(network_in), limits(limits_in) {}

  void accept(Dial dial) ABSL_LOCKS_EXCLUDED(mutex);

  InprocNetwork& network;
  const TransportLimits limits;
  std::string address;  // set by listen, before any other thread sees this object
  Mutex mutex;
  CondVar idle;
  TransportSink* sink ABSL_GUARDED_BY(mutex) = nullptr;  // null before start and after stop
  PeerIdentity self ABSL_GUARDED_BY(mutex);
  std::atomic<bool> killed{false};
  int running ABSL_GUARDED_BY(mutex) = 0;  // callbacks that run now
  bool stopped ABSL_GUARDED_BY(mutex) = false;
  std::vector<Dial> waiting ABSL_GUARDED_BY(mutex);
  std::vector<std::weak_ptr<InprocConnection>> connections ABSL_GUARDED_BY(mutex);
  BufferPool pool;

  // Runs `f(sink)` unless the transport has stopped.
  template <class F>
  void with_sink(F f) {
    TransportSink* target = nullptr;
    {
      MutexLock lock(mutex);
      target = sink;
      if (target == nullptr) return;
      ++running;
    }
    const absl::Cleanup done = [this] {  // also if `f` throws: stop waits for it
      MutexLock lock(mutex);
      if (--running == 0) idle.notify_all();
    };
    f(*target);
  }
};

namespace {

// Runs the callback of a dial that was claimed. Does nothing if the dialler has stopped.
void answer(const Dial& dial, absl::StatusOr<ConnectionPtr> result) {
  Transport::ConnectCallback callback = std::move(dial.answer->callback);
  if (auto dialler = dial.dialler.lock()) {
    dialler->with_sink([&](TransportSink&) { callback(std::move(result)); });
  }
}

}  // namespace
}  // namespace rpc_internal

using rpc_internal::InprocEndpoint;

// The state that both ends of a connection share. Once it is broken, they drop frames in flight.
struct InprocNetwork::Link {
  std::string a, b;
  std::atomic<bool> broken{false};
  std::weak_ptr<InprocConnection> ends[2];
};

class InprocConnection final : public Connection,
                               public std::enable_shared_from_this<InprocConnection> {
 public:
  InprocConnection(InprocNetwork& network, std::shared_ptr<InprocEndpoint> owner, PeerIdentity peer,
                   std::shared_ptr<InprocNetwork::Link> link, TransportLimits limits)
      : network_(network),
        owner_(std::move(owner)),
        peer_(std::move(peer)),
        link_(std::move(link)),
        limits_(limits),
        inbox_(network.executor_) {}

  bool send(FrameBatch frames) override {
    for (FramePtr& frame : frames) {
      if (closed_.load() || link_->broken.load()) return false;
      std::shared_ptr<InprocConnection> far = other_end();
      if (far == nullptr) return false;
      switch (network_.fate_of(frame->header)) {
        case InprocNetwork::Fate::kDrop:
          continue;
        case InprocNetwork::Fate::kDuplicate:
          far->deliver(frame);
          break;
        case InprocNetwork::Fate::kDeliver:
          break;
      }
      far->deliver(std::move(frame));
    }
    return true;
  }

  void close() override {
    if (std::shared_ptr<InprocConnection> far = other_end()) far->end(absl::OkStatus());
    end(absl::OkStatus());
  }
  void abort(absl::Status reason) override { break_link(reason); }

  const PeerIdentity& peer() const override { return peer_; }
  StreamsBytes streams_of(const Frame&) const override { return {}; }  // `send` hands over all

  void set_other_end(std::weak_ptr<InprocConnection> far) { far_ = std::move(far); }
  void open_by_accept() {
    inbox_.schedule([self = shared_from_this()] {
      self->owner_->with_sink([&](TransportSink& sink) { sink.on_open(self); });
    });
  }
  // Reports on_closed once, after the frames that were delivered before.
  void end(absl::Status reason) {
    if (closed_.exchange(true)) return;
    inbox_.schedule([self = shared_from_this(), reason = std::move(reason)] {
      self->ended_ = true;
      self->owner_->with_sink([&](TransportSink& sink) { sink.on_closed(self, reason); });
    });
  }
  Strand& inbox() { return inbox_; }
  const std::shared_ptr<InprocNetwork::Link>& link() const { return link_; }

 private:
  std::shared_ptr<InprocConnection> other_end() const { return far_.lock(); }

  void deliver(FramePtr frame) {
    inbox_.schedule([self = shared_from_this(), frame = std::move(frame)] {
      if (self->ended_ || self->link_->broken.load()) return;
      absl::StatusOr<Frame> copy =
          rpc_internal::decode_head(rpc_internal::encode_head(*frame), self->limits_);
      if (!copy.ok()) {
        self->break_link(copy.status());
        return;
      }
      for (size_t i = 0; i < copy->payloads.size(); ++i) {
        copy->payloads[i] = self->owner_->pool.take(frame->payloads[i].size);
        std::copy_n(frame->payloads[i].data, frame->payloads[i].size, copy->payloads[i].data);
      }
      std::vector<Frame> frames;
      frames.push_back(*std::move(copy));
      self->owner_->with_sink(
          [&](TransportSink& sink) { sink.on_frames(self, std::move(frames)); });
    });
  }

  void break_link(const absl::Status& reason) {
    link_->broken.store(true);
    if (auto far = other_end()) far->end(reason);
    end(reason);
  }

  InprocNetwork& network_;
  const std::shared_ptr<InprocEndpoint> owner_;
  const PeerIdentity peer_;
  const std::shared_ptr<InprocNetwork::Link> link_;
  const TransportLimits limits_;
  std::weak_ptr<InprocConnection> far_;
  std::atomic<bool> closed_{false};
  bool ended_ = false;  // on_closed was reported, no frame may follow; for the inbox's tasks only
  Strand inbox_;
};

std::string InprocNetwork::add(EndpointPtr endpoint) {
  MutexLock lock(mutex_);
  std::string address = absl::StrCat("inproc:", next_address_++);
  endpoint->address = address;
  endpoints_[address] = std::move(endpoint);
  return address;
}

InprocNetwork::EndpointPtr InprocNetwork::find(const std::string& address) {
  MutexLock lock(mutex_);
  auto found = endpoints_.find(address);
  return found == endpoints_.end() ? nullptr : found->second;
}

void InprocNetwork::remove(const std::string& address) {
  MutexLock lock(mutex_);
  endpoints_.erase(address);
}

InprocNetwork::Fate InprocNetwork::fate_of(const FrameHeader& header) {
  std::shared_ptr<const Filter> filter;
  {
    MutexLock lock(mutex_);
    filter = filter_;
  }
  return filter == nullptr ? Fate::kDeliver : (*filter)(header);
}

void InprocNetwork::set_filter(Filter filter) {
  MutexLock lock(mutex_);
  filter_ = filter ? std::make_shared<const Filter>(std::move(filter)) : nullptr;
}

void InprocNetwork::sever(const std::string& a, const std::string& b) {
  std::vector<std::shared_ptr<Link>> broken;
  {
    MutexLock lock(mutex_);
    std::erase_if(links_, [](const std::weak_ptr<Link>& link) { return link.expired(); });
    for (const std::weak_ptr<Link>& weak : links_) {
      std::shared_ptr<Link> link = weak.lock();
      if (link == nullptr) continue;
      const bool hit = (link->a == a && (b.empty() || link->b == b)) ||
                       (link->b == a && (b.empty() || link->a == b));
      if (hit) broken.push_back(std::move(link));
    }
  }
  for (const std::shared_ptr<Link>& link : broken) {
    link->broken.store(true);
    for (auto& end : link->ends) {
      if (auto connection = end.lock()) connection->end(absl::UnavailableError("connection lost"));
    }
  }
}

void InprocNetwork::kill(const std::string& address) {
  // The mark comes first: a dial that does not see it has added its link before `sever` looks.
  if (EndpointPtr endpoint = find(address)) endpoint->killed.store(true);
  remove(address);
  sever(address, "");
}

InprocTransport::InprocTransport(InprocNetwork& network, TransportLimits limits)
    : network_(network), endpoint_(std::make_shared<InprocEndpoint>(network, limits)) {}

InprocTransport::~InprocTransport() { stop(); }

absl::Status InprocTransport::listen() {
  if (endpoint_->address.empty()) network_.add(endpoint_);
  return absl::OkStatus();
}

std::string InprocTransport::address() const { return endpoint_->address; }

absl::Status InprocTransport::start(PeerIdentity self, TransportSink* sink) {
  WEFT_RETURN_IF_ERROR(listen());
  std::vector<rpc_internal::Dial> waiting;
  {
    MutexLock lock(endpoint_->mutex);
    endpoint_->self = std::move(self);
    endpoint_->sink = sink;
    waiting.swap(endpoint_->waiting);
  }
  for (rpc_internal::Dial& dial : waiting) endpoint_->accept(std::move(dial));
  return absl::OkStatus();
}

void InprocTransport::connect(const std::string& address, const PeerIdentity& expected,
                              TimePoint deadline, ConnectCallback callback) {
  rpc_internal::Dial dial;
  dial.dialler = endpoint_;
  dial.expected = expected;
  dial.answer = std::make_shared<rpc_internal::Dial::Answer>();
  dial.answer->callback = std::move(callback);
  {
    MutexLock lock(endpoint_->mutex);
    dial.from = endpoint_->self;
  }
  network_.executor_.schedule([&network = network_, address, dial, deadline]() mutable {
    const InprocNetwork::EndpointPtr near = dial.dialler.lock();
    InprocNetwork::EndpointPtr far = network.find(address);
    if (far == nullptr || near == nullptr || near->killed.load()) {
      (void)dial.claim();
      rpc_internal::answer(dial,
                           absl::UnavailableError(absl::StrCat("nobody listens at ", address)));
      return;
    }
    FrameHeader shown;
    shown.kind = FrameKind::kDial;
    shown.source = dial.from.id;
    shown.destination = dial.expected.id;
    bool waits = network.fate_of(shown) == InprocNetwork::Fate::kDrop;  // the dial is lost
    if (!waits) {
      MutexLock lock(far->mutex);
      waits = far->sink == nullptr && !far->stopped;
      if (waits) far->waiting.push_back(dial);
    }
    if (waits && deadline != kNever) {
      network.clock_.call_at(deadline, [dial] {
        if (!dial.claim()) return;
        rpc_internal::answer(dial, absl::DeadlineExceededError("no answer before the deadline"));
      });
    }
    if (waits) return;
    far->accept(std::move(dial));
  });
}

void InprocEndpoint::accept(Dial dial) {
  if (dial.answer->claimed.load()) return;
  std::shared_ptr<InprocEndpoint> dialler = dial.dialler.lock();
  PeerIdentity identity;
  {
    MutexLock lock(mutex);
    identity = self;
  }
  absl::Status refused = absl::UnavailableError("the worker has stopped");
  if (identity.id != dial.expected.id) {
    refused = absl::FailedPreconditionError(
        absl::StrCat("worker '", identity.name, "' (", identity.id.to_string(), ") answers there"));
  } else {
    with_sink([&](TransportSink& target) { refused = target.on_accept(dial.from); });
  }
  if (!dial.claim()) return;  // it has its answer already
  if (!refused.ok() || dialler == nullptr) {
    answer(dial, refused);
    return;
  }
  auto link = std::make_shared<InprocNetwork::Link>();
  link->a = dialler->address;
  link->b = address;
  auto near_end =
      std::make_shared<InprocConnection>(network, shared_from_this(), dial.from, link, limits);
  auto far_end = std::make_shared<InprocConnection>(network, dialler, identity, link, limits);
  near_end->set_other_end(far_end);
  far_end->set_other_end(near_end);
  link->ends[0] = near_end;
  link->ends[1] = far_end;
  // These tasks come first: if the link breaks right after this, on_closed must follow them.
  near_end->open_by_accept();
  far_end->inbox().schedule(
      [dial = std::move(dial), far_end] { answer(dial, ConnectionPtr(far_end)); });
  bool stopped = false;
  for (auto& [endpoint, end] :
       {std::pair(shared_from_this(), near_end), std::pair(dialler, far_end)}) {
    MutexLock lock(endpoint->mutex);
    std::erase_if(endpoint->connections, [](auto& connection) { return connection.expired(); });
    endpoint->connections.push_back(end);
    stopped = stopped || endpoint->stopped;
  }
  {
    MutexLock lock(network.mutex_);
    network.links_.push_back(link);
  }
  if (stopped) far_end->close();  // `stop` ran meanwhile and did not see this connection
  if (killed.load() || dialler->killed.load()) network.sever(address, dialler->address);
}

void InprocTransport::stop() {
  if (!endpoint_->address.empty()) network_.remove(endpoint_->address);
  std::vector<std::shared_ptr<InprocConnection>> connections;
  std::vector<rpc_internal::Dial> waiting;
  {
    MutexLock lock(endpoint_->mutex);
    if (endpoint_->stopped) return;
    endpoint_->stopped = true;
    waiting.swap(endpoint_->waiting);
    for (auto& weak : endpoint_->connections) {
      if (auto connection = weak.lock()) connections.push_back(std::move(connection));
    }
    endpoint_->connections.clear();
  }
  for (const auto& dial : waiting) {
    if (dial.claim()) rpc_internal::answer(dial, absl::UnavailableError("the worker has stopped"));
  }
  for (const auto& connection : connections) connection->close();
  MutexLock lock(endpoint_->mutex);
  endpoint_->sink = nullptr;
  while (endpoint_->running > 0) endpoint_->idle.wait(endpoint_->mutex);
}

}  // namespace weft
