// How glibc's malloc treats what is freed.
//
// Thread safety: may be called from any thread.
#pragma once

namespace weft {

// Keeps freed memory, up to 128 MiB at the heap's end and in pieces up to 32 MiB: training frees
// and takes the same large tensors in every step, and each fresh page costs a fault. For the whole
// process; once. MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_ in the environment win.
void keep_freed_memory();

}  // namespace weft
