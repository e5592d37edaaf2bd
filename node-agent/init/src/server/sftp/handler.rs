//! Requests to files.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, ReadDir};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bytes::{BufMut, BytesMut};
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::sys::stat::{Mode, UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchownat};

use super::attributes::{self, Wanted};
use super::wire::{Failure, Reader, Status, answer, open, packet, put_status, put_string, request};

/// Files and directories that one client may have open.
const MAX_HANDLES: usize = 1000;
/// Most bytes that one READ gives: a packet, less its header.
const MAX_READ: u32 = 255 * 1024;
/// Entries of one READDIR.
const ENTRIES: usize = 100;

const EXTENSIONS: [(&str, &str); 8] = [
    ("posix-rename@openssh.com", "1"),
    ("statvfs@openssh.com", "2"),
    ("fstatvfs@openssh.com", "2"),
    ("hardlink@openssh.com", "1"),
    ("fsync@openssh.com", "1"),
    ("lsetstat@openssh.com", "1"),
    ("limits@openssh.com", "1"),
    ("expand-path@openssh.com", "1"),
];

enum Opened {
    File { file: File, append: bool },
    Directory { path: PathBuf, entries: ReadDir },
}

/// One client's files.
pub struct Files {
    home: PathBuf,
    opened: BTreeMap<u32, Opened>,
    next: u32,
}

type Done = Result<(), Failure>;

impl Files {
    /// Relative paths are from `home`.
    pub fn new(home: PathBuf) -> Self {
        Self {
            home,
            opened: BTreeMap::new(),
            next: 1,
        }
    }

    /// Does one request and appends its answer.
    pub fn handle(&mut self, request: &[u8], out: &mut BytesMut) {
        let mut reader = Reader(request);
        let (Ok(kind), Ok(id)) = (reader.byte(), reader.number()) else {
            put_status(out, 0, Status::BadMessage, "bad message");
            return;
        };
        if kind == request::INIT {
            packet(out, answer::VERSION, |out| {
                out.put_u32(3);
                for (name, version) in EXTENSIONS {
                    put_string(out, name.as_bytes());
                    put_string(out, version.as_bytes());
                }
            });
            return;
        }
        let start = out.len();
        match self.dispatch(kind, id, &mut reader, out) {
            Ok(()) if out.len() > start => {}
            Ok(()) => put_status(out, id, Status::Ok, "Success"),
            Err(failure) => {
                out.truncate(start);
                put_status(out, id, failure.status, &failure.text);
            }
        }
    }

    fn dispatch(&mut self, kind: u8, id: u32, reader: &mut Reader<'_>, out: &mut BytesMut) -> Done {
        match kind {
            request::OPEN => {
                let (path, flags) = (self.path(reader)?, reader.number()?);
                let opened = open_file(&path, flags, Wanted::read(reader)?)?;
                self.put_handle(id, opened, out)
            }
            request::OPENDIR => {
                let path = self.path(reader)?;
                let entries = fs::read_dir(&path)?;
                self.put_handle(id, Opened::Directory { path, entries }, out)
            }
            request::CLOSE => {
                let handle = handle_number(reader)?;
                self.opened.remove(&handle).ok_or_else(no_handle).map(drop)
            }
            request::READ => self.read(id, reader, out),
            request::WRITE => self.write(reader),
            request::READDIR => self.read_directory(id, reader, out),
            request::STAT => {
                put_attributes(id, &fs::metadata(self.path(reader)?)?, out);
                Ok(())
            }
            request::LSTAT => {
                put_attributes(id, &fs::symlink_metadata(self.path(reader)?)?, out);
                Ok(())
            }
            request::FSTAT => {
                put_attributes(id, &self.file(reader)?.0.metadata()?, out);
                Ok(())
            }
            request::SETSTAT => {
                let path = self.path(reader)?;
                set_attributes(&path, &Wanted::read(reader)?, true)
            }
            request::FSETSTAT => {
                let file = self.file(reader)?.0.try_clone()?;
                set_file_attributes(&file, &Wanted::read(reader)?)
            }
            request::REMOVE => Ok(fs::remove_file(self.path(reader)?)?),
            request::MKDIR => {
                let path = self.path(reader)?;
                let mode = Wanted::read(reader)?.permissions.unwrap_or(0o777) & 0o777;
                Ok(fs::DirBuilder::new().mode(mode).create(path)?)
            }
            request::RMDIR => Ok(fs::remove_dir(self.path(reader)?)?),
            request::REALPATH => {
                put_name(id, real_path(&self.path(reader)?)?.as_os_str(), out);
                Ok(())
            }
            request::READLINK => {
                put_name(id, fs::read_link(self.path(reader)?)?.as_os_str(), out);
                Ok(())
            }
            request::RENAME => {
                let (from, to) = (self.path(reader)?, self.path(reader)?);
                if fs::symlink_metadata(&to).is_ok() {
                    return Err(Failure::new(Status::Failure, "the target exists"));
                }
                Ok(fs::rename(from, to)?)
            }
            // OpenSSH has the target first, whatever the draft says, and all clients know.
            request::SYMLINK => {
                let target = reader.string()?;
                Ok(std::os::unix::fs::symlink(
                    OsStr::from_bytes(target),
                    self.path(reader)?,
                )?)
            }
            request::EXTENDED => self.extended(id, reader, out),
            _ => Err(unsupported()),
        }
    }

