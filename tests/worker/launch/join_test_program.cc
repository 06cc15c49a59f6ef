// Joins the group that its launcher made and prints what it learned.
//
// With the arguments "R CODE", rank R then exits with CODE in attempt 0.
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/launcher/launch_environment.h"
#include "weft/rpc/rendezvous/static_join.h"
#include "weft/store/job/job_store.h"

namespace {

// Without a launcher's store, that of rank 0 ends with its process. So rank 0 leaves last.
void let_all_join(weft::RendezvousStore& store, const weft::LaunchEnvironment& environment) {
  const auto key = [](uint32_t rank) { return absl::StrCat("test/joined/", rank); };
  (void)store.set(key(environment.rank), "");
  if (!environment.hosts_store()) return;
  std::vector<std::string> keys;
  for (uint32_t rank = 0; rank < environment.world_size; ++rank) keys.push_back(key(rank));
  (void)store.wait(keys, absl::Minutes(1));
}

int fail(const absl::Status& status) {
  std::cerr << status << std::endl;
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const auto environment = weft::read_launch_environment();
  if (!environment.ok()) return fail(environment.status());
  const auto security = weft::find_security_mode();
  if (!security.ok()) return fail(security.status());
  const auto store = weft::open_job_store(*environment, *security);
  if (!store.ok()) return fail(store.status());
  weft::JoinRequest request;
  request.group = environment->run_id;
  request.epoch = environment->group_epoch;
  request.attempt = environment->restart_count;
  request.rank = environment->rank;
  request.world_size = environment->world_size;
  request.name = absl::StrCat("worker", request.rank);
  request.address = absl::StrCat("address", request.rank);
  const auto joined = weft::join_static_group(**store, request);
  if (!joined.ok()) return fail(joined.status());
  std::cout << joined->self << " joined " << joined->members.size() << " members, last "
            << joined->members.back().name << std::endl;
  let_all_join(**store, *environment);
  const bool told = argc == 3 && request.attempt == 0 && argv[1] == std::to_string(request.rank);
  return told ? std::atoi(argv[2]) : 0;
}
