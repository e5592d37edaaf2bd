//! A step, from the side of whoever asked for it: its nodes hold what it needs, then all tasks begin, and what they write
//! and how they end comes back here.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use carrel_proto::v1;
use nix::sys::signal::Signal;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use v1::step_event::What as Event;
use v1::step_says::What as Says;

use super::layout::Part;
use super::link::{Doors, From, Link};
use super::output::{self, OfTasks, Piece, Place, Style};
use super::signals::{Came, Signals};
use super::window;
use crate::error::{CliError, Context as _, Kind, Result};
use crate::stdio;
use crate::terminal::say;

/// Messages of nodes that are not looked at yet.
const QUEUE: usize = 256;
/// Stands for the node that numbers a step, where it is none of the step's.
const COUNTER: usize = usize::MAX;
/// Input that is under way at a time.
const INPUT: usize = 64 * 1024;
/// Two Ctrl-C within this end tasks at once.
const TWICE: Duration = Duration::from_secs(1);
/// Between the signals that end tasks for good: Slurm's KillWait.
const KILL_WAIT: Duration = Duration::from_secs(30);
/// So long ends are collected that are told in one line.
const COLLECT: Duration = Duration::from_millis(100);

/// Which tasks read what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// This program's stdin, all of them.
    All,
    /// Nothing.
    None,
    /// This program's stdin, this one.
    Rank(u32),
    /// A file, all of them.
    File(PathBuf),
}

/// What is to be run.
pub struct Step {
    /// The job.
    pub job: u64,
    /// The job's first node, which numbers steps.
    pub first: (u32, String),
    /// The tasks of each node.
    pub parts: Vec<Part>,
    /// What all nodes are told alike.
    pub start: v1::StepStart,
    /// What some nodes are told in its place, by rank: those of the programs after the first.
    pub others: BTreeMap<u32, v1::StepStart>,
    /// Input.
    pub input: Input,
    /// The first task has this program's terminal.
    pub terminal: bool,
    /// Lines begin with their task's rank.
    pub label: bool,
    /// Output is shown as it comes, and not line by line.
    pub unbuffered: bool,
    /// Where output goes that nodes do not write to files themselves.
    pub places: Vec<Place>,
    /// Which of these, by task.
    pub of_tasks: OfTasks,
    /// One task's bad end is all tasks' end.
    pub kill_on_bad_exit: bool,
    /// All tasks' end, so long after the first one's.
    pub wait: Option<Duration>,
}

/// Runs a step. Returns its exit code: the highest of its tasks'.
///
/// # Errors
/// It could not begin, or its end is not known.
pub async fn run(mut step: Step, doors: Arc<Doors>, signals: &mut Signals) -> Result<u8> {
    let (heard, mut hears) = mpsc::channel(QUEUE);
    let begun = async {
        let mut links = open(&step, &doors, &heard).await?;
        let number = claim(&mut step, &doors, &mut links, &heard, &mut hears).await?;
        Ok::<_, CliError>((links, number))
    };
    let (links, number) = tokio::select! {
        begun = begun => begun?,
        signal = leaving(signals) => return Err(left(signal)),
    };
    drop(heard);
    Running::new(step, links, number, hears).until_over(signals).await
}

/// The next signal that ends what has not begun.
async fn leaving(signals: &mut Signals) -> Signal {
    loop {
        if let Came::Signal(signal @ (Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT)) =
            signals.next().await
        {
            return signal;
        }
    }
}

fn left(signal: Signal) -> CliError {
    let kind = if signal == Signal::SIGINT {
        Kind::Interrupted
    } else {
        Kind::Terminated
    };
    CliError::new(kind, "the step was given up before it began")
}

/// Ways to all nodes, at once.
async fn open(step: &Step, doors: &Arc<Doors>, heard: &mpsc::Sender<(usize, From)>) -> Result<Vec<Link>> {
    let mut opening = JoinSet::new();
    for (index, part) in step.parts.iter().enumerate() {
        let (doors, heard, node) = (Arc::clone(doors), heard.clone(), part.node.clone());
        opening.spawn(async move {
            let link = doors.open(node.rank, &node.name, index, heard).await;
            (index, link)
        });
    }
    let mut links = BTreeMap::new();
    while let Some(opened) = opening.join_next().await {
        let (index, link) = opened.context("a way to a node")?;
        links.insert(index, link?);
    }
    Ok(links.into_values().collect())
}

