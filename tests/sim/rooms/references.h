// A worker's RRefDriver in the simulator: handles, values, fetches and arrivals around the
// library's OwnershipCore.
//
// Thread safety: none.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "weft/rref/internal/ownership_core.h"
#include "weft/tests/sim/world/messages.h"
#include "weft/tests/sim/world/room.h"

namespace weft::sim {

class References;
class Worker;
class World;

// One fork as user code holds it. When the last copy is destroyed, the fork is dropped.
struct HandleNode {
  HandleNode(References& room_in, const rref_internal::Handle& handle_in, WorkerId owner_in)
      : room(room_in), handle(handle_in), owner(owner_in) {}
  ~HandleNode();
  HandleNode(const HandleNode&) = delete;
  HandleNode& operator=(const HandleNode&) = delete;

  References& room;  // outlives every handle
  const rref_internal::Handle handle;
  const WorkerId owner;
  bool lost = false;
};
using HandlePtr = std::shared_ptr<HandleNode>;  // shared by variables, values and calls

class References final : public Room {
 public:
  explicit References(Worker& worker);
  ~References() override;

  // ---- the program's variables
  void keep(HandlePtr handle);
  HandlePtr some_held();  // null if there is no usable one
  void drop_one();
  size_t held() const { return held_.size(); }

  // ---- for calls
  HandlePtr own();
  // Returns null if refused. The ids travel with the creation call.
  HandlePtr create(WorkerId owner, RRefId* rref, ForkId* fork);
  void creation_failed(const HandlePtr& handle, WorkerId owner);
  rref_internal::Acceptance accept_creation(WorkerId from, const CallBody& body);
  void set_value(RRefId rref, bool ok, const std::vector<HandlePtr>& holds);
  std::optional<rref_internal::Reference> carry(const HandlePtr& handle, WorkerId to);
  void carrier_ended(const rref_internal::Reference& reference);
  std::vector<HandlePtr> receive(WorkerId from,
                                 const std::vector<rref_internal::Reference>& references, bool* ok);
  // Calls::on_confirmed follows, at once or later. Then take_arrived() returns the handles.
  void receive_confirmed(WorkerId from, const std::vector<rref_internal::Reference>& references,
                         uint64_t incoming);
  std::vector<HandlePtr> take_arrived(uint64_t incoming);
  void discard(WorkerId from, const std::vector<rref_internal::Reference>& references);
  // Calls::on_target follows: at once (then the result is 0) or later.
  uint64_t fetch(WorkerId from, const CallBody& body, uint64_t incoming);
  void forget_target(uint64_t ticket);

  const rref_internal::OwnershipCore& core() const { return core_; }

  // Room.
  void on_post(WorkerId from, const std::shared_ptr<void>& body) override;
  void on_stale_post(WorkerId from, const std::shared_ptr<void>& body) override;
  void on_peer_dead(WorkerId dead) override;
  void on_event(const Event& event) override;
  void settle() override;
  void let_go() override;
  void check() const override;
  std::string leftovers() const override;

 private:
  friend struct HandleNode;
  struct Fetch {
    uint64_t incoming = 0;
    RRefId rref;
  };
  struct Arrival {
    uint64_t incoming = 0;
    std::vector<HandlePtr> handles{};
    bool ok = true;
  };

  HandlePtr add_handle(const rref_internal::Handle& handle, WorkerId owner);
  std::vector<HandlePtr> adopt(WorkerId from,
                               const std::vector<rref_internal::Reference>& references,
                               rref_internal::WaiterId waiter, rref_internal::Actions& actions,
                               bool* ok);
  void perform(rref_internal::Actions& actions);
  void lose(const rref_internal::Handle& handle);
  void on_all_confirmed(const rref_internal::AllConfirmed& all);
  void end_fetch(rref_internal::FetchTicket ticket, bool ok);
  void repeat(WorkerId from, const rref_internal::Message& message);

  Worker& worker_;
  World& world_;
  bool closing_ = false;  // declared first: handles that die with this object read it
  rref_internal::OwnershipCore core_;
  std::vector<HandlePtr> held_;
  std::map<rref_internal::Handle, std::vector<HandleNode*>> nodes_;  // every live handle
  std::map<RRefId, std::vector<HandlePtr>> values_;
  std::map<rref_internal::FetchTicket, Fetch> fetches_;
  std::map<rref_internal::WaiterId, Arrival> arrivals_;
  std::map<uint64_t, std::vector<HandlePtr>> arrived_;  // by incoming call
  std::set<RRefId> own_creations_;
  std::set<RRefId> making_;  // for own(): the value comes later
  std::vector<rref_internal::Handle> released_;
  uint64_t read_ = 0;  // number of messages read
  uint64_t next_ticket_ = 1;
  uint64_t next_waiter_ = 1;
};

}  // namespace weft::sim
