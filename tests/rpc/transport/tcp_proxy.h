// A TCP proxy on loopback whose connections a test breaks when it likes.
//
// Each door leads to one target; bytes pass in both directions until either end or the test closes.
//
// Thread safety: all methods may be called from any thread. One thread serves all connections.
// Lifetime: the destructor closes everything and joins the thread.
// Blocking: a method returns once the thread has done what it asks for, which never waits.
// Errors: std::system_error where the machine has no socket left.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "weft/base/mutex.h"

namespace weft::testing {

class TcpProxy {
 public:
  // How both ends of a connection learn that it has ended.
  enum class Cut {
    kReset,  // RST
    kClose,  // FIN, unless something was on its way to the proxy
  };

  TcpProxy();
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  // Listens on a free port for connections to `target`, a "host:port" of this machine, and gives
  // the address to dial.
  std::string open_door(const std::string& target);
  // Ends all connections, of which it gives the number; what they carried is lost. Doors stay open.
  size_t cut(Cut how = Cut::kReset);
  // The same by itself, once exactly so many bytes more have passed, both directions together.
  void cut_after(uint64_t bytes, Cut how = Cut::kReset);
  // Passes nothing more, in either direction, on the connections whose beginning holds `text`, and
  // tells neither end. Gives their number. In gRPC's beginning stands the path of the method, which
  // names the stream: "/weft.Worker/Bulk".
  size_t freeze(const std::string& text);
  // Frozen connections go on where they stood; nothing is lost.
  void thaw();
  // How many such connections stand, frozen ones not counted.
  size_t count(const std::string& text);
  // Closes all doors: who dials from now on is refused. Connections stay.
  void refuse();

  // Since the beginning.
  uint64_t connections() const { return connections_.load(); }  // accepted
  uint64_t bytes() const { return bytes_.load(); }              // passed on
  uint64_t cuts() const { return cuts_.load(); }                // that have happened

 private:
  struct Door;
  struct Pipe;
  struct Link;
  static constexpr uint64_t kNoCut = UINT64_MAX;

  // Runs `task` on the thread and waits for it.
  void on_thread(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mutex_);

  // The thread's part.
  void serve();
  void run_tasks() ABSL_LOCKS_EXCLUDED(mutex_);
  void accept(const Door& door);
  // Takes one piece in and passes on what it can. False: the connection is broken.
  bool pass(Pipe& pipe);
  size_t cut_now(Cut how);
  std::vector<Link*> live(const std::string& text) const;
  void close_doors();

  const int wake_;  // an eventfd
  std::atomic<uint64_t> connections_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> cuts_{0};
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  uint64_t asked_ ABSL_GUARDED_BY(mutex_) = 0;  // tasks, in total
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  // The thread's own.
  std::vector<Door> doors_;
  std::vector<std::unique_ptr<Link>> links_;
  uint64_t until_cut_ = kNoCut;  // bytes
  Cut next_cut_ = Cut::kReset;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace weft::testing
