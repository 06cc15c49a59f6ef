// Keeps the values that live on one worker and this worker's forks of values elsewhere, and runs
// the callbacks that wait for either.
//
// The driver is thin. OwnershipCore decides under one lock. The driver performs the core's actions
// in order after it has released the lock. Freed values are destroyed on the executor.
//
// Thread safety: all methods may be called from any thread. Callbacks run inside the method or on a
// transport thread, without any lock. They must be short and must not call `close`.
// Lifetime: the Worker shares this object with the handles in use, which keep it only for moments.
// Call `close` before the agent, the executor or the runtime is destroyed.
// Errors: FailedPrecondition (shutting down), RRefLost, InvalidArgument (malformed, wrong type).
// Protocol: docs/rref_protocol.md.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "weft/async/executor.h"
#include "weft/base/mutex.h"
#include "weft/rpc/hooks.h"
#include "weft/rpc/runtime.h"
#include "weft/rpc/session/agent.h"
#include "weft/rref/internal/ownership_core.h"
#include "weft/rref/internal/rref_handle.h"

namespace weft::rref_internal {

class RRefDriver final : public ReferenceHook, public std::enable_shared_from_this<RRefDriver> {
 public:
  using ObjectHandler = absl::AnyInvocable<void(absl::StatusOr<Object>)>;
  using StatusHandler = absl::AnyInvocable<void(absl::Status)>;
  using ReferencesHandler = absl::AnyInvocable<void(absl::StatusOr<References>)>;

  RRefDriver(rpc_internal::Agent& agent, Executor& executor, OwnershipLimits limits = {});
  ~RRefDriver() override;

  // Installs this driver in its agent. Call it once, before the agent starts, when a shared_ptr
  // owns this driver.
  void attach(const std::shared_ptr<RpcRuntime>& runtime);

  // ReferenceHook.
  absl::StatusOr<CarriedReferencePtr> carry(const AnyReferencePtr& reference, WorkerId to) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<References> receive(WorkerId from, const std::vector<std::string>& wires) override
      ABSL_LOCKS_EXCLUDED(mutex_) {
    return adopt(from, wires, nullptr);
  }
  void receive_confirmed(WorkerId from, const std::vector<std::string>& wires,
                         ReferencesHandler then) override ABSL_LOCKS_EXCLUDED(mutex_) {
    (void)adopt(from, wires, std::move(then));
  }
  void discard(WorkerId from, const std::vector<std::string>& wires) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::shared_ptr<ObjectSlot>> accept_creation(WorkerId from,
                                                              std::string_view creation) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t resolve_target(WorkerId from, std::string_view target, ObjectHandler then) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void forget_target(uint64_t number) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status explain_failure(const AnyReferencePtr& target, absl::Status status) override
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Makes this worker the owner of `object` and returns the first handle.
  absl::StatusOr<RRefHandlePtr> own(Object object) ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes the reference for a `remote` call to `owner`, which may be this worker. The caller sends
  // `creation` with the call and calls `creation_failed` if the call fails.
  struct Created {
    RRefHandlePtr handle;
    std::string creation;
  };
  absl::StatusOr<Created> create(WorkerId owner, const TypeInfo& type) ABSL_LOCKS_EXCLUDED(mutex_);
  void creation_failed(const Handle& handle, WorkerId owner, absl::Status status)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // OK if this handle may be used: it is not lost and the worker is not shutting down.
  absl::Status usable(const Handle& handle) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells the core that `owner` is dead if the agent knows so. The agent fails its calls to a dead
  // worker before it tells its listeners; without this, a handle would still seem usable meanwhile.
  void look_after(WorkerId owner) ABSL_LOCKS_EXCLUDED(mutex_);
  bool confirmed(const Handle& handle) const ABSL_LOCKS_EXCLUDED(mutex_);
  // `then` runs with OK once the owner has confirmed the handle, or with the reason why it never
  // will.
  void when_decided(const Handle& handle, StatusHandler then) ABSL_LOCKS_EXCLUDED(mutex_);
  // The object behind an owner's handle. While there is no object, the result has no type.
  Object owned_object(RRefId rref) const ABSL_LOCKS_EXCLUDED(mutex_);
  void release(const Handle& handle) ABSL_LOCKS_EXCLUDED(mutex_);

