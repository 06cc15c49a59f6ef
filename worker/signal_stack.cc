#include "weft/worker/signal_stack.h"

#include <algorithm>
#include <signal.h>
#include <unistd.h>
#include <vector>

namespace weft {
namespace {

class SignalStack {
 public:
  SignalStack() {
    stack_t present = {};
    sigaltstack(nullptr, &present);
    if ((present.ss_flags & SS_DISABLE) == 0) return;
    memory_.resize(static_cast<size_t>(std::max(sysconf(_SC_SIGSTKSZ), 64L << 10)));
    stack_t own = {};
    own.ss_sp = memory_.data();
    own.ss_size = memory_.size();
    sigaltstack(&own, nullptr);
  }
  ~SignalStack() {
    stack_t present = {};
    sigaltstack(nullptr, &present);
    if (memory_.empty() || present.ss_sp != memory_.data()) return;
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  std::vector<char> memory_;
};

}  // namespace

void use_signal_stack() { thread_local const SignalStack stack; }

}  // namespace weft
