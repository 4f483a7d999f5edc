//! The name by which the operators of a journal's lenders know it: the client's machine, and the directory.

use std::path::{Path, absolute};

use netram_proto::limit::JOURNAL_NAME_BYTES_MAX;

/// The name of this machine; empty if the system does not say.
pub(crate) fn machine_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Returns the name of the journal in `directory`. A long one lacks the front of its path.
pub(crate) fn journal_name(directory: &Path) -> String {
    let path = absolute(directory).unwrap_or_else(|_| directory.to_owned());
    shortened(&machine_name(), &path.display().to_string())
}

fn shortened(machine: &str, path: &str) -> String {
    let clean = |text: &str| -> String { text.chars().filter(|c| !c.is_control()).collect() };
    let (machine, path) = (clean(machine), clean(path));
    let whole = format!("{machine}:{path}");
    if whole.len() <= JOURNAL_NAME_BYTES_MAX {
        return whole;
    }
    // Ellipsis and colon take four bytes. Of an endless machine's name half remains.
    let mut end = machine.len().min(JOURNAL_NAME_BYTES_MAX / 2);
    while !machine.is_char_boundary(end) {
        end -= 1;
    }
    let room = JOURNAL_NAME_BYTES_MAX - end - 4;
    let mut from = path.len().saturating_sub(room);
    while !path.is_char_boundary(from) {
        from += 1;
    }
    format!("{}:…{}", &machine[..end], &path[from..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_keeps_the_end_of_its_path() {
        assert_eq!(shortened("db1", "/var/lib/j\n"), "db1:/var/lib/j");
        for (machine, path) in [
            ("db1".to_owned(), format!("/{}/journal", "ä/".repeat(80))),
            ("m".repeat(64), "/journal".to_owned()),
            ("ä".repeat(99), format!("/{}/journal", "x".repeat(80))),
        ] {
            let name = shortened(&machine, &path);
            assert!(name.len() <= JOURNAL_NAME_BYTES_MAX, "{name}");
            assert!(name.ends_with("/journal") && name.contains(':'), "{name}");
        }
    }
}
