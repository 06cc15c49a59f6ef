#include "weft/rref/rref_driver.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/faults/fail_point.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/rref/internal/key_maker.h"
#include "weft/rref/internal/rref_wire.h"

namespace weft::rref_internal {
namespace {

TypeTag tag_of(const TypeInfo& type) { return {type.hash, type.name}; }

}  // namespace

class RRefDriver::Collector {
 public:
  explicit Collector(RRefDriver& driver) : driver_(driver) {}

  std::vector<Effect> collect(Actions actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    for (Action& action : actions) {
      std::visit([this](auto& each) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) { add(each); },
                 action);
    }
    if (!driver_.drained_.empty() && driver_.core_.drained()) {
      for (Executor::Task& task : driver_.drained_) effects_.push_back(std::move(task));
      driver_.drained_.clear();
    }
    return std::move(effects_);
  }

 private:
  void add(Send& send) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    if (driver_.closed_) return;
    // The result of post() is not needed: if the peer is dead, the gone listener tells the core.
    effects_.push_back(
        [&agent = driver_.agent_, to = send.to, body = encode(send.message)]() mutable {
          agent.post(to, rpc_internal::Topic::kRRef, std::move(body));
        });
  }
  void add(Free& free) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    const auto found = driver_.values_.find(free.rref);
    if (found == driver_.values_.end()) return;
    Object object = std::move(found->second);
    driver_.values_.erase(found);
    if (driver_.closed_) {
      effects_.push_back([object = std::move(object)] {});
    } else {
      effects_.push_back([&executor = driver_.executor_, object = std::move(object)]() mutable {
        executor.schedule([object = std::move(object)] {});
      });
    }
  }
  void add(Confirmed& confirmed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    decide(confirmed.handle, absl::OkStatus());
  }
  void add(Lost& lost) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    decide(lost.handle, lost.status);
  }
  void decide(const Handle& handle, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    const auto found = driver_.handles_.find(handle);
    if (found == driver_.handles_.end()) return;
    HandleState& state = found->second;
    state.decided = true;
    if (!status.ok()) state.lost = status;
    for (StatusHandler& then : state.waiting) {
      effects_.push_back([&driver = driver_, then = std::move(then), status = status]() mutable {
        then(driver.named(std::move(status)));
      });
    }
    state.waiting.clear();
  }
  void add(AllConfirmed& confirmed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    const auto found = driver_.arrivals_.find(confirmed.waiter);
    if (found == driver_.arrivals_.end()) return;  // a reply's references: no callback waits
    Arrival arrival = std::move(found->second);
    driver_.arrivals_.erase(found);
    arrival.refused.Update(confirmed.status);
    effects_.push_back([&driver = driver_, arrival = std::move(arrival)]() mutable {
      if (arrival.refused.ok()) {
        arrival.then(std::move(arrival.references));
      } else {
        arrival.references.clear();
        arrival.then(driver.named(std::move(arrival.refused)));
      }
    });
  }
  void add(FetchReady& ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    const auto value = driver_.values_.find(ready.rref);
    answer(ready.ticket, value != driver_.values_.end()
                             ? absl::StatusOr<Object>(value->second)
                             : absl::InternalError("a value is ready and not here"));
  }
  void add(FetchFailed& failed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    answer(failed.ticket, failed.status);
  }
  void answer(FetchTicket ticket, absl::StatusOr<Object> result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    const auto found = driver_.fetches_.find(ticket);
    if (found == driver_.fetches_.end()) return;
    effects_.push_back([&driver = driver_, then = std::move(found->second.then),
                        result = std::move(result)]() mutable {
      if (!result.ok()) result = driver.named(std::move(result).status());
      then(std::move(result));
    });
    driver_.fetches_.erase(found);
  }

  RRefDriver& driver_;
  std::vector<Effect> effects_;
};

// One event of the core. The core decides under the lock. At the end of the scope, the destructor
// releases the lock and performs the core's actions. No handle and no value may be destroyed inside
// the scope, because its destructor may call this driver and take the lock again.
class ABSL_SCOPED_LOCKABLE RRefDriver::Event {
 public:
  explicit Event(RRefDriver& driver) ABSL_EXCLUSIVE_LOCK_FUNCTION(driver.mutex_) : driver_(driver) {
    driver_.mutex_.lock();
  }
  ~Event() ABSL_UNLOCK_FUNCTION() {
    std::vector<Effect> effects = Collector(driver_).collect(std::move(actions));
    // close() waits until no thread performs effects. So an effect may use the agent and the
    // executor without keeping them alive.
    if (!effects.empty()) ++driver_.performing_;
    driver_.mutex_.unlock();
    if (effects.empty()) return;
    WEFT_FAIL_POINT("rref.decided");
    for (Effect& effect : effects) effect();
    // Destroy the effects before the lock is taken: they may hold handles.
    effects.clear();
    MutexLock lock(driver_.mutex_);
    if (--driver_.performing_ == 0) driver_.idle_.notify_all();
  }

