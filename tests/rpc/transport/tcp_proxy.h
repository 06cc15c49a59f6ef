// A TCP proxy on loopback whose connections a test can break at any time.
//
// Each door leads to one target. Bytes pass in both directions until either end or the test closes.
//
// Thread safety: all methods may be called from any thread. One thread serves all connections.
// Lifetime: the destructor closes everything and joins the thread.
// Blocking: a method returns once the thread has done its task, which never waits.
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
  // How both ends of a connection learn that it is closed.
  enum class Cut {
    kReset,  // RST
    kClose,  // FIN; RST if something was in flight to the proxy
  };

  TcpProxy();
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  // Listens on a free port for connections to `target`, a "host:port" of this machine. Returns the
  // address to dial.
  std::string open_door(const std::string& target);
  // Closes all connections and returns their number. Bytes in flight are lost. Doors stay open.
  size_t cut(Cut how = Cut::kReset);
  // Does the same later, once exactly so many more bytes have passed, counting both directions.
  void cut_after(uint64_t bytes, Cut how = Cut::kReset);
  // Stops passing bytes, in either direction, on the connections whose first bytes contain `text`,
  // and tells neither end. Returns their number. A gRPC connection begins with the path of the
  // method, which names the stream: "/weft.Worker/Bulk".
  size_t freeze(const std::string& text);
  // Frozen connections go on where they stopped; nothing is lost.
  void thaw();
  // The number of such connections that exist, without frozen ones.
  size_t count(const std::string& text);
  // Closes all doors: later dials are refused. Connections stay open.
  void refuse();

  // Counts since the start.
  uint64_t connections() const { return connections_.load(); }  // accepted
  uint64_t bytes() const { return bytes_.load(); }              // passed on
  uint64_t cuts() const { return cuts_.load(); }                // cuts that have happened

 private:
  struct Door;
  struct Pipe;
  struct Link;
  static constexpr uint64_t kNoCut = UINT64_MAX;

  // Runs `task` on the thread and waits for it.
  void on_thread(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mutex_);

  // These run on the thread.
  void serve();
  void run_tasks() ABSL_LOCKS_EXCLUDED(mutex_);
  void accept(const Door& door);
  // Reads one piece and passes on what it can. Returns false if the connection is broken.
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
  // Only the thread uses these.
  std::vector<Door> doors_;
  std::vector<std::unique_ptr<Link>> links_;
  uint64_t until_cut_ = kNoCut;  // bytes
  Cut next_cut_ = Cut::kReset;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace weft::testing
