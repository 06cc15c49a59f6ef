#include "weft/bench/contestants/child.h"

#include <chrono>
#include <functional>
#include <string>

#include "weft/bench/contestants/rank_block.h"

namespace weft::bench {
namespace {

using Json = nlohmann::json;
using Handler = std::function<absl::StatusOr<Json>(const std::string& verb, const Json& command)>;

absl::StatusOr<Json> done(const absl::Status& status) {
  if (!status.ok()) return status;
  return Json::object();
}

// The only function that turns a contestant's exceptions into statuses. LibTorch puts a backtrace
// below the first line of its messages.
absl::StatusOr<Json> guarded(const Handler& handler, const std::string& verb, const Json& command) {
  try {
    return handler(verb, command);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return absl::UnknownError(text.substr(0, text.find('\n')));
  }
}

void obey(Channel& driver, const Handler& handler) {
  for (;;) {
    const absl::StatusOr<Json> command = driver.receive(-1);
    if (!command.ok()) return;
    const std::string verb = command->value("do", "");
    const absl::StatusOr<Json> result = guarded(handler, verb, *command);
    Json answer = to_answer(result.status());
    if (result.ok()) answer.update(*result);
    if (!driver.send(answer).ok() || verb == "quit") return;
  }
}

double seconds_of(TimePoint time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

absl::StatusOr<Json> unknown(const std::string& verb) {
  return absl::InvalidArgumentError("unknown command \"" + verb + "\"");
}

}  // namespace

void run_server(Channel& driver, Server& server) {
  obey(driver, [&](const std::string& verb, const Json&) -> absl::StatusOr<Json> {
    if (verb == "listen") {
      absl::StatusOr<std::string> address = server.listen();
      if (!address.ok()) return address.status();
      return Json{{"address", *address}};
    }
    if (verb == "serve") return done(server.serve());
    if (verb == "usage") return Json{{"usage", usage_of_this_process()}};
    if (verb == "live") return Json{{"objects", server.live_objects()}};
    if (verb == "quit") {
      server.close();
      return Json::object();
    }
    return unknown(verb);
  });
}

void run_client(Channel& driver, Client& client, Clock& clock) {
  obey(driver, [&](const std::string& verb, const Json& command) -> absl::StatusOr<Json> {
    if (verb == "connect") return done(client.connect(command.at("address")));
    if (verb == "run") {
      absl::StatusOr<std::vector<Row>> rows = select_rows(rpc_rows(), {command.at("row")});
      if (!rows.ok()) return rows.status();
      absl::StatusOr<BlockResult> result =
          run_block(client, rows->front(), command.at("seconds"), clock);
      if (!result.ok()) return result.status();
      return Json{{"result", *result}};
    }
    if (verb == "quit") {
      client.close();
      return Json::object();
    }
    return unknown(verb);
  });
}

void run_rank(Channel& driver, Rank& rank, const std::vector<Row>& rows, Clock& clock) {
  obey(driver, [&](const std::string& verb, const Json& command) -> absl::StatusOr<Json> {
    if (verb == "listen") {
      absl::StatusOr<std::string> address = rank.listen();
      if (!address.ok()) return address.status();
      return Json{{"address", *address}};
    }
    if (verb == "join") {
      const double begin = seconds_of(clock.now());
      const absl::Status joined = rank.join(command.at("address"));
      if (!joined.ok()) return joined;
      return Json{{"begin", begin}, {"end", seconds_of(clock.now())}};
    }
    if (verb == "run") {
      absl::StatusOr<std::vector<Row>> row = select_rows(rows, {command.at("row")});
      if (!row.ok()) return row.status();
      absl::StatusOr<BlockResult> result =
          run_rank_block(rank, row->front(),
                         {.warm_up = command.at("warm_up"), .timed = command.at("timed")}, clock);
      if (!result.ok()) return result.status();
      return Json{{"result", *result}};
    }
    if (verb == "quit") {
      rank.close();
      return Json::object();
    }
    return unknown(verb);
  });
}

void run_leader(Channel& driver, Leader& leader, const std::vector<Row>& rows) {
  obey(driver, [&](const std::string& verb, const Json& command) -> absl::StatusOr<Json> {
    if (verb == "listen") {
      absl::StatusOr<std::string> address = leader.listen();
      if (!address.ok()) return address.status();
      return Json{{"address", *address}};
    }
    if (verb == "join") return done(leader.join(command.at("address"), command.at("members")));
    if (verb == "run") {
      absl::StatusOr<std::vector<Row>> row = select_rows(rows, {command.at("row")});
      if (!row.ok()) return row.status();
      absl::StatusOr<BlockResult> result =
          leader.run(row->front(), command.at("amount"), command.at("seconds"));
      if (!result.ok()) return result.status();
      return Json{{"result", *result}};
    }
    if (verb == "usage") return Json{{"usage", usage_of_this_process()}};
    if (verb == "quit") {
      leader.close();
      return Json::object();
    }
    return unknown(verb);
  });
}

void run_member(Channel& driver, Member& member) {
  obey(driver, [&](const std::string& verb, const Json& command) -> absl::StatusOr<Json> {
    if (verb == "join") {
      return done(member.join(command.at("address"), command.at("member"), command.at("members")));
    }
    if (verb == "usage") return Json{{"usage", usage_of_this_process()}};
    if (verb == "quit") {
      member.close();
      return Json::object();
    }
    return unknown(verb);
  });
}

void to_json(Json& json, const Usage& usage) {
  json = Json{{"cpu_seconds", usage.cpu_seconds},
              {"page_faults", usage.page_faults},
              {"switches", usage.switches}};
}

void from_json(const Json& json, Usage& usage) {
  json.at("cpu_seconds").get_to(usage.cpu_seconds);
  json.at("page_faults").get_to(usage.page_faults);
  json.at("switches").get_to(usage.switches);
}

void to_json(Json& json, const BlockResult& result) {
  json = Json{{"calls", result.calls},
              {"seconds", result.seconds},
              {"median_us", result.median_us},
              {"p99_us", result.p99_us},
              {"bytes", result.bytes},
              {"all_calls", result.all_calls},
              {"usage", result.usage},
              {"local_us", result.local_us},
              {"communication_us", result.communication_us},
              {"mean_batch", result.mean_batch},
              {"agent_us", result.agent_us},
              {"agent_rate", result.agent_rate},
              {"small_call_us", result.small_call_us},
              {"stream_gb_per_s", result.stream_gb_per_s},
              {"stream_alone_gb_per_s", result.stream_alone_gb_per_s},
              {"footprint",
               {{"threads", result.footprint.threads},
                {"descriptors", result.footprint.descriptors},
                {"private_mib", result.footprint.private_mib},
                {"shared_mib", result.footprint.shared_mib}}},
              {"schedule_us", result.schedule_us},
              {"fill_drain_us", result.fill_drain_us},
              {"unsplit_us", result.unsplit_us}};
}

void from_json(const Json& json, BlockResult& result) {
  json.at("calls").get_to(result.calls);
  json.at("seconds").get_to(result.seconds);
  json.at("median_us").get_to(result.median_us);
  json.at("p99_us").get_to(result.p99_us);
  json.at("bytes").get_to(result.bytes);
  json.at("all_calls").get_to(result.all_calls);
  json.at("usage").get_to(result.usage);
  // Only some rows have these.
  result.local_us = json.value("local_us", 0.0);
  result.communication_us = json.value("communication_us", 0.0);
  result.mean_batch = json.value("mean_batch", 0.0);
  result.agent_us = json.value("agent_us", 0.0);
  result.agent_rate = json.value("agent_rate", 0.0);
  result.schedule_us = json.value("schedule_us", 0.0);
  result.fill_drain_us = json.value("fill_drain_us", 0.0);
  result.unsplit_us = json.value("unsplit_us", 0.0);
  result.small_call_us = json.value("small_call_us", 0.0);
  result.stream_gb_per_s = json.value("stream_gb_per_s", 0.0);
  result.stream_alone_gb_per_s = json.value("stream_alone_gb_per_s", 0.0);
  const Json footprint = json.value("footprint", Json::object());
  result.footprint.threads = footprint.value("threads", 0.0);
  result.footprint.descriptors = footprint.value("descriptors", 0.0);
  result.footprint.private_mib = footprint.value("private_mib", 0.0);
  result.footprint.shared_mib = footprint.value("shared_mib", 0.0);
}

}  // namespace weft::bench
