#include "weft/worker/worker.h"

#include <atomic>
#include <cstdlib>
#include <thread>
#include <utility>

#include <ATen/Parallel.h>

#include "absl/strings/str_cat.h"
#include "weft/async/serial_thread.h"
#include "weft/base/log.h"
#include "weft/base/rpc_error.h"
#include "weft/dist_autograd/autograd_driver.h"
#include "weft/rpc/aten/aten_operators.h"
#include "weft/rpc/membership/membership.h"
#include "weft/rpc/membership/processor_waits.h"
#include "weft/rpc/membership/quiescence.h"
#include "weft/rpc/membership/store_thread.h"
#include "weft/rpc/rendezvous/death_records.h"
#include "weft/rpc/rendezvous/dynamic_join.h"
#include "weft/rpc/rendezvous/join_records.h"
#include "weft/rpc/rendezvous/static_join.h"
#include "weft/rpc/same_host/fallback_transport.h"
#include "weft/rpc/same_host/same_host_transport.h"
#include "weft/rpc/transport/grpc_transport.h"
#include "weft/rpc/worker_runtime.h"
#include "weft/rref/rref_driver.h"
#include "weft/security/rights/access_policy.h"
#include "weft/security/worker_identity.h"
#include "weft/store/job/job_store.h"
#include "weft/worker/ready_file.h"

