//! Terminals that outlive their connections, and the server.
//!
//! ```text
//!  program ─ pty ─► Terminal::follow ─► History ─► view::send ─► an SSH channel
//!            ▲                         (memory)  └► view::send ─► another
//!            └────────── Terminal::type_in ◄────── view::feed
//! ```
//!
//! Each terminal's output goes into its history, and from there to each viewer at the viewer's own
//! pace: no queue between them, so a slow one costs nothing and blocks nobody. The keeper holds the
//! pty and the history's memory too; the next server gets both and goes on ([`Terminals::adopt`]).
//!
//! Clients ask by the SSH subsystem `carrel-terminal` ([`carrel_core::terminal::Request`]). A plain
//! `ssh host` has a terminal of its connection's, which ends with it, as everywhere.

mod history;
mod one;
mod view;
mod viewers;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use carrel_core::terminal::{Attach, Mark, Request, TerminalName, Which};
use carrel_proto::v1;
use prost::Message;
use russh::server::{Handle, Msg};
use russh::{Channel, ChannelWriteHalf};
use tokio::io::unix::AsyncFd;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

pub use self::view::Window;

use self::history::{About, History};
use self::one::Terminal;
use super::command::Run;
use super::pty::{self, Master};
use super::session;
use super::shared::Shared;
use crate::wire::{self, Exited};

/// Terminals that have ended and are still known, with their last output and how they ended: for
/// those who were away.
const MAX_ENDED: usize = 8;

/// Exit status of a request that was refused.
const STATUS_REFUSED: u32 = 1;

/// All terminals of the container.
#[derive(Debug)]
pub struct Terminals {
    all: Mutex<All>,
    tasks: TaskTracker,
    ending: CancellationToken,
}

#[derive(Debug, Default)]
struct All {
    terminals: BTreeMap<u32, Arc<Terminal>>,
    /// Highest number that was ever given.
    last: u32,
}

