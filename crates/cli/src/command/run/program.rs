//! Whether a library can be loaded before a program's own: read from its file, before it is started.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// First bytes of an ELF file.
const MAGIC: &[u8] = b"\x7fELF";
/// ELF class: 64 bits, in this machine's byte order.
const CLASS: [u8; 2] = [2, if cfg!(target_endian = "little") { 1 } else { 2 }];
const HEADER_BYTES: usize = 64;
/// `PT_INTERP`: the segment that names the loader.
const LOADER: u32 = 3;
const SEGMENT_BYTES_MIN: usize = 56;
/// Longest path of a loader.
const PATH_BYTES_MAX: u64 = 4096;
const SET_ID: u32 = 0o6000;
/// Extended attribute with a file's capabilities.
const RIGHTS: &str = "security.capability";

/// Why a program cannot be run with the library.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProgramRefusal {
    #[error("{}: {why}", program.display())]
    Unreadable { program: PathBuf, why: io::Error },
    #[error("{} is a script: name the interpreter, as in `-- python3 job.py`", _0.display())]
    Script(PathBuf),
    #[error(
        "{} is a shim, a script of a version manager such as pyenv or asdf: name the program itself. For Python it is what \
         `python3 -c 'import sys; print(sys.executable)'` prints",
        _0.display()
    )]
    Shim(PathBuf),
    #[error("{} is not a program for this machine", _0.display())]
    Foreign(PathBuf),
    #[error(
        "{} is statically linked: no library can be loaded into it to place its heap elsewhere; link it dynamically",
        _0.display()
    )]
    Static(PathBuf),
    #[error(
        "{} uses the loader {loader}, and not {ours}: the library only works with programs of the latter's C library",
        program.display()
    )]
    OtherLibrary {
        program: PathBuf,
        loader: String,
        ours: String,
    },
    #[error(
        "{} has rights that its caller has not (set-user-id, set-group-id or capabilities): no library can be loaded into \
         such a program; run it as the user whose rights it gets",
        _0.display()
    )]
    Privileged(PathBuf),
}

/// Checks a program's file.
pub(super) fn check(program: &Path) -> Result<(), ProgramRefusal> {
    let unreadable = |why| ProgramRefusal::Unreadable {
        program: program.to_owned(),
        why,
    };
    let mut file = File::open(program).map_err(unreadable)?;
    let about = file.metadata().map_err(unreadable)?;
    let loader = match loader(&mut file).map_err(unreadable)? {
        ProgramKind::Script if is_shim(program) => return Err(ProgramRefusal::Shim(program.to_owned())),
        ProgramKind::Script => return Err(ProgramRefusal::Script(program.to_owned())),
        ProgramKind::Foreign => return Err(ProgramRefusal::Foreign(program.to_owned())),
        ProgramKind::Program { loader: None } => return Err(ProgramRefusal::Static(program.to_owned())),
        ProgramKind::Program { loader: Some(loader) } => loader,
    };
    if let Some(ours) = own_loader()
        && ours != loader
    {
        return Err(ProgramRefusal::OtherLibrary {
            program: program.to_owned(),
            loader,
            ours,
        });
    }
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    let other = about.uid() != user.as_raw() || about.gid() != group.as_raw();
    let has_rights = !user.is_root() && rustix::fs::getxattr(program, RIGHTS, &mut [0_u8; 64]).is_ok();
    if about.mode() & SET_ID != 0 && other || has_rights {
        return Err(ProgramRefusal::Privileged(program.to_owned()));
    }
    Ok(())
}

/// Whether a script is a version manager's stand-in for a program: all of them keep these in a directory
/// `shims`.
fn is_shim(program: &Path) -> bool {
    program
        .parent()
        .and_then(Path::file_name)
        .is_some_and(|directory| directory == "shims")
}

/// Kind of a file to the kernel.
#[derive(Debug, PartialEq, Eq)]
enum ProgramKind {
    /// A script, run by an interpreter.
    Script,
    /// Not a program, or one for another machine.
    Foreign,
    /// A program for this machine.
    Program {
        /// The loader of its libraries; `None` if it is statically linked.
        loader: Option<String>,
    },
}

/// Returns the loader of this program itself; `None` if it is statically linked.
fn own_loader() -> Option<String> {
    let mut file = File::open("/proc/self/exe").ok()?;
    match loader(&mut file) {
        Ok(ProgramKind::Program { loader }) => loader,
        _ => None,
    }
}