  Actions actions;

 private:
  RRefDriver& driver_;
};

// A reference inside a message that this worker sends.
class RRefDriver::Carried final : public CarriedReference {
 public:
  Carried(std::weak_ptr<RRefDriver> driver, Reference reference)
      : driver_(std::move(driver)), reference_(std::move(reference)), wire_(encode(reference_)) {}
  ~Carried() override {
    if (delivered_) return;
    if (const auto driver = driver_.lock()) driver->carrier_ended(reference_);
  }

  const std::string& wire() const override { return wire_; }
  void delivered() override { delivered_ = true; }

 private:
  const std::weak_ptr<RRefDriver> driver_;  // weak: calls may outlive it
  const Reference reference_;
  const std::string wire_;
  bool delivered_ = false;
};

// Receives the result of a `remote` call to this worker.
class RRefDriver::Slot final : public ObjectSlot {
 public:
  Slot(std::weak_ptr<RRefDriver> driver, Creation creation)
      : driver_(std::move(driver)), creation_(std::move(creation)) {}

  void set(Object object) override {
    const auto driver = driver_.lock();
    if (driver == nullptr) return;
    if (object.type == nullptr || object.type->hash != creation_.type.hash) {
      fail(with_ran(absl::InternalError(absl::StrCat(
                        creation_.rref.to_string(), " was to be ", creation_.type.name,
                        " and became ", object.type == nullptr ? "nothing" : object.type->name)),
                    Ran::kYes));
      return;
    }
    driver->set_value(creation_.rref, std::move(object));
  }
  void fail(absl::Status status) override {
    if (const auto driver = driver_.lock()) driver->set_value(creation_.rref, std::move(status));
  }

 private:
  const std::weak_ptr<RRefDriver> driver_;  // weak: a function may return after it is destroyed
  const Creation creation_;
};

RRefDriver::RRefDriver(rpc_internal::Agent& agent, Executor& executor, OwnershipLimits limits)
    : agent_(agent),
      executor_(executor),
      self_(agent.self().id),
      name_(agent.self().name),
      core_(
          self_, [keys = std::make_shared<KeyMaker>()](RRefId) { return keys->next(); }, limits) {}

RRefDriver::~RRefDriver() { close(); }

void RRefDriver::attach(const std::shared_ptr<RpcRuntime>& runtime) {
  runtime_ = runtime;
  // `this` is safe here and below: the agent is stopped before the Worker releases this driver.
  agent_.set_post_handler(rpc_internal::Topic::kRRef,
                          [this](WorkerId from, const Frame& frame) { on_post(from, frame); });
  // The reason does not matter: in any case, the peer's forks and values are gone.
  agent_.add_gone_listener([this](WorkerId peer, const absl::Status&, bool) {
    Event event(*this);
    core_.peer_dead(peer, event.actions);
  });
}

void RRefDriver::on_post(WorkerId from, const Frame& frame) {
  const absl::StatusOr<Message> message = decode_message(frame.body);
  if (!message.ok()) {
    log_warning(agent_.self().name, " got a bad message from ", from.to_string(), ": ",
                message.status().message());
    return;
  }
  Event event(*this);
  core_.on_message(from, self_, *message, event.actions);
}

// ---- References in messages ----