impl Terminals {
    /// None yet. Their tasks run until `ending`.
    pub fn new(last: u32, tasks: TaskTracker, ending: CancellationToken) -> Self {
        Self {
            all: Mutex::new(All {
                last,
                ..All::default()
            }),
            tasks,
            ending,
        }
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on with a terminal of the server before.
    pub fn adopt(&self, kept: wire::Kept, files: Vec<OwnedFd>) -> anyhow::Result<()> {
        let [master, memory] =
            <[OwnedFd; 2]>::try_from(files).map_err(|_| anyhow::anyhow!("its files are missing"))?;
        let (history, about) = History::open(memory).context("its history")?;
        let master = Arc::new(pty::adopt(master).context("its pty")?);
        let terminal = Arc::new(Terminal::new(kept.number, about, master, history));
        if let Some(exited) = kept.exited {
            terminal.ended(exited);
        }
        self.begin(terminal);
        Ok(())
    }

    /// A terminal's command has ended.
    pub fn ended(&self, exited: Exited) {
        let terminal = self.lock().terminals.get(&(exited.id as u32)).cloned();
        if let Some(terminal) = terminal {
            terminal.ended(exited);
        }
    }

    /// Waits until every terminal's viewers know how it ended. All have ended.
    pub async fn tell_ends(&self) {
        let all: Vec<_> = self.lock().terminals.values().cloned().collect();
        for terminal in all {
            terminal.left().await;
        }
    }

    /// Tells whoever looks at one of them something.
    pub fn announce(&self, text: &str) {
        let all: Vec<_> = self.lock().terminals.values().cloned().collect();
        for terminal in all {
            terminal.announce(text);
        }
    }

    fn begin(&self, terminal: Arc<Terminal>) {
        self.lock()
            .terminals
            .insert(terminal.number, Arc::clone(&terminal));
        let ending = self.ending.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                // Safe to cancel: what was read is in the history.
                () = terminal.follow() => {}
                () = ending.cancelled() => {}
            }
        });
    }

    /// All of them, by number.
    fn list(&self) -> v1::TerminalList {
        let all = self.lock();
        let terminals = all
            .terminals
            .values()
            .map(|terminal| terminal.describe())
            .collect();
        v1::TerminalList { terminals }
    }

    /// The terminal that is meant; `Ok(None)`: a new one. An error says why there is none.
    fn find(&self, which: &Which) -> Result<Option<Arc<Terminal>>, String> {
        let all = self.lock();
        let live = || {
            all.terminals
                .values()
                .filter(|terminal| terminal.exited().is_none())
        };
        match which {
            Which::New { .. } => Ok(None),
            Which::Latest => Ok(live().max_by_key(|terminal| terminal.active_at()).cloned()),
            Which::Number(number) => match all.terminals.get(number) {
                Some(terminal) => Ok(Some(Arc::clone(terminal))),
                None if (1..=all.last).contains(number) => Err(format!(
                    "terminal {number} has ended, and how is no longer known here"
                )),
                None => Err(format!("there is no terminal {number} here")),
            },
            Which::Named(name) => {
                let named = |terminal: &&Arc<Terminal>| terminal.about.name == name.as_str();
                let found = live()
                    .rfind(named)
                    .or_else(|| all.terminals.values().rfind(named));
                match found {
                    Some(terminal) => Ok(Some(Arc::clone(terminal))),
                    None => Err(format!("there is no terminal {} here", name.as_str())),
                }
            }
        }
    }

    /// A number for one more, and those that give way to it. An error: there are too many.
    fn reserve(&self) -> Result<(u32, Vec<u32>), String> {
        let mut all = self.lock();
        let ended = all
            .terminals
            .values()
            .filter(|terminal| terminal.exited().is_some());
        let ended: Vec<u32> = ended.map(|terminal| terminal.number).collect();
        let live = all.terminals.len() - ended.len();
        if live >= wire::MAX_TERMINALS {
            return Err(format!(
                "{live} terminals are open here, which is the most: end one of them first"
            ));
        }
        let stay = MAX_ENDED.min(wire::MAX_TERMINALS - 1 - live);
        let gone = ended[..ended.len().saturating_sub(stay)].to_vec();
        for number in &gone {
            all.terminals.remove(number);
        }
        all.last += 1;
        Ok((all.last, gone))
    }

    fn remove(&self, number: u32) {
        self.lock().terminals.remove(&number);
    }
}

/// What a channel brings along.
pub struct Offer {
    /// The pty that it asked for, with the side for the child.
    pub pty: Option<(Arc<AsyncFd<Master>>, OwnedFd)>,
    /// `NAME`, value.
    pub variables: Vec<(String, String)>,
    /// Its window.
    pub window: Arc<Window>,
    /// Whoever it is may look and no more.
    pub looks_on: bool,
}

/// Answers a request for terminals on a channel, and closes it.
pub async fn serve(shared: Arc<Shared>, channel: Channel<Msg>, handle: Handle, name: String, offer: Offer) {
    let (mut from, to) = channel.split();
    let request = name.parse::<Request>();
    let marks = matches!(&request, Ok(Request::Attach(Attach { marks: true, .. })));
    let answered = match request {
        Ok(Request::List) => {
            let list = shared.terminals.list().encode_to_vec();
            // The channel may be gone, here and below.
            let _ = to.data_bytes(list).await;
            let _ = handle.exit_status_request(to.id(), 0).await;
            Ok(())
        }
        Ok(Request::Attach(asked)) => attach(&shared, offer, &asked, (&mut from, &to), &handle).await,
        Err(error) => Err(error.to_string()),
    };
    if let Err(reason) = answered {
        debug!(reason, "no terminal");
        refuse(&to, marks, reason).await;
        let _ = handle.exit_status_request(to.id(), STATUS_REFUSED).await;
    }
    let _ = handle.eof(to.id()).await;
    let _ = handle.close(to.id()).await;
}

