// The main loops of contestant processes: each obeys the driver's commands until it must quit.
//
// Commands are objects with a "do", and every command is answered (channel.h):
//   Server: "listen", "serve", "usage", "live", "quit".
//   Client: "connect", "run", "quit".
//   Rank: "listen" (rank 0 only), "join" (tells when it began and ended), "run", "quit".
//   Leader: "listen", "join", "run", "usage", "quit".
//   Member: "join", "usage", "quit".
//
// Thread safety: none needed; runs on the calling thread.
// Blocking: until "quit" or until the driver is gone.
#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "weft/base/clock.h"
#include "weft/bench/contestants/block.h"
#include "weft/bench/contestants/contestant.h"
#include "weft/bench/contestants/crowd.h"
#include "weft/bench/contestants/rank.h"
#include "weft/bench/processes/channel.h"

namespace weft::bench {

void run_server(Channel& driver, Server& server);
void run_client(Channel& driver, Client& client, Clock& clock);
void run_rank(Channel& driver, Rank& rank, const std::vector<Row>& rows, Clock& clock);
void run_leader(Channel& driver, Leader& leader, const std::vector<Row>& rows);
void run_member(Channel& driver, Member& member);

void to_json(nlohmann::json& json, const Usage& usage);
void from_json(const nlohmann::json& json, Usage& usage);
void to_json(nlohmann::json& json, const BlockResult& result);
void from_json(const nlohmann::json& json, BlockResult& result);

}  // namespace weft::bench
