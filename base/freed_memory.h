// How glibc's malloc treats what is freed.
//
// Thread safety: may be called from any thread.
#pragma once

namespace weft {

// Keeps freed memory, up to 2 GiB at the end of the main heap and in pieces up to 32 MiB: training
// frees and takes the same large tensors in every step, and each fresh page costs a fault. (The
// heaps of other arenas go back in pieces of 64 MiB, as glibc has it.) Threads share arenas, one
// for two processors: what one handler's thread has freed is otherwise not found by the next one's
// (a pipeline's stage took its forwards three times as long). For the whole process, in front of
// most threads; once. MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_ and MALLOC_ARENA_MAX in the
// environment win.
void keep_freed_memory();

}  // namespace weft
