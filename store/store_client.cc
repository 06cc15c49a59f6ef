#include "weft/store/store_client.h"

#include <algorithm>
#include <fcntl.h>
#include <optional>
#include <sys/socket.h>
#include <thread>
#include <utility>

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/links/grpc_errors.h"
#include "weft/links/grpc_settings.h"
#include "weft/links/grpc_sockets.h"
#include "weft/links/grpc_tls.h"
#include "weft/sockets/local_socket.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause(10);  // before the next dial
constexpr milliseconds kLongestPause(200);
constexpr int kRefusalsOfTheGone = 4;

grpc::ChannelArguments channel_arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMostStoreMessage);
  arguments.SetMaxSendMessageSize(kMostStoreMessage);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // This client repeats calls itself, because gRPC's retries do not look at the deadline.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  for (const auto& [name, value] : kGiveUpArguments) arguments.SetInt(name, value);
  return arguments;
}

bool is_wait(const wire::StoreCall& call) {
  return call.has_read() && call.read().until() != wire::StoreCall::Read::NOW;
}

absl::Status to_status(const grpc::Status& status) {
  switch (status.error_code()) {
    // The store's end has stopped, or what answers there does not speak gRPC.
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::UNKNOWN:
      return absl::UnavailableError(printable(status.error_message()));
    default:
      return {static_cast<absl::StatusCode>(status.error_code()),
              printable(status.error_message())};
  }
}

}  // namespace

struct StoreClient::Security {
  std::unique_ptr<GrpcTls> tls;  // null: none
};

struct StoreClient::Connection {
  std::shared_ptr<grpc::Channel> channel;
  std::shared_ptr<FarEnd> far_end = std::make_shared<FarEnd>();
  // Of a unix socket. gRPC would wait for ever for a far end that takes no more bytes.
  FileDescriptor second;

  ~Connection() {
    if (second.valid()) ::shutdown(second.get(), SHUT_RDWR);
  }
};

absl::StatusOr<std::unique_ptr<StoreClient>> StoreClient::create(StoreClientOptions options) {
  prepare_grpc();
  const bool local = is_local(options.address);
  if (local ? !LocalListener::is_name(options.address.substr(kLocalScheme.size()))
            : !absl::StrContains(options.address, ':')) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", options.address, "' is no address of a store"));
  }
  auto security = std::make_unique<Security>();
  if (options.tls != nullptr) {
    WEFT_ASSIGN_OR_RETURN(security->tls, GrpcTls::create(options.tls));
  }
  std::unique_ptr<StoreClient> made(new StoreClient(std::move(options), std::move(security)));
  return made;
}

StoreClient::StoreClient(StoreClientOptions options, std::unique_ptr<Security> security)
    : options_(std::move(options)), security_(std::move(security)) {}

StoreClient::~StoreClient() {
  connection_ = nullptr;
  keep_grpc_if_threads_are_refused();
}

std::string StoreClient::description() const {
  return absl::StrCat("rendezvous store at ", options_.address);
}

absl::StatusOr<wire::StoreReply> StoreClient::call(wire::StoreCall call, TimePoint deadline) {
  uint64_t unanswered = 0;
  bool owes_answer = false;
  {
    MutexLock lock(mutex_);
    unanswered = unanswered_;
    owes_answer = answered_ < unanswered_;
  }
  if (owes_answer) {
    wire::StoreCall question;
    question.set_version(kVersionOfAllCalls);
    question.mutable_read();
    const absl::Status answered = call_until(question, deadline).status();
    if (absl::IsDeadlineExceeded(answered)) {
      return absl::DeadlineExceededError(
          absl::StrCat("it still owes the answer to an earlier call: ", answered.message()));
    }
    WEFT_RETURN_IF_ERROR(answered);
  }
  absl::StatusOr<wire::StoreReply> reply = call_until(call, deadline);
  MutexLock lock(mutex_);
  if (reply.ok()) {
    answered_ = std::max(answered_, unanswered);  // not those that came after this call began
  } else if (absl::IsDeadlineExceeded(reply.status()) && !is_wait(call)) {
    ++unanswered_;
  }
  return reply;
}