absl::StatusOr<CarriedReferencePtr> RRefDriver::carry(const AnyReferencePtr& reference,
                                                      WorkerId to) {
  const auto* handle = dynamic_cast<const RRefHandle*>(reference.get());
  if (handle == nullptr) return absl::InvalidArgumentError("an empty RRef cannot be sent");
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<RRefDriver> driver, handle->driver());
  if (driver.get() != this) {
    return absl::InvalidArgumentError(
        absl::StrCat(handle->rref().to_string(), " belongs to another worker of this process"));
  }
  WEFT_FAIL_POINT("rref.fork.next");
  absl::StatusOr<Reference> fork = absl::UnknownError("not forked");
  {
    Event event(*this);
    fork = core_.fork(handle->handle(), to);
    // If the reference was lost after driver() found it usable, its handle knows the reason.
    const auto found = handles_.find(handle->handle());
    if (!fork.ok() && found != handles_.end() && !found->second.lost.ok()) {
      fork = found->second.lost;
    }
  }
  WEFT_FAIL_POINT("rref.forked");
  if (!fork.ok()) return named(std::move(fork).status());
  return std::make_unique<Carried>(weak_from_this(), *std::move(fork));
}

void RRefDriver::carrier_ended(const Reference& reference) {
  Event event(*this);
  core_.carrier_failed(reference, Delivery::kNeverSent, event.actions);
}

// If `then` is set, it gets the references once they are confirmed. Otherwise they are returned.
absl::StatusOr<ReferenceHook::References> RRefDriver::adopt(WorkerId from,
                                                            const std::vector<std::string>& wires,
                                                            ReferencesHandler then) {
  std::vector<Reference> references;
  if (absl::Status status = decode_references(wires, references); !status.ok()) {
    discard(from, wires);
    if (then) then(status);
    return status;
  }
  WEFT_FAIL_POINT("rref.arrived");
  // Declared outside the scope of the event: the destructor of a handle calls release().
  References handles;
  absl::Status refused;
  bool too_late = false;
  {
    Event event(*this);
    too_late = ended_;
    if (too_late) refused = check_open();
    const WaiterId waiter = next_waiter_++;
    std::vector<Received> results;
    if (!too_late) results = core_.receive(from, references, waiter, event.actions);
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].status.ok()) {
        handles.push_back(
            add_handle(results[i].handle, references[i].owner, std::move(references[i].type)));
      } else {
        refused.Update(results[i].status);
      }
    }
    if (then && !too_late) {
      arrivals_.emplace(waiter, Arrival{std::move(handles), refused, std::exchange(then, nullptr)});
      handles.clear();
    }
  }
  WEFT_FAIL_POINT("rref.adopted");
  if (too_late && then) then(refused);
  if (!refused.ok()) return named(std::move(refused));
  return handles;
}

void RRefDriver::discard(WorkerId from, const std::vector<std::string>& wires) {
  std::vector<Reference> references;
  (void)decode_references(wires, references);
  Event event(*this);
  core_.discard(from, references, event.actions);
}

// ---- Creation ----

absl::StatusOr<std::shared_ptr<ObjectSlot>> RRefDriver::accept_creation(WorkerId from,
                                                                        std::string_view creation) {
  WEFT_ASSIGN_OR_RETURN(Creation made, decode_creation(creation));
  Acceptance acceptance = Acceptance::kRefused;
  {
    Event event(*this);
    if (ended_) return check_open();
    if (from != self_) {
      acceptance = core_.accept_creation(from, made, event.actions);
    } else if (own_creations_.erase(made.rref) > 0) {
      acceptance = Acceptance::kRun;
    }
  }
  switch (acceptance) {
    case Acceptance::kRun:
      return std::make_shared<Slot>(weak_from_this(), std::move(made));
    case Acceptance::kDuplicate:
      return absl::AlreadyExistsError(absl::StrCat(made.rref.to_string(), " exists already"));
    case Acceptance::kOverQuota:
      return absl::ResourceExhaustedError(absl::StrCat("worker '", agent_.name_of(from),
                                                       "' holds as many references to values of '",
                                                       name_, "' as one worker may"));
    case Acceptance::kRefused:
      break;
  }
  return absl::CancelledError(absl::StrCat(made.rref.to_string(), " was withdrawn"));
}

void RRefDriver::set_value(RRefId rref, absl::StatusOr<Object> value) {
  WEFT_FAIL_POINT("rref.value.next");
  Event event(*this);
  // If nobody wants the value any more, it is destroyed with the parameter, on the thread of its
  // function, after the lock is released.
  const bool wanted = core_.set_value(rref, value.status(), event.actions);
  if (wanted && value.ok()) values_[rref] = *std::move(value);
}

absl::StatusOr<RRefHandlePtr> RRefDriver::own(Object object) {
  Event event(*this);
  const TypeInfo& type = *object.type;
  WEFT_ASSIGN_OR_RETURN(const Handle handle, core_.own(tag_of(type)));
  values_[handle.rref] = std::move(object);
  core_.set_value(handle.rref, absl::OkStatus(), event.actions);
  return add_handle(handle, self_, tag_of(type));
}