    fn extended(&mut self, id: u32, reader: &mut Reader<'_>, out: &mut BytesMut) -> Done {
        match reader.string()? {
            b"posix-rename@openssh.com" => Ok(fs::rename(self.path(reader)?, self.path(reader)?)?),
            b"hardlink@openssh.com" => Ok(fs::hard_link(self.path(reader)?, self.path(reader)?)?),
            b"fsync@openssh.com" => Ok(self.file(reader)?.0.sync_all()?),
            b"lsetstat@openssh.com" => {
                let path = self.path(reader)?;
                set_attributes(&path, &Wanted::read(reader)?, false)
            }
            b"statvfs@openssh.com" => {
                put_statvfs(id, &nix::sys::statvfs::statvfs(&self.path(reader)?)?, out);
                Ok(())
            }
            b"fstatvfs@openssh.com" => {
                put_statvfs(id, &nix::sys::statvfs::fstatvfs(self.file(reader)?.0)?, out);
                Ok(())
            }
            b"limits@openssh.com" => {
                packet(out, answer::EXTENDED_REPLY, |out| {
                    out.put_u32(id);
                    out.put_u64(super::MAX_PACKET as u64);
                    out.put_u64(MAX_READ.into());
                    out.put_u64(MAX_READ.into());
                    out.put_u64(MAX_HANDLES as u64);
                });
                Ok(())
            }
            b"expand-path@openssh.com" => {
                let path = reader.string()?;
                let expanded = match path.strip_prefix(b"~") {
                    Some(b"") => self.home.clone(),
                    Some(rest) if rest.starts_with(b"/") => self.home.join(OsStr::from_bytes(&rest[1..])),
                    // Another user's home is not known here.
                    Some(_) => return Err(Failure::new(Status::NoSuchFile, "No such user")),
                    None => self.home.join(OsStr::from_bytes(path)),
                };
                put_name(id, real_path(&expanded)?.as_os_str(), out);
                Ok(())
            }
            _ => Err(unsupported()),
        }
    }

    fn path(&self, reader: &mut Reader<'_>) -> Result<PathBuf, Failure> {
        let path = reader.string()?;
        if path.contains(&0) {
            return Err(Failure::short());
        }
        // An absolute path stays itself; an empty one is the home.
        Ok(self.home.join(OsStr::from_bytes(path)))
    }

    fn file(&self, reader: &mut Reader<'_>) -> Result<(&File, bool), Failure> {
        match self.opened.get(&handle_number(reader)?) {
            Some(Opened::File { file, append }) => Ok((file, *append)),
            Some(Opened::Directory { .. }) | None => Err(no_handle()),
        }
    }

