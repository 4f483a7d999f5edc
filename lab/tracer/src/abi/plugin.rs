//! A plugin of QEMU's user-mode emulator (plugin interface, version 1). It traces unmodified programs of any
//! language, with all their threads and libraries.
//!
//! The emulator's functions are looked up when it loads the plugin, because a program that is linked to this
//! library has none of them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::{begin, flush, reference};
use crate::trace;

/// Version of the plugin interface. The emulator checks it before anything else.
#[unsafe(no_mangle)]
static qemu_plugin_version: c_int = 1;

/// The callback does not read registers.
const NO_REGISTERS: c_int = 0;
/// Flag to get both reads and writes.
const READS_AND_WRITES: c_int = 3;

type Block = c_void;
type Instruction = c_void;
type OnBlock = extern "C" fn(id: u64, block: *mut Block);
type OnAccess = extern "C" fn(processor: c_uint, access: u32, address: u64, data: *mut c_void);
type OnExit = extern "C" fn(id: u64, data: *mut c_void);

type Instructions = unsafe extern "C" fn(*const Block) -> usize;
type InstructionAt = unsafe extern "C" fn(*const Block, usize) -> *mut Instruction;
type OnAccesses = unsafe extern "C" fn(*mut Instruction, OnAccess, c_int, c_int, *mut c_void);
type SizeShift = unsafe extern "C" fn(u32) -> c_uint;
type IsStore = unsafe extern "C" fn(u32) -> bool;
type OnBlocks = unsafe extern "C" fn(u64, OnBlock);
type AtExit = unsafe extern "C" fn(u64, OnExit, *mut c_void);

/// Functions of the emulator.
struct Emulator {
    instructions: Instructions,
    instruction: InstructionAt,
    on_access: OnAccesses,
    size_shift: SizeShift,
    is_store: IsStore,
}

static EMULATOR: OnceLock<Emulator> = OnceLock::new();

fn look_up(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name ends with a zero; the handle stands for the whole program.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// A function of the emulator, with its type in the interface.
macro_rules! function {
    ($name:literal as $function:ty) => {{
        let found = look_up($name)?;
        // SAFETY: the emulator's function of this name has this type in version 1 of its interface.
        unsafe { std::mem::transmute::<*mut c_void, $function>(found) }
    }};
}

fn find() -> Option<(Emulator, OnBlocks, AtExit)> {
    let emulator = Emulator {
        instructions: function!(c"qemu_plugin_tb_n_insns" as Instructions),
        instruction: function!(c"qemu_plugin_tb_get_insn" as InstructionAt),
        on_access: function!(c"qemu_plugin_register_vcpu_mem_cb" as OnAccesses),
        size_shift: function!(c"qemu_plugin_mem_size_shift" as SizeShift),
        is_store: function!(c"qemu_plugin_mem_is_store" as IsStore),
    };
    let on_blocks = function!(c"qemu_plugin_register_vcpu_tb_trans_cb" as OnBlocks);
    let at_exit = function!(c"qemu_plugin_register_atexit_cb" as AtExit);
    Some((emulator, on_blocks, at_exit))
}

/// Called by the emulator after loading the plugin. Zero makes it continue.
#[unsafe(no_mangle)]
extern "C" fn qemu_plugin_install(
    id: u64,
    _info: *const c_void,
    _count: c_int,
    _words: *const *const c_char,
) -> c_int {
    let Some((emulator, on_blocks, at_exit)) = find() else {
        trace::remark(format_args!(
            "this QEMU lacks a function of its plugin interface; is it older than 6?"
        ));
        return -1;
    };
    if !trace::begin() {
        trace::remark(format_args!(
            "there are no settings for a study; run the program by `netram-lab pagesim exec`"
        ));
        return -1;
    }
    begin();
    if EMULATOR.set(emulator).is_err() {
        trace::remark(format_args!("the plugin is loaded twice"));
        return -1;
    }
    // SAFETY: a function of the emulator, with a callback that lives as long as the library.
    unsafe { on_blocks(id, on_block) };
    // SAFETY: as above.
    unsafe { at_exit(id, on_exit, std::ptr::null_mut()) };
    0
}

/// Called by the emulator when it translates a block; asks for a callback at each memory access.
extern "C" fn on_block(_id: u64, block: *mut Block) {
    let Some(emulator) = EMULATOR.get() else {
        return;
    };
    // SAFETY: a function of the emulator on the block that it passed, during the callback.
    let count = unsafe { (emulator.instructions)(block) };
    for place in 0..count {
        // SAFETY: as above; the index is below the count.
        let instruction = unsafe { (emulator.instruction)(block, place) };
        // SAFETY: as above, with a callback that lives as long as the library.
        unsafe {
            (emulator.on_access)(
                instruction,
                on_access,
                NO_REGISTERS,
                READS_AND_WRITES,
                std::ptr::null_mut(),
            )
        };
    }
}

extern "C" fn on_access(_processor: c_uint, access: u32, address: u64, _data: *mut c_void) {
    let Some(emulator) = EMULATOR.get() else {
        return;
    };
    // SAFETY: a function of the emulator on the value that it passed, during the callback.
    let shift = unsafe { (emulator.size_shift)(access) };
    // SAFETY: as above.
    let write = unsafe { (emulator.is_store)(access) };
    reference(address, 1 << shift.min(6), write);
}

extern "C" fn on_exit(_id: u64, _data: *mut c_void) {
    flush();
    trace::end();
}
