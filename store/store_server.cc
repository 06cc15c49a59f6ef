#include "weft/store/store_server.h"

#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/async_unary_call.h>

#include "absl/strings/str_cat.h"
#include "weft/base/clock.h"
#include "weft/base/log.h"
#include "weft/base/mutex.h"
#include "weft/base/rpc_error.h"
#include "weft/base/status.h"
#include "weft/base/thread.h"
#include "weft/links/grpc_settings.h"
#include "weft/links/grpc_sockets.h"
#include "weft/links/grpc_tls.h"

namespace weft {
namespace {

constexpr int kMostStoreMetadata = 8 << 10;
constexpr int kMostCalls = 1024;      // of one connection at a time
constexpr int kHandshakeMs = 10'000;  // of TLS and HTTP/2
constexpr size_t kMostUnproven = 512;

// The only method of a store.
class CallService final : public grpc::Service {
 public:
  CallService() {
    AddMethod(new grpc::internal::RpcServiceMethod("/weft.Store/Call",
                                                   grpc::internal::RpcMethod::NORMAL_RPC, nullptr));
    MarkMethodAsync(0);
  }
  void request(grpc::ServerContext& context, wire::StoreCall& call,
               grpc::ServerAsyncResponseWriter<wire::StoreReply>& answer,
               grpc::ServerCompletionQueue& queue, void* tag) {
    RequestAsyncUnary(0, &context, &call, &answer, &queue, &queue, tag);
  }
};

}  // namespace

class StoreServer::Impl {
 public:
  explicit Impl(const StoreServerOptions& options)
      : options_(options),
        sockets_(clock_, options.listen_address, kMostUnproven, options.tls != nullptr),
        core_(random_store_number(), options.limits) {}
  ~Impl() { stop(); }