absl::StatusOr<RRefDriver::Created> RRefDriver::create(WorkerId owner, const TypeInfo& type) {
  Creation creation{{}, {}, tag_of(type), 0};
  absl::StatusOr<Handle> handle = absl::UnknownError("not created");
  RRefHandlePtr made;
  {
    Event event(*this);
    handle =
        owner == self_ ? core_.own(creation.type) : core_.create(owner, creation.type);  // case 5
    if (handle.ok()) {
      if (owner == self_) own_creations_.insert(handle->rref);
      made = add_handle(*handle, owner, creation.type);
      creation.key = made->key();
    }
  }
  // Unavailable: the owner is dead. The core knows only its id.
  if (absl::IsUnavailable(handle.status())) return with_name_of(owner, handle.status());
  WEFT_RETURN_IF_ERROR(handle.status());
  creation.rref = handle->rref;
  creation.fork = handle->fork;
  if (owner == self_) creation.fork = {self_, handle->rref.number};  // not used, but must decode
  return Created{std::move(made), encode(creation)};
}

void RRefDriver::creation_failed(const Handle& handle, WorkerId owner, absl::Status status) {
  const bool owner_gone = !agent_.is_live(owner);
  Event event(*this);
  if (!handle.owned()) {
    // The agent fails its calls before it tells its listeners of a death. Telling the core now
    // makes this reference end as all others of this owner do (BN1).
    if (owner_gone) core_.peer_dead(owner, event.actions);
    // The result is not needed. False: the owner has confirmed it, so the creation has succeeded.
    (void)core_.creation_failed(handle.fork, std::move(status), event.actions);
  } else if (own_creations_.erase(handle.rref) > 0) {
    core_.set_value(handle.rref, std::move(status), event.actions);
  }
}

// ---- Values ----

uint64_t RRefDriver::fetch(WorkerId from, RRefId rref, RRefKey key, ObjectHandler then) {
  absl::Status closed;
  {
    Event event(*this);
    if (!ended_) {
      const FetchTicket ticket = next_ticket_++;
      fetches_.emplace(ticket, Fetch{rref, std::move(then)});
      core_.fetch(from, rref, key, ticket, event.actions);
      return ticket;
    }
    closed = check_open();
  }
  then(std::move(closed));
  return 0;
}

uint64_t RRefDriver::resolve_target(WorkerId from, std::string_view target, ObjectHandler then) {
  absl::StatusOr<Target> wanted = decode_target(target);
  if (!wanted.ok()) {
    then(std::move(wanted).status());
    return 0;
  }
  const RRefId rref = wanted->rref;
  const RRefKey key = wanted->key;
  return fetch(
      from, rref, key,
      [wanted = *std::move(wanted), then = std::move(then)](absl::StatusOr<Object> object) mutable {
        // Check the type before anybody casts the object: a peer may claim any type.
        if (object.ok() && (object->type == nullptr || object->type->hash != wanted.type.hash)) {
          object = absl::InvalidArgumentError(
              absl::StrCat(wanted.rref.to_string(), " is ",
                           object->type == nullptr ? "nothing" : object->type->name, ", not ",
                           wanted.type.name));
        }
        then(std::move(object));
      });
}

void RRefDriver::forget_target(uint64_t number) {
  ObjectHandler then;
  {
    Event event(*this);
    const auto found = fetches_.find(number);
    if (found == fetches_.end()) return;
    // `then` is moved out and called below, outside the lock.
    then = std::move(found->second.then);
    core_.cancel_fetch(found->second.rref, number, event.actions);
    fetches_.erase(found);
  }
  then(absl::CancelledError("nobody waits for the object any more"));
}

// The owner may have forgotten why a creation failed. Each handle knows it for good.
absl::Status RRefDriver::explain_failure(const AnyReferencePtr& target, absl::Status status) {
  const auto* handle = dynamic_cast<const RRefHandle*>(target.get());
  if (handle == nullptr || !absl::IsUnavailable(status) || ran_of(status) != Ran::kNo) {
    return status;
  }
  MutexLock lock(mutex_);
  const auto found = handles_.find(handle->handle());
  if (found == handles_.end()) return status;
  const absl::Status& lost = found->second.lost;
  return lost.ok() || is_rref_lost(lost) ? status : lost;
}