/// Has the nodes hold what the step needs, one after the other in the order of the job: two steps that need several never
/// wait for each other.
async fn claim(
    step: &mut Step,
    doors: &Doors,
    links: &mut [Link],
    heard: &mpsc::Sender<(usize, From)>,
    hears: &mut mpsc::Receiver<(usize, From)>,
) -> Result<u32> {
    let mut number = None;
    if step
        .parts
        .first()
        .is_some_and(|part| part.node.rank != step.first.0)
    {
        let (rank, name) = &step.first;
        let mut link = doors.open(*rank, name, COUNTER, heard.clone()).await?;
        let asks = v1::StepStart {
            ranks: Vec::new(),
            ..step.start.clone()
        };
        link.say(Says::Start(asks)).await;
        number = Some(claimed(step, COUNTER, hears).await?);
    }
    for (index, link) in links.iter_mut().enumerate() {
        let part = &step.parts[index];
        let base = step.others.get(&part.node.rank).unwrap_or(&step.start);
        let start = v1::StepStart {
            ranks: part.ranks.clone(),
            node_index: u32::try_from(index).unwrap_or(u32::MAX),
            step: number,
            terminal: step.start.terminal.filter(|_| index == 0),
            ..base.clone()
        };
        link.say(Says::Start(start)).await;
        number = Some(claimed(step, index, hears).await?);
    }
    number.ok_or_else(|| CliError::failed("a step without nodes"))
}

/// Until a node has what it needs, saying for what it waits.
async fn claimed(step: &Step, of: usize, hears: &mut mpsc::Receiver<(usize, From)>) -> Result<u32> {
    let name = |index: usize| {
        step.parts
            .get(index)
            .map_or(step.first.1.as_str(), |part| &part.node.name)
    };
    while let Some((index, from)) = hears.recv().await {
        match from {
            From::Said(Event::Claimed(claimed)) if index == of => return Ok(claimed.step),
            From::Said(Event::Waiting(why)) => {
                say(format_args!(
                    "carrel: the step waits on {}: {why} (--overlap runs beside it)",
                    name(index)
                ));
            }
            From::Said(Event::Note(note)) => say(format_args!("carrel: {}: {note}", name(index))),
            From::Said(Event::Refused(why)) => {
                return Err(CliError::failed(format!(
                    "the step cannot run on {}: {why}",
                    name(index)
                )));
            }
            // What has numbered the step has nothing more to say.
            From::Gone(_) if index == COUNTER && of != COUNTER => {}
            From::Gone(why) => {
                let why = why.unwrap_or_else(|| "it has ended".to_owned());
                return Err(CliError::failed(format!(
                    "the step cannot run on {}: {why}",
                    name(index)
                )));
            }
            From::Said(_) => {}
        }
    }
    Err(CliError::failed("the step's nodes say nothing"))
}

/// A terminal whose keys go through as they are, until this is dropped.
struct Raw(Termios);

impl Raw {
    fn begin() -> Option<Self> {
        let stdin = std::io::stdin();
        let before = tcgetattr(&stdin).ok()?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(&stdin, SetArg::TCSADRAIN, &raw).ok()?;
        Some(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs none.
        tcsetattr(std::io::stdin(), SetArg::TCSADRAIN, &self.0).ok();
    }
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Code(u32),
    Signal(i32),
    Failed(String),
}

impl End {
    fn of(exited: &v1::StepExited) -> Self {
        match (exited.signal, exited.failure.is_empty()) {
            (_, false) => Self::Failed(exited.failure.clone()),
            (0, true) => Self::Code(exited.status),
            (signal, true) => Self::Signal(signal),
        }
    }