  absl::Status start() {
    prepare_grpc();
    if (options_.tls != nullptr) {
      WEFT_ASSIGN_OR_RETURN(tls_, GrpcTls::create(options_.tls));
    }
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMostStoreMessage);
    builder.SetMaxSendMessageSize(kMostStoreMessage);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMostStoreMetadata);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostCalls);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
    for (const auto& [name, value] : kGiveUpArguments) builder.AddChannelArgument(name, value);
    using External = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        External::FROM_FD,
        tls_ != nullptr ? tls_->for_listening() : grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    queue_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::ResourceExhaustedError("gRPC cannot start a server");
    WEFT_ASSIGN_OR_RETURN(thread_, start_thread("the store", [this] { serve(); }));
    {
      MutexLock lock(mutex_);
      accept();
    }
    return sockets_.listen(
        [this](FileDescriptor connection) {
          grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
          parameters.fd = connection.release();
          acceptor_->HandleNewConnection(&parameters);
        },
        listen_for_others);
  }

  const std::string& address() const { return sockets_.address(); }

  absl::StatusOr<wire::StoreReply> call(const wire::StoreCall& call, TimePoint deadline)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    std::optional<wire::StoreReply> reply;
    MutexLock lock(mutex_);
    const StoreCore::Ticket ticket = next_ticket_++;
    own_.emplace(ticket, &reply);
    deliver(core_.call(ticket, options_.proves_names ? options_.own_name : "", call));
    while (!reply.has_value() && !stopped_) {
      if (!changed_.wait_until(mutex_, deadline)) break;
    }
    own_.erase(ticket);
    deliver(core_.ended(ticket));
    if (reply.has_value()) return *std::move(reply);
    if (stopped_) return absl::UnavailableError("the store has stopped");
    return absl::DeadlineExceededError("the time is over");
  }

 private:
  // A call of another process. gRPC reports to the queue that it has come (`arrived`), that its
  // answer was taken (`answered`), and that it is over (`over`).
  struct RemoteCall {
    struct Event {
      RemoteCall* call;
      void (Impl::*handle)(RemoteCall&, bool ok);
    };
    explicit RemoteCall(StoreCore::Ticket ticket_in) : ticket(ticket_in) {}

    const StoreCore::Ticket ticket;
    grpc::ServerContext context;
    wire::StoreCall request;
    grpc::ServerAsyncResponseWriter<wire::StoreReply> writer{&context};
    Event arrived{this, &Impl::arrived};
    Event answered{this, &Impl::answered};
    Event over{this, &Impl::over};
    bool is_answering = false;  // gRPC has the answer and will report `answered`
    bool is_over = false;
  };

  void serve() {
    void* tag = nullptr;
    bool ok = false;
    while (queue_->Next(&tag, &ok)) {
      const auto& event = *static_cast<RemoteCall::Event*>(tag);
      (this->*event.handle)(*event.call, ok);
    }
  }

  // Waits for the next call, without blocking. Under the lock, because gRPC 1.51 may lose a request
  // that is made while the server shuts down.
  void accept() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (stopped_) return;
    auto next = std::make_unique<RemoteCall>(next_ticket_++);
    next->context.AsyncNotifyWhenDone(&next->over);
    service_.request(next->context, next->request, next->writer, *queue_, &next->arrived);
    const StoreCore::Ticket ticket = next->ticket;
    remote_.emplace(ticket, std::move(next));
  }

  void arrived(RemoteCall& call, bool ok) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (!ok) {  // the server stops; then `over` is not reported
      remote_.erase(call.ticket);
      return;
    }
    accept();
    if (stopped_) return;  // the server cancels the call
    absl::StatusOr<std::string> author = author_of(call.context);
    if (!author.ok()) {
      refusals_.warn(absl::StrCat("the store refused a caller: ", author.status().message()));
      wire::StoreReply refusal;
      refusal.set_code(static_cast<uint32_t>(author.status().code()));
      refusal.set_error(std::string(author.status().message()));
      answer(call, refusal);
      return;
    }
    sockets_.mark_proven(call.context.peer());
    deliver(core_.call(call.ticket, *author, call.request));
    call.request.Clear();
  }

  void answered(RemoteCall& call, bool) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    call.is_answering = false;
    if (call.is_over) remote_.erase(call.ticket);
  }

  void over(RemoteCall& call, bool) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    call.is_over = true;
    const StoreCore::Ticket ticket = call.ticket;
    if (!call.is_answering) remote_.erase(ticket);
    deliver(core_.ended(ticket));
  }

  // The caller's name, if its certificate proves it; otherwise empty.
  absl::StatusOr<std::string> author_of(const grpc::ServerContext& context) const {
    if (tls_ == nullptr) return std::string();
    std::vector<std::string> uris;
    for (const grpc::string_ref& uri : context.auth_context()->FindPropertyValues("peer_uri")) {
      uris.emplace_back(uri.data(), uri.size());
    }
    WEFT_ASSIGN_OR_RETURN(const CertificateName name, tls_->name_of(uris));
    return options_.proves_names ? name.worker : std::string();
  }

  void deliver(const StoreCore::Answers& answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const auto& [ticket, reply] : answers) {
      if (const auto own = own_.find(ticket); own != own_.end()) {
        *own->second = reply;
        changed_.notify_all();
      } else if (const auto remote = remote_.find(ticket); remote != remote_.end()) {
        answer(*remote->second, reply);
      }
    }
  }

  void answer(RemoteCall& call, const wire::StoreReply& reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (call.is_over || call.is_answering || stopped_) return;
    call.is_answering = true;
    call.writer.Finish(reply, grpc::Status::OK, &call.answered);
  }

  void stop() ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      MutexLock lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    sockets_.stop();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    if (queue_ != nullptr) queue_->Shutdown();
    if (thread_.joinable()) {
      thread_.join();
    } else if (queue_ != nullptr) {
      serve();
    }
    server_ = nullptr;
    keep_grpc_if_threads_are_refused();
  }

  const StoreServerOptions options_;
  SystemClock clock_;
  GrpcSockets sockets_;
  std::unique_ptr<GrpcTls> tls_;
  CallService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  WarningLimit refusals_;

  Mutex mutex_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  StoreCore core_ ABSL_GUARDED_BY(mutex_);
  StoreCore::Ticket next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<StoreCore::Ticket, std::unique_ptr<RemoteCall>> remote_ ABSL_GUARDED_BY(mutex_);
  // Calls of this process, and where their replies go.
  std::map<StoreCore::Ticket, std::optional<wire::StoreReply>*> own_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<StoreServer>> StoreServer::start(const StoreServerOptions& options) {
  if (options.proves_names && options.tls == nullptr) {
    return absl::InvalidArgumentError("a store without TLS proves no names");
  }
  try {
    auto impl = std::make_unique<Impl>(options);
    WEFT_RETURN_IF_ERROR(impl->start());
    std::unique_ptr<StoreServer> made(new StoreServer(std::move(impl)));
    return made;
  } catch (const RpcError& refused) {  // the clock's thread
    return refused.status();
  }
}

StoreServer::StoreServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StoreServer::~StoreServer() = default;

const std::string& StoreServer::address() const { return impl_->address(); }
absl::StatusOr<wire::StoreReply> StoreServer::call(wire::StoreCall call, TimePoint deadline) {
  return impl_->call(call, deadline);
}
std::string StoreServer::description() const {
  return absl::StrCat("rendezvous store at ", address());
}

}  // namespace weft