// Repeats the call while the connection breaks or is not there yet.
absl::StatusOr<wire::StoreReply> StoreClient::call_until(wire::StoreCall& call,
                                                         TimePoint deadline) {
  milliseconds pause = kFirstPause;
  int refused = 0;
  absl::Status last;
  while (true) {
    uint64_t instance = 0;
    {
      MutexLock lock(mutex_);
      instance = instance_;
    }
    call.set_instance(instance);
    absl::StatusOr<wire::StoreReply> reply = call_once(call, deadline);
    if (reply.ok()) {
      MutexLock lock(mutex_);
      if (instance_ == 0) instance_ = reply->instance();
      return reply;
    }
    if (absl::IsUnimplemented(reply.status())) {
      return absl::UnavailableError("what answers there is no store of Weft");
    }
    // More than once: a host may have several addresses, of which one always refuses.
    refused = was_refused(reply.status()) ? refused + 1 : 0;
    if (instance != 0 && refused >= kRefusalsOfTheGone) {
      return absl::UnavailableError(absl::StrCat("it is gone: ", reply.status().message()));
    }
    if (absl::IsDeadlineExceeded(reply.status()) && !last.ok()) {
      return absl::DeadlineExceededError(last.message());  // it tells why there is no connection
    }
    if (!absl::IsUnavailable(reply.status())) return reply.status();
    last = reply.status();
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= pause) return absl::DeadlineExceededError(reply.status().message());
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

absl::StatusOr<wire::StoreReply> StoreClient::call_once(const wire::StoreCall& call,
                                                        TimePoint deadline) {
  WEFT_ASSIGN_OR_RETURN(const ConnectionPtr connection, this->connection());
  static const grpc::internal::RpcMethod method("/weft.Store/Call",
                                                grpc::internal::RpcMethod::NORMAL_RPC);
  grpc::ClientContext context;
  if (deadline != TimePoint::max()) {
    const auto left = deadline - std::chrono::steady_clock::now();
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::duration_cast<std::chrono::system_clock::duration>(left));
  }
  wire::StoreReply reply;
  const absl::Status status =
      to_status(grpc::internal::BlockingUnaryCall<wire::StoreCall, wire::StoreReply,
                                                  google::protobuf::MessageLite,
                                                  google::protobuf::MessageLite>(
          connection->channel.get(), method, &context, call, &reply));
  if (status.ok()) return reply;
  if (absl::IsDeadlineExceeded(status)) {
    // A dial that hangs need not be waited for by the next call.
    const bool dials = !is_local(options_.address);
    if (dials && connection->channel->GetState(false) != GRPC_CHANNEL_READY) drop(connection);
    return status;
  }
  drop(connection);
  if (security_->tls != nullptr) {
    const absl::Status failed = tls_failure(*connection->far_end, status);
    if (failed.ok() || is_sure_tls_failure(*connection->far_end, status)) {
      return failed.ok() ? status : failed;
    }
    return absl::UnavailableError(failed.message());  // so it is dialled again
  }
  return status;
}

absl::StatusOr<StoreClient::ConnectionPtr> StoreClient::connection() {
  {
    MutexLock lock(mutex_);
    if (connection_ != nullptr) return connection_;
  }
  WEFT_ASSIGN_OR_RETURN(ConnectionPtr made, dial());
  MutexLock lock(mutex_);
  if (connection_ == nullptr) connection_ = std::move(made);
  return connection_;
}

void StoreClient::drop(const ConnectionPtr& connection) {
  MutexLock lock(mutex_);
  if (connection_ == connection) connection_ = nullptr;
}

// A launcher that issues certificates for ranks hosts the store, and no worker can pose as it.
// Otherwise any process of the job may host it.
std::optional<WorkerClaim> StoreClient::expected() const {
  if (!is_name_of_rank(options_.tls->current()->name.worker)) return std::nullopt;
  return WorkerClaim{.name = std::string(kLauncherName), .rank = std::nullopt};
}

// Over TCP, gRPC dials with the first call.
absl::StatusOr<StoreClient::ConnectionPtr> StoreClient::dial() const {
  auto made = std::make_shared<Connection>();
  if (!is_local(options_.address)) {
    made->channel = grpc::CreateCustomChannel(
        absl::StrCat("dns:///", options_.address),
        security_->tls != nullptr ? security_->tls->for_dialling(expected(), made->far_end)
                                  : grpc::InsecureChannelCredentials(),
        channel_arguments());
    return made;
  }
  absl::StatusOr<LocalSocket> socket =
      LocalSocket::connect(options_.address.substr(kLocalScheme.size()),
                           std::chrono::steady_clock::now(), LocalSocket::Kind::kStream);
  if (!socket.ok()) {
    const absl::Status& status = socket.status();
    if (absl::IsPermissionDenied(status)) return absl::FailedPreconditionError(status.message());
    if (absl::IsDeadlineExceeded(status)) return absl::UnavailableError(status.message());
    return status;
  }
  FileDescriptor first = socket->take_descriptor();
  made->second = FileDescriptor(::fcntl(first.get(), F_DUPFD_CLOEXEC, 0));
  if (!made->second.valid()) return absl::ErrnoToStatus(errno, "a second descriptor");
  made->channel =
      grpc::CreateCustomInsecureChannelFromFd("weft", first.release(), channel_arguments());
  return made;
}

}  // namespace weft