namespace weft {
namespace {

// Once a leaving worker waits for no other worker, its running handlers get this long. Then they
// are left behind.
constexpr Nanoseconds kLeaveTime = std::chrono::seconds(1);
// How long a worker that leaves waits for the store.
constexpr Nanoseconds kStoreTime = std::chrono::milliseconds(500);

absl::Status has_ended() {
  return with_ran(absl::FailedPreconditionError("this worker has been shut down"), Ran::kNo);
}

// Handlers run in parallel on the executor, so each computes on one thread of LibTorch.
void use_one_torch_thread() {
  if (std::getenv("OMP_NUM_THREADS") == nullptr) at::set_num_threads(1);
}

// Sets the address at which the worker listens, and its credentials.
absl::Status secure(const WorkerOptions& options, GrpcTransportOptions& grpc) {
  using Security = WorkerOptions::Security;
  grpc.listen_address = absl::StrCat(options.effective_listen_host(), ":0");
  if (options.security == Security::kNone) {
    [[maybe_unused]] static const bool warned = [] {
      log_warning(
          "WEFT_SECURITY=none: everybody who reaches the port of a worker of this process may call "
          "it (docs/security.md)");
      return true;
    }();
    return absl::OkStatus();
  }
  if (options.security == Security::kAuto && options.stays_on_host()) {
    grpc.listen_address = "unix:";
    return absl::OkStatus();
  }
  WorkerClaim claim = {.name = options.effective_name(), .rank = options.place.rank};
  if (options.dynamic) claim.rank = std::nullopt;
  WEFT_ASSIGN_OR_RETURN(
      grpc.tls, find_worker_identity(options.place.run_id, options.effective_role(), claim));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Transport>> make_transport(const WorkerOptions& options,
                                                          Clock& clock) {
  if (options.transport != nullptr) return options.transport(clock);
  GrpcTransportOptions grpc;
  WEFT_RETURN_IF_ERROR(secure(options, grpc));
  grpc.spin = options.spin;
  // All members of the group may dial at once, each with its streams.
  if (!options.dynamic) grpc.most_unproven += size_t{4} * options.place.world_size;
  // Half of the time that leaving may take.
  grpc.grace = kLeaveTime / 2;
  std::unique_ptr<Transport> same_host;
  if (options.same_host != WorkerOptions::SameHost::kOff) {
    SameHostTransportOptions local;
    local.spin = options.spin;
    local.grace = kLeaveTime / 2;
    local.workers = options.place.local_world_size;
    same_host = std::make_unique<SameHostTransport>(clock, local);
  }
  return std::make_unique<FallbackTransport>(clock, std::move(same_host),
                                             std::make_unique<GrpcTransport>(clock, grpc));
}

absl::Duration join_limit(const WorkerOptions& options) {
  const Timeout& timeout = options.join_timeout;
  return timeout.infinite() ? absl::InfiniteDuration() : absl::FromChrono(timeout.limit());
}

JoinRequest join_request(const WorkerOptions& options, std::string address) {
  JoinRequest request;
  request.group = options.place.run_id;
  request.epoch = options.place.group_epoch;
  request.attempt = options.place.restart_count;
  request.replaces_the_dead = options.place.replaces_the_dead;
  request.name = options.effective_name();
  request.rank = options.place.rank;
  request.world_size = options.place.world_size;
  request.address = std::move(address);
  request.timeout = join_limit(options);
  return request;
}

}  // namespace

// Members are declared in the order in which they are made. They are destroyed in reverse order.
class Worker::Stack {
 public:
  explicit Stack(WorkerOptions options)
      : options_(std::move(options)),
        executor_(clock_, {.name = options_.effective_name(),
                           .threads = options_.threads,
                           .max_threads = options_.max_threads,
                           .on_thread_start = std::make_shared<const std::function<void()>>(
                               [] { at::init_num_threads(); })}) {}
  ~Stack() {
    stop_traffic();
    executor_.stop();
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  // Blocks until the group is complete. The runtime that it returns keeps `self` alive.
  absl::StatusOr<std::shared_ptr<rpc_internal::WorkerRuntime>> join(
      const std::shared_ptr<Stack>& self);

  bool has_ended() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Stops everything, on a thread that keeps `self` and `runtime` until it is done. A thread is
  // needed because a handler that never returns must not block ~Worker. Returns false if the
  // shutdown has begun already.
  bool begin_end(ShutdownOptions options, std::shared_ptr<Stack> self,
                 std::shared_ptr<RpcRuntime> runtime) ABSL_LOCKS_EXCLUDED(mutex_);
  // Joins that thread if it is done. Otherwise detaches it.
  void let_go_of_end() ABSL_LOCKS_EXCLUDED(mutex_);

  const WorkerOptions& options() const { return options_; }
  Executor& executor() { return executor_; }
  rpc_internal::Agent& agent() const { return *agent_; }
  rpc_internal::Quiescence& quiescence() { return *quiescence_; }
  rpc_internal::Membership& membership() { return *membership_; }
  // Completes when shutdown has begun; for serve in a dynamic group.
  Future<void> begun() const { return begun_.future(); }
  DebugInfo debug_info() const;
  Future<void> ended() const { return outcome_->promise.future(); }
  bool restarted() const {
    return options_.place.restarted() || attempt_ > options_.place.restart_count;
  }

 private:
  void end(ShutdownOptions options, const RpcRuntime* runtime);
  // True for a dynamic group or a restarted rank: other members may not know this incarnation yet.
  bool is_joiner() const { return options_.dynamic || attempt_ > 0; }
  void make_agent(WorkerId self, const std::vector<WorkerInfo>& members, const JoinRequest& request,
                  const std::shared_ptr<DeathRecords>& list);
  std::shared_ptr<rpc_internal::WorkerRuntime> make_runtime(
      const std::shared_ptr<Stack>& self, std::shared_ptr<const Registry> registry);
  rpc_internal::Membership::Options membership_options(const JoinRequest& request);
  absl::Status be_welcomed();
  absl::Status drain(Timeout timeout);
  void end_round();
  // True if the group continues although this worker has not announced that it leaves.
  bool others_go_on() const {
    return membership_ != nullptr && (options_.dynamic || !membership_->standing().ok());
  }
  void keep_store() const;
  void wait_until_drained();
  void stop_traffic();

  const WorkerOptions options_;
  ReadyFile ready_;
  // The group's store, which may be hosted here. It lives at least as long as this worker.
  std::shared_ptr<RendezvousStore> store_;
  uint32_t round_ = 0;    // JoinResult::round
  uint32_t attempt_ = 0;  // JoinResult::attempt
  SystemClock clock_;
  ThreadExecutor executor_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<rpc_internal::Agent> agent_;
  std::unique_ptr<rpc_internal::Quiescence> quiescence_;
  std::unique_ptr<rpc_internal::Membership> membership_;
  rpc_internal::StoreThread store_thread_;
  // Shared with the handles and contexts that are in use.
  std::shared_ptr<rref_internal::RRefDriver> references_;
  std::shared_ptr<dist_autograd_internal::AutogradDriver> autograd_;
  Promise<void> begun_{nullptr};
  mutable Mutex mutex_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  // Made in advance, so that a worker can stop even if the system gives no more threads.
  std::unique_ptr<SerialThread> end_ ABSL_GUARDED_BY(mutex_) =
      std::make_unique<SerialThread>(SerialThread::AtEnd::kRun, "the end of a worker");
  // The result of the shutdown. The thread sets it, or the timer does after kLeaveTime, if handlers
  // still keep the thread.
  struct Outcome {
    std::atomic<bool> told{false};
    Promise<void> promise{nullptr};
    bool tell(const absl::Status& status) {
      if (told.exchange(true)) return false;
      promise.set(status.ok() ? absl::StatusOr<Unit>(Unit{}) : status);
      return true;
    }
  };
  const std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();
  std::atomic<bool> stopped_{false};  // the thread has nothing left to do
};

absl::StatusOr<std::shared_ptr<rpc_internal::WorkerRuntime>> Worker::Stack::join(
    const std::shared_ptr<Stack>& self) {
  WEFT_RETURN_IF_ERROR(options_.validate());
  WEFT_RETURN_IF_ERROR(ready_.prepare(options_.ready_file));
  WEFT_RETURN_IF_ERROR(executor_.start());
  WEFT_RETURN_IF_ERROR(store_thread_.start());
  RegistryBuilder functions = options_.registry;
  WEFT_RETURN_IF_ERROR(rpc_internal::add_operators(options_.allow_operators, functions));
  if (!options_.policy_file.empty()) {
    WEFT_ASSIGN_OR_RETURN(AccessPolicy policy, AccessPolicy::read(options_.policy_file));
    WEFT_RETURN_IF_ERROR(policy.check_role(
        options_.effective_role(), absl::StrCat("worker '", options_.effective_name(), "'")));
    functions.set_policy(std::make_shared<const AccessPolicy>(std::move(policy)));
  }
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<const Registry> registry, functions.build());
  store_ = options_.store;
  if (store_ == nullptr) {
    WEFT_ASSIGN_OR_RETURN(store_,
                          open_job_store(options_.place, options_.security, join_limit(options_)));
  }
  WEFT_ASSIGN_OR_RETURN(transport_, make_transport(options_, clock_));
  WEFT_RETURN_IF_ERROR(transport_->listen());
  const JoinRequest request = join_request(options_, transport_->address());
  const auto list = std::make_shared<DeathRecords>(store_, request.group, request.epoch);
  WEFT_ASSIGN_OR_RETURN(const std::vector<DeathRecord> death_records, list->read());
  WEFT_ASSIGN_OR_RETURN(JoinResult joined, options_.dynamic
                                               ? join_dynamic_group(*store_, request, death_records)
                                               : join_static_group(*store_, request));
  round_ = joined.round;
  attempt_ = joined.attempt;