fn loader(file: &mut (impl Read + Seek)) -> io::Result<ProgramKind> {
    let mut header = [0; HEADER_BYTES];
    let got = read_up_to(file, &mut header)?;
    if header.starts_with(b"#!") {
        return Ok(ProgramKind::Script);
    }
    if got < HEADER_BYTES || !header.starts_with(MAGIC) || header[4..6] != CLASS {
        return Ok(ProgramKind::Foreign);
    }
    if number16(&header, 18) != machine() {
        return Ok(ProgramKind::Foreign);
    }
    let (at, size, count) = (
        number64(&header, 32),
        usize::from(number16(&header, 54)),
        number16(&header, 56),
    );
    if size < SEGMENT_BYTES_MIN {
        return Ok(ProgramKind::Foreign);
    }
    let mut segments = vec![0; size * usize::from(count)];
    file.seek(SeekFrom::Start(at))?;
    if read_up_to(file, &mut segments)? < segments.len() {
        return Ok(ProgramKind::Foreign);
    }
    for segment in segments.chunks_exact(size) {
        if number32(segment, 0) == LOADER {
            let (at, bytes) = (number64(segment, 8), number64(segment, 32));
            file.seek(SeekFrom::Start(at))?;
            let mut path = Vec::new();
            file.take(bytes.min(PATH_BYTES_MAX)).read_to_end(&mut path)?;
            let end = path.iter().position(|byte| *byte == 0).unwrap_or(path.len());
            let loader = String::from_utf8_lossy(&path[..end]).into_owned();
            return Ok(ProgramKind::Program { loader: Some(loader) });
        }
    }
    Ok(ProgramKind::Program { loader: None })
}

/// Returns the ELF number of this machine's architecture.
fn machine() -> u16 {
    match std::env::consts::ARCH {
        "x86_64" => 62,
        "aarch64" => 183,
        "riscv64" => 243,
        "powerpc64" => 21,
        "s390x" => 22,
        "loongarch64" => 258,
        // An unknown architecture: all programs are refused.
        _ => 0,
    }
}

fn read_up_to(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match file.read(&mut bytes[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

fn field<const BYTES: usize>(bytes: &[u8], at: usize) -> [u8; BYTES] {
    let mut field = [0; BYTES];
    field.copy_from_slice(&bytes[at..at + BYTES]);
    field
}

fn number16(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(field(bytes, at))
}

fn number32(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(field(bytes, at))
}

fn number64(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(field(bytes, at))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// Returns an ELF file with these segments: kind, and contents.
    fn elf(machine: u16, segments: &[(u32, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES + SEGMENT_BYTES_MIN * segments.len()];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..6].copy_from_slice(&CLASS);
        bytes[18..20].copy_from_slice(&machine.to_ne_bytes());
        bytes[32..40].copy_from_slice(&(HEADER_BYTES as u64).to_ne_bytes());
        bytes[54..56].copy_from_slice(&(SEGMENT_BYTES_MIN as u16).to_ne_bytes());
        bytes[56..58].copy_from_slice(&(segments.len() as u16).to_ne_bytes());
        for (index, (kind, contents)) in segments.iter().enumerate() {
            let (at, end) = (HEADER_BYTES + SEGMENT_BYTES_MIN * index, bytes.len() as u64);
            bytes[at..at + 4].copy_from_slice(&kind.to_ne_bytes());
            bytes[at + 8..at + 16].copy_from_slice(&end.to_ne_bytes());
            bytes[at + 32..at + 40].copy_from_slice(&(contents.len() as u64).to_ne_bytes());
            bytes.extend_from_slice(contents);
        }
        bytes
    }

    fn kind(bytes: &[u8]) -> ProgramKind {
        loader(&mut Cursor::new(bytes)).unwrap()
    }

    #[test]
    fn the_loader_is_read_from_a_program() {
        let dynamic = elf(machine(), &[(1, b"code"), (LOADER, b"/lib/ld.so\0rest")]);
        let loader = Some("/lib/ld.so".to_owned());
        assert_eq!(kind(&dynamic), ProgramKind::Program { loader });
        let fixed = elf(machine(), &[(1, b"code"), (4, b"note")]);
        assert_eq!(kind(&fixed), ProgramKind::Program { loader: None });
    }

    #[test]
    fn scripts_and_foreign_files_are_told_from_programs() {
        assert_eq!(kind(b"#!/bin/sh\n"), ProgramKind::Script);
        assert_eq!(kind(b""), ProgramKind::Foreign);
        assert_eq!(kind(&elf(3, &[(LOADER, b"/lib/ld.so\0")])), ProgramKind::Foreign);
        let cut = elf(machine(), &[(LOADER, b"/lib/ld.so\0")]);
        assert_eq!(kind(&cut[..HEADER_BYTES + 10]), ProgramKind::Foreign);
    }

    #[test]
    fn a_shim_is_a_script_in_a_directory_of_shims() {
        assert!(is_shim(Path::new("/root/.pyenv/shims/python3")));
        assert!(!is_shim(Path::new("/usr/bin/python3")));
    }

    #[test]
    fn this_very_program_has_a_loader() {
        assert!(check(Path::new("/proc/self/exe")).is_ok());
    }
}
