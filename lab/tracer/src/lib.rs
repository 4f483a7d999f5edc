//! A library that records a program's memory references. The program is linked to it, or an emulator that
//! runs the program loads it. [`netram_pagesim`] processes the references in the same process; nothing is
//! written to disk but the result.
//!
//! | file | does |
//! |---|---|
//! | `abi/hooks.rs` | functions that a compiler calls to report memory accesses (`-fsanitize=thread`, of gcc
//! and clang) |
//! | `abi/atomics.rs` | atomic operations, which such a compiler leaves to the library
//! | `abi/wraps.rs` | functions of the C library that access the program's memory: memcpy, memset, qsort ...
//! |
//! | `abi/plugin.rs` | functions that QEMU's user-mode emulator calls in a plugin |
//! | `abi/mod.rs` | buffers of references for each thread, and the end of the process |
//! | `trace.rs` | the study that processes them, and its report |
//!
//! Two environment variables, which `netram-lab pagesim` sets, give the settings and the path of the outcome.
//! Without them nothing is studied, and the program only runs more slowly.

mod abi;
mod trace;