  std::vector<WorkerInfo> members;
  for (const MemberInfo& member : joined.members) {
    members.push_back({member.id, member.name, member.address});
  }
  make_agent(joined.self, members, request, list);
  const std::shared_ptr<rpc_internal::WorkerRuntime> runtime =
      make_runtime(self, std::move(registry));
  absl::Status started = agent_->start(std::move(members));
  if (started.ok()) {
    membership_->start(death_records);
    if (is_joiner()) started = be_welcomed();
  }
  if (started.ok()) started = ready_.make(agent_->self().name);
  if (started.ok()) return runtime;
  // Some members may have met this worker and may be calling it already.
  (void)begin_end({.graceful = false}, self, runtime);
  (void)ended().result();
  let_go_of_end();
  return started;
}

void Worker::Stack::make_agent(WorkerId self, const std::vector<WorkerInfo>& members,
                               const JoinRequest& request,
                               const std::shared_ptr<DeathRecords>& list) {
  rpc_internal::AgentOptions agent;
  agent.group = absl::StrCat(options_.place.run_id, "/", options_.place.group_epoch);
  // Peers compare it at each connection, because shared memory works in each mode.
  if (options_.security != SecurityMode::kAuto) agent.security = to_string(options_.security);
  agent.self = {self, options_.effective_name(), transport_->address()};
  agent.role = options_.effective_role();
  agent.protocols.newest = options_.newest_protocol;
  agent.credit = {options_.call_credits, options_.byte_credits, options_.max_queued_calls,
                  options_.max_queued_bytes};
  agent.dial_all = is_joiner();
  agent_ = std::make_unique<rpc_internal::Agent>(std::move(agent), *transport_, clock_, executor_);
  quiescence_ = std::make_unique<rpc_internal::Quiescence>(
      *agent_, executor_, clock_,
      options_.dynamic ? std::vector<WorkerInfo>{agent_->self()} : members, options_.dynamic);
  quiescence_->attach();
  membership_ = std::make_unique<rpc_internal::Membership>(
      *agent_, *quiescence_, clock_, list, store_thread_, membership_options(request));
  membership_->add_ties([this](std::vector<WorkerId>& ties) { references_->append_ties(ties); });
  membership_->add_ties([this](std::vector<WorkerId>& ties) { autograd_->append_ties(ties); });
  membership_->add_ties([this](std::vector<WorkerId>& ties) { quiescence_->append_awaited(ties); });
  membership_->attach(members, is_joiner());
}

std::shared_ptr<rpc_internal::WorkerRuntime> Worker::Stack::make_runtime(
    const std::shared_ptr<Stack>& self, std::shared_ptr<const Registry> registry) {
  rpc_internal::RuntimeOptions runtime_options;
  runtime_options.parking = {options_.max_queued_calls, options_.byte_credits};
  runtime_options.default_timeout = options_.default_timeout;
  // Handles hold the runtime and may outlive the Worker. So the runtime keeps the stack that it
  // uses.
  std::shared_ptr<rpc_internal::WorkerRuntime> runtime(
      new rpc_internal::WorkerRuntime(*agent_, executor_, clock_, std::move(registry),
                                      runtime_options),
      [kept = std::shared_ptr<Stack>(self)](rpc_internal::WorkerRuntime* ended) mutable {
        // The deleter lives as long as weak pointers to the runtime, and the stack holds some of
        // these. So it must not keep the stack itself.
        const std::shared_ptr<Stack> stack = std::move(kept);
        delete ended;
      });
  references_ = std::make_shared<rref_internal::RRefDriver>(*agent_, executor_);
  references_->attach(runtime);
  autograd_ = dist_autograd_internal::AutogradDriver::attach(runtime, options_.leaf_observer.get());
  runtime->set_hooks(references_.get(), autograd_.get());
  runtime->attach();
  return runtime;
}

rpc_internal::Membership::Options Worker::Stack::membership_options(const JoinRequest& request) {
  rpc_internal::Membership::Options options;
  options.lease = options_.lease;
  options.world_size = options_.dynamic ? 0 : request.world_size;
  options.processor_waits = std::make_shared<rpc_internal::ProcessorWaits>();
  options.find_incarnation =
      [store = store_,
       keys = rpc_internal::JoinKeys(request.group, request.epoch, round_)](WorkerId incarnation) {
        return rpc_internal::find_incarnation(*store, keys, incarnation);
      };
  if (options_.on_member_change == nullptr) return options;
  options.listener = [this](const WorkerInfo& worker, MemberChange change,
                            const absl::Status& why) {
    executor_.schedule(
        [tell = options_.on_member_change, worker, change, why] { tell(worker, change, why); });
  };
  return options;
}

// A joiner is a member once all earlier members have welcomed it, have left or are dead.
absl::Status Worker::Stack::be_welcomed() {
  const Future<void> joined = membership_->joined();
  if (joined.wait_for(options_.join_timeout)) return joined.result().status();
  return absl::DeadlineExceededError(
      absl::StrCat("worker '", options_.effective_name(),
                   "' could not meet all members of the group within the time to join"));
}

DebugInfo Worker::Stack::debug_info() const {
  DebugInfo info;
  info.agent = agent_->info();
  info.executor_threads = executor_.thread_count();
  const rref_internal::OwnershipGauges references = references_->gauges();
  info.owned_values = references.owners;
  info.forks = references.forks;
  info.references = references.users;
  info.pending_references = references.pending_users;
  const dist_autograd_internal::AutogradDriver::Gauges autograd = autograd_->gauges();
  info.contexts = autograd.contexts;
  info.passes = autograd.passes;
  info.recorded_sends = autograd.sends;
  info.leases = membership_->leases();
  return info;
}

bool Worker::Stack::begin_end(ShutdownOptions options, std::shared_ptr<Stack> self,
                              std::shared_ptr<RpcRuntime> runtime) {
  MutexLock lock(mutex_);
  if (std::exchange(ending_, true)) return false;
  begun_.set_value();
  end_->run([self = std::move(self), runtime = std::move(runtime), options] {
    self->end(options, runtime.get());
  });
  return true;
}

void Worker::Stack::let_go_of_end() {
  std::unique_ptr<SerialThread> thread;
  {
    MutexLock lock(mutex_);
    thread = std::move(end_);
  }
  if (thread != nullptr && !stopped_.load()) thread->detach();
}

bool Worker::Stack::has_ended() const {
  MutexLock lock(mutex_);
  return ending_;
}

absl::Status Worker::Stack::drain(Timeout timeout) {
  quiescence_->enter(timeout);
  if (quiescence_->calls_drained().result().ok() && !options_.dynamic) end_round();
  references_->begin_shutdown();
  if (options_.dynamic) wait_until_drained();
  quiescence_->references_dropped();
  absl::Status status = quiescence_->ended().result().status();
  for (const rref_internal::Leak& leak : references_->leaks()) {
    const std::string what =
        absl::StrCat(leak.to_string(), " (worker '", agent_->name_of(leak.worker), "')");
    log_warning("worker '", agent_->self().name, "' ends with a reference left: ", what);
    if (!status.ok() && options_.dynamic) {
      status = with_ran(absl::Status(status.code(), absl::StrCat(status.message(),
                                                                 "; a reference is left: ", what)),
                        Ran::kNo);
    }
  }
  return status;
}

// The group admits no more joiners. Every worker marks the round before the last phase of its
// shutdown. Until that phase is complete, the rank that hosts the store is there.
void Worker::Stack::end_round() {
  if (!membership_->standing().ok()) return;  // the others go on without this worker
  store_thread_.run(
      [store = store_, place = options_.place, round = round_] {
        (void)mark_ended(*store, place.run_id, place.group_epoch, round);
      },
      kStoreTime);
}

// The other workers may start the next round, or may continue without this worker. They know only
// the store that is hosted here, so it must stay.
void Worker::Stack::keep_store() const {
  const LaunchEnvironment& place = options_.place;
  if (options_.store != nullptr || !place.hosts_store()) return;
  keep_job_store(place, options_.security);
}

// Waits until no other worker refers to values here and this worker refers to none elsewhere, or
// until the time is up.
void Worker::Stack::wait_until_drained() {
  const auto either = std::make_shared<Promise<void>>(nullptr);  // shared by what completes it
  references_->when_drained([either] { either->set_value(); });
  quiescence_->ended().state()->on_complete_inline([either] { either->set_value(); });
  (void)either->future().result();
}

void Worker::Stack::end(ShutdownOptions options, const RpcRuntime* runtime) {
  absl::Status status;
  if (options.graceful) status = drain(options.timeout.or_else(options_.shutdown_timeout));
  if (options.graceful || others_go_on()) keep_store();
  // A static group leaves together, and then no mark is needed.
  if ((options_.dynamic || !options.graceful) && membership_ != nullptr) {
    const rpc_internal::JoinKeys keys(options_.place.run_id, options_.place.group_epoch, round_);
    store_thread_.run(
        [store = store_, keys, self = agent_->self().id] {
          (void)rpc_internal::mark_left(*store, keys, self);
        },
        kStoreTime);
  }
  rpc_internal::remove_live_runtime(runtime);
  // Handlers may keep threads of the transport too, so the wait below has a limit.
  const TimerId late = clock_.call_at(clock_.now() + kLeaveTime, [outcome = outcome_, status,
                                                                  name = agent_->self().name] {
    if (!outcome->tell(status)) return;
    log_warning("worker '", name, "' has left before all its handlers and connections had ended");
  });
  // Run the at_stop hooks first: a handler on a transport thread may wait for what only a hook
  // completes.
  executor_.begin_stop();
  stop_traffic();
  executor_.stop();
  clock_.cancel(late);
  stopped_.store(true);
  outcome_->tell(status);
}

void Worker::Stack::stop_traffic() {
  ready_.remove();
  if (membership_ != nullptr) membership_->stop();
  store_thread_.stop();
  if (quiescence_ != nullptr) quiescence_->stop();
  if (autograd_ != nullptr) autograd_->stop();
  if (references_ != nullptr) references_->close();
  if (agent_ != nullptr) agent_->stop();
  if (transport_ != nullptr) transport_->stop();
}

Worker Worker::join(WorkerOptions options) {
  use_one_torch_thread();
  const std::string name = options.effective_name();
  const auto refuse = [&name](const absl::Status& why) {
    throw RpcError(raised_at(with_ran(why, Ran::kNo), name));
  };
  std::shared_ptr<Stack> stack;  // shared with the runtime, see make_runtime
  try {
    stack = std::make_shared<Stack>(std::move(options));
  } catch (const RpcError& no_thread) {
    refuse(no_thread.status());
  }
  auto runtime = stack->join(stack);
  if (!runtime.ok()) refuse(runtime.status());
  Worker worker(std::move(stack));
  worker.runtime_ = *std::move(runtime);
  rpc_internal::add_live_runtime(worker.runtime_);
  return worker;
}

Worker::Worker(std::shared_ptr<Stack> stack) : stack_(std::move(stack)) {}
Worker::Worker(Worker&&) noexcept = default;

Worker& Worker::operator=(Worker&& other) noexcept {
  leave();
  stack_ = std::move(other.stack_);
  runtime_ = std::move(other.runtime_);
  return *this;
}

Worker::~Worker() { leave(); }

void Worker::leave() noexcept {
  if (stack_ == nullptr) return;
  if (stack_->has_ended()) {
    stack_->quiescence().stop();  // a shutdown_async that was not waited for
  } else {
    (void)shutdown_async({.graceful = false});
  }
  (void)stack_->ended().result();
  stack_->let_go_of_end();
  runtime_ = nullptr;
  stack_ = nullptr;
}

WorkerId Worker::id() const { return stack_->agent().self().id; }
const std::string& Worker::name() const { return stack_->agent().self().name; }
bool Worker::restarted() const { return stack_->restarted(); }
std::vector<WorkerInfo> Worker::workers() const { return stack_->agent().members(); }
DebugInfo Worker::debug_info() const { return stack_->debug_info(); }

absl::Status Worker::standing() const { return stack_->membership().standing(); }

Destination Worker::to(std::string_view worker, CallOptions options) const {
  if (stack_->has_ended()) throw RpcError(has_ended());
  return Destination(runtime_, worker, options);
}

void Worker::set_default_timeout(Timeout timeout) {
  static_cast<rpc_internal::WorkerRuntime&>(*runtime_).set_default_timeout(timeout);
}

WorkerInfo Worker::wait_for(std::string_view worker, Timeout timeout) const {
  return wait_for_async(worker, timeout).wait();
}

Future<WorkerInfo> Worker::wait_for_async(std::string_view worker, Timeout timeout) const {
  if (stack_->has_ended()) throw RpcError(has_ended());
  return stack_->membership().when_live(worker, timeout);
}

void Worker::wait_until_gone(std::string_view worker, Timeout timeout) const {
  wait_until_gone_async(worker, timeout).wait();
}

Future<void> Worker::wait_until_gone_async(std::string_view worker, Timeout timeout) const {
  if (stack_->has_ended()) throw RpcError(has_ended());
  return stack_->membership().when_gone(worker, timeout);
}

MemberEvents Worker::member_events() const {
  if (stack_->has_ended()) throw RpcError(has_ended());
  return stack_->membership().events();
}

void Worker::serve() {
  if (stack_->has_ended()) throw RpcError(has_ended());
  if (stack_->options().dynamic) {
    stack_->begun().wait();
  } else {
    stack_->quiescence().others_entered().wait();
  }
}

void Worker::shutdown(ShutdownOptions options) {
  if (Executor::current() == &stack_->executor()) {
    throw RpcError(absl::FailedPreconditionError(
        "shutdown waits for running handlers and so cannot be called by one: use shutdown_async"));
  }
  if (!stack_->begin_end(options, stack_, runtime_)) throw RpcError(has_ended());
  const Future<void> ended = stack_->ended();
  (void)ended.result();
  stack_->let_go_of_end();
  ended.wait();
}

Future<void> Worker::shutdown_async(ShutdownOptions options) {
  if (!stack_->begin_end(options, stack_, runtime_)) return Future<void>::ready(has_ended());
  return stack_->ended();
}

}  // namespace weft
