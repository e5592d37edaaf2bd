//! Files in memory, to pass what is too large for a message and to keep what must outlive a process.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// A file in memory with this content, which nobody can change any more.
pub fn sealed(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    let mut file = File::from(fd);
    file.write_all(content)?;
    let seals =
        SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file.into())
}

/// All of a file, from its start; an error if it is longer than `limit` bytes.
pub fn read_all(fd: impl AsFd, limit: usize) -> io::Result<Vec<u8>> {
    let mut file = File::from(fd.as_fd().try_clone_to_owned()?);
    file.seek(SeekFrom::Start(0))?;
    let mut content = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut content)?;
    if content.len() > limit {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("longer than {limit} bytes"),
        ));
    }
    Ok(content)
}
