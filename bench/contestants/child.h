// The life of a contestant process: obeys the driver's commands until told to quit.
//
// Commands are objects with a "do": "listen", "serve", "usage", "live" and "quit" for a server,
// "connect", "run" and "quit" for a client, "listen" (of rank 0 alone), "join", "run" and "quit"
// for a rank, "listen", "join", "run", "usage" and "quit" for a leader,
// "join", "usage" and "quit" for a member; every command is answered (see channel.h).
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
void run_rank(Channel& driver, Rank& rank, Clock& clock);
void run_leader(Channel& driver, Leader& leader, const std::vector<Row>& rows);
void run_member(Channel& driver, Member& member);

void to_json(nlohmann::json& json, const Usage& usage);
void from_json(const nlohmann::json& json, Usage& usage);
void to_json(nlohmann::json& json, const BlockResult& result);
void from_json(const nlohmann::json& json, BlockResult& result);

}  // namespace weft::bench