    fn put_handle(&mut self, id: u32, opened: Opened, out: &mut BytesMut) -> Done {
        if self.opened.len() >= MAX_HANDLES {
            return Err(Failure::new(Status::Failure, "too many open files"));
        }
        while self.opened.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let handle = self.next;
        self.next = self.next.wrapping_add(1);
        self.opened.insert(handle, opened);
        packet(out, answer::HANDLE, |out| {
            out.put_u32(id);
            put_string(out, &handle.to_be_bytes());
        });
        Ok(())
    }

    fn read(&self, id: u32, reader: &mut Reader<'_>, out: &mut BytesMut) -> Done {
        let (file, _) = self.file(reader)?;
        let (offset, wanted) = (reader.long()?, reader.number()?.min(MAX_READ) as usize);
        // Straight into the answer: length, kind, id, length of the data, data.
        const HEAD: usize = 4 + 1 + 4 + 4;
        let start = out.len();
        out.resize(start + HEAD + wanted, 0);
        let length = file.read_at(&mut out[start + HEAD..], offset)?;
        if length == 0 && wanted > 0 {
            return Err(Failure::new(Status::Eof, "End of file"));
        }
        out.truncate(start + HEAD + length);
        let mut head = &mut out[start..start + HEAD];
        head.put_u32((HEAD - 4 + length) as u32);
        head.put_u8(answer::DATA);
        head.put_u32(id);
        head.put_u32(length as u32);
        Ok(())
    }

    fn write(&self, reader: &mut Reader<'_>) -> Done {
        let (mut file, append) = self.file(reader)?;
        let (offset, data) = (reader.long()?, reader.string()?);
        let written = if append {
            file.write_all(data)
        } else {
            file.write_all_at(data, offset)
        };
        Ok(written?)
    }

    fn read_directory(&mut self, id: u32, reader: &mut Reader<'_>, out: &mut BytesMut) -> Done {
        let Some(Opened::Directory { path, entries }) = self.opened.get_mut(&handle_number(reader)?) else {
            return Err(no_handle());
        };
        let mut names: Vec<(Vec<u8>, Metadata)> = Vec::new();
        for entry in entries.by_ref() {
            let entry = entry?;
            // It may be gone since.
            let Ok(found) = fs::symlink_metadata(path.join(entry.file_name())) else {
                continue;
            };
            names.push((entry.file_name().as_bytes().to_vec(), found));
            if names.len() >= ENTRIES {
                break;
            }
        }
        if names.is_empty() {
            return Err(Failure::new(Status::Eof, "End of file"));
        }
        packet(out, answer::NAME, |out| {
            out.put_u32(id);
            out.put_u32(names.len() as u32);
            for (name, found) in &names {
                put_string(out, name);
                put_string(out, &attributes::long_name(name, found));
                attributes::put(out, found);
            }
        });
        Ok(())
    }
}

fn handle_number(reader: &mut Reader<'_>) -> Result<u32, Failure> {
    let handle = reader.string()?;
    <[u8; 4]>::try_from(handle)
        .map(u32::from_be_bytes)
        .map_err(|_| no_handle())
}

fn no_handle() -> Failure {
    Failure::new(Status::Failure, "no such handle")
}

fn unsupported() -> Failure {
    Failure::new(Status::Unsupported, "Operation unsupported")
}

fn open_file(path: &Path, flags: u32, wanted: Wanted) -> Result<Opened, Failure> {
    let mut mode = match (flags & open::READ != 0, flags & open::WRITE != 0) {
        (true, true) => OFlag::O_RDWR,
        (false, true) => OFlag::O_WRONLY,
        (true | false, false) => OFlag::O_RDONLY,
    };
    let append = flags & open::APPEND != 0;
    mode.set(OFlag::O_APPEND, append);
    mode.set(OFlag::O_CREAT, flags & open::CREATE != 0);
    mode.set(OFlag::O_TRUNC, flags & open::TRUNCATE != 0);
    mode.set(OFlag::O_EXCL, flags & open::EXCLUSIVE != 0);
    let permissions = Mode::from_bits_truncate(wanted.permissions.unwrap_or(0o666) & 0o777);
    let fd = nix::fcntl::open(path, mode | OFlag::O_CLOEXEC | OFlag::O_NOCTTY, permissions)?;
    Ok(Opened::File {
        file: fd.into(),
        append,
    })
}

