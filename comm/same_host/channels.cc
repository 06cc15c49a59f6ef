#include "weft/comm/same_host/channels.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/comm/same_host/collective_work.h"

namespace weft::comm_internal {
namespace {

constexpr uint32_t kCheck = 0x57454654;
constexpr uint64_t kKeptCost = 128;  // bytes that a kept message counts beside its data

void write_ring(Channel& channel, uint32_t at, const void* from, size_t size) {
  const uint32_t begin = at % kChannelBytes;
  const size_t first = std::min<size_t>(size, kChannelBytes - begin);
  if (first > 0) std::memcpy(channel.ring + begin, from, first);
  if (size > first) {
    std::memcpy(channel.ring, static_cast<const std::byte*>(from) + first, size - first);
  }
}

void read_ring(const Channel& channel, uint32_t at, void* to, size_t size) {
  const uint32_t begin = at % kChannelBytes;
  const size_t first = std::min<size_t>(size, kChannelBytes - begin);
  if (first > 0) std::memcpy(to, channel.ring + begin, first);
  if (size > first) std::memcpy(static_cast<std::byte*>(to) + first, channel.ring, size - first);
}

void copy_bytes(std::byte* to, const std::byte* from, size_t size) {
  if (size > 0) std::memcpy(to, from, size);
}

}  // namespace

Channels::Channels(Mesh& mesh) : mesh_(mesh), outgoing_(mesh.size()), incoming_(mesh.size()) {}

void Channels::send(Message message) {
  const int peer = message.peer;
  outgoing_[peer].queue.push_back(std::move(message));
  ++sending_;
  write_to(peer);
}

absl::Status Channels::receive(Message message) {
  const auto meant = [&](int peer, int tag) {
    return (message.peer == kAnyone || message.peer == peer) && message.tag == tag;
  };
  for (auto kept = kept_.begin(); kept != kept_.end(); ++kept) {
    if (!meant(kept->peer, kept->tag)) continue;
    WEFT_RETURN_IF_ERROR(fits(message, kept->peer, kept->bytes.size()));
    copy_bytes(message.data, kept->bytes.data(), kept->bytes.size());
    kept_bytes_ -= kept->bytes.size() + kKeptCost;
    done_.push_back({message.work, kept->peer});
    kept_.erase(kept);
    return absl::OkStatus();
  }
  for (int peer = 0; peer < mesh_.size(); ++peer) {
    Incoming& in = incoming_[peer];
    if (!in.headed || in.matched || !meant(peer, in.header.tag)) continue;
    WEFT_RETURN_IF_ERROR(fits(message, peer, in.header.size));
    copy_bytes(message.data, in.kept.data(), in.read);
    kept_bytes_ -= in.header.size + kKeptCost;
    in.kept = {};
    in.receive = receives_.insert(receives_.end(), {std::move(message), peer});
    in.matched = true;
    return absl::OkStatus();
  }
  receives_.push_back({std::move(message)});
  return absl::OkStatus();
}

absl::StatusOr<bool> Channels::advance() {
  bool moved = false;
  for (int peer = 0; peer < mesh_.size(); ++peer) {
    if (peer == mesh_.rank()) continue;
    moved = write_to(peer) || moved;
    WEFT_ASSIGN_OR_RETURN(const bool read, read_from(peer));
    moved = read || moved;
  }
  return moved;
}

bool Channels::write_to(int peer) {
  Outgoing& out = outgoing_[peer];
  if (out.queue.empty()) return false;
  Channel& channel = mesh_.channel(mesh_.rank(), peer);
  const uint32_t before = channel.written.load();
  uint32_t written = before;
  // The peer may have written any value here. It cannot make this rank write outside of the ring,
  // but only write too early.
  out.taken_seen = mesh_.channel(peer, mesh_.rank()).taken.load();
  const uint32_t under_way = before - out.taken_seen;
  uint32_t room = kChannelBytes - std::min(under_way, kChannelBytes);
  while (!out.queue.empty()) {
    Message& message = out.queue.front();
    if (!out.headed) {
      if (room < sizeof(Header)) break;
      const Header header = {message.size, message.tag, kCheck};
      write_ring(channel, written, &header, sizeof(header));
      written += sizeof(header);
      room -= sizeof(header);
      out.headed = true;
    }
    const auto part = static_cast<uint32_t>(std::min<uint64_t>(room, message.size - out.written));
    write_ring(channel, written, message.data + out.written, part);
    written += part;
    room -= part;
    out.written += part;
    if (out.written < message.size) break;
    out.written = 0;
    out.headed = false;
    // A copy, because push_back may find no memory. Then the message is still here, and fails.
    done_.push_back({message.work, peer});
    --sending_;
    out.queue.pop_front();
  }
  if (written == before) return false;
  channel.written.value.store(written, std::memory_order_seq_cst);
  mesh_.block(peer).wake_word.notify();
  return true;
}

absl::StatusOr<bool> Channels::read_from(int peer) {
  const Channel& channel = mesh_.channel(peer, mesh_.rank());
  Counter& counter = mesh_.channel(mesh_.rank(), peer).taken;
  const uint32_t before = counter.load();
  uint32_t taken = before;
  Incoming& in = incoming_[peer];
  in.written_seen = channel.written.load();
  uint32_t there = in.written_seen - before;
  if (there > kChannelBytes) {
    return absl::InternalError(absl::StrCat("the channel from rank ", peer, " is damaged"));
  }
  while (in.headed || there >= sizeof(Header)) {
    if (!in.headed) {
      read_ring(channel, taken, &in.header, sizeof(Header));
      if (in.header.check != kCheck) {
        return absl::InternalError(absl::StrCat("the channel from rank ", peer, " is damaged"));
      }
      WEFT_ASSIGN_OR_RETURN(const bool found, find_place(peer));
      if (!found) break;
      taken += sizeof(Header);
      there -= sizeof(Header);
      in.headed = true;
      in.read = 0;
    }
    const auto part = static_cast<uint32_t>(std::min<uint64_t>(there, in.header.size - in.read));
    std::byte* to = in.matched ? in.receive->message.data : in.kept.data();
    if (part > 0) read_ring(channel, taken, to + in.read, part);
    taken += part;
    there -= part;
    in.read += part;
    if (in.read < in.header.size) break;
    end_message(peer);
  }
  if (taken == before) return false;
  counter.value.store(taken, std::memory_order_seq_cst);
  mesh_.block(peer).wake_word.notify();
  return true;
}

// Finds memory for the message whose header was read. False: there is no room for it yet.
absl::StatusOr<bool> Channels::find_place(int peer) {
  Incoming& in = incoming_[peer];
  const auto meant = [&](const Receive& receive) {
    const Message& message = receive.message;
    return !receive.begun() && (message.peer == kAnyone || message.peer == peer) &&
           message.tag == in.header.tag;
  };
  in.receive = std::find_if(receives_.begin(), receives_.end(), meant);
  in.matched = in.receive != receives_.end();
  if (in.matched) {
    WEFT_RETURN_IF_ERROR(fits(in.receive->message, peer, in.header.size));
    in.receive->sender = peer;
    return true;
  }
  if (in.header.size > kMostKept || in.header.size + kKeptCost > kMostKept - kept_bytes_) {
    return false;
  }
  kept_bytes_ += in.header.size + kKeptCost;
  in.kept.resize(in.header.size);
  return true;
}

void Channels::end_message(int peer) {
  Incoming& in = incoming_[peer];
  in.headed = false;
  if (!in.matched) {
    kept_.push_back({peer, in.header.tag, std::exchange(in.kept, {})});
    return;
  }
  done_.push_back({in.receive->message.work, peer});
  receives_.erase(in.receive);
  in.matched = false;
}

absl::Status Channels::fits(const Message& receive, int peer, uint64_t size) const {
  if (receive.size == size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("rank ", peer, " sent ", size, " bytes to rank ",
                                                 mesh_.rank(), " (tag ", receive.tag,
                                                 "), whose receive takes ", receive.size));
}

void Channels::watch(std::vector<Watch>& all) const {
  for (int peer = 0; peer < mesh_.size(); ++peer) {
    if (peer == mesh_.rank()) continue;
    const Channel& channel = mesh_.channel(peer, mesh_.rank());
    if (!receives_.empty()) all.push_back({&channel.written, incoming_[peer].written_seen});
    const Outgoing& out = outgoing_[peer];
    if (!out.queue.empty()) all.push_back({&channel.taken, out.taken_seen});
  }
}

std::vector<Channels::Waiting> Channels::waiting() const {
  std::vector<Waiting> all;
  for (const Outgoing& out : outgoing_) {
    for (const Message& message : out.queue) {
      all.push_back({message.peer, message.work->deadline(),
                     absl::StrCat("send of ", message.size, " bytes to rank ", message.peer,
                                  " (tag ", message.tag, ")")});
    }
  }
  for (const Receive& receive : receives_) {
    const Message& message = receive.message;
    const int peer = receive.begun() ? receive.sender : message.peer;
    const std::string from =
        peer == kAnyone ? std::string("any rank") : absl::StrCat("rank ", peer);
    all.push_back({peer, message.work->deadline(),
                   absl::StrCat("receive of ", message.size, " bytes from ", from, " (tag ",
                                message.tag, ")")});
  }
  return all;
}

Channels::WorkPtr Channels::under_way() const {
  if (!receives_.empty()) return receives_.back().message.work;
  for (const Outgoing& out : outgoing_) {
    if (!out.queue.empty()) return out.queue.back().work;
  }
  return nullptr;
}

void Channels::clear(const std::function<void(WorkPtr)>& then) {
  for (const Outgoing& out : outgoing_) {
    for (const Message& message : out.queue) then(message.work);
  }
  for (const Receive& receive : receives_) then(receive.message.work);
  for (Outgoing& out : outgoing_) out = {};
  for (Incoming& in : incoming_) in = {};
  receives_.clear();
  kept_.clear();
  kept_bytes_ = 0;
  sending_ = 0;
}

}  // namespace weft::comm_internal