  Executor& executor() const { return executor_; }
  std::shared_ptr<RpcRuntime> runtime() const { return runtime_.lock(); }
  WorkerId self() const { return self_; }
  const std::string& name() const { return name_; }
  std::string name_of(WorkerId worker) const { return agent_.name_of(worker); }

  // All handles here refer to nothing from now on. Values that other workers hold stay.
  void begin_shutdown() ABSL_LOCKS_EXCLUDED(mutex_);
  bool drained() const ABSL_LOCKS_EXCLUDED(mutex_);
  // `then` runs once no value is owned for others, and no reference is held here or on its way
  // (G9).
  void when_drained(Executor::Task then) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Leak> leaks() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Frees every value, drops every fork and fails everything that waits. Afterwards nothing is sent
  // and every call fails. Blocks until no other thread is inside the agent or the executor on
  // behalf of this driver.
  void close() ABSL_LOCKS_EXCLUDED(mutex_);
  OwnershipGauges gauges() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Appends the workers with which this one shares references (see OwnershipCore::append_ties).
  void append_ties(std::vector<WorkerId>& workers) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Event;
  class Carried;
  class Slot;
  using Effect = absl::AnyInvocable<void()>;

  // The state of one handle. All owned handles of one RRef share one state.
  struct HandleState {
    size_t handles = 0;
    bool decided = false;
    absl::Status lost;
    std::vector<StatusHandler> waiting;
  };
  struct Fetch {
    RRefId rref;
    ObjectHandler then;
  };
  struct Arrival {  // a call whose references are not all confirmed
    References references;
    absl::Status refused;  // error of the first reference that the core refused
    ReferencesHandler then;
  };

  void on_post(WorkerId from, const Frame& frame) ABSL_LOCKS_EXCLUDED(mutex_);
  void set_value(RRefId rref, absl::StatusOr<Object> value) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<References> adopt(WorkerId from, const std::vector<std::string>& wires,
                                   ReferencesHandler then) ABSL_LOCKS_EXCLUDED(mutex_);
  void carrier_ended(const Reference& reference) ABSL_LOCKS_EXCLUDED(mutex_);
  RRefHandlePtr add_handle(const Handle& handle, WorkerId owner, TypeTag type)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status check_open() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds the worker's name to an RRefLost, because the core knows only ids. Asks the agent, so the
  // lock must be free.
  absl::Status named(absl::Status status) const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status with_name_of(WorkerId worker, const absl::Status& status) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t fetch(WorkerId from, RRefId rref, RRefKey key, ObjectHandler then)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Turns the core's actions into effects, which run after the lock is released. It moves
  // everything that an effect needs out of the tables, so that no later event can take it away.
  class Collector;

  rpc_internal::Agent& agent_;
  Executor& executor_;
  const WorkerId self_;
  const std::string name_;
  std::weak_ptr<RpcRuntime> runtime_;  // weak: the runtime refers to this hook
  mutable Mutex mutex_;
  CondVar idle_;
  OwnershipCore core_ ABSL_GUARDED_BY(mutex_);
  std::map<RRefId, Object> values_ ABSL_GUARDED_BY(mutex_);
  std::map<Handle, HandleState> handles_ ABSL_GUARDED_BY(mutex_);
  std::map<FetchTicket, Fetch> fetches_ ABSL_GUARDED_BY(mutex_);
  std::map<WaiterId, Arrival> arrivals_ ABSL_GUARDED_BY(mutex_);
  std::set<RRefId> own_creations_ ABSL_GUARDED_BY(mutex_);  // remote() to this worker, not accepted
  std::vector<Executor::Task> drained_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t next_waiter_ ABSL_GUARDED_BY(mutex_) = 1;
  size_t performing_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;   // the core is closed: it takes nothing more
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // nothing is sent or scheduled any more
};

}  // namespace weft::rref_internal
