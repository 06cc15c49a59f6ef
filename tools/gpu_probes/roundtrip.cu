// Round trips of 16 bytes of device memory between two processes, or between two threads of one.
#include <thread>

#include "common.h"

using namespace probe;

namespace {

constexpr size_t kBytes = 16;
constexpr int kWarm = 50;

struct alignas(64) Flag {
  std::atomic<uint32_t> value{0};
};

struct State {
  Flag there;                    // the first side's data have arrived
  Flag back;                     // the answer has arrived
  alignas(64) char data[2][64];  // for copies through the host
};

enum class Way { kOneCopy, kTwoCopies, kHost, kDeviceFlags };

const char* name_of(Way way) {
  switch (way) {
    case Way::kOneCopy:
      return "one device copy each way";
    case Way::kTwoCopies:
      return "copy in, flag, copy out each way";
    case Way::kHost:
      return "through registered host memory";
    case Way::kDeviceFlags:
      return "copy in, flag of the stream, copy out each way";
  }
  return "";
}

class Side {
 public:
  Side(CUdeviceptr slots, State* state) : slots_(slots), state_(state) {
    CHECK_CU(cuMemAlloc(&own_, 4096));
    CHECK_CU(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }

  void run(bool first, Way way, int rounds, const std::string& where) {
    std::vector<double> times;
    for (int i = 0; i < rounds + kWarm; ++i) {
      // The flags count on over all ways.
      ++turn_;
      if (first) {
        CHECK_CU(cuMemsetD32(own_, turn_, kBytes / 4));
        CHECK_CU(cuMemsetD32(own_ + 256, 0, kBytes / 4));
        CHECK_CU(cuStreamSynchronize(nullptr));
      }
      const double begin = now_us();
      first ? first_side(way) : second_side(way);
      if (i >= kWarm) times.push_back(now_us() - begin);
      if (first && way != Way::kOneCopy) must(read_word(own_ + 256) == turn_, "the data came back");
    }
    if (!first) return;
    const std::string name = std::string("roundtrip ") + where + ", " + name_of(way);
    say(name, median(times), "us");
    say(name + ", 99th percentile", quantile(times, 0.99), "us");
  }

 private:
  void copy(CUdeviceptr to, CUdeviceptr from) {
    CHECK_CU(cuMemcpyDtoDAsync(to, from, kBytes, stream_));
    poll_until_done(stream_);
  }
  void to_host(char* to, CUdeviceptr from) {
    CHECK_CU(cuMemcpyDtoHAsync(to, from, kBytes, stream_));
    poll_until_done(stream_);
  }
  void from_host(CUdeviceptr to, const char* from) {
    CHECK_CU(cuMemcpyHtoDAsync(to, from, kBytes, stream_));
    poll_until_done(stream_);
  }
  CUdeviceptr address_of(Flag& flag) {
    void* at = nullptr;
    CHECK_CU(cudaHostGetDevicePointer(&at, &flag.value, 0));
    return reinterpret_cast<CUdeviceptr>(at);
  }

  // The first side sends own_ and takes the answer to own_ + 256. The second sends back what came.
  void first_side(Way way) {
    if (way == Way::kDeviceFlags) {
      CHECK_CU(cuMemcpyDtoDAsync(slots_, own_, kBytes, stream_));
      CHECK_CU(cuStreamWriteValue32(stream_, address_of(state_->there), turn_, 0));
      CHECK_CU(
          cuStreamWaitValue32(stream_, address_of(state_->back), turn_, CU_STREAM_WAIT_VALUE_EQ));
      CHECK_CU(cuMemcpyDtoDAsync(own_ + 256, slots_ + 4096, kBytes, stream_));
      poll_until_done(stream_);
      return;
    }
    way == Way::kHost ? to_host(state_->data[0], own_) : copy(slots_, own_);
    state_->there.value = turn_;
    spin_until(state_->back.value, turn_);
    if (way == Way::kTwoCopies) copy(own_ + 256, slots_ + 4096);
    if (way == Way::kHost) from_host(own_ + 256, state_->data[1]);
  }

  void second_side(Way way) {
    if (way == Way::kDeviceFlags) {
      CHECK_CU(
          cuStreamWaitValue32(stream_, address_of(state_->there), turn_, CU_STREAM_WAIT_VALUE_EQ));
      CHECK_CU(cuMemcpyDtoDAsync(own_, slots_, kBytes, stream_));
      CHECK_CU(cuMemcpyDtoDAsync(slots_ + 4096, own_, kBytes, stream_));
      CHECK_CU(cuStreamWriteValue32(stream_, address_of(state_->back), turn_, 0));
      poll_until_done(stream_);
      return;
    }
    spin_until(state_->there.value, turn_);
    if (way == Way::kTwoCopies) copy(own_, slots_);
    if (way == Way::kHost) from_host(own_, state_->data[0]);
    way == Way::kHost ? to_host(state_->data[1], own_) : copy(slots_ + 4096, own_);
    state_->back.value = turn_;
  }

  CUdeviceptr slots_;
  State* state_;
  CUdeviceptr own_ = 0;
  cudaStream_t stream_ = nullptr;
  uint32_t turn_ = 0;
};

void measure_all(Side& side, bool first, const std::string& where) {
  side.run(first, Way::kOneCopy, 1000, where);
  side.run(first, Way::kTwoCopies, 1000, where);
  side.run(first, Way::kHost, 1000, where);
  side.run(first, Way::kDeviceFlags, 200, where);
}

}  // namespace

int main() {
  int sockets[2];
  must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
  State* state = shared_page<State>();
  const pid_t child = fork();
  make_context();
  CHECK_CU(cudaHostRegister(state, sizeof(State), cudaHostRegisterMapped));
  if (child == 0) {
    const Block slots = import_block(receive_descriptor(sockets[1]), 2 << 20);
    Side side(slots.at, state);
    measure_all(side, false, "");
    _exit(0);
  }
  const Block slots = create_block(2 << 20);
  send_descriptor(sockets[0], export_block(slots));
  {
    Side side(slots.at, state);
    measure_all(side, true, "two processes");
  }
  int status = 0;
  waitpid(child, &status, 0);
  state->there.value = 0;
  state->back.value = 0;
  Side one(slots.at, state);
  Side two(slots.at, state);
  std::thread thread([&] {
    CHECK_CU(cudaSetDevice(0));
    measure_all(two, false, "");
  });
  measure_all(one, true, "one process");
  thread.join();
  return status == 0 ? 0 : 1;
}
