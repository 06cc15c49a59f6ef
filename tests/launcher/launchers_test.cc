// Checks what is read of each launcher's variables. The files in recorded/ hold the variables that
// the real programs set; the first line of each says how they were started.
#include <fstream>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/launcher/launch_environment.h"
#include "weft/tests/base/environment_of.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Variables recorded(const std::string& name) {
  Variables variables;
  std::ifstream file(std::string(WEFT_SOURCE_DIR "/tests/launcher/recorded/") + name + ".env");
  EXPECT_TRUE(file.is_open()) << name;
  for (std::string line; std::getline(file, line);) {
    const size_t sign = line.find('=');
    if (line[0] != '#') variables[line.substr(0, sign)] = line.substr(sign + 1);
  }
  return variables;
}

Variables plus(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Variables minus(Variables variables, const std::string& name) {
  EXPECT_EQ(variables.erase(name), 1u) << name;
  return variables;
}

LaunchEnvironment place_by(const Variables& variables) {
  const auto place = read_launch_environment(testing::environment_of(variables));
  EXPECT_TRUE(place.ok()) << place.status();
  return place.value_or(LaunchEnvironment());
}

std::string refusal_of(const Variables& variables) {
  const absl::Status status = read_launch_environment(testing::environment_of(variables)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

void expect_place(const LaunchEnvironment& place, uint32_t rank, uint32_t size, uint32_t local_rank,
                  uint32_t local_size) {
  EXPECT_EQ(place.rank, rank);
  EXPECT_EQ(place.world_size, size);
  EXPECT_EQ(place.local_rank, local_rank);
  EXPECT_EQ(place.local_world_size, local_size);
}

Variables open_mpi() { return recorded("openmpi_rank_1_of_2"); }
Variables mpich() { return recorded("mpich_rank_1_of_2"); }
Variables slurm() { return recorded("slurm_task_3_of_4"); }
Variables indexed_job() {
  return {
      {"JOB_COMPLETION_INDEX", "2"}, {"WEFT_WORLD_SIZE", "4"}, {"MASTER_ADDR", "train-0.train"}};
}
// The torch plugin of Kubeflow Trainer sets these (pkg/runtime/framework/plugins/torch/torch.go).
Variables train_job() {
  return {{"JOB_COMPLETION_INDEX", "1"},
          {"PET_NNODES", "2"},
          {"PET_NPROC_PER_NODE", "1"},
          {"PET_NODE_RANK", "1"},
          {"PET_MASTER_ADDR", "job-node-0-0.job"},
          {"PET_MASTER_PORT", "29400"}};
}

TEST(Launchers, AProcessWithoutALauncherIsAlone) {
  const LaunchEnvironment place = place_by({{"ROLE_NAME", "trainer"}, {"PATH", "/bin"}});
  EXPECT_EQ(place.launcher, Launcher::kSingle);
  expect_place(place, 0, 1, 0, 1);
  EXPECT_EQ(place.master_addr, "127.0.0.1");
  EXPECT_EQ(place.master_port, 0);
  EXPECT_EQ(place.role_name, "trainer");
  EXPECT_TRUE(place.hosts_store());
}

TEST(Launchers, OpenMpiOnOneHost) {
  const LaunchEnvironment place = place_by(open_mpi());
  EXPECT_EQ(place.launcher, Launcher::kOpenMpi);
  expect_place(place, 1, 2, 1, 2);
  EXPECT_EQ(place.master_addr, "127.0.0.1");
  EXPECT_EQ(place.run_id, "openmpi-1126760449");
  EXPECT_EQ(place.master_port, place_by(open_mpi()).master_port);
  const LaunchEnvironment next = place_by(plus(open_mpi(), {{"PMIX_NAMESPACE", "1126760450"}}));
  EXPECT_NE(place.master_port, next.master_port) << "two jobs at once";
  EXPECT_EQ(place_by(minus(open_mpi(), "PMIX_NAMESPACE")).master_port, 29500);
}

TEST(Launchers, MpiOnSeveralHostsNeedsAnAddress) {
  const Variables ompi = plus(open_mpi(), {{"OMPI_COMM_WORLD_SIZE", "4"}});
  EXPECT_THAT(refusal_of(ompi), AllOf(HasSubstr("launch environment of openmpi: "),
                                      HasSubstr("MASTER_ADDR is not set"), HasSubstr("mpirun -x")));
  EXPECT_EQ(place_by(plus(ompi, {{"MASTER_ADDR", "host0"}})).master_addr, "host0");
  const Variables hydra = plus(mpich(), {{"PMI_SIZE", "4"}});
  EXPECT_THAT(refusal_of(hydra), AllOf(HasSubstr("MASTER_ADDR is not set"), HasSubstr("-genv")));
  const LaunchEnvironment named =
      place_by(plus(hydra, {{"MASTER_ADDR", "host0"}, {"MASTER_PORT", "4000"}}));
  EXPECT_EQ(named.master_addr, "host0");
  EXPECT_EQ(named.master_port, 4000);
}

TEST(Launchers, MpichOnOneHost) {
  const LaunchEnvironment place = place_by(mpich());
  EXPECT_EQ(place.launcher, Launcher::kMpich);
  expect_place(place, 1, 2, 1, 2);
  EXPECT_EQ(place.master_addr, "127.0.0.1");
  EXPECT_EQ(place.master_port, 29500);
  EXPECT_EQ(place.run_id, "weft");
}

TEST(Launchers, SlurmSteps) {
  const LaunchEnvironment place = place_by(slurm());
  EXPECT_EQ(place.launcher, Launcher::kSlurm);
  expect_place(place, 3, 4, 0, 1);
  EXPECT_EQ(place.master_addr, "n1");
  EXPECT_EQ(place.master_port, 12000 + 16 * 1);
  EXPECT_EQ(place.run_id, "slurm-1-0");
  EXPECT_EQ(place.group_epoch, 0u);
}

TEST(Launchers, EachStepOfAJobHasAStoreOfItsOwn) {
  const LaunchEnvironment second = place_by(recorded("slurm_second_step_task_1_of_2"));
  expect_place(second, 1, 2, 0, 1);
  EXPECT_EQ(second.run_id, "slurm-2-1");
  EXPECT_EQ(second.master_port, 12000 + 16 * 2 + 1);
}

TEST(Launchers, ARequeuedJobIsANewEpoch) {
  const LaunchEnvironment place = place_by(recorded("slurm_requeued_task_1_of_3"));
  expect_place(place, 1, 3, 1, 2);
  EXPECT_EQ(place.run_id, "slurm-2-0");
  EXPECT_EQ(place.restart_count, 1u);
  EXPECT_EQ(place.group_epoch, 1u);
}

TEST(Launchers, TheScriptOfASlurmJobIsNoTask) {
  EXPECT_EQ(place_by(recorded("slurm_batch_script")).launcher, Launcher::kSingle);
}

TEST(Launchers, AStepOnOneNodeStaysOnTheHost) {
  const Variables one = plus(slurm(), {{"SLURM_STEP_NODELIST", "n2"},
                                       {"SLURM_STEP_TASKS_PER_NODE", "4"},
                                       {"SLURM_NODEID", "0"},
                                       {"SLURM_LOCALID", "3"}});
  expect_place(place_by(one), 3, 4, 3, 4);
  EXPECT_EQ(place_by(one).master_addr, "127.0.0.1");
  EXPECT_EQ(place_by(plus(one, {{"MASTER_ADDR", "n2"}})).master_addr, "n2");
}

TEST(Launchers, StepsThatSlurmMakesItselfHaveLargeNumbers) {
  const LaunchEnvironment place = place_by(plus(slurm(), {{"SLURM_STEP_ID", "4294967290"}}));
  EXPECT_EQ(place.run_id, "slurm-1-4294967290");
  EXPECT_GE(place.master_port, 12000);
  EXPECT_LT(place.master_port, 32000);
}

// SLURM starts the proxies of MPICH, and its variables are those of the proxy.
TEST(Launchers, MpichInAJobOfSlurm) {
  const LaunchEnvironment place = place_by(recorded("mpich_in_slurm_rank_1_of_3"));
  EXPECT_EQ(place.launcher, Launcher::kMpich);
  expect_place(place, 1, 3, 1, 3);
}

TEST(Launchers, SrunWithPmi2IsSlurm) {
  const LaunchEnvironment place = place_by(recorded("slurm_pmi2_task_1_of_2"));
  EXPECT_EQ(place.launcher, Launcher::kSlurm);
  expect_place(place, 1, 2, 1, 2);
}

TEST(Launchers, OpenMpiInAJobOfSlurm) {
  const LaunchEnvironment place = place_by(recorded("openmpi_in_slurm_rank_1_of_2"));
  EXPECT_EQ(place.launcher, Launcher::kOpenMpi);
  expect_place(place, 1, 2, 1, 2);
}

TEST(Launchers, HeterogeneousJobsAreRefused) {
  EXPECT_THAT(refusal_of(plus(slurm(), {{"SLURM_HET_SIZE", "2"}})),
              HasSubstr("SLURM_HET_SIZE is set"));
}

// Scripts for SLURM export it for their own use.
TEST(Launchers, AWorldSizeAloneIsNotOfTorch) {
  EXPECT_EQ(place_by(plus(slurm(), {{"WORLD_SIZE", "4"}})).launcher, Launcher::kSlurm);
  EXPECT_THAT(refusal_of({{"WORLD_SIZE", "4"}}), HasSubstr("RANK is not set"));
}

TEST(Launchers, WithoutALocalSizeRanksMayBeOnSeveralHosts) {
  const Variables variables = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}};
  EXPECT_THAT(refusal_of(variables), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_EQ(place_by(plus(variables, {{"MASTER_ADDR", "host0"}})).rank, 1u);
  EXPECT_EQ(place_by({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).master_addr, "127.0.0.1");
}

TEST(Launchers, HalfAStepIsRefused) {
  EXPECT_THAT(refusal_of(minus(slurm(), "SLURM_STEP_NUM_TASKS")),
              AllOf(HasSubstr("launch environment of slurm: SLURM_STEP_NUM_TASKS is not set"),
                    HasSubstr("srun sets")));
  EXPECT_THAT(refusal_of(minus(slurm(), "SLURM_STEP_NODELIST")),
              HasSubstr("SLURM_STEP_NODELIST is not set"));
  EXPECT_THAT(refusal_of(minus(slurm(), "SLURM_NODEID")), HasSubstr("SLURM_NODEID is not set"));
  EXPECT_THAT(refusal_of(plus(slurm(), {{"SLURM_STEP_NODELIST", "n[1-"}})),
              HasSubstr("SLURM_STEP_NODELIST='n[1-': a bracket is not closed"));
  EXPECT_THAT(refusal_of(plus(slurm(), {{"SLURM_STEP_TASKS_PER_NODE", "4"}})),
              HasSubstr("have different numbers of hosts"));
  EXPECT_THAT(refusal_of(plus(slurm(), {{"SLURM_NODEID", "2"}})), HasSubstr("SLURM_NODEID='2'"));
  EXPECT_THAT(refusal_of(plus(slurm(), {{"SLURM_PROCID", "4"}})),
              HasSubstr("SLURM_PROCID=4 is not below SLURM_STEP_NUM_TASKS=4"));
  EXPECT_THAT(refusal_of(plus(slurm(), {{"SLURM_STEP_ID", "batch"}})),
              HasSubstr("SLURM_STEP_ID='batch'"));
}

TEST(Launchers, OnlyPodsAreReplacedByOthersThatNobodyCounts) {
  for (const Variables& others : {open_mpi(), mpich(), slurm()}) {
    EXPECT_FALSE(place_by(others).replaces_the_dead);
  }
}

TEST(Launchers, PodsOfAnIndexedJob) {
  const LaunchEnvironment place = place_by(indexed_job());
  EXPECT_EQ(place.launcher, Launcher::kKubernetes);
  EXPECT_TRUE(place.replaces_the_dead);
  expect_place(place, 2, 4, 0, 1);
  EXPECT_EQ(place.master_addr, "train-0.train");
  EXPECT_EQ(place.master_port, 29500);
  EXPECT_THAT(refusal_of(minus(indexed_job(), "WEFT_WORLD_SIZE")),
              HasSubstr("WEFT_WORLD_SIZE is not set"));
  EXPECT_THAT(refusal_of(minus(indexed_job(), "MASTER_ADDR")),
              AllOf(HasSubstr("MASTER_ADDR is not set"), HasSubstr("JOB-0.SUBDOMAIN")));
}

TEST(Launchers, PodsOfATrainJob) {
  const LaunchEnvironment place = place_by(train_job());
  EXPECT_EQ(place.launcher, Launcher::kKubernetes);
  EXPECT_TRUE(place.replaces_the_dead);
  expect_place(place, 1, 2, 0, 1);
  EXPECT_EQ(place.master_addr, "job-node-0-0.job");
  EXPECT_EQ(place.master_port, 29400);
  for (const char* several : {"4", "auto", "gpu"}) {
    EXPECT_THAT(refusal_of(plus(train_job(), {{"PET_NPROC_PER_NODE", several}})),
                HasSubstr("the pod starts weft_launch or torchrun"));
  }
}

// Each program inherits the variables of the launchers that started its own.
TEST(Launchers, TheInnermostLauncherCounts) {
  const Variables torch = {
      {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
  for (const Variables& outer : {open_mpi(), mpich(), slurm(), indexed_job(), train_job()}) {
    EXPECT_EQ(place_by(plus(outer, torch)).launcher, Launcher::kTorch);
  }
  EXPECT_EQ(place_by(plus(slurm(), open_mpi())).launcher, Launcher::kOpenMpi);
}

TEST(Launchers, AVariableCanNameTheLauncher) {
  const Variables both = plus(slurm(), open_mpi());
  for (const auto& [name, launcher] :
       std::map<std::string, Launcher>{{"slurm", Launcher::kSlurm},
                                       {"openmpi", Launcher::kOpenMpi},
                                       {"single", Launcher::kSingle}}) {
    EXPECT_EQ(place_by(plus(both, {{"WEFT_LAUNCHER", name}})).launcher, launcher);
    EXPECT_EQ(to_text(launcher), name);
  }
  EXPECT_EQ(place_by(plus(train_job(), {{"WEFT_LAUNCHER", "kubernetes"}})).world_size, 2u);
  EXPECT_THAT(refusal_of(plus(both, {{"WEFT_LAUNCHER", "torch"}})), HasSubstr("RANK is not set"));
  EXPECT_THAT(refusal_of(plus(both, {{"WEFT_LAUNCHER", "pbs"}})),
              AllOf(HasSubstr("WEFT_LAUNCHER='pbs'"), HasSubstr("kubernetes or single")));
}

TEST(Launchers, NamesOfTheJobAndItsEpochCountUnderEachLauncher) {
  const Variables more = {
      {"TORCHELASTIC_RUN_ID", "mine"}, {"WEFT_GROUP_EPOCH", "7"}, {"ROLE_NAME", "trainer"}};
  for (const Variables& launcher : {open_mpi(), mpich(), slurm(), indexed_job(), train_job()}) {
    const LaunchEnvironment place = place_by(plus(launcher, more));
    EXPECT_EQ(place.run_id, "mine");
    EXPECT_EQ(place.group_epoch, 7u);
    EXPECT_EQ(place.role_name, "trainer");
  }
}

}  // namespace
}  // namespace weft
