//! States of the threads of a process, for the log: the process is about to be killed, and then nobody can
//! look.

use std::fs;

/// Most threads that are named.
const THREADS_MAX: usize = 64;

/// Each thread's name, state as in proc(5), and the kernel's function in which it waits.
pub(crate) fn thread_states(process: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{process}/task"));
    let states = tasks
        .into_iter()
        .flatten()
        .flatten()
        .take(THREADS_MAX)
        .map(|task| {
            // A thread that has ended has none of them.
            let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let stat = read("stat");
            let state = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').next());
            format!(
                "{}:{}:{}",
                read("comm").trim(),
                state.unwrap_or_default(),
                read("wchan")
            )
        });
    states.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_waiting_thread_is_named_with_its_state() {
        let (end, ends) = channel::<()>();
        let thread = std::thread::Builder::new().name("waits".into());
        let thread = thread.spawn(move || ends.recv()).unwrap();
        while !thread_states(std::process::id()).contains("waits:S:") {
            std::thread::yield_now();
        }
        drop(end);
        let _ = thread.join().unwrap();
        assert_eq!(thread_states(u32::MAX), "");
    }
}
