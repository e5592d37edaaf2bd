//! Ctrl-C, and being asked to end: what would outlive this program is ended first.
//!
//! A cluster ends by itself when this program does, and takes its directory along: its sandbox is held by a pipe.
//! A Slurm's daemons would go on.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

/// What is to be done before this program ends.
type CleanUp = Box<dyn FnOnce() + Send>;

static AT_END: Mutex<Option<CleanUp>> = Mutex::new(None);
/// A signal has come.
static ASKED: AtomicBool = AtomicBool::new(false);
/// A terminal's Ctrl-C ends commands as well: what fails by that waits so long for the signal to be noticed here.
const NOTICE: Duration = Duration::from_millis(200);

/// Looks out for signals from now on.
pub fn watch() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("signals")?;
    let guard = runtime.enter();
    let caught = (|| {
        std::io::Result::Ok((
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ))
    })();
    let (mut interrupt, mut terminate, mut hangup) = caught.context("signals cannot be caught")?;
    drop(guard);
    thread::spawn(move || {
        let code = runtime.block_on(async move {
            // Each arm only waits.
            tokio::select! {
                _ = interrupt.recv() => 130,
                _ = terminate.recv() => 143,
                _ = hangup.recv() => 129,
            }
        });
        ASKED.store(true, Ordering::SeqCst);
        clean_up();
        std::process::exit(code);
    });
    Ok(())
}

/// Does something that a signal may make fail: then the signal is what ends this program, and not the failure.
pub fn over<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    // It is not used again.
    let outcome = catch_unwind(AssertUnwindSafe(work));
    if !matches!(outcome, Ok(Ok(_))) {
        thread::sleep(NOTICE);
        while ASKED.load(Ordering::SeqCst) {
            thread::park();
        }
    }
    outcome.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Has this done when a signal comes; in place of what was said before.
pub fn set(clean_up: impl FnOnce() + Send + 'static) {
    *AT_END.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(clean_up));
}

/// Does it now, if it is not done.
pub fn clean_up() {
    // Held meanwhile: whoever comes second waits until it is done.
    let mut at_end = AT_END.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(clean_up) = at_end.take() {
        clean_up();
    }
}
