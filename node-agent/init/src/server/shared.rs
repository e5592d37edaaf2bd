//! What all connections share.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use carrel_proto::v1::{FenceReport, InitConfig, InitStatus};
use tokio::sync::watch;

use super::keeper::Keeper;
use super::settings::Settings;
use super::terminal::Terminals;
use crate::clock::boot_ms;

/// More from a client in a minute is work; less keeps a connection open, as editors do that nobody sits before.
const WORK_BYTES: u64 = 4096;
const WORK_TIME_MS: u64 = 60_000;

/// State of the server.
pub struct Shared {
    settings: RwLock<Arc<Settings>>,
    /// The way to process 1.
    pub keeper: Keeper,
    /// Terminals that outlive their connections.
    pub terminals: Terminals,
    restarts: u32,
    fence: Option<FenceReport>,
    connections: AtomicU32,
    /// Last terminal input or exec start, boot time in ms; 0: never.
    active_at: AtomicU64,
    /// Last new connection, or work through one, boot time in ms; 0: never.
    connected_at: AtomicU64,
    /// When the minute began in which so much has come from clients, beside terminal input.
    carried: Mutex<(u64, u64)>,
    changed: watch::Sender<()>,
    /// What everybody with a terminal was told last.
    notice: watch::Sender<String>,
    /// This server has asked for the job's command.
    begun: AtomicBool,
}

impl Shared {
    pub fn new(
        settings: Settings,
        keeper: Keeper,
        terminals: Terminals,
        restarts: u32,
        fence: Option<FenceReport>,
    ) -> Self {
        Self {
            settings: RwLock::new(Arc::new(settings)),
            keeper,
            terminals,
            restarts,
            fence,
            connections: AtomicU32::new(0),
            active_at: AtomicU64::new(0),
            connected_at: AtomicU64::new(0),
            carried: Mutex::default(),
            changed: watch::Sender::new(()),
            notice: watch::Sender::default(),
            begun: AtomicBool::new(false),
        }
    }

    /// Tells everybody with a terminal something.
    pub fn announce(&self, text: String) {
        self.terminals.announce(&text);
        self.notice.send_replace(text);
    }

    /// What is announced from now on, for terminals that end with their connections.
    pub fn notices(&self) -> watch::Receiver<String> {
        self.notice.subscribe()
    }

    /// The settings of now.
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the configuration for what begins from now on.
    pub fn configure(&self, config: InitConfig) {
        let mut settings = self.settings.write().unwrap_or_else(PoisonError::into_inner);
        *settings = Arc::new(settings.with(config));
        drop(settings);
        self.notify();
    }

    /// True once: for whoever is to ask for the job's command.
    pub fn is_first_to_begin(&self) -> bool {
        !self.begun.swap(true, Ordering::Relaxed)
    }

    /// Counts a connection as long as the guard lives.
    pub fn connected(self: &Arc<Self>) -> Connected {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.connected_at.store(boot_ms().max(1), Ordering::Relaxed);
        self.notify();
        Connected(Arc::clone(self))
    }

    /// Somebody is at work.
    pub fn touch(&self) {
        self.active_at.store(boot_ms().max(1), Ordering::Relaxed);
    }

    /// A client has sent so many bytes to something that is no terminal.
    pub fn carried(&self, bytes: usize) {
        let now = boot_ms();
        let mut carried = self.carried.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_sub(carried.0) > WORK_TIME_MS {
            *carried = (now, 0);
        }
        carried.1 = carried.1.saturating_add(bytes as u64);
        if carried.1 >= WORK_BYTES {
            self.connected_at.store(now.max(1), Ordering::Relaxed);
        }
    }

    /// The status changed.
    pub fn notify(&self) {
        self.changed.send_replace(());
    }

    /// Wakes at each change of the status.
    pub fn watch(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The status of now.
    pub fn status(&self) -> InitStatus {
        let active_at = self.active_at.load(Ordering::Relaxed);
        let connected_at = self.connected_at.load(Ordering::Relaxed);
        InitStatus {
            host_public_key: self.settings().host_public_key(),
            ready: true,
            connections: self.connections.load(Ordering::Relaxed),
            processes: self.keeper.processes(),
            restarts: self.restarts,
            idle_ms: (active_at != 0).then(|| boot_ms().saturating_sub(active_at)),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            fence: self.fence,
            connection_idle_ms: (connected_at != 0).then(|| boot_ms().saturating_sub(connected_at)),
        }
    }
}

/// A connection, counted.
pub struct Connected(Arc<Shared>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
        self.0.notify();
    }
}
