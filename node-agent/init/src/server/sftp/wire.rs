//! Numbers and encodings of SFTP version 3.

use std::io;

use bytes::{BufMut, BytesMut};

/// Requests.
pub mod request {
    pub const INIT: u8 = 1;
    pub const OPEN: u8 = 3;
    pub const CLOSE: u8 = 4;
    pub const READ: u8 = 5;
    pub const WRITE: u8 = 6;
    pub const LSTAT: u8 = 7;
    pub const FSTAT: u8 = 8;
    pub const SETSTAT: u8 = 9;
    pub const FSETSTAT: u8 = 10;
    pub const OPENDIR: u8 = 11;
    pub const READDIR: u8 = 12;
    pub const REMOVE: u8 = 13;
    pub const MKDIR: u8 = 14;
    pub const RMDIR: u8 = 15;
    pub const REALPATH: u8 = 16;
    pub const STAT: u8 = 17;
    pub const RENAME: u8 = 18;
    pub const READLINK: u8 = 19;
    pub const SYMLINK: u8 = 20;
    pub const EXTENDED: u8 = 200;
}

/// Answers.
pub mod answer {
    pub const VERSION: u8 = 2;
    pub const STATUS: u8 = 101;
    pub const HANDLE: u8 = 102;
    pub const DATA: u8 = 103;
    pub const NAME: u8 = 104;
    pub const ATTRS: u8 = 105;
    pub const EXTENDED_REPLY: u8 = 201;
}

/// Flags of OPEN.
pub mod open {
    pub const READ: u32 = 1;
    pub const WRITE: u32 = 2;
    pub const APPEND: u32 = 4;
    pub const CREATE: u32 = 8;
    pub const TRUNCATE: u32 = 16;
    pub const EXCLUSIVE: u32 = 32;
}

/// Codes of STATUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Ok = 0,
    Eof = 1,
    NoSuchFile = 2,
    PermissionDenied = 3,
    Failure = 4,
    BadMessage = 5,
    Unsupported = 8,
}

/// Why a request failed: its status, and words for people.
#[derive(Debug)]
pub struct Failure {
    pub status: Status,
    pub text: String,
}

impl Failure {
    pub fn new(status: Status, text: &str) -> Self {
        Self {
            status,
            text: text.to_owned(),
        }
    }

    /// A packet that ends too early.
    pub fn short() -> Self {
        Self::new(Status::BadMessage, "bad message")
    }
}

impl From<io::Error> for Failure {
    /// As OpenSSH's sftp-server maps them.
    fn from(error: io::Error) -> Self {
        let status = match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR | libc::EBADF | libc::ELOOP) => Status::NoSuchFile,
            Some(libc::EPERM | libc::EACCES | libc::EFAULT) => Status::PermissionDenied,
            Some(libc::ENAMETOOLONG | libc::EINVAL) => Status::BadMessage,
            Some(libc::ENOSYS) => Status::Unsupported,
            _ => Status::Failure,
        };
        let text = match status {
            Status::NoSuchFile => "No such file".to_owned(),
            Status::PermissionDenied => "Permission denied".to_owned(),
            _ => error.to_string(),
        };
        Self { status, text }
    }
}

impl From<nix::Error> for Failure {
    fn from(error: nix::Error) -> Self {
        io::Error::from(error).into()
    }
}

/// Takes a request apart.
#[derive(Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Failure> {
        let (head, rest) = self.0.split_at_checked(length).ok_or_else(Failure::short)?;
        self.0 = rest;
        Ok(head)
    }

    pub fn byte(&mut self) -> Result<u8, Failure> {
        Ok(self.take(1)?[0])
    }

    pub fn number(&mut self) -> Result<u32, Failure> {
        let (head, rest) = self.0.split_first_chunk::<4>().ok_or_else(Failure::short)?;
        self.0 = rest;
        Ok(u32::from_be_bytes(*head))
    }

    pub fn long(&mut self) -> Result<u64, Failure> {
        let (head, rest) = self.0.split_first_chunk::<8>().ok_or_else(Failure::short)?;
        self.0 = rest;
        Ok(u64::from_be_bytes(*head))
    }

    pub fn string(&mut self) -> Result<&'a [u8], Failure> {
        let length = self.number()? as usize;
        self.take(length)
    }
}

/// Writes one answer, with its length before it.
pub fn packet(out: &mut BytesMut, kind: u8, body: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_u32(0);
    out.put_u8(kind);
    body(out);
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

/// Writes a string.
pub fn put_string(out: &mut BytesMut, text: &[u8]) {
    out.put_u32(text.len() as u32);
    out.put_slice(text);
}

/// Writes a STATUS.
pub fn put_status(out: &mut BytesMut, id: u32, status: Status, text: &str) {
    packet(out, answer::STATUS, |out| {
        out.put_u32(id);
        out.put_u32(status as u32);
        put_string(out, text.as_bytes());
        put_string(out, b"en");
    });
}
