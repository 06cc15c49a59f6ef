#include "weft/comm/same_host/mesh.h"

#include <algorithm>
#include <random>
#include <unistd.h>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "weft/base/status.h"

namespace weft::comm_internal {
namespace {

constexpr std::string_view kVersion = "weft-block-2";
constexpr std::chrono::milliseconds kLook{100};  // between two checks for ranks that have died
constexpr std::chrono::seconds kGreeting{10};    // longest wait for a new connection's greeting

// The notice that a rank posts: how to reach it, and its host for the error if that fails.
struct Notice {
  std::string listener;
  std::string token;  // a connection to this rank must send it
  std::string host;

  std::string text() const {
    return absl::StrCat(std::string(kVersion), "\n", listener, "\n", token, "\n", host);
  }
  static absl::StatusOr<Notice> parse(int rank, const std::string& text) {
    const std::vector<std::string> lines = absl::StrSplit(text, '\n');
    if (lines.size() != 4 || lines[0] != kVersion) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", rank, " posted what this version does not understand: '", text, "'"));
    }
    return Notice{lines[1], lines[2], lines[3]};
  }
};

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0) return "unknown";
  return name;
}

std::string random_token() {
  std::random_device random;
  std::string token;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&token, absl::Hex(random(), absl::kZeroPad8));
  return token;
}

// The greeting that both ends of a new connection send.
struct Hello {
  std::string token;  // of the rank that is greeted
  int from = -1;
  int size = 0;
  uint64_t block_bytes = 0;

  std::string text() const {
    return absl::StrCat(std::string(kVersion), " ", token, " ", from, " ", size, " ", block_bytes);
  }
  static absl::StatusOr<Hello> parse(const std::string& text) {
    const std::vector<std::string> words = absl::StrSplit(text, ' ');
    Hello hello;
    if (words.size() != 5 || words[0] != kVersion || !absl::SimpleAtoi(words[2], &hello.from) ||
        !absl::SimpleAtoi(words[3], &hello.size) ||
        !absl::SimpleAtoi(words[4], &hello.block_bytes)) {
      return absl::InvalidArgumentError("a greeting that this version does not understand");
    }
    hello.token = words[1];
    return hello;
  }
};

size_t block_bytes(int size) {
  return sizeof(ControlBlock) + static_cast<size_t>(size) * sizeof(Channel);
}

// The control block that came with a greeting.
absl::StatusOr<SealedMemory> block_of(LocalSocket::Message message, const Hello& hello) {
  if (message.descriptors.size() != 1 || hello.block_bytes < block_bytes(hello.size)) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", hello.from, " sent no control block"));
  }
  return SealedMemory::adopt(std::move(message.descriptors[0]), hello.block_bytes);
}

