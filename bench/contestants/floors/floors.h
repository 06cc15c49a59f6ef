// The floors of the machine: what one copy, one wake-up or one TCP connection costs without any RPC
// system. They take turns with the other contestants, so a ratio against a floor is the share of
// it that was reached.
//
// Thread safety: free functions.
#pragma once

#include "weft/bench/contestants/contestant.h"

namespace weft::bench {

// Copies tensors between warm buffers of the client, once for a send and twice for an echo. Its
// name is "memcpy". The server does nothing.
Contestant memcpy_floor();

// A small call through shared memory. Both processes sleep on a futex while they wait. Its name is
// "futex".
Contestant futex_floor();

// Small calls and sends over one TCP connection on loopback. Both processes wait in the kernel
// ("raw tcp blocking"), or both ask again and again ("raw tcp spinning"). They are variants of
// "raw tcp".
Contestant raw_tcp_blocking_floor();
Contestant raw_tcp_spinning_floor();

}  // namespace weft::bench