    fn code(&self) -> u8 {
        match self {
            Self::Code(code) => u8::try_from(*code).unwrap_or(1),
            Self::Signal(signal) => 128_u8.saturating_add(u8::try_from(*signal).unwrap_or(127)),
            Self::Failed(_) => 1,
        }
    }

    /// As srun words it: tools look for that.
    fn in_words(&self) -> String {
        match self {
            Self::Code(code) => format!("Exited with exit code {code}"),
            Self::Signal(signal) => match Signal::try_from(*signal) {
                Ok(Signal::SIGKILL) => "Killed".to_owned(),
                Ok(Signal::SIGTERM) => "Terminated".to_owned(),
                Ok(Signal::SIGSEGV) => "Segmentation fault".to_owned(),
                Ok(Signal::SIGABRT) => "Aborted".to_owned(),
                Ok(Signal::SIGINT) => "Interrupt".to_owned(),
                Ok(signal) => format!("ended by {signal}"),
                Err(_) => format!("ended by signal {signal}"),
            },
            Self::Failed(why) => why.clone(),
        }
    }
}

/// A step whose tasks have begun.
struct Running {
    step: Step,
    number: u32,
    links: Vec<Option<Link>>,
    hears: mpsc::Receiver<(usize, From)>,
    /// Tasks that are not over, by node.
    left: Vec<BTreeSet<u32>>,
    code: u8,
    /// What went wrong besides tasks' ends.
    failed: bool,
    /// Bad ends that are not told yet.
    untold: BTreeMap<(usize, End), Vec<u32>>,
    tell_at: Option<Instant>,
    interrupted: Option<Instant>,
    /// When tasks are killed that were asked to end.
    kill_at: Option<Instant>,
    /// When tasks are asked to end, since the first one has.
    end_at: Option<Instant>,
}

impl Running {
    fn new(step: Step, links: Vec<Link>, number: u32, hears: mpsc::Receiver<(usize, From)>) -> Self {
        let left = step.parts.iter().map(|part| part.ranks.iter().copied().collect());
        Self {
            left: left.collect(),
            step,
            number,
            links: links.into_iter().map(Some).collect(),
            hears,
            code: 0,
            failed: false,
            untold: BTreeMap::new(),
            tell_at: None,
            interrupted: None,
            kill_at: None,
            end_at: None,
        }
    }

    async fn until_over(mut self, signals: &mut Signals) -> Result<u8> {
        let several = self.left.iter().map(BTreeSet::len).sum::<usize>() > 1;
        let last = self.left.iter().flatten().max().copied().unwrap_or(0);
        let style = Style {
            label: self.step.label.then(|| last.to_string().len()),
            lines: several && !self.step.unbuffered && !self.step.terminal,
        };
        let places = std::mem::take(&mut self.step.places);
        let of_tasks = std::mem::take(&mut self.step.of_tasks);
        let (shows, shown) = output::begin(style, places, of_tasks);
        let raw = self.step.terminal.then(Raw::begin).flatten();
        let mut feed = Feed::begin(&self.step)?;
        self.say_all(&Says::Go(v1::StepGo {})).await;
        let mut piece = None;
        while self.left.iter().any(|ranks| !ranks.is_empty()) {
            let next_time = [self.tell_at, self.kill_at, self.end_at]
                .into_iter()
                .flatten()
                .min();
            // All arms are safe to cancel; what was heard is shown before more is heard.
            tokio::select! {
                permit = shows.reserve(), if piece.is_some() => {
                    if let (Ok(permit), Some(piece)) = (permit, piece.take()) {
                        permit.send(piece);
                    }
                }
                heard = self.hears.recv(), if piece.is_none() => match heard {
                    Some((index, from)) => piece = self.hear(index, from, &mut feed).await,
                    None => break,
                },
                came = signals.next() => self.obey(came).await,
                read = feed.next() => {
                    let says = Says::Input(v1::StepInput { end: read.is_empty(), data: read });
                    self.say_to(&feed.nodes.clone(), &says).await;
                }
                () = until(next_time) => self.on_time().await,
            }
        }
        if let Some(piece) = piece {
            shows.send(piece).await.ok();
        }
        drop(shows);
        // What is on its way to the person arrives.
        shown.await.ok();
        drop(raw);
        self.tell();
        Ok(if self.failed { self.code.max(1) } else { self.code })
    }

