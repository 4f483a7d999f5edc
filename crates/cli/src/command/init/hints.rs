//! Commands to try after `netram init`, and steps to several machines.

use std::path::{Path, PathBuf};

use super::place::InitPlace;
use super::service::InitService;

/// Commands that can be pasted into a shell.
pub(super) struct Hints {
    pub(super) commands: Vec<String>,
}

impl Hints {
    pub(super) fn of(place: &InitPlace) -> Hints {
        let netram = program();
        let trial = trial(place);
        let [files, journal] = ["files", "journal"].map(|name| word(&trial.join(name)));
        let options = "--lender auto --one-domain";
        let commands = match can_mount() {
            true => [
                format!("{netram} status"),
                format!(
                    "mkdir -p {files} && {netram} mount attach {files} --on {journal} {options} --background"
                ),
                format!(
                    "echo hello > {files}/greeting && sync {files}/greeting && {netram} explain {journal}"
                ),
            ],
            false => [
                format!("{netram} status"),
                format!(
                    "mkdir -p {} && {netram} journal create {journal} --size 16MiB {options}",
                    word(&trial)
                ),
                format!("{netram} explain {journal}"),
            ],
        };
        Hints {
            commands: commands.into(),
        }
    }
}

/// Returns what holds of one machine, and the way to several.
pub(super) fn advice(key: &Path, cluster: &Path, service: &InitService) -> String {
    let (key, cluster) = (word(key), word(cluster));
    let after_boot = match service {
        InitService::Systemd { .. } => "",
        InitService::Background { .. } => " After a reboot `netram init` starts them again.",
    };
    format!(
        "\nBoth lenders are on this machine: a commit survives the death of a process, not the loss of the machine's power.\n\
         For that, lend the memory of a machine with another power supply:\n\n  \
         1. copy the key:  scp -p {key} root@HOST:/etc/netram/key\n  \
         2. on HOST:       netram lender serve --domain ups-2\n  \
         3. here:          printf '\\n[[lender]]\\naddress = \"tcp://HOST:7420\"\\n' >> {cluster}\n\n\
         Then create journals without --one-domain. `netram init --stop` ends the two lenders.{after_boot}"
    )
}

/// Where the commands to try keep their files.
fn trial(place: &InitPlace) -> PathBuf {
    let home = std::env::var_os("HOME")
        .map(PathBuf::from)
        .filter(|home| home.is_absolute());
    match home.filter(|_| !rustix::process::geteuid().is_root()) {
        Some(home) => home.join("netram-trial"),
        None => place.state.join("trial"),
    }
}

/// Whether this user can mount a directory.
fn can_mount() -> bool {
    let fuse = || {
        std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .is_ok()
    };
    let is_able = || rustix::process::geteuid().is_root() || finds("fusermount3");
    cfg!(feature = "products") && fuse() && is_able()
}

fn finds(name: &str) -> bool {
    netram_process::find(Path::new(name)).is_ok()
}

/// The word by which a shell starts this program: its name, if that finds it.
fn program() -> String {
    let Ok(this) = netram_process::this_program() else {
        return "netram".to_owned();
    };
    let named = netram_process::find(Path::new("netram")).and_then(|found| netram_process::find(&found));
    match named.is_ok_and(|named| named == this) {
        true => "netram".to_owned(),
        false => word(&this),
    }
}

/// A path as a shell takes it.
fn word(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+@:".contains(letter);
    match text.chars().all(is_plain) {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_of_a_shell() {
        assert_eq!(word(Path::new("/home/a-b/x.toml")), "/home/a-b/x.toml");
        assert_eq!(word(Path::new("/home/o'neil x")), r"'/home/o'\''neil x'");
    }
}
