//! The power goes, and takes with it what was not synced: what was acknowledged survives.
//!
//! SQLite runs on a VFS of the test's own that lies over the system's. It remembers what each write
//! replaced until the file is synced; a power cut puts all of that back, and from then on every
//! operation fails. `synchronous = OFF` shows that it forgets.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use carrel_broker::store::{STORE_FILE, Store};
use carrel_core::broker::Change;
use carrel_core::model::user::User;
use rusqlite::ffi;

/// What is done to a disk: writes that are not synced yet, each with what it replaced, oldest first.
static UNSYNCED: Mutex<BTreeMap<PathBuf, Vec<Undo>>> = Mutex::new(BTreeMap::new());
/// Writes and syncs until the power goes; negative: it is gone.
static LEFT: AtomicI64 = AtomicI64::new(i64::MAX);

enum Undo {
    /// These bytes were there before; nothing beyond the end.
    Bytes(u64, Vec<u8>),
    /// The file was so long.
    Length(u64),
}

fn unsynced() -> MutexGuard<'static, BTreeMap<PathBuf, Vec<Undo>>> {
    UNSYNCED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the power is still there for one more operation.
fn powered() -> bool {
    LEFT.fetch_sub(1, Ordering::SeqCst) > 0
}

/// A file of the VFS: SQLite's part first, then the system's file, which needs as many bytes as that VFS says.
#[repr(C)]
struct File {
    base: ffi::sqlite3_file,
    path: *mut PathBuf,
}

/// The system's file, behind ours.
unsafe fn real(file: *mut ffi::sqlite3_file) -> *mut ffi::sqlite3_file {
    // SAFETY: `open` was given room for both, one after the other.
    unsafe { file.cast::<u8>().add(size_of::<File>()).cast() }
}

unsafe fn path<'a>(file: *mut ffi::sqlite3_file) -> Option<&'a PathBuf> {
    // SAFETY: set by `open`, and freed by `close` only.
    unsafe { (*file.cast::<File>()).path.as_ref() }
}

/// Remembers what a change of a file from `from` on is about to replace.
fn remember(path: &Path, from: u64, length: usize) {
    let file = fs::File::open(path).expect("SQLite has it open");
    let size = file.metadata().expect("an open file").len();
    let there = size.saturating_sub(from).min(length as u64) as usize;
    let mut bytes = vec![0; there];
    file.read_exact_at(&mut bytes, from).expect("readable");
    let mut all = unsynced();
    let undo = all.entry(path.to_owned()).or_default();
    undo.push(Undo::Length(size));
    undo.push(Undo::Bytes(from, bytes));
}

/// The power goes: what was not synced was never written.
fn cut() {
    LEFT.store(-1, Ordering::SeqCst);
    for (path, undo) in std::mem::take(&mut *unsynced()) {
        let file = fs::File::options().write(true).open(&path).expect("it is there");
        for undo in undo.into_iter().rev() {
            match undo {
                Undo::Bytes(at, bytes) => file.write_all_at(&bytes, at).expect("written"),
                Undo::Length(length) => file.set_len(length).expect("cut"),
            }
        }
    }
}

macro_rules! pass {
    ($name:ident($($argument:ident: $kind:ty),*) $method:ident) => {
        unsafe extern "C" fn $name(file: *mut ffi::sqlite3_file, $($argument: $kind),*) -> c_int {
            // SAFETY: the system's file was opened by its VFS, which set its methods; WAL needs version 2.
            unsafe {
                let real = real(file);
                let methods = &*(*real).pMethods;
                methods.$method.expect("the system's VFS has it")(real, $($argument),*)
            }
        }
    };
}