    /// Takes in a node's word; what is to be shown comes back.
    async fn hear(&mut self, index: usize, from: From, feed: &mut Feed) -> Option<Piece> {
        match from {
            // At a terminal there is the first task's alone.
            From::Said(Event::Output(output))
                if self.step.terminal && !self.step.start.input.contains(&output.rank) => {}
            From::Said(Event::Output(output)) => return Some(Piece::Output(output)),
            From::Said(Event::Exited(exited)) => {
                if let Some(ranks) = self.left.get_mut(index) {
                    ranks.remove(&exited.rank);
                }
                self.ended(index, exited.rank, End::of(&exited)).await;
                return Some(Piece::End(exited.rank));
            }
            From::Said(Event::InputTaken(_)) => feed.taken(index),
            From::Said(Event::Refused(why)) => self.lost(index, &why).await,
            From::Said(Event::Note(note)) => say(format_args!("carrel: {note}")),
            From::Said(Event::Waiting(_) | Event::Claimed(_) | Event::Started(_)) => {}
            From::Gone(why) => {
                feed.taken(index);
                if self.left.get(index).is_some_and(|ranks| !ranks.is_empty()) {
                    self.lost(index, why.as_deref().unwrap_or("it has ended")).await;
                }
            }
        }
        None
    }

    async fn ended(&mut self, index: usize, rank: u32, end: End) {
        let code = end.code();
        self.code = self.code.max(code);
        if end != End::Code(0) {
            self.untold.entry((index, end)).or_default().push(rank);
            self.tell_at.get_or_insert_with(|| Instant::now() + COLLECT);
            if self.step.kill_on_bad_exit {
                self.terminate().await;
            }
        }
        if let Some(wait) = self.step.wait {
            self.end_at.get_or_insert_with(|| Instant::now() + wait);
        }
    }

    /// A node's tasks are lost with the way to it; the others end, too.
    async fn lost(&mut self, index: usize, why: &str) {
        let name = self
            .step
            .parts
            .get(index)
            .map_or("a node", |part| &part.node.name);
        say(format_args!("carrel: error: {name}: {why}"));
        self.failed = true;
        if let Some(ranks) = self.left.get_mut(index) {
            ranks.clear();
        }
        self.terminate().await;
    }

    /// Asks all tasks to end; those that do not are killed later.
    async fn terminate(&mut self) {
        if self.kill_at.is_none() && self.left.iter().any(|ranks| !ranks.is_empty()) {
            self.kill_at = Some(Instant::now() + KILL_WAIT);
            self.signal(Signal::SIGTERM).await;
            self.signal(Signal::SIGCONT).await;
        }
    }

    async fn signal(&mut self, signal: Signal) {
        self.say_all(&Says::Signal(signal as i32)).await;
    }

    async fn obey(&mut self, came: Came) {
        match came {
            Came::Signal(Signal::SIGINT) => {
                let twice = self.interrupted.is_some_and(|at| at.elapsed() < TWICE);
                self.interrupted = Some(Instant::now());
                if twice {
                    self.signal(Signal::SIGKILL).await;
                    return;
                }
                say(format_args!(
                    "carrel: interrupt: sent to the tasks of step {}.{} (again within a second kills them)",
                    self.step.job, self.number
                ));
                self.signal(Signal::SIGINT).await;
            }
            // The terminal has gone, or somebody wants this to end: so do the tasks.
            Came::Signal(signal @ (Signal::SIGTERM | Signal::SIGHUP)) => {
                self.signal(signal).await;
                self.terminate().await;
            }
            Came::Signal(signal) => self.signal(signal).await,
            Came::Resized => {
                if let (true, Some(size)) = (self.step.terminal, window::get(std::io::stdin().as_fd())) {
                    self.say_to(&[0], &Says::Window(size)).await;
                }
            }
        }
    }

