#include "weft/tests/chaos/network/faulty_proxy.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <exception>
#include <fcntl.h>
#include <future>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace weft::chaos {
namespace {

constexpr size_t kPiece = size_t{64} << 10;
constexpr size_t kMostHeld = size_t{1} << 20;  // bytes in one pipe; then it reads nothing more

int checked(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

sockaddr_in address_of(const std::string& host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  ::inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  return address;
}

void prepare(int socket) {
  const int on = 1;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  (void)::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK);
}

void close_socket(int socket, bool reset) {
  if (reset) {
    struct linger at_once {};
    at_once.l_onoff = 1;
    (void)::setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  }
  ::close(socket);
}

}  // namespace

struct FaultyProxy::Piece {
  TimePoint due;
  std::string bytes;
  bool last = false;  // the connection closes after it
};

struct FaultyProxy::Pipe {
  int from, to;
  std::deque<Piece> held = {};
  size_t bytes = 0;    // the sum over `held`
  size_t written = 0;  // of the first piece in `held`
  bool ended = false;  // `from` has closed its direction
  bool told = false;   // and `to` has been told
  bool hangs = false;  // the other direction hangs with it
};

struct FaultyProxy::Link {
  Link(int client, int server) : there{client, server}, back{server, client} {}
  Pipe there;
  Pipe back;
  bool reset = false;

  bool hangs() const { return there.hangs || back.hangs; }
  int events(const Pipe& in, const Pipe& out, TimePoint now) const {
    // A hanging connection is only watched for the moment when both sides have closed it.
    if (hangs()) return in.ended ? 0 : POLLRDHUP;
    int events = 0;
    if (!in.ended && in.bytes < kMostHeld) events |= POLLIN;
    if (!out.held.empty() && out.held.front().due <= now) events |= POLLOUT;
    return events;
  }
};