/// The path without links, dots and double slashes; its last part need not exist.
fn real_path(path: &Path) -> io::Result<PathBuf> {
    match (fs::canonicalize(path), path.parent(), path.file_name()) {
        (Err(error), Some(parent), Some(name)) if error.kind() == io::ErrorKind::NotFound => {
            Ok(fs::canonicalize(parent)?.join(name))
        }
        (result, _, _) => result,
    }
}

fn set_attributes(path: &Path, wanted: &Wanted, follow: bool) -> Done {
    if let Some(size) = wanted.size {
        nix::unistd::truncate(path, i64::try_from(size).map_err(|_| Failure::short())?)?;
    }
    if let Some(permissions) = wanted.permissions {
        if !follow && fs::symlink_metadata(path)?.is_symlink() {
            return Err(unsupported());
        }
        fs::set_permissions(path, fs::Permissions::from_mode(permissions))?;
    }
    if let Some((accessed, modified)) = wanted.times {
        let flag = if follow {
            UtimensatFlags::FollowSymlink
        } else {
            UtimensatFlags::NoFollowSymlink
        };
        let time = |seconds: u32| TimeSpec::new(seconds.into(), 0);
        utimensat(AT_FDCWD, path, &time(accessed), &time(modified), flag)?;
    }
    if let Some((uid, gid)) = wanted.owner {
        let flags = if follow {
            AtFlags::empty()
        } else {
            AtFlags::AT_SYMLINK_NOFOLLOW
        };
        fchownat(
            AT_FDCWD,
            path,
            Some(Uid::from_raw(uid)),
            Some(Gid::from_raw(gid)),
            flags,
        )?;
    }
    Ok(())
}

fn set_file_attributes(file: &File, wanted: &Wanted) -> Done {
    if let Some(size) = wanted.size {
        file.set_len(size)?;
    }
    if let Some(permissions) = wanted.permissions {
        file.set_permissions(fs::Permissions::from_mode(permissions))?;
    }
    if let Some((accessed, modified)) = wanted.times {
        let time = |seconds: u32| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.into());
        file.set_times(
            fs::FileTimes::new()
                .set_accessed(time(accessed))
                .set_modified(time(modified)),
        )?;
    }
    if let Some((uid, gid)) = wanted.owner {
        std::os::unix::fs::fchown(file, Some(uid), Some(gid))?;
    }
    Ok(())
}

fn put_attributes(id: u32, found: &Metadata, out: &mut BytesMut) {
    packet(out, answer::ATTRS, |out| {
        out.put_u32(id);
        attributes::put(out, found);
    });
}

fn put_name(id: u32, name: &OsStr, out: &mut BytesMut) {
    packet(out, answer::NAME, |out| {
        out.put_u32(id);
        out.put_u32(1);
        put_string(out, name.as_bytes());
        put_string(out, name.as_bytes());
        // No attributes.
        out.put_u32(0);
    });
}

fn put_statvfs(id: u32, found: &nix::sys::statvfs::Statvfs, out: &mut BytesMut) {
    use nix::sys::statvfs::FsFlags;
    const READ_ONLY: u64 = 1;
    const NO_SUID: u64 = 2;
    packet(out, answer::EXTENDED_REPLY, |out| {
        out.put_u32(id);
        let flags = found.flags();
        for value in [
            found.block_size(),
            found.fragment_size(),
            found.blocks(),
            found.blocks_free(),
            found.blocks_available(),
            found.files(),
            found.files_free(),
            found.files_available(),
            found.filesystem_id(),
            if flags.contains(FsFlags::ST_RDONLY) {
                READ_ONLY
            } else {
                0
            } | if flags.contains(FsFlags::ST_NOSUID) {
                NO_SUID
            } else {
                0
            },
            found.name_max(),
        ] {
            out.put_u64(value);
        }
    });
}