    async fn on_time(&mut self) {
        let now = Instant::now();
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.tell_at) {
            self.tell();
        }
        if due(self.end_at) {
            self.end_at = None;
            self.step.wait = None;
            say(format_args!(
                "carrel: the first task ended some time ago: the others are ended (--wait)"
            ));
            self.terminate().await;
        }
        if due(self.kill_at) {
            self.kill_at = Some(now + KILL_WAIT);
            self.signal(Signal::SIGKILL).await;
        }
    }

    /// Says how tasks ended that did not end well.
    fn tell(&mut self) {
        self.tell_at = None;
        for ((index, end), mut ranks) in std::mem::take(&mut self.untold) {
            ranks.sort_unstable();
            let name = self.step.parts.get(index).map_or("", |part| &part.node.name);
            let plural = if ranks.len() == 1 { "" } else { "s" };
            say(format_args!(
                "carrel: error: {name}: task{plural} {}: {}",
                ranges(&ranks),
                end.in_words()
            ));
        }
    }

    async fn say_all(&mut self, what: &Says) {
        for link in self.links.iter_mut().flatten() {
            link.say(what.clone()).await;
        }
    }

    async fn say_to(&mut self, nodes: &[usize], what: &Says) {
        for index in nodes {
            if let Some(Some(link)) = self.links.get_mut(*index) {
                link.say(what.clone()).await;
            }
        }
    }
}

/// "0-3,7".
fn ranges(ranks: &[u32]) -> String {
    let runs = ranks.chunk_by(|a, b| a + 1 == *b);
    let runs = runs.map(|run| match run {
        [one] => one.to_string(),
        more => format!("{}-{}", more[0], more[more.len() - 1]),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// Input on its way to tasks: the next piece is read when all have taken the last one.
struct Feed {
    from: Option<Box<dyn AsyncRead + Unpin>>,
    /// Nodes with tasks that get it.
    nodes: Vec<usize>,
    /// Those that have not taken the last piece.
    awaited: BTreeSet<usize>,
}

impl Feed {
    fn begin(step: &Step) -> Result<Self> {
        let from: Option<Box<dyn AsyncRead + Unpin>> = match &step.input {
            Input::None => None,
            Input::All | Input::Rank(_) => Some(stdio::input()),
            Input::File(path) => {
                let file = std::fs::File::open(path).context(format_args!("--input: {}", path.display()))?;
                Some(Box::new(tokio::fs::File::from_std(file)))
            }
        };
        let nodes = step.parts.iter().enumerate();
        let fed = nodes.filter(|(_, part)| part.ranks.iter().any(|rank| step.start.input.contains(rank)));
        let nodes: Vec<usize> = fed.map(|(index, _)| index).collect();
        Ok(Self {
            from: from.filter(|_| !nodes.is_empty()),
            nodes,
            awaited: BTreeSet::new(),
        })
    }

    /// The next piece; empty: there is no more. Never, while one is under way. Safe to cancel.
    async fn next(&mut self) -> Vec<u8> {
        let Some(from) = self.from.as_mut().filter(|_| self.awaited.is_empty()) else {
            return std::future::pending().await;
        };
        let mut read = BytesMut::with_capacity(INPUT);
        // Input that breaks off is at its end.
        let length = from.read_buf(&mut read).await.unwrap_or(0);
        if length == 0 {
            self.from = None;
        }
        self.awaited = self.nodes.iter().copied().collect();
        read.to_vec()
    }

    fn taken(&mut self, index: usize) {
        self.awaited.remove(&index);
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_told_in_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranges(&[3]), "3");
    }

    #[test]
    fn ends_are_worded_and_counted_as_sruns() {
        let end = |status, signal| {
            End::of(&v1::StepExited {
                status,
                signal,
                ..Default::default()
            })
        };
        assert_eq!(
            (end(7, 0).code(), end(7, 0).in_words().as_str()),
            (7, "Exited with exit code 7")
        );
        assert_eq!((end(0, 9).code(), end(0, 9).in_words().as_str()), (137, "Killed"));
        assert_eq!(end(0, 10).in_words(), "ended by SIGUSR1");
        assert_eq!(end(256, 0).code(), 1);
    }
}
