#include "weft/base/status.h"

#include <optional>

#include "absl/strings/cord.h"

namespace weft {
namespace {

constexpr char kRanUrl[] = "weft/ran";
constexpr char kWorkerUrl[] = "weft/worker";
constexpr char kTrailUrl[] = "weft/trail";

std::string text_payload(const absl::Status& status, const char* url) {
  std::optional<absl::Cord> payload;
  if (auto found = status.GetPayload(url)) payload = *found;
  return payload ? std::string(*payload) : std::string();
}

}  // namespace

std::string_view to_string(Ran ran) {
  switch (ran) {
    case Ran::kNo:
      return "not executed";
    case Ran::kYes:
      return "executed";
    case Ran::kMaybe:
      return "may have executed";
  }
  return "may have executed";
}

absl::Status with_ran(absl::Status status, Ran ran) {
  if (!status.ok())
    status.SetPayload(kRanUrl, absl::Cord(std::string(1, '0' + static_cast<char>(ran))));
  return status;
}

Ran ran_of(const absl::Status& status) {
  const std::string text = text_payload(status, kRanUrl);
  if (text == "0") return Ran::kNo;
  if (text == "1") return Ran::kYes;
  return Ran::kMaybe;
}

absl::Status raised_at(absl::Status status, std::string_view worker) {
  if (!status.ok() && !worker.empty() && worker_of(status).empty()) {
    status.SetPayload(kWorkerUrl, absl::Cord(absl_view(worker)));
  }
  return status;
}

std::string worker_of(const absl::Status& status) { return text_payload(status, kWorkerUrl); }

absl::Status add_hop(absl::Status status, std::string_view hop) {
  if (status.ok()) return status;
  std::string trail = trail_of(status);
  if (!trail.empty()) trail += " < ";
  trail.append(hop);
  status.SetPayload(kTrailUrl, absl::Cord(trail));
  return status;
}

std::string trail_of(const absl::Status& status) { return text_payload(status, kTrailUrl); }

std::string to_text(const absl::Status& status) {
  std::string text = status.ToString(absl::StatusToStringMode::kWithNoExtraData);
  const std::string trail = trail_of(status), worker = worker_of(status);
  if (!trail.empty()) {
    const std::string_view ran = to_string(ran_of(status));
    absl::StrAppend(&text, " (at ", trail, ", ", absl_view(ran), ")");
  } else if (!worker.empty()) {
    absl::StrAppend(&text, " (at ", worker, ")");
  }
  return text;
}

absl::Status prepend(std::string_view text, const absl::Status& status) {
  absl::Status result(status.code(), absl::StrCat(absl_view(text), status.message()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { result.SetPayload(url, payload); });
  return result;
}

}  // namespace weft