Object RRefDriver::owned_object(RRefId rref) const {
  MutexLock lock(mutex_);
  const auto found = values_.find(rref);
  return found == values_.end() ? Object() : found->second;
}

// ---- Handles ----

RRefHandlePtr RRefDriver::add_handle(const Handle& handle, WorkerId owner, TypeTag type) {
  HandleState& state = handles_[handle];
  ++state.handles;
  if (core_.confirmed(handle)) state.decided = true;
  Target target{handle.rref, std::move(type), core_.key_of(handle)};
  return std::make_shared<RRefHandle>(weak_from_this(), handle, owner, std::move(target));
}

void RRefDriver::release(const Handle& handle) {
  WEFT_FAIL_POINT("rref.release.next");
  Event event(*this);
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return;
  // `waiting` is empty: each waiting callback keeps the handle.
  if (--found->second.handles == 0) handles_.erase(found);
  // In shutdown the core has dropped all handles already.
  if (!core_.draining()) core_.drop(handle, event.actions);
}

absl::Status RRefDriver::check_open() const {
  if (!closed_ && !core_.draining()) return absl::OkStatus();
  return with_ran(absl::FailedPreconditionError(absl::StrCat("worker '", name_, "' has shut down")),
                  Ran::kNo);
}

absl::Status RRefDriver::named(absl::Status status) const {
  const std::optional<WorkerId> worker = rref_lost_to(status);
  if (!worker || !worker_of(status).empty()) return status;
  return with_name_of(*worker, status);
}

absl::Status RRefDriver::with_name_of(WorkerId worker, const absl::Status& status) const {
  const std::string name = agent_.name_of(worker);
  absl::Status named(status.code(), absl::StrCat(status.message(), " (worker '", name, "')"));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { named.SetPayload(url, payload); });
  return raised_at(std::move(named), name);
}

void RRefDriver::look_after(WorkerId owner) {
  if (!agent_.knows(owner) || agent_.is_live(owner)) return;
  Event event(*this);
  core_.peer_dead(owner, event.actions);
}

absl::Status RRefDriver::usable(const Handle& handle) const {
  absl::Status lost;
  {
    MutexLock lock(mutex_);
    WEFT_RETURN_IF_ERROR(check_open());
    const auto found = handles_.find(handle);
    if (found != handles_.end()) lost = found->second.lost;
  }
  return named(std::move(lost));
}

bool RRefDriver::confirmed(const Handle& handle) const {
  MutexLock lock(mutex_);
  return core_.confirmed(handle);
}

void RRefDriver::when_decided(const Handle& handle, StatusHandler then) {
  absl::Status status;
  {
    MutexLock lock(mutex_);
    status = check_open();
    const auto found = handles_.find(handle);
    if (status.ok() && found != handles_.end()) {
      if (!found->second.decided) {
        found->second.waiting.push_back(std::move(then));
        return;
      }
      status = found->second.lost;
    }
  }
  then(named(std::move(status)));
}

// ---- Shutdown ----

void RRefDriver::begin_shutdown() {
  std::vector<StatusHandler> waiting;
  absl::Status status;
  {
    Event event(*this);
    core_.begin_shutdown(event.actions);
    status = check_open();
    for (auto& [handle, state] : handles_) {
      for (StatusHandler& then : state.waiting) waiting.push_back(std::move(then));
      state.waiting.clear();
    }
  }
  for (StatusHandler& then : waiting) then(status);
}

bool RRefDriver::drained() const {
  MutexLock lock(mutex_);
  return core_.drained();
}

void RRefDriver::when_drained(Executor::Task then) {
  Event event(*this);
  drained_.push_back(std::move(then));
}

void RRefDriver::append_ties(std::vector<WorkerId>& workers) const {
  MutexLock lock(mutex_);
  core_.append_ties(workers);
}

std::vector<Leak> RRefDriver::leaks() const {
  MutexLock lock(mutex_);
  return core_.leaks();
}

void RRefDriver::close() {
  begin_shutdown();
  {
    Event event(*this);
    core_.close(event.actions);
    ended_ = true;  // the core would never answer a later request
  }
  MutexLock lock(mutex_);
  closed_ = true;
  while (performing_ > 0) idle_.wait(mutex_);
}

OwnershipGauges RRefDriver::gauges() const {
  MutexLock lock(mutex_);
  return core_.gauges();
}

}  // namespace weft::rref_internal
