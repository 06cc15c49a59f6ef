#include "weft/tests/rpc/transport/tcp_proxy.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace weft::testing {
namespace {

int checked(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

constexpr size_t kBeginning = 4096;  // this much of each connection is kept, and a piece more

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Written bytes go out at once, and a write never waits.
void prepare(int socket) {
  const int on = 1;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  checked(::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK), "O_NONBLOCK");
}

void close_socket(int socket, TcpProxy::Cut how) {
  if (how == TcpProxy::Cut::kReset) {
    struct linger at_once {};
    at_once.l_onoff = 1;
    (void)::setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  }
  ::close(socket);
}

}  // namespace

struct TcpProxy::Door {
  int socket;
  uint16_t target;  // a port
};

// One direction of a connection. It reads a piece only after the one before was written.
struct TcpProxy::Pipe {
  Pipe(int from_in, int to_in) : from(from_in), to(to_in) {}
  const int from;
  const int to;
  std::array<char, size_t{64} << 10> piece;
  size_t begin = 0, end = 0;  // of the unwritten part of `piece`
  bool ended = false;         // `from` has sent its last byte
  bool told = false;          // and `to` was told so
  std::string beginning;      // the first bytes that `from` sent
  bool empty() const { return begin == end; }
};

struct TcpProxy::Link {
  Link(int client, int server) : there(client, server), back(server, client) {}
  Pipe there;
  Pipe back;
  bool frozen = false;
  bool broken = false;

  int client() const { return there.from; }
  int server() const { return there.to; }
  bool over() const { return there.told && back.told; }
  void close(Cut how) const {
    close_socket(client(), how);
    close_socket(server(), how);
  }
  pollfd watch(int socket, const Pipe& in, const Pipe& out) const {
    int events = 0;
    if (frozen) return {-1, 0, 0};
    if (in.empty() && !in.ended) events |= POLLIN;
    if (!out.empty()) events |= POLLOUT;
    // If there is nothing to do for a socket, it is left out: poll would report its error again and
    // again.
    return {events == 0 ? -1 : socket, static_cast<short>(events), 0};
  }
};

