//! The library that a program is linked to when its references to memory are to be studied, or that the
//! emulator loads in which it runs. It finds the references; what becomes of them is the affair of
//! [`netram_pagesim`], in the same process: nothing is written down.
//!
//! | file | does |
//! |---|---|
//! | `abi/hooks.rs` | what a compiler calls that instruments memory accesses (`-fsanitize=thread`, of gcc and clang) |
//! | `abi/atomics.rs` | atomic operations, which such a compiler leaves to the library
//! | `abi/wraps.rs` | functions of the C library that reference memory in the program's name: memcpy, memset, qsort ... |
//! | `abi/plugin.rs` | what QEMU's user-mode emulator calls of a plugin |
//! | `abi/mod.rs` | references gathered a thread, and the end of the process |
//! | `trace.rs` | the study that they go to, and its report |
//!
//! Two variables of the environment, which `netram-lab pagesim` sets, say what is studied and where the
//! outcome goes. Without them nothing is studied, and the program runs as if it were not traced, only slower.

mod abi;
mod trace;