FaultyProxy::FaultyProxy(Options options)
    : options_(std::move(options)),
      wake_(checked(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")),
      random_(options_.seed) {
  std::promise<void> ready;
  thread_ = std::thread([this, &ready] {
    try {
      // A socket belongs to the namespace that its thread was in when it was made.
      if (options_.name_space >= 0) checked(::setns(options_.name_space, CLONE_NEWNET), "setns");
      listen();
    } catch (...) {
      ready.set_exception(std::current_exception());
      return;
    }
    ready.set_value();
    serve();
  });
  try {
    ready.get_future().get();
  } catch (...) {
    thread_.join();
    ::close(wake_);
    throw;
  }
}

FaultyProxy::~FaultyProxy() {
  stopping_.store(true);
  const uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof(one));
  thread_.join();
  for (const auto& link : links_) {
    close_socket(link->there.from, true);
    close_socket(link->there.to, true);
  }
  ::close(door_);
  ::close(wake_);
}

void FaultyProxy::listen() {
  door_ = checked(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "socket");
  sockaddr_in here = address_of(options_.host, 0);
  socklen_t size = sizeof(here);
  checked(::bind(door_, reinterpret_cast<const sockaddr*>(&here), size), "bind");
  checked(::listen(door_, SOMAXCONN), "listen");
  checked(::getsockname(door_, reinterpret_cast<sockaddr*>(&here), &size), "getsockname");
  address_ = options_.host + ":" + std::to_string(ntohs(here.sin_port));
}

void FaultyProxy::change(const std::function<void(Faults&)>& how) {
  MutexLock lock(mutex_);
  how(faults_);
}
void FaultyProxy::delay(std::chrono::milliseconds most) {
  change([most](Faults& faults) { faults.delay = most; });
}
void FaultyProxy::truncate_one_in(uint64_t pieces) {
  change([pieces](Faults& faults) { faults.truncate = pieces; });
}
void FaultyProxy::hang_at_one_in(uint64_t pieces) {
  change([pieces](Faults& faults) { faults.hang = pieces; });
}
void FaultyProxy::flip_one_in(uint64_t pieces) {
  change([pieces](Faults& faults) { faults.flip = pieces; });
}

FaultyProxy::Counts FaultyProxy::counts() const {
  MutexLock lock(mutex_);
  return counts_;
}

void FaultyProxy::serve() {
  std::vector<pollfd> polled;
  while (!stopping_.load()) {
    TimePoint now = std::chrono::steady_clock::now();
    polled.assign({{wake_, POLLIN, 0}, {door_, POLLIN, 0}});
    for (const auto& link : links_) {
      const auto watch = [&](int socket, const Pipe& in, const Pipe& out) {
        const int events = link->events(in, out, now);
        // A negative descriptor: poll would otherwise report the error of an idle socket again and
        // again.
        polled.push_back({events == 0 ? -1 : socket, static_cast<short>(events), 0});
      };
      watch(link->there.from, link->there, link->back);
      watch(link->there.to, link->back, link->there);
    }
    if (::poll(polled.data(), polled.size(), wait_time(now)) < 0) continue;  // interrupted
    now = std::chrono::steady_clock::now();
    const pollfd* polled_link = polled.data() + 2;
    std::erase_if(links_, [&](const std::unique_ptr<Link>& link) {
      const pollfd* ends = std::exchange(polled_link, polled_link + 2);
      if (link->hangs()) {
        link->there.ended |= ends[0].revents != 0;
        link->back.ended |= ends[1].revents != 0;
      }
      const bool incarnations = pass(*link, now);
      if (incarnations && !(link->there.told && link->back.told)) return false;
      link->reset = !incarnations && random_() % 2 == 0;
      close_socket(link->there.from, link->reset);
      close_socket(link->there.to, link->reset);
      return true;
    });
    if (polled[1].revents != 0) accept();
  }
}

void FaultyProxy::accept() {
  const int client = ::accept4(door_, nullptr, nullptr, SOCK_CLOEXEC);
  if (client < 0) return;  // it has closed again
  const sockaddr_in target = address_of("127.0.0.1", options_.target());
  const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  // On loopback the target's queue accepts it at once, or no process listens.
  if (server < 0 ||
      ::connect(server, reinterpret_cast<const sockaddr*>(&target), sizeof(target)) != 0) {
    close_socket(client, true);
    if (server >= 0) ::close(server);
    return;
  }
  prepare(client);
  prepare(server);
  links_.push_back(std::make_unique<Link>(client, server));
  MutexLock lock(mutex_);
  ++counts_.connections;
}

bool FaultyProxy::pass(Link& link, TimePoint now) {
  if (!link.hangs() && !pass(link.there, now)) return false;
  if (!link.hangs() && !pass(link.back, now)) return false;
  return !(link.hangs() && link.there.ended && link.back.ended);
}

bool FaultyProxy::pass(Pipe& pipe, TimePoint now) {
  if (!pipe.ended && pipe.bytes < kMostHeld && !take_in(pipe, now)) return false;
  return pipe.hangs || hand_on(pipe, now);
}

bool FaultyProxy::take_in(Pipe& pipe, TimePoint now) {
  std::string bytes(kPiece, '\0');
  const ssize_t got = ::recv(pipe.from, bytes.data(), bytes.size(), 0);
  if (got < 0) return would_block();
  if (got == 0) {
    pipe.ended = true;
    return true;
  }
  bytes.resize(static_cast<size_t>(got));
  Piece piece{now, {}, false};
  MutexLock lock(mutex_);
  if (chance(faults_.hang)) {
    pipe.hangs = true;
    faults_.hang = 0;
    ++counts_.hung;
    return true;
  }
  if (faults_.delay.count() > 0) {
    piece.due += std::chrono::milliseconds(1 + random_() % faults_.delay.count());
    ++counts_.delayed;
  }
  // Keeps the order: no piece overtakes a delayed one.
  if (!pipe.held.empty()) piece.due = std::max(piece.due, pipe.held.back().due);
  if (chance(faults_.flip)) {
    const uint64_t bit = random_() % (8 * bytes.size());
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    ++counts_.flipped;
  }
  if (chance(faults_.truncate)) {
    bytes.resize(random_() % bytes.size());
    piece.last = true;
    pipe.ended = true;
    ++counts_.truncated;
  }
  pipe.bytes += bytes.size();
  piece.bytes = std::move(bytes);
  pipe.held.push_back(std::move(piece));
  return true;
}

bool FaultyProxy::hand_on(Pipe& pipe, TimePoint now) {
  while (!pipe.held.empty() && pipe.held.front().due <= now) {
    Piece& piece = pipe.held.front();
    if (pipe.written < piece.bytes.size()) {
      const ssize_t sent = ::send(pipe.to, piece.bytes.data() + pipe.written,
                                  piece.bytes.size() - pipe.written, MSG_NOSIGNAL);
      if (sent < 0) return would_block();
      pipe.written += static_cast<size_t>(sent);
      pipe.bytes -= static_cast<size_t>(sent);
    }
    if (pipe.written < piece.bytes.size()) return true;
    if (piece.last) return false;
    pipe.held.pop_front();
    pipe.written = 0;
  }
  if (pipe.ended && pipe.held.empty() && !pipe.told) {
    pipe.told = true;
    (void)::shutdown(pipe.to, SHUT_WR);
  }
  return true;
}

int FaultyProxy::wait_time(TimePoint now) const {
  TimePoint next = TimePoint::max();
  for (const auto& link : links_) {
    if (link->hangs()) continue;
    for (const Pipe* pipe : {&link->there, &link->back}) {
      if (!pipe->held.empty() && pipe->held.front().due > now) {
        next = std::min(next, pipe->held.front().due);
      }
    }
  }
  if (next == TimePoint::max()) return -1;
  return static_cast<int>(
      std::chrono::duration_cast<std::chrono::milliseconds>(next - now).count() + 1);
}

}  // namespace weft::chaos
