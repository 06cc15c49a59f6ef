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

at::Tensor wrap(const Block& block, size_t bytes) {
  return at::from_blob(
      reinterpret_cast<void*>(block.at), {static_cast<int64_t>(bytes)}, [](void*) {},
      at::TensorOptions().dtype(at::kByte).device(kDevice), kDevice);
}

// Waits through c10's generic event, as code without CUDA headers would.
void wait_signal(c10::Event& event, const c10::Stream& stream) {
  event.record(stream);
  while (!event.query()) {
  }
}

void copy_rates(const Block& block, const std::string& whose) {
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  const c10::Stream stream = guard.getStreamFromGlobalPool(kDevice, false);
  const c10::StreamGuard scope(stream);
  c10::Event event(c10::kCUDA);
  for (size_t bytes : {size_t{16}, size_t{1} << 20, size_t{64} << 20, kMost}) {
    const at::Tensor held = wrap(block, bytes);
    const at::Tensor source = at::randint(0, 255, {static_cast<int64_t>(bytes)}, held.options());
    std::vector<double> in, out, submit;
    at::Tensor result;
    for (int i = 0; i < 25; ++i) {
      double begin = now_us();
      held.copy_(source, true);
      submit.push_back(now_us() - begin);
      wait_signal(event, stream);
      in.push_back(now_us() - begin);
      begin = now_us();
      result = at::empty_like(source);
      result.copy_(held, true);
      wait_signal(event, stream);
      out.push_back(now_us() - begin);
    }
    const std::string name = "torch " + whose + ", copy_ of " + size_text(bytes);
    say(name + ", equal", result.equal(source) ? "yes" : "NO");
    say(name + ", submit", median(submit), "us");
    say(name + ", in, until event.query()", median(in), "us");
    say(name + ", out with at::empty, until event.query()", median(out), "us");
  }
  // A strided tensor is gathered by the copy itself.
  const at::Tensor grid = at::rand({1024, 1024}, at::TensorOptions().device(kDevice)).t();
  const at::Tensor held = wrap(block, 4 << 20).view(at::kFloat).view({1024, 1024});
  held.copy_(grid, true);
  say("torch " + whose + ", strided copy equal", held.equal(grid) ? "yes" : "NO");
}

void event_costs() {
  c10::Event event(c10::kCUDA);
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  const c10::Stream stream = guard.getStream(kDevice);
  event.record(stream);
  const double begin = now_us();
  for (int i = 0; i < 10000; ++i) event.query();
  say("torch c10::Event::query of a complete event", (now_us() - begin) / 10000, "us");
  std::vector<double> makes;
  for (int i = 0; i < 1000; ++i) {
    const double start = now_us();
    c10::Event fresh(c10::kCUDA);
    fresh.record(stream);
    makes.push_back(now_us() - start);
  }
  say("torch new c10::Event and record", median(makes), "us");
}

}  // namespace

int main() {
  int sockets[2];
  must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(sockets[0]);
    make_context();
    const Block block = import_block(receive_descriptor(sockets[1]), kMost);
    copy_rates(block, "importer");
    // From here on the owner has exited.
    send_bytes(sockets[1], "d", 1);
    char byte;
    must(recv(sockets[1], &byte, 1, 0) >= 0, "the owner's exit");
    copy_rates(block, "importer after the owner's exit");
    _exit(0);
  }
  const pid_t owner = fork();
  if (owner == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(sockets[1]);
    make_context();
    const Block block = create_block(kMost);
    send_descriptor(sockets[0], export_block(block));
    char byte;
    receive_bytes(sockets[0], &byte, 1);  // the importer is done: no rates of two at once
    copy_rates(block, "owner");
    event_costs();
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
