//! Whether a program can have a library loaded before all others: read from its file, before it is started.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const MAGIC: &[u8] = b"\x7fELF";
/// 64 bits, this machine's order of bytes.
const CLASS: [u8; 2] = [2, if cfg!(target_endian = "little") { 1 } else { 2 }];
const HEADER_BYTES: usize = 64;
/// `PT_INTERP`: the segment that names the loader.
const LOADER: u32 = 3;
const SEGMENT_BYTES_MIN: usize = 56;
/// A loader's path is shorter.
const PATH_BYTES_MAX: u64 = 4096;
const SET_ID: u32 = 0o6000;
/// Where rights of a file stand that its process gets.
const RIGHTS: &str = "security.capability";

/// Why a program cannot be run so.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProgramRefusal {
    #[error("{}: {why}", program.display())]
    Unreadable { program: PathBuf, why: io::Error },
    #[error("{} is a script: name the interpreter, as in `-- python3 job.py`", _0.display())]
    Script(PathBuf),
    #[error("{} is no program of this machine", _0.display())]
    Foreign(PathBuf),
    #[error(
        "{} is linked statically: it loads no library, and its heap cannot be placed elsewhere; link it dynamically",
        _0.display()
    )]
    Static(PathBuf),
    #[error(
        "{} is loaded by {loader}, and not by {ours}: the library is made for programs of that C library",
        program.display()
    )]
    OtherLibrary {
        program: PathBuf,
        loader: String,
        ours: String,
    },
    #[error(
        "{} gets rights that its caller has not (set-user-id, set-group-id or capabilities): the loader then loads no library \
         that the caller names; run it as the user whose rights it gets",
        _0.display()
    )]
    Privileged(PathBuf),
}

/// Looks at a program's file.
pub(super) fn check(program: &Path) -> Result<(), ProgramRefusal> {
    let unreadable = |why| ProgramRefusal::Unreadable {
        program: program.to_owned(),
        why,
    };
    let mut file = File::open(program).map_err(unreadable)?;
    let about = file.metadata().map_err(unreadable)?;
    let loader = match loader(&mut file).map_err(unreadable)? {
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

/// What a file is to the kernel.
#[derive(Debug, PartialEq, Eq)]
enum ProgramKind {
    Script,
    /// No program, or another machine's.
    Foreign,
    Program {
        /// What loads it and its libraries. `None`: it has none.
        loader: Option<String>,
    },
}

/// What loads this program itself. `None`: nothing does.
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

/// The number of this machine's kind: as this program's own file has it.
fn machine() -> u16 {
    match std::env::consts::ARCH {
        "x86_64" => 62,
        "aarch64" => 183,
        "riscv64" => 243,
        "powerpc64" => 21,
        "s390x" => 22,
        "loongarch64" => 258,
        // No such program is known here: all are refused.
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

    /// A program with these segments: kind, and what they have.
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
    fn a_program_tells_what_loads_it() {
        let dynamic = elf(machine(), &[(1, b"code"), (LOADER, b"/lib/ld.so\0rest")]);
        let loader = Some("/lib/ld.so".to_owned());
        assert_eq!(kind(&dynamic), ProgramKind::Program { loader });
        let fixed = elf(machine(), &[(1, b"code"), (4, b"note")]);
        assert_eq!(kind(&fixed), ProgramKind::Program { loader: None });
    }

    #[test]
    fn what_is_no_program_of_this_machine_is_found_out() {
        assert_eq!(kind(b"#!/bin/sh\n"), ProgramKind::Script);
        assert_eq!(kind(b""), ProgramKind::Foreign);
        assert_eq!(kind(&elf(3, &[(LOADER, b"/lib/ld.so\0")])), ProgramKind::Foreign);
        let cut = elf(machine(), &[(LOADER, b"/lib/ld.so\0")]);
        assert_eq!(kind(&cut[..HEADER_BYTES + 10]), ProgramKind::Foreign);
    }

    #[test]
    fn this_very_program_has_a_loader() {
        assert!(check(Path::new("/proc/self/exe")).is_ok());
    }
}
