#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/bench/contestants/floors/floors.h"
#include "weft/bench/contestants/floors/stamps.h"
#include "weft/shm/wait_word.h"
#include "weft/sockets/file_descriptor.h"

namespace weft::bench {
namespace {

enum class TcpWaiting { kBlocking, kSpinning };

constexpr size_t kChunkBytes = size_t{256} << 10;  // of one system call
constexpr int kLooksPerYield = 64;                 // the far end may need this very processor

// A request is this header and then the data: Summands if `tensor_bytes` is 0, else the tensor. The
// answer is a Sum, or the samples of the tensor.
struct RequestHeader {
  uint64_t tensor_bytes = 0;
};

// One connection. Sends and receives whole buffers, in chunks.
class TcpStream {
 public:
  TcpStream() = default;
  TcpStream(FileDescriptor socket, TcpWaiting waiting)
      : socket_(std::move(socket)), flags_(waiting == TcpWaiting::kSpinning ? MSG_DONTWAIT : 0) {
    const int on = 1;
    setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }

  absl::Status send(const void* data, size_t bytes, int more = 0) {
    const char* from = static_cast<const char*>(data);
    return move(bytes, [&](size_t offset, size_t chunk) {
      return ::send(socket_.get(), from + offset, chunk, flags_ | MSG_NOSIGNAL | more);
    });
  }
  absl::Status receive(void* data, size_t bytes) {
    char* to = static_cast<char*>(data);
    return move(bytes, [&](size_t offset, size_t chunk) {
      return ::recv(socket_.get(), to + offset, chunk, flags_);
    });
  }
  // Makes a receive() of another thread fail.
  void shut_down() { ::shutdown(socket_.get(), SHUT_RDWR); }

 private:
  template <class Step>
  absl::Status move(size_t bytes, Step step) {
    size_t done = 0;
    for (int looks = 0; done < bytes;) {
      const ssize_t n = step(done, std::min(kChunkBytes, bytes - done));
      if (n > 0) {
        done += static_cast<size_t>(n);
        looks = 0;
      } else if (n == 0) {
        return absl::UnavailableError("the far end has closed the connection");
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        if (++looks % kLooksPerYield == 0) sched_yield();
        pause_spinning();
      } else if (errno != EINTR) {
        return absl::ErrnoToStatus(errno, "raw tcp");
      }
    }
    return absl::OkStatus();
  }

  FileDescriptor socket_;
  int flags_ = 0;
};

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

absl::StatusOr<FileDescriptor> tcp_socket() {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return absl::ErrnoToStatus(errno, "socket");
  return socket;
}

class TcpServer final : public Server {
 public:
  explicit TcpServer(TcpWaiting waiting) : waiting_(waiting) {}
  ~TcpServer() override { stop(); }

  absl::StatusOr<std::string> listen() override {
    WEFT_ASSIGN_OR_RETURN(listener_, tcp_socket());
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof(address);
    if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listener_.get(), 1) != 0 ||
        ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      return absl::ErrnoToStatus(errno, "cannot listen");
    }
    return absl::StrCat(ntohs(address.sin_port));
  }

  absl::Status serve() override {
    FileDescriptor client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client.valid()) return absl::ErrnoToStatus(errno, "accept");
    stream_ = TcpStream(std::move(client), waiting_);
    thread_ = std::thread([this] { answer_calls(); });
    return absl::OkStatus();
  }

  void close() override { stop(); }

 private:
  void answer_calls() {
    while (answer_one().ok()) {
    }
  }

  absl::Status answer_one() {
    RequestHeader header;
    WEFT_RETURN_IF_ERROR(stream_.receive(&header, sizeof(header)));
    if (header.tensor_bytes == 0) {
      Summands summands;
      WEFT_RETURN_IF_ERROR(stream_.receive(&summands, sizeof(summands)));
      const Sum sum = sum_of(summands);
      return stream_.send(&sum, sizeof(sum));
    }
    // The buffer stays warm: only the first tensor of a size faults its pages.
    const size_t elements = header.tensor_bytes / sizeof(float);
    if (tensor_.size() != elements) tensor_.assign(elements, 0);
    WEFT_RETURN_IF_ERROR(stream_.receive(tensor_.data(), header.tensor_bytes));
    float samples[kSampledElements];
    take_samples(tensor_, samples);
    return stream_.send(samples, sizeof(samples));
  }

  void stop() {
    if (!thread_.joinable()) return;
    stream_.shut_down();
    thread_.join();
  }

  const TcpWaiting waiting_;
  FileDescriptor listener_;
  TcpStream stream_;
  std::vector<float> tensor_;
  std::thread thread_;
};

class TcpClient final : public Client {
 public:
  explicit TcpClient(TcpWaiting waiting) : waiting_(waiting) {}

  absl::Status connect(const std::string& address) override {
    uint32_t port = 0;
    if (!absl::SimpleAtoi(address, &port)) return absl::InvalidArgumentError("no port: " + address);
    WEFT_ASSIGN_OR_RETURN(FileDescriptor socket, tcp_socket());
    const sockaddr_in server = loopback(static_cast<uint16_t>(port));
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&server), sizeof(server)) != 0) {
      return absl::ErrnoToStatus(errno, "connect");
    }
    stream_ = TcpStream(std::move(socket), waiting_);
    return absl::OkStatus();
  }

  absl::Status add() override {
    struct {
      RequestHeader header;
      Summands summands;
    } const request;
    Sum sum;
    WEFT_RETURN_IF_ERROR(stream_.send(&request, sizeof(request)));
    WEFT_RETURN_IF_ERROR(stream_.receive(&sum, sizeof(sum)));
    return check_sum(sum);
  }

  absl::Status send(int64_t bytes) override {
    const RequestHeader header{.tensor_bytes = static_cast<uint64_t>(bytes)};
    const size_t elements = header.tensor_bytes / sizeof(float);
    if (argument_.size() != elements) argument_.assign(elements, 0);
    stamps_.write(argument_);
    float samples[kSampledElements];
    WEFT_RETURN_IF_ERROR(stream_.send(&header, sizeof(header), MSG_MORE));
    WEFT_RETURN_IF_ERROR(stream_.send(argument_.data(), header.tensor_bytes));
    WEFT_RETURN_IF_ERROR(stream_.receive(samples, sizeof(samples)));
    return stamps_.check(samples, /*stride=*/1);
  }

 private:
  const TcpWaiting waiting_;
  TcpStream stream_;
  std::vector<float> argument_;
  Stamps stamps_;
};

Contestant raw_tcp(const std::string& name, TcpWaiting waiting) {
  return {.name = name,
          .variant_of = "raw tcp",
          .spins_when_idle = waiting == TcpWaiting::kSpinning,
          .make_server = [waiting] { return std::make_unique<TcpServer>(waiting); },
          .make_client = [waiting] { return std::make_unique<TcpClient>(waiting); }};
}

}  // namespace

Contestant raw_tcp_blocking_floor() { return raw_tcp("raw tcp blocking", TcpWaiting::kBlocking); }
Contestant raw_tcp_spinning_floor() { return raw_tcp("raw tcp spinning", TcpWaiting::kSpinning); }

}  // namespace weft::bench