TcpProxy::TcpProxy()
    : wake_(checked(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")),
      thread_([this] { serve(); }) {}

TcpProxy::~TcpProxy() {
  on_thread([this] { stopping_ = true; });
  thread_.join();
  close_doors();
  for (const auto& link : links_) link->close(Cut::kReset);
  ::close(wake_);
}

std::string TcpProxy::open_door(const std::string& target) {
  const auto port = static_cast<uint16_t>(std::stoul(target.substr(target.rfind(':') + 1)));
  const int socket =
      checked(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "socket");
  sockaddr_in here = loopback(0);
  socklen_t size = sizeof(here);
  checked(::bind(socket, reinterpret_cast<const sockaddr*>(&here), size), "bind");
  checked(::listen(socket, SOMAXCONN), "listen");
  checked(::getsockname(socket, reinterpret_cast<sockaddr*>(&here), &size), "getsockname");
  on_thread([&] { doors_.push_back({socket, port}); });
  return "127.0.0.1:" + std::to_string(ntohs(here.sin_port));
}

size_t TcpProxy::cut(Cut how) {
  size_t count = 0;
  on_thread([&] { count = cut_now(how); });
  return count;
}

void TcpProxy::cut_after(uint64_t bytes, Cut how) {
  on_thread([&] {
    until_cut_ = bytes;
    next_cut_ = how;
  });
}

size_t TcpProxy::freeze(const std::string& text) {
  size_t count = 0;
  on_thread([&] {
    for (Link* link : live(text)) {
      link->frozen = true;
      ++count;
    }
  });
  return count;
}

void TcpProxy::thaw() {
  on_thread([&] {
    for (const auto& link : links_) link->frozen = false;
  });
}

size_t TcpProxy::count(const std::string& text) {
  size_t count = 0;
  on_thread([&] { count = live(text).size(); });
  return count;
}

std::vector<TcpProxy::Link*> TcpProxy::live(const std::string& text) const {
  std::vector<Link*> links;
  for (const auto& link : links_) {
    const bool holds = link->there.beginning.find(text) != std::string::npos;
    if (holds && !link->frozen) links.push_back(link.get());
  }
  return links;
}

void TcpProxy::refuse() {
  on_thread([this] { close_doors(); });
}

void TcpProxy::on_thread(std::function<void()> task) {
  MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
  const uint64_t mine = ++asked_;
  const uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof(one));
  while (done_ < mine) changed_.wait(mutex_);
}

void TcpProxy::run_tasks() {
  std::vector<std::function<void()>> tasks;
  {
    MutexLock lock(mutex_);
    tasks.swap(tasks_);
  }
  for (const auto& task : tasks) task();
  MutexLock lock(mutex_);
  done_ += tasks.size();
  changed_.notify_all();
}

void TcpProxy::serve() {
  std::vector<pollfd> polled;
  while (true) {
    run_tasks();
    if (stopping_) return;
    if (until_cut_ == 0) cut_now(next_cut_);
    polled.clear();
    polled.push_back({wake_, POLLIN, 0});
    for (const Door& door : doors_) polled.push_back({door.socket, POLLIN, 0});
    for (const auto& link : links_) {
      polled.push_back(link->watch(link->client(), link->there, link->back));
      polled.push_back(link->watch(link->server(), link->back, link->there));
    }
    if (::poll(polled.data(), polled.size(), -1) < 0) continue;  // interrupted
    if (polled[0].revents != 0) {
      uint64_t count = 0;
      (void)!::read(wake_, &count, sizeof(count));
    }
    // The links come before the doors, because the doors add links.
    const pollfd* next = polled.data() + 1 + doors_.size();
    for (const auto& link : links_) {
      const bool stirred = next[0].revents != 0 || next[1].revents != 0;
      next += 2;
      if (!stirred || until_cut_ == 0) continue;
      link->broken = !pass(link->there) || (until_cut_ != 0 && !pass(link->back));
    }
    std::erase_if(links_, [](const std::unique_ptr<Link>& link) {
      if (!link->broken && !link->over()) return false;
      link->close(link->broken ? Cut::kReset : Cut::kClose);
      return true;
    });
    for (size_t i = 0; i < doors_.size(); ++i) {
      if (polled[1 + i].revents != 0) accept(doors_[i]);
    }
  }
}

void TcpProxy::accept(const Door& door) {
  const int client = ::accept4(door.socket, nullptr, nullptr, SOCK_CLOEXEC);
  if (client < 0) return;  // the client has given up
  connections_.fetch_add(1);
  const int server = checked(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  const sockaddr_in target = loopback(door.target);
  // On loopback the target's queue takes the connection at once, or nobody listens.
  if (::connect(server, reinterpret_cast<const sockaddr*>(&target), sizeof(target)) != 0) {
    close_socket(client, Cut::kReset);
    ::close(server);
    return;
  }
  prepare(client);
  prepare(server);
  links_.push_back(std::make_unique<Link>(client, server));
}

bool TcpProxy::pass(Pipe& pipe) {
  if (pipe.empty() && !pipe.ended) {
    const ssize_t got = ::recv(pipe.from, pipe.piece.data(), pipe.piece.size(), 0);
    if (got < 0 && !would_block()) return false;
    pipe.ended = got == 0;
    pipe.begin = 0;
    pipe.end = got > 0 ? static_cast<size_t>(got) : 0;
    if (pipe.beginning.size() < kBeginning) pipe.beginning.append(pipe.piece.data(), pipe.end);
  }
  if (!pipe.empty()) {
    const size_t size = std::min<uint64_t>(pipe.end - pipe.begin, until_cut_);
    const ssize_t sent = ::send(pipe.to, pipe.piece.data() + pipe.begin, size, MSG_NOSIGNAL);
    if (sent < 0) return would_block();
    pipe.begin += static_cast<size_t>(sent);
    bytes_.fetch_add(static_cast<uint64_t>(sent));
    if (until_cut_ != kNoCut) until_cut_ -= static_cast<uint64_t>(sent);
  }
  if (pipe.ended && pipe.empty() && !pipe.told) {
    pipe.told = true;
    (void)::shutdown(pipe.to, SHUT_WR);
  }
  return true;
}

size_t TcpProxy::cut_now(Cut how) {
  until_cut_ = kNoCut;
  for (const auto& link : links_) link->close(how);
  cuts_.fetch_add(1);
  return std::exchange(links_, {}).size();
}

void TcpProxy::close_doors() {
  for (const Door& door : doors_) ::close(door.socket);
  doors_.clear();
}

}  // namespace weft::testing
