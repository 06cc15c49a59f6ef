#include "weft/launcher/launch_environment.h"

#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status.h"
#include "weft/launcher/internal/slurm_lists.h"
#include "weft/launcher/internal/variables.h"

namespace weft {
namespace {

using launcher_internal::kMaxNumber;
using launcher_internal::Variables;

constexpr char kLauncher[] = "WEFT_LAUNCHER";
constexpr char kMasterAddr[] = "MASTER_ADDR";
constexpr char kMasterPort[] = "MASTER_PORT";
constexpr char kLoopback[] = "127.0.0.1";

// Ports of the store that no variable names. They are below those that Linux gives to connections
// unless a site has changed that, so that no connection has taken one.
constexpr uint32_t kFirstPort = 12000;
constexpr uint32_t kPorts = 20000;
constexpr uint16_t kTorchPort = 29500;  // torchrun's own default

// One row of the table in docs/launch.md. A variable that a launcher does not have is nullptr.
struct Row {
  Launcher launcher;
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* advice;  // ends the error's text
};

constexpr Row kTorch = {Launcher::kTorch,
                        "torch",
                        "RANK",
                        "WORLD_SIZE",
                        "LOCAL_RANK",
                        "LOCAL_WORLD_SIZE",
                        "weft_launch and torchrun set these variables"};
constexpr Row kOpenMpi = {Launcher::kOpenMpi,
                          "openmpi",
                          "OMPI_COMM_WORLD_RANK",
                          "OMPI_COMM_WORLD_SIZE",
                          "OMPI_COMM_WORLD_LOCAL_RANK",
                          "OMPI_COMM_WORLD_LOCAL_SIZE",
                          "on several hosts: mpirun -x MASTER_ADDR=HOST_OF_RANK_0 ..."};
constexpr Row kSlurm = {Launcher::kSlurm,
                        "slurm",
                        "SLURM_PROCID",
                        "SLURM_STEP_NUM_TASKS",
                        "SLURM_LOCALID",
                        nullptr,
                        "srun sets these variables in each task"};
constexpr Row kMpich = {Launcher::kMpich,
                        "mpich",
                        "PMI_RANK",
                        "PMI_SIZE",
                        "MPI_LOCALRANKID",
                        "MPI_LOCALNRANKS",
                        "on several hosts: mpiexec -genv MASTER_ADDR HOST_OF_RANK_0 ..."};
constexpr Row kKubernetes = {
    Launcher::kKubernetes,
    "kubernetes",
    "JOB_COMPLETION_INDEX",
    "WEFT_WORLD_SIZE",
    nullptr,
    nullptr,
    "the pod's specification sets WEFT_WORLD_SIZE, and MASTER_ADDR to the first pod, "
    "JOB-0.SUBDOMAIN; WEFT_LAUNCHER=single if each pod works alone"};
constexpr Row kSingle = {Launcher::kSingle, "single", nullptr, nullptr, nullptr, nullptr, ""};
// Kubeflow's TrainJob.
constexpr Row kTrainJob = {Launcher::kKubernetes,
                           "kubernetes",
                           "PET_NODE_RANK",
                           "PET_NNODES",
                           nullptr,
                           nullptr,
                           "Kubeflow sets these variables in the pods of a TrainJob"};

// The first whose variables are there. Programs inherit the variables of the launchers that started
// their own: torchrun may run under srun, and mpirun within a job of SLURM.
Row find_row(const Variables& variables) {
  const auto set = [&](const char* name) { return variables.is_set(name); };
  if (set(kTorch.rank)) return kTorch;
  if (set(kOpenMpi.rank)) return kOpenMpi;
  // MPICH starts a proxy per host with srun, so its ranks have the variables of the proxy's task.
  // srun itself may set PMI_RANK too (--mpi=pmi2), but not the local rank.
  if (set(kMpich.rank) && set(kMpich.local_rank)) return kMpich;
  // The batch script itself has SLURM_PROCID=0, but no step.
  if (set("SLURM_STEP_ID") && set(kSlurm.rank)) return kSlurm;
  if (set(kMpich.rank)) return kMpich;
  if (set(kTrainJob.rank)) return kTrainJob;
  if (set(kKubernetes.rank)) return kKubernetes;
  if (set(kTorch.size) || set(kMasterAddr) || set(kMasterPort)) return kTorch;
  return kSingle;
}

// The row that counts, by WEFT_LAUNCHER or by the variables.
absl::StatusOr<Row> choose_row(const Variables& variables) {
  const std::optional<std::string> name = variables.text(kLauncher);
  if (!name) return find_row(variables);
  if (*name == kKubernetes.name && variables.is_set(kTrainJob.rank)) return kTrainJob;
  for (const Row& row : {kTorch, kOpenMpi, kSlurm, kMpich, kKubernetes, kSingle}) {
    if (*name == row.name) return row;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      kLauncher, "='", *name, "' is not torch, openmpi, slurm, mpich, kubernetes or single"));
}

// Without this variable, the address is `host`; nullptr: it is required.
void read_master(Variables& variables, const char* host, uint16_t port, LaunchEnvironment& result) {
  const std::optional<std::string> named = variables.text(kMasterAddr);
  if (named) {
    result.master_addr = *named;
  } else if (host != nullptr) {
    result.master_addr = host;
  } else {
    result.master_addr = variables.required_text(kMasterAddr);
  }
  result.master_port = static_cast<uint16_t>(variables.number(kMasterPort, 1, 65535, port));
}

// FNV-1a.
uint32_t hash_of(const std::string& text) {
  uint32_t hash = 2166136261u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

void read_torch(Variables& variables, LaunchEnvironment& result) {
  result.master_addr = variables.required_text(kMasterAddr);
  result.master_port = static_cast<uint16_t>(variables.required_number(kMasterPort, 1, 65535));
  result.restart_count = variables.number("TORCHELASTIC_RESTART_COUNT", 0, kMaxNumber, 0);
  result.agent_hosts_store = variables.flag("TORCHELASTIC_USE_AGENT_STORE");
}

void read_mpi(bool local_size_is_known, Variables& variables, LaunchEnvironment& result) {
  // Of OpenMPI: a number in version 4, a text in version 5; as a rule another one for each mpirun.
  const std::optional<std::string> job = variables.text("PMIX_NAMESPACE");
  uint16_t port = kTorchPort;
  if (job && result.launcher == Launcher::kOpenMpi) {
    result.run_id = absl::StrCat("openmpi-", *job);
    port = static_cast<uint16_t>(kFirstPort + hash_of(*job) % kPorts);
  }
  const bool one_host = result.world_size == 1 ||
                        (local_size_is_known && result.local_world_size == result.world_size);
  read_master(variables, one_host ? kLoopback : nullptr, port, result);
}

void read_slurm(Variables& variables, LaunchEnvironment& result) {
  // The variables of such a step count some things over all its components and others over one.
  if (variables.is_set("SLURM_HET_SIZE")) {
    variables.add_problem(
        "SLURM_HET_SIZE is set: for heterogeneous jobs, set RANK, WORLD_SIZE, MASTER_ADDR and "
        "MASTER_PORT");
  }
  const uint32_t job = variables.required_number("SLURM_JOB_ID", 0, kMaxNumber);
  // Steps that SLURM makes itself, for example an interactive one, have numbers near 2^32.
  const std::string step_text = variables.required_text("SLURM_STEP_ID");
  uint32_t step = 0;
  if (!step_text.empty() && !absl::SimpleAtoi(step_text, &step)) {
    variables.add_problem(absl::StrCat("SLURM_STEP_ID='", step_text, "' is not a number"));
  }
  result.run_id = absl::StrCat("slurm-", job, "-", step);
  result.restart_count = variables.number("SLURM_RESTART_COUNT", 0, kMaxNumber, 0);

  constexpr char kNodes[] = "SLURM_STEP_NODELIST";
  constexpr char kTasks[] = "SLURM_STEP_TASKS_PER_NODE";
  constexpr char kNode[] = "SLURM_NODEID";
  const std::string tasks_text = variables.required_text(kTasks);
  const std::string nodes_text = variables.required_text(kNodes);
  if (tasks_text.empty() || nodes_text.empty()) return;
  const auto tasks = launcher_internal::expand_counts(tasks_text);
  const auto nodes = launcher_internal::expand_node_list(nodes_text);
  const auto bad = [&](const char* name, const std::string& value, const absl::Status& problem) {
    variables.add_problem(absl::StrCat(name, "='", value, "': ", problem.message()));
  };
  if (!tasks.ok()) bad(kTasks, tasks_text, tasks.status());
  if (!nodes.ok()) bad(kNodes, nodes_text, nodes.status());
  if (!tasks.ok() || !nodes.ok()) return;
  if (tasks->size() != nodes->size()) {
    return variables.add_problem(absl::StrCat(kTasks, "='", tasks_text, "' and ", kNodes, "='",
                                              nodes_text, "' have different numbers of hosts"));
  }
  const uint32_t node =
      variables.required_number(kNode, 0, static_cast<uint32_t>(nodes->size()) - 1);
  result.local_world_size = (*tasks)[node];
  const uint64_t offset = (uint64_t{16} * job + step) % kPorts;
  read_master(variables, nodes->size() == 1 ? kLoopback : nodes->front().c_str(),
              static_cast<uint16_t>(kFirstPort + offset), result);
}

void read_kubernetes(Variables& variables, LaunchEnvironment& result) {
  result.replaces_the_dead = true;
  result.local_rank = 0;
  result.local_world_size = 1;
  const std::string processes = variables.text("PET_NPROC_PER_NODE").value_or("1");
  if (processes != "1") {
    variables.add_problem(absl::StrCat("PET_NPROC_PER_NODE='", processes,
                                       "': for several processes per pod, the pod starts "
                                       "weft_launch or torchrun"));
  }
  const std::optional<std::string> host = variables.text("PET_MASTER_ADDR");
  const uint32_t port = variables.number("PET_MASTER_PORT", 1, 65535, kTorchPort);
  read_master(variables, host ? host->c_str() : nullptr, static_cast<uint16_t>(port), result);
}

// WEFT_STORE may be inherited from an outer launcher. WEFT_STORE_OF, if that launcher has set it,
// tells for which MASTER_ADDR and MASTER_PORT it is.
std::string store_of(const Variables& variables, const LaunchEnvironment& place) {
  const std::string own = absl::StrCat(place.master_addr, ":", place.master_port);
  if (variables.text("WEFT_STORE_OF").value_or(own) != own) return "";
  return variables.text("WEFT_STORE").value_or("");
}

void read_place(const Row& row, Variables& variables, LaunchEnvironment& result) {
  result.rank = variables.required_number(row.rank, 0, kMaxNumber);
  result.world_size = variables.required_number(row.size, 1, kMaxNumber);
  result.local_rank = result.rank;
  result.local_world_size = result.world_size;
  if (row.local_rank != nullptr) {
    result.local_rank = variables.number(row.local_rank, 0, kMaxNumber, result.rank);
  }
  if (row.local_size != nullptr) {
    result.local_world_size = variables.number(row.local_size, 1, kMaxNumber, result.world_size);
  }
}

void check_place(const Row& row, Variables& variables, const LaunchEnvironment& place) {
  const auto require_order = [&](bool good, const char* name, uint32_t value, const char* is_not,
                                 const char* limit_name, uint32_t limit) {
    if (good) return;
    variables.add_problem(absl::StrCat(name, "=", value, " ", is_not, " ", limit_name, "=", limit));
  };
  const char* const local_rank = row.local_rank == nullptr ? "local rank" : row.local_rank;
  const char* const local_size =
      row.local_size == nullptr ? "number of processes on this host" : row.local_size;
  require_order(place.rank < place.world_size, row.rank, place.rank, "is not below", row.size,
                place.world_size);
  require_order(place.local_rank < place.local_world_size, local_rank, place.local_rank,
                "is not below", local_size, place.local_world_size);
  require_order(place.local_world_size <= place.world_size, local_size, place.local_world_size,
                "is above", row.size, place.world_size);
}

absl::Status refusal(const Row& row, const std::vector<std::string>& problems) {
  const std::string advice = *row.advice == '\0' ? "" : absl::StrCat(" (", row.advice, ")");
  return absl::InvalidArgumentError(absl::StrCat("launch environment of ", row.name, ": ",
                                                 absl::StrJoin(problems, "; "), advice));
}

}  // namespace

const char* to_text(Launcher launcher) {
  for (const Row& row : {kTorch, kOpenMpi, kSlurm, kMpich, kKubernetes, kSingle}) {
    if (row.launcher == launcher) return row.name;
  }
  return "unknown";
}

absl::StatusOr<Launcher> find_launcher(const EnvironmentReader& read) {
  WEFT_ASSIGN_OR_RETURN(const Row row, choose_row(Variables(read)));
  return row.launcher;
}

absl::StatusOr<LaunchEnvironment> read_launch_environment(const EnvironmentReader& read) {
  Variables variables(read);
  WEFT_ASSIGN_OR_RETURN(const Row row, choose_row(variables));
  LaunchEnvironment result;
  result.launcher = row.launcher;
  if (row.rank != nullptr) read_place(row, variables, result);
  switch (row.launcher) {
    case Launcher::kTorch:
      read_torch(variables, result);
      break;
    case Launcher::kOpenMpi:
    case Launcher::kMpich:
      read_mpi(variables.is_set(row.local_size), variables, result);
      break;
    case Launcher::kSlurm:
      read_slurm(variables, result);
      break;
    case Launcher::kKubernetes:
      read_kubernetes(variables, result);
      break;
    case Launcher::kSingle:
      result.master_addr = kLoopback;
      break;
  }
  // The numbers are compared only if all of them are there.
  if (variables.problems().empty() && row.rank != nullptr) check_place(row, variables, result);
  result.run_id = variables.text("TORCHELASTIC_RUN_ID").value_or(result.run_id);
  result.group_epoch = variables.number("WEFT_GROUP_EPOCH", 0, kMaxNumber, result.restart_count);
  result.role_name = variables.text("ROLE_NAME").value_or("");
  if (row.rank != nullptr) result.store = store_of(variables, result);
  if (variables.problems().empty()) return result;
  return refusal(row, variables.problems());
}

}  // namespace weft