async fn refuse(to: &ChannelWriteHalf<Msg>, marks: bool, reason: String) {
    if marks {
        view::mark(to, &Mark::Refused(reason)).await;
    } else {
        let text = format!("carrel: {reason}\r\n");
        let _ = to.extended_data_bytes(session::STDERR, text.into_bytes()).await;
    }
}

async fn attach(
    shared: &Shared,
    offer: Offer,
    asked: &Attach,
    channel: (&mut russh::ChannelReadHalf, &ChannelWriteHalf<Msg>),
    handle: &Handle,
) -> Result<(), String> {
    let job = shared.settings().config.job;
    if asked.job.is_some_and(|expected| expected != job) {
        return Err(format!("this is job {job}; the one that was meant is over"));
    }
    if offer.looks_on && !asked.read_only {
        return Err("this session is shared with you read-only: attach with --read-only".into());
    }
    let Offer {
        pty: Some(pty),
        variables,
        window,
        looks_on: _,
    } = offer
    else {
        return Err("a terminal is needed on your side: ssh -t".into());
    };
    let terminal = match shared.terminals.find(&asked.which)? {
        Some(terminal) => {
            drop(pty);
            terminal
        }
        None if asked.read_only => return Err("there is no terminal here to look at".into()),
        None => {
            let (name, command) = match &asked.which {
                Which::New { name, command } => (name.as_ref(), command.as_deref()),
                Which::Latest | Which::Number(_) | Which::Named(_) => (None, None),
            };
            create(shared, name, command, pty, variables).await?
        }
    };
    shared.touch();
    view::show(shared, &terminal, &window, asked, channel, handle).await
}

/// Starts a shell or a command in a new terminal.
async fn create(
    shared: &Shared,
    name: Option<&TerminalName>,
    line: Option<&[u8]>,
    (master, slave): (Arc<AsyncFd<Master>>, OwnedFd),
    mut variables: Vec<(String, String)>,
) -> Result<Arc<Terminal>, String> {
    let (number, gone) = shared.terminals.reserve()?;
    for number in gone {
        if let Err(error) = shared.keeper.forget(number).await {
            warn!(%error, "forgetting a terminal");
        }
    }
    let about = About {
        name: name.map(|name| name.as_str().to_owned()).unwrap_or_default(),
        command: line.map(shown).unwrap_or_default(),
        created_ms: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_millis() as i64),
    };
    let (history, memory) =
        History::create(&about).map_err(|error| format!("no memory for a terminal's scrollback: {error}"))?;
    variables.push(("CARREL_TERMINAL".to_owned(), number.to_string()));
    let run = match line {
        Some(line) => Run::Line(line.to_vec()),
        None => Run::Shell,
    };
    // Its own message ends in a new line and names us, as a shell's user sees it.
    let plain = |text: String| text.trim_end().trim_start_matches("carrel: ").to_owned();
    let command = session::command(shared, &run, variables).map_err(plain)?;
    let terminal = Arc::new(Terminal::new(number, about, master, history));
    if run == Run::Shell {
        terminal.append(session::banner(shared).as_bytes());
    }
    let ours = terminal
        .master()
        .map_err(|error| format!("no terminal can be opened: {error}"))?;
    // Known before its command runs: the command's end may come at once.
    shared.terminals.begin(Arc::clone(&terminal));
    let kept = [slave, ours, memory];
    if let Err(error) = shared.keeper.spawn_kept(&command, number, kept).await {
        shared.terminals.remove(number);
        return Err(plain(session::failed(error)));
    }
    Ok(terminal)
}

/// A command line as a list shows it.
fn shown(line: &[u8]) -> String {
    let line = line.get(..About::MAX_COMMAND).unwrap_or(line);
    let mut text = String::from_utf8_lossy(line).into_owned();
    // Lossy text may be longer than its bytes.
    text.truncate(text.floor_char_boundary(About::MAX_COMMAND));
    text
}