absl::Status about(int rank, const absl::Status& status) {
  return prepend(absl::StrCat("rank ", rank, ": "), status);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Mesh>> Mesh::form(int rank, int size, Noticeboard& notices,
                                                 TimePoint deadline) {
  if (size < 1 || rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no rank ", rank, " in a group of ", size));
  }
  auto mesh = std::unique_ptr<Mesh>(new Mesh(rank, size));
  WEFT_ASSIGN_OR_RETURN(SealedMemory own,
                        SealedMemory::create(absl::StrCat("weft-block-", rank), block_bytes(size)));
  mesh->keep_block(rank, std::move(own));
  if (size == 1) return mesh;

  WEFT_ASSIGN_OR_RETURN(LocalListener listener, LocalListener::create());
  const Notice mine = {listener.name(), random_token(), host_name()};
  WEFT_RETURN_IF_ERROR(notices.post(rank, mine.text()));

  const int descriptors[] = {mesh->memory_[rank].descriptor()};
  const auto greet = [&](LocalSocket& socket, const std::string& token) {
    return socket.send(Hello{token, rank, size, mesh->memory_[rank].size()}.text(), descriptors,
                       deadline);
  };
  // Connect to all lower ranks. They listened before they posted their notice, so ranks cannot wait
  // for each other in a circle.
  for (int other = 0; other < rank; ++other) {
    const absl::StatusOr<std::string> text = notices.read(other, deadline);
    if (!text.ok()) return about(other, prepend("has not come: ", text.status()));
    WEFT_ASSIGN_OR_RETURN(const Notice notice, Notice::parse(other, *text));
    absl::StatusOr<LocalSocket> socket = LocalSocket::connect(notice.listener, deadline);
    if (!socket.ok()) {
      return about(other, prepend(absl::StrCat("cannot be reached from ", mine.host, "; it is on ",
                                               notice.host, ": "),
                                  socket.status()));
    }
    if (absl::Status sent = greet(*socket, notice.token); !sent.ok()) return about(other, sent);
    absl::StatusOr<LocalSocket::Message> answer = socket->receive(deadline);
    if (!answer.ok()) return about(other, answer.status());
    WEFT_ASSIGN_OR_RETURN(const Hello hello, Hello::parse(answer->bytes));
    if (hello.from != other || hello.size != size) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", hello.from, " of a group of ",
                                                     hello.size, " answers where rank ", other,
                                                     " of ", size, " should"));
    }
    WEFT_ASSIGN_OR_RETURN(SealedMemory block, block_of(*std::move(answer), hello));
    mesh->keep_block(other, std::move(block));
    mesh->sockets_[other] = std::make_unique<LocalSocket>(*std::move(socket));
  }
  // Accept all higher ranks, in the order in which they come. A connection whose greeting is wrong,
  // for example without the token, is closed and ignored.
  for (int missing = size - 1 - rank; missing > 0;) {
    const TimePoint now = std::chrono::steady_clock::now();
    absl::StatusOr<LocalSocket> socket = listener.accept(std::min(deadline, now + kLook));
    if (absl::IsDeadlineExceeded(socket.status()) && now < deadline) {
      for (int other = 0; other < size; ++other) {
        if (!mesh->gone(other)) continue;
        return about(other, absl::UnavailableError("has gone before all were connected"));
      }
      continue;
    }
    if (!socket.ok()) {
      std::vector<int> absent;
      for (int other = rank + 1; other < size; ++other) {
        if (mesh->sockets_[other] == nullptr) absent.push_back(other);
      }
      std::string names;
      for (const int other : absent) absl::StrAppend(&names, names.empty() ? "" : ", ", other);
      return prepend(absl::StrCat("rank ", names, " of ", size, " not connected: "),
                     socket.status());
    }
    absl::StatusOr<LocalSocket::Message> greeting =
        socket->receive(std::min(deadline, std::chrono::steady_clock::now() + kGreeting));
    if (!greeting.ok()) continue;
    const absl::StatusOr<Hello> hello = Hello::parse(greeting->bytes);
    if (!hello.ok() || hello->token != mine.token || hello->size != size || hello->from <= rank ||
        hello->from >= size || mesh->sockets_[hello->from] != nullptr) {
      continue;
    }
    const int other = hello->from;
    WEFT_ASSIGN_OR_RETURN(SealedMemory block, block_of(*std::move(greeting), *hello));
    mesh->keep_block(other, std::move(block));
    if (absl::Status sent = greet(*socket, mine.token); !sent.ok()) return about(other, sent);
    mesh->sockets_[other] = std::make_unique<LocalSocket>(*std::move(socket));
    --missing;
  }
  return mesh;
}

void Mesh::keep_block(int rank, SealedMemory memory) {
  blocks_[rank] = memory.data();
  memory_[rank] = std::move(memory);
}

absl::Status Mesh::hand(int rank, const std::string& text, int descriptor, TimePoint deadline) {
  if (sockets_[rank] == nullptr) return absl::OkStatus();
  return sockets_[rank]->send(text, {&descriptor, 1}, deadline);
}

absl::StatusOr<std::optional<LocalSocket::Message>> Mesh::handed_by(int rank) {
  absl::StatusOr<LocalSocket::Message> message = sockets_[rank]->receive(TimePoint::min());
  if (message.ok()) return *std::move(message);
  if (absl::IsDeadlineExceeded(message.status())) return std::nullopt;
  // If the rank has died or given up, say so, and not what its socket says.
  const absl::Status end = end_of(rank);
  return end.ok() ? message.status() : end;
}

bool Mesh::gone(int rank) const {
  return sockets_[rank] != nullptr && sockets_[rank]->closed_by_peer();
}

absl::Status Mesh::end_of(int rank) const {
  const ControlBlock& there = block(rank);
  // Look at the socket first: a rank that gives up sets `failed` before it closes its sockets.
  const bool closed = gone(rank);
  if (there.failed.load() != 0) {
    return absl::UnavailableError(absl::StrCat(
        "rank ", rank, " has given up: ", printable(there.failure, sizeof(there.failure))));
  }
  if (!closed) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("rank ", rank, " (process ", sockets_[rank]->peer_process(), ") has died"));
}

bool Mesh::died(int rank) const { return gone(rank) && block(rank).failed.load() == 0; }

absl::Status Mesh::end_of_senders() const {
  for (int other = 0; other < size_; ++other) {
    if (died(other)) return end_of(other);
  }
  std::vector<std::string> ends;
  for (int other = 0; other < size_; ++other) {
    if (other == rank_) continue;
    absl::Status end = end_of(other);
    if (end.ok()) return end;
    ends.emplace_back(end.message());
  }
  return absl::UnavailableError(absl::StrCat("no other rank is left: ", absl::StrJoin(ends, "; ")));
}

void Mesh::leave() {
  for (const auto& socket : sockets_) {
    if (socket != nullptr) socket->shut_down();
  }
}

}  // namespace weft::comm_internal