pass!(read(to: *mut c_void, length: c_int, at: i64) xRead);
pass!(file_size(size: *mut i64) xFileSize);
pass!(lock(level: c_int) xLock);
pass!(unlock(level: c_int) xUnlock);
pass!(check_lock(result: *mut c_int) xCheckReservedLock);
pass!(control(operation: c_int, argument: *mut c_void) xFileControl);
pass!(sector_size() xSectorSize);
pass!(characteristics() xDeviceCharacteristics);
pass!(shm_map(page: c_int, size: c_int, extend: c_int, to: *mut *mut c_void) xShmMap);
pass!(shm_lock(offset: c_int, count: c_int, flags: c_int) xShmLock);
pass!(shm_unmap(delete: c_int) xShmUnmap);
pass!(real_write(from: *const c_void, length: c_int, at: i64) xWrite);
pass!(real_truncate(size: i64) xTruncate);
pass!(real_sync(flags: c_int) xSync);
pass!(real_close() xClose);

unsafe extern "C" fn shm_barrier(file: *mut ffi::sqlite3_file) {
    // SAFETY: as in `pass`.
    unsafe {
        let real = real(file);
        (*(*real).pMethods).xShmBarrier.expect("the system's VFS has it")(real);
    }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    from: *const c_void,
    length: c_int,
    at: i64,
) -> c_int {
    if !powered() {
        return ffi::SQLITE_IOERR_WRITE;
    }
    // SAFETY: the file is one of ours.
    if let Some(path) = unsafe { path(file) } {
        remember(path, at as u64, length as usize);
    }
    // SAFETY: passed on as it came.
    unsafe { real_write(file, from, length, at) }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: i64) -> c_int {
    if !powered() {
        return ffi::SQLITE_IOERR_TRUNCATE;
    }
    // SAFETY: the file is one of ours.
    if let Some(path) = unsafe { path(file) } {
        remember(path, size as u64, usize::MAX);
    }
    // SAFETY: passed on as it came.
    unsafe { real_truncate(file, size) }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    if !powered() {
        return ffi::SQLITE_IOERR_FSYNC;
    }
    // SAFETY: passed on as it came; the file is one of ours.
    unsafe {
        if let Some(path) = path(file) {
            unsynced().remove(path);
        }
        real_sync(file, flags)
    }
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: made by `open` from a box, and closed once.
    unsafe {
        let own = &mut *file.cast::<File>();
        if !own.path.is_null() {
            drop(Box::from_raw(std::mem::replace(
                &mut own.path,
                std::ptr::null_mut(),
            )));
        }
        real_close(file)
    }
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    // No memory-mapped reads: they would pass this by.
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_lock),
    xFileControl: Some(control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

unsafe extern "C" fn open(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    given: *mut c_int,
) -> c_int {
    // SAFETY: SQLite gives room for `szOsFile` bytes, which is ours and the system's together, and a name
    // that ends with a zero, or none.
    unsafe {
        let below: *mut ffi::sqlite3_vfs = (*vfs).pAppData.cast();
        let own = &mut *file.cast::<File>();
        own.base.pMethods = std::ptr::null();
        own.path = std::ptr::null_mut();
        let code = (*below).xOpen.expect("it opens files")(below, name, real(file), flags, given);
        if code == ffi::SQLITE_OK {
            own.base.pMethods = &raw const METHODS;
            if !name.is_null() {
                let text = CStr::from_ptr(name).to_string_lossy().into_owned();
                own.path = Box::into_raw(Box::new(PathBuf::from(text)));
            }
        }
        code
    }
}

/// Puts the VFS in the place of the system's, for all of this process.
fn lie_below_sqlite() {
    // SAFETY: the default VFS lives as long as the process; ours is leaked, and differs from it by its
    // name, the size of a file, what is behind it, and how files are opened.
    unsafe {
        let below = ffi::sqlite3_vfs_find(std::ptr::null());
        let ours = Box::leak(Box::new(*below));
        ours.zName = c"forgetful".as_ptr();
        ours.pNext = std::ptr::null_mut();
        ours.pAppData = below.cast();
        ours.szOsFile += c_int::try_from(size_of::<File>()).expect("small");
        ours.xOpen = Some(open);
        assert_eq!(ffi::sqlite3_vfs_register(ours, 1), ffi::SQLITE_OK);
    }
}

fn user(number: u32) -> Change {
    Change::PutUser(Arc::new(User {
        name: format!("u{number}").parse().expect("a name"),
        uid: number,
        gid: number,
        groups: vec![],
        group_names: std::collections::BTreeMap::new(),
        // Some pages, so that the log is moved into the main file now and then.
        home: format!("/home/{}", "x".repeat(20_000)),
        shell: String::new(),
        role: carrel_core::model::user::Role::User,
        ssh_keys: vec![],
    }))
}

fn users(records: &[Change]) -> Vec<u32> {
    let uids = records.iter().filter_map(|change| match change {
        Change::PutUser(user) => Some(user.uid),
        _ => None,
    });
    let mut uids: Vec<u32> = uids.collect();
    uids.sort_unstable();
    uids
}

/// A store after a power cut, as another process finds it: the shared memory of the log is gone too.
fn after_the_cut(state: &Path) -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().expect("a directory");
    for file in [STORE_FILE.to_owned(), format!("{STORE_FILE}-wal")] {
        if state.join(&file).exists() {
            fs::copy(state.join(&file), dir.path().join(&file)).expect("copied");
        }
    }
    LEFT.store(i64::MAX, Ordering::SeqCst);
    let store = Store::open(dir.path()).expect("it opens after a power cut");
    (dir, store)
}

