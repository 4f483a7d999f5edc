//! The cores of this machine, as the kernel numbers its queues.

use std::{fs, io};

/// Cores that there may ever be.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
/// Cores that run now.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Numbers of all cores that there may be, and whether each runs now.
pub(crate) fn all() -> io::Result<Vec<(u16, bool)>> {
    let listed = |path: &str| {
        let text = fs::read_to_string(path)?;
        parse(&text).ok_or_else(|| io::Error::other(format!("{path}: `{}` is no list of cores", text.trim())))
    };
    let (possible, online) = (listed(POSSIBLE)?, listed(ONLINE)?);
    // The kernel has a queue for each number below their count.
    let count = possible.len() as u16;
    Ok((0..count).map(|core| (core, online.contains(&core))).collect())
}

/// Parses a list as `0-3,8`.
fn parse(list: &str) -> Option<Vec<u16>> {
    let mut cores = Vec::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cores.extend(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?);
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_read() {
        assert_eq!(parse("0\n"), Some(vec![0]));
        assert_eq!(parse("0-1,4,6-7\n"), Some(vec![0, 1, 4, 6, 7]));
        assert_eq!(parse("\n"), Some(vec![]));
        assert_eq!(parse("0-x"), None);
        assert!(all().unwrap().iter().any(|(_, online)| *online));
    }
}
