// Whether LibTorch works on shared memory of cuMemCreate: at::from_blob over the owner's mapping
// and over the importer's, Tensor::copy_ to and from both, and events through c10 alone.
#include <sys/prctl.h>

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "common.h"

using namespace probe;

namespace {

constexpr size_t kMost = size_t{256} << 20;
const c10::Device kDevice(c10::kCUDA, 0);

at::Tensor Wrap(const Block& block, size_t bytes) {
  return at::from_blob(
      reinterpret_cast<void*>(block.at), {static_cast<int64_t>(bytes)}, [](void*) {},
      at::TensorOptions().dtype(at::kByte).device(kDevice), kDevice);
}

// Waits through c10's generic event, as code without CUDA headers would.
void Wait(c10::Event& event, const c10::Stream& stream) {
  event.record(stream);
  while (!event.query()) {
  }
}

void CopyRates(const Block& block, const std::string& whose) {
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  const c10::Stream stream = guard.getStreamFromGlobalPool(kDevice, false);
  const c10::StreamGuard scope(stream);
  c10::Event event(c10::kCUDA);
  for (size_t bytes : {size_t{16}, size_t{1} << 20, size_t{64} << 20, kMost}) {
    const at::Tensor lane = Wrap(block, bytes);
    const at::Tensor source = at::randint(0, 255, {static_cast<int64_t>(bytes)}, lane.options());
    std::vector<double> in, out, submit;
    at::Tensor result;
    for (int i = 0; i < 25; ++i) {
      double begin = NowUs();
      lane.copy_(source, true);
      submit.push_back(NowUs() - begin);
      Wait(event, stream);
      in.push_back(NowUs() - begin);
      begin = NowUs();
      result = at::empty_like(source);
      result.copy_(lane, true);
      Wait(event, stream);
      out.push_back(NowUs() - begin);
    }
    const std::string name = "torch " + whose + ", copy_ of " + Size(bytes);
    Say(name + ", equal", result.equal(source) ? "yes" : "NO");
    Say(name + ", submit", Median(submit), "us");
    Say(name + ", in, until event.query()", Median(in), "us");
    Say(name + ", out with at::empty, until event.query()", Median(out), "us");
  }
  // A strided tensor is gathered by the copy itself.
  const at::Tensor grid = at::rand({1024, 1024}, at::TensorOptions().device(kDevice)).t();
  const at::Tensor lane = Wrap(block, 4 << 20).view(at::kFloat).view({1024, 1024});
  lane.copy_(grid, true);
  Say("torch " + whose + ", strided copy equal", lane.equal(grid) ? "yes" : "NO");
}

void EventCosts() {
  c10::Event event(c10::kCUDA);
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  const c10::Stream stream = guard.getStream(kDevice);
  event.record(stream);
  const double begin = NowUs();
  for (int i = 0; i < 10000; ++i) event.query();
  Say("torch c10::Event::query of a complete event", (NowUs() - begin) / 10000, "us");
  std::vector<double> makes;
  for (int i = 0; i < 1000; ++i) {
    const double start = NowUs();
    c10::Event fresh(c10::kCUDA);
    fresh.record(stream);
    makes.push_back(NowUs() - start);
  }
  Say("torch new c10::Event and record", Median(makes), "us");
}

}  // namespace

int main() {
  int sockets[2];
  Must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(sockets[0]);
    Begin();
    const Block block = Import(ReceiveDescriptor(sockets[1]), kMost);
    CopyRates(block, "importer");
    // From here on the owner has exited.
    SendBytes(sockets[1], "d", 1);
    char byte;
    Must(recv(sockets[1], &byte, 1, 0) >= 0, "the owner's exit");
    CopyRates(block, "importer after the owner's exit");
    _exit(0);
  }
  const pid_t owner = fork();
  if (owner == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(sockets[1]);
    Begin();
    const Block block = Create(kMost);
    SendDescriptor(sockets[0], Export(block));
    char byte;
    ReceiveBytes(sockets[0], &byte, 1);  // the importer is done: no rates of two at once
    CopyRates(block, "owner");
    EventCosts();
    _exit(0);
  }
  close(sockets[0]);
  int status = 0;
  waitpid(owner, &status, 0);
  close(sockets[1]);
  int second = 0;
  waitpid(child, &second, 0);
  return status == 0 && second == 0 ? 0 : 1;
}