/// Commits pairs of users until the power goes after so many operations; what was acknowledged, and what is left.
fn lose_power_after(operations: i64) -> (Vec<u32>, Vec<u32>) {
    let dir = tempfile::tempdir().expect("a directory");
    LEFT.store(i64::MAX, Ordering::SeqCst);
    let mut store = Store::open(dir.path()).expect("opened");
    LEFT.store(operations, Ordering::SeqCst);
    let mut acknowledged = Vec::new();
    for number in (0..400).step_by(2) {
        if store.commit(&[user(number), user(number + 1)]).is_err() {
            break;
        }
        acknowledged.extend([number, number + 1]);
    }
    cut();
    // Its process is gone: nothing of it is closed in order.
    std::mem::forget(store);
    let (_copy, store) = after_the_cut(dir.path());
    let left = users(&store.load().expect("loaded"));
    (acknowledged, left)
}

/// One test: the VFS and its power are the process's.
#[test]
fn acknowledged_commits_survive_a_power_cut() {
    lie_below_sqlite();
    let mut commits = 0;
    for operations in (3..600).step_by(7) {
        let (acknowledged, left) = lose_power_after(operations);
        let lost: Vec<&u32> = acknowledged.iter().filter(|uid| !left.contains(uid)).collect();
        assert!(
            lost.is_empty(),
            "after {operations} operations users {lost:?} are lost"
        );
        assert!(
            left.len().is_multiple_of(2),
            "half a transaction is left: {left:?}"
        );
        let more = left.len() - acknowledged.len();
        assert!(more <= 2, "{more} users that nobody was told of");
        commits += acknowledged.len() / 2;
    }
    assert!(commits > 100, "only {commits} transactions were acknowledged");
    what_is_not_synced_is_forgotten();
}

/// The same without syncs loses what it acknowledged: the power cut is one.
fn what_is_not_synced_is_forgotten() {
    let dir = tempfile::tempdir().expect("a directory");
    LEFT.store(i64::MAX, Ordering::SeqCst);
    drop(Store::open(dir.path()).expect("made"));
    let careless = rusqlite::Connection::open(dir.path().join(STORE_FILE)).expect("opened");
    careless.pragma_update(None, "synchronous", "OFF").expect("set");
    careless
        .execute("INSERT INTO users (name, uid, body) VALUES ('u1', 1, '{}')", [])
        .expect("acknowledged");
    cut();
    std::mem::forget(careless);
    let (_copy, store) = after_the_cut(dir.path());
    assert_eq!(users(&store.load().expect("loaded")), [0_u32; 0]);
}
