// The modes in which Weft is measured, and what sets them apart.
//
// Thread safety: free functions.
#pragma once

#include <string>

namespace weft {
struct WorkerOptions;
}

namespace weft::bench {

enum class WeftMode {
  kDefault,   // "weft": as Worker::join sets it up
  kBlocking,  // "weft blocking": a thread that waits sleeps at once, and never polls
  kTcp,       // "weft tcp": all data travels over TCP, in clear
  kUnix,      // "weft unix": over unix sockets, as on one host without shared memory
  kMtls,      // "weft mtls": over TCP with mutual TLS, as between hosts
};

std::string name_of(WeftMode mode);

// The only place that knows the settings of a mode.
void set_mode(WorkerOptions& options, WeftMode mode);

}  // namespace weft::bench
