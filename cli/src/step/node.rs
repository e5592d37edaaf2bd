//! A step's tasks on one node: started, fed, listened to, and ended with the connection that asked for them.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use carrel_proto::inside::RANKS_SOCKET;
use carrel_proto::v1;
use nix::sched::sched_getaffinity;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, mpsc, watch};
use v1::step_event::What as Event;
use v1::step_says::What as Says;

use super::claims::{self, Claim, Claimed, Need, Process, Whole};
use super::kept::{Copies, Keeping};
use super::signals::Signals;
use super::variables::{self, Variables};
use super::{file_name, frames, task, window};
use crate::error::{CliError, Context as _, Result};
use crate::stdio;

/// Where the list of the job's steps is: the container's own memory, gone with it.
const STATE: &str = "/dev/shm";
/// Between two looks whether what is needed has become free.
const LOOK: Duration = Duration::from_millis(200);
/// Read from a task at once.
const READ: usize = 32 * 1024;
/// Messages on their way to the client, at most.
const QUEUE: usize = 64;
/// What a person types at a terminal to end the input: Ctrl-D.
const END_OF_INPUT: u8 = 4;
/// How long more output is waited for after a task's end, where something that it left behind holds it open.
const AFTERWARDS: Duration = Duration::from_secs(2);
/// Between the signals that end a task for good.
const GRACE: Duration = Duration::from_secs(5);

/// The node's side of the wire.
#[derive(Clone, Debug, clap::Args)]
pub struct NodeArgs {
    /// Where the list of the job's steps is
    #[arg(long, value_name = "DIR", default_value = STATE)]
    pub state: PathBuf,
    /// Where what tasks write is kept by rank
    #[arg(long, value_name = "SOCKET", default_value = RANKS_SOCKET)]
    pub ranks: PathBuf,
}

/// Runs the tasks that the first message on stdin asks for.
pub async fn run(args: &NodeArgs) -> Result<u8> {
    // What is sent to all processes of the container is for the tasks; this lives as long as they do.
    let _caught = Signals::catch()?;
    let mut said = Said {
        input: stdio::input(),
        read: BytesMut::new(),
    };
    let Some(Says::Start(start)) = said.next().await? else {
        return Err(CliError::usage("this is what `carrel run` starts on a node"));
    };
    let (events, to_write) = mpsc::channel(QUEUE);
    let writer = tokio::spawn(write(stdio::output(), to_write));
    let ran = tasks(args, &start, &mut said, &events).await;
    if let Err(error) = &ran {
        // The client tells the person; one that is gone needs no telling.
        events.send(Event::Refused(error.message.clone())).await.ok();
    }
    drop(events);
    writer.await.ok();
    Ok(0)
}

/// What the client says.
struct Said {
    input: Box<dyn AsyncRead + Unpin>,
    read: BytesMut,
}

impl Said {
    /// The next message; none: the client is gone. Safe to cancel.
    async fn next(&mut self) -> Result<Option<Says>> {
        loop {
            if let Some(message) =
                frames::decode::<v1::StepSays>(&mut self.read).context("the step's wire")?
            {
                if let Some(what) = message.what {
                    return Ok(Some(what));
                }
                continue;
            }
            self.read.reserve(READ);
            // A connection that broke is one that is gone.
            if self.input.read_buf(&mut self.read).await.unwrap_or(0) == 0 {
                return Ok(None);
            }
        }
    }
}

async fn write(mut output: Box<dyn AsyncWrite + Unpin + Send>, mut events: mpsc::Receiver<Event>) {
    while let Some(what) = events.recv().await {
        let frame = frames::encode(&v1::StepEvent { what: Some(what) });
        let written = async {
            output.write_all(&frame).await?;
            if events.is_empty() {
                output.flush().await?;
            }
            std::io::Result::Ok(())
        };
        if written.await.is_err() {
            // Nobody listens; the input's end says it, too.
            events.close();
        }
    }
}

async fn tasks(
    args: &NodeArgs,
    start: &v1::StepStart,
    said: &mut Said,
    events: &mpsc::Sender<Event>,
) -> Result<()> {
    let own: Variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let (whole, confined) = whole(&own);
    let Some(mut claim) = hold(args, start, &own, &whole, said, events).await? else {
        return Ok(());
    };
    if !start.bind || !confined {
        claim.cpus.clear();
    }
    events
        .send(Event::Claimed(v1::StepClaimed { step: claim.step }))
        .await
        .ok();
    if start.ranks.is_empty() {
        return Ok(());
    }
    match said.next().await? {
        Some(Says::Go(_)) => {}
        Some(_) => return Err(CliError::usage("the client speaks out of turn")),
        None => return Ok(()),
    }
    let variables = variables::of_step(start, claim.step, own);
    let begin = v1::RanksBegin {
        step: claim.step,
        command: start.command.join(" "),
        ranks: start.ranks.clone(),
    };
    let keeping = Keeping::begin(args.ranks.clone(), begin);
    let mut running = Running::new(start, claim.step, events.clone(), keeping.copies());
    for (local, rank) in start.ranks.iter().copied().enumerate() {
        let share = Share::of(start, &claim, &whole, local);
        let env = variables::of_task(&variables, rank, local, share.gpus.as_deref());
        running.begin(start, rank, &share, env).await;
    }
    let over = running.until_over(said).await;
    keeping.end().await;
    over
}

/// What the container has, and whether the numbers of the CPUs are those that it is kept to: where it is not, they
/// only count.
fn whole(own: &Variables) -> (Whole, bool) {
    let may: Vec<u32> = sched_getaffinity(Pid::from_raw(0)).map_or_else(
        |_| Vec::new(),
        |set| {
            let all = 0..nix::sched::CpuSet::count();
            all.filter(|cpu| set.is_set(*cpu).unwrap_or(false))
                .filter_map(|cpu| u32::try_from(cpu).ok())
                .collect()
        },
    );
    let allotted = own
        .get("SLURM_CPUS_ON_NODE")
        .and_then(|text| text.parse::<u32>().ok())
        .unwrap_or_else(|| u32::try_from(may.len()).unwrap_or(u32::MAX));
    let confined = usize::try_from(allotted).is_ok_and(|allotted| allotted == may.len());
    let gpus = own
        .get("CUDA_VISIBLE_DEVICES")
        .map(String::as_str)
        .unwrap_or_default();
    let whole = Whole {
        cpus: if confined { may } else { (0..allotted).collect() },
        gpus: gpus
            .split(',')
            .filter(|gpu| !gpu.is_empty())
            .map(str::to_owned)
            .collect(),
    };
    (whole, confined)
}

/// Waits for what the tasks need; none: the client has gone.
async fn hold(
    args: &NodeArgs,
    start: &v1::StepStart,
    own: &Variables,
    whole: &Whole,
    said: &mut Said,
    events: &mpsc::Sender<Event>,
) -> Result<Option<Claim>> {
    let tasks = start.ranks.len();
    let cpus = tasks * usize::try_from(start.cpus_per_task).unwrap_or(usize::MAX);
    let per_task = start.gpus_per_task.map(|gpus| tasks * gpus as usize);
    let need = Need {
        cpus: if start.overcommit {
            cpus.min(whole.cpus.len())
        } else {
            cpus
        },
        gpus: per_task.or(start.gpus.map(|gpus| gpus as usize)),
        overlap: start.overlap,
    };
    let job = own.get("SLURM_JOB_ID").map(String::as_str).unwrap_or_default();
    let file = args.state.join(format!(".carrel-steps-{job}"));
    let mut told = String::new();
    loop {
        match claims::claim(&file, Process::own(), start.step, whole, need)? {
            Claimed::Yes(claim) => return Ok(Some(claim)),
            Claimed::Never(why) => return Err(CliError::failed(why)),
            Claimed::Busy(why) if start.immediate => return Err(CliError::failed(why)),
            Claimed::Busy(why) => {
                if told != why {
                    told.clone_from(&why);
                    events.send(Event::Waiting(why)).await.ok();
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            next = said.next() => match next? {
                None => return Ok(None),
                // A signal for what has not begun ends it.
                Some(Says::Signal(_)) => return Err(CliError::failed("it was ended before it began")),
                Some(_) => {}
            },
        }
    }
}

/// What of a claim is one task's.
struct Share {
    cpus: Vec<u32>,
    /// None: all that the container sees.
    gpus: Option<Vec<String>>,
}

impl Share {
    fn of(start: &v1::StepStart, claim: &Claim, whole: &Whole, local: usize) -> Self {
        let part = |count: usize, length: usize| {
            let from = (local * count).min(length);
            from..(from + count).min(length)
        };
        let each = usize::try_from(start.cpus_per_task).unwrap_or(usize::MAX);
        let range = part(each, claim.cpus.len());
        // Where there are fewer than the tasks ask for, all share them.
        let cpus = if claim.cpus.len() < each.saturating_mul(start.ranks.len()) {
            claim.cpus.clone()
        } else {
            claim.cpus[range].to_vec()
        };
        let gpus = match (&claim.gpus, start.gpus_per_task) {
            (Some(gpus), Some(each)) => Some(gpus[part(each as usize, gpus.len())].to_vec()),
            (Some(gpus), None) => Some(gpus.clone()),
            (None, _) => None,
        };
        // Nothing is said where everything is meant.
        let gpus = gpus.filter(|gpus| *gpus != whole.gpus);
        Self { cpus, gpus }
    }
}

/// Where a task's input goes.
type Stdin = Box<dyn AsyncWrite + Unpin + Send>;

/// The tasks that have begun.
struct Running {
    events: mpsc::Sender<Event>,
    copies: Copies,
    step: u32,
    /// Process groups, by rank.
    groups: BTreeMap<u32, Pid>,
    inputs: Arc<Mutex<Vec<Stdin>>>,
    terminal: Option<OwnedFd>,
    ended: mpsc::Receiver<u32>,
    ends: mpsc::Sender<u32>,
    node: String,
    node_index: u32,
}

impl Running {
    fn new(start: &v1::StepStart, step: u32, events: mpsc::Sender<Event>, copies: Copies) -> Self {
        let (ends, ended) = mpsc::channel(QUEUE);
        let index = usize::try_from(start.node_index).unwrap_or(usize::MAX);
        Self {
            events,
            copies,
            step,
            groups: BTreeMap::new(),
            inputs: Arc::default(),
            terminal: None,
            ended,
            ends,
            node: start.nodes.get(index).cloned().unwrap_or_default(),
            node_index: start.node_index,
        }
    }

    /// Begins a task, or says why it could not.
    async fn begin(&mut self, start: &v1::StepStart, rank: u32, share: &Share, env: Variables) {
        match self.try_begin(start, rank, share, env) {
            Ok(pid) => {
                self.groups.insert(rank, pid);
                let pid = u32::try_from(pid.as_raw()).unwrap_or_default();
                self.events
                    .send(Event::Started(v1::StepStarted { rank, pid }))
                    .await
                    .ok();
            }
            Err(error) => {
                let failed = v1::StepExited {
                    rank,
                    status: 1,
                    failure: error.message,
                    ..Default::default()
                };
                self.events.send(Event::Exited(failed)).await.ok();
            }
        }
    }

    fn try_begin(&mut self, start: &v1::StepStart, rank: u32, share: &Share, env: Variables) -> Result<Pid> {
        let program = std::env::current_exe().context("where this program is")?;
        let terminal = start.terminal.filter(|_| start.ranks.first() == Some(&rank));
        let mut command = Command::new(program);
        command
            .arg(task::VERB)
            .arg("--parent")
            .arg(std::process::id().to_string());
        if !share.cpus.is_empty() {
            let cpus: Vec<String> = share.cpus.iter().map(ToString::to_string).collect();
            command.arg("--cpus").arg(cpus.join(","));
        }
        if terminal.is_some() {
            command.arg("--terminal");
        } else {
            command.process_group(0);
        }
        let directory = [
            start.workdir.as_str(),
            env.get("HOME").map_or("/", String::as_str),
            "/",
        ]
        .into_iter()
        .find(|directory| Path::new(directory).is_dir());
        command.current_dir(directory.unwrap_or("/"));
        command.arg("--").args(&start.command);
        command.env_clear().envs(env);
        command.kill_on_drop(true);
        if let Some(size) = terminal {
            command.env("TERM", &start.term);
            return self.begin_at_terminal(command, rank, size);
        }
        let fed = start.input.contains(&rank);
        command.stdin(if fed { Stdio::piped() } else { Stdio::null() });
        let (mut out, errors) = self.files(start, rank)?;
        let both = start.stderr.is_empty() && !start.stdout.is_empty();
        let mut streams: Vec<Stream> = Vec::new();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if both {
            // One pipe, so that what goes to one file has one order.
            let (reader, writer) = std::io::pipe().context("a pipe for the task")?;
            let copy = writer.try_clone().context("a pipe for the task")?;
            command.stdout(writer).stderr(copy);
            let reader = pipe::Receiver::from_owned_fd(reader.into()).context("a pipe for the task")?;
            streams.push(Stream::new(false, reader, out.take()));
        }
        let mut child = spawn(&mut command)?;
        // The child's copies are the task's.
        drop(command);
        let pid = pid_of(&child);
        if let Some(stdin) = child.stdin.take() {
            let inputs = Arc::clone(&self.inputs);
            // Nobody else has it yet.
            if let Ok(mut inputs) = inputs.try_lock() {
                inputs.push(Box::new(stdin));
            }
        }
        if let Some(stdout) = child.stdout.take() {
            streams.push(Stream::new(false, stdout, out));
        }
        if let Some(stderr) = child.stderr.take() {
            streams.push(Stream::new(true, stderr, errors));
        }
        self.follow(child, rank, streams, Some(self.copies.clone()));
        Ok(pid)
    }

    fn begin_at_terminal(&mut self, mut command: Command, rank: u32, size: v1::StepWindow) -> Result<Pid> {
        let what = "a terminal for the task";
        let pty = nix::pty::openpty(Some(&window::of(size)), None)
            .map_err(std::io::Error::from)
            .context(what)?;
        let side = |fd: &OwnedFd| fd.try_clone().map(Stdio::from).context(what);
        command
            .stdin(side(&pty.slave)?)
            .stdout(side(&pty.slave)?)
            .stderr(Stdio::from(pty.slave));
        let child = spawn(&mut command)?;
        let pid = pid_of(&child);
        // The child's copies are the command's.
        drop(command);
        nix::fcntl::fcntl(
            &pty.master,
            nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK),
        )
        .map_err(std::io::Error::from)
        .context(what)?;
        let copy = pty.master.try_clone().context(what)?;
        let reader =
            pipe::Receiver::from_owned_fd_unchecked(pty.master.try_clone().context(what)?).context(what)?;
        let writer = pipe::Sender::from_owned_fd_unchecked(copy).context(what)?;
        if let Ok(mut inputs) = self.inputs.try_lock() {
            inputs.push(Box::new(writer));
        }
        self.terminal = Some(pty.master);
        // What a terminal shows is no text to keep.
        self.follow(child, rank, vec![Stream::new(false, reader, None)], None);
        Ok(pid)
    }

    fn follow(&self, child: Child, rank: u32, streams: Vec<Stream>, copies: Option<Copies>) {
        let heard = Heard {
            rank,
            events: self.events.clone(),
            copies,
        };
        tokio::spawn(follow(child, streams, heard, self.ends.clone()));
    }

    /// The files of a task's output, where such are asked for.
    fn files(&self, start: &v1::StepStart, rank: u32) -> Result<(Option<File>, Option<File>)> {
        let open = |pattern: &str| {
            if pattern.is_empty() {
                return Ok(None);
            }
            let name = file_name::of_task(pattern, rank, self.step, self.node_index, &self.node);
            let path = Path::new(&start.workdir).join(name);
            // Tasks that share a file write one after the other; the first of them empties it.
            let empties = file_name::is_one_tasks(pattern) || start.ranks.first() == Some(&rank);
            if !start.append && empties {
                File::create(&path).map_err(|error| cannot_write(&path, &error))?;
            }
            let opened = File::options().create(true).append(true).open(&path);
            opened.map(Some).map_err(|error| cannot_write(&path, &error))
        };
        Ok((open(&start.stdout)?, open(&start.stderr)?))
    }

    /// Until the last task is over, or the client has gone.
    async fn until_over(mut self, said: &mut Said) -> Result<()> {
        while !self.groups.is_empty() {
            // Both are safe to cancel.
            tokio::select! {
                rank = self.ended.recv() => if let Some(rank) = rank {
                    self.groups.remove(&rank);
                },
                next = said.next() => match next {
                    Ok(Some(says)) => self.obey(says),
                    Ok(None) | Err(_) => return self.end().await,
                },
            }
        }
        Ok(())
    }

    fn obey(&mut self, says: Says) {
        match says {
            Says::Signal(number) => {
                if let Ok(signal) = Signal::try_from(number) {
                    self.signal(signal);
                }
            }
            Says::Input(input) => self.feed(input),
            Says::Window(size) => {
                if let Some(terminal) = &self.terminal {
                    window::set(terminal.as_fd(), size);
                }
            }
            Says::Start(_) | Says::Go(_) => {}
        }
    }

    fn signal(&self, signal: Signal) {
        for group in self.groups.values() {
            // One that has just ended needs none.
            killpg(*group, signal).ok();
        }
    }

    /// Hands input to the tasks, in the background: one that does not read holds up nothing but input.
    fn feed(&self, input: v1::StepInput) {
        let (inputs, events) = (Arc::clone(&self.inputs), self.events.clone());
        let mut input = input;
        if input.end && self.terminal.is_some() {
            input.data.push(END_OF_INPUT);
        }
        tokio::spawn(async move {
            let mut inputs = inputs.lock().await;
            let mut open = Vec::with_capacity(inputs.len());
            for mut task in inputs.drain(..) {
                // A task that reads no more is none of the input's.
                if task.write_all(&input.data).await.is_ok() && task.flush().await.is_ok() {
                    open.push(task);
                }
            }
            if !input.end {
                *inputs = open;
            }
            events.send(Event::InputTaken(v1::StepGo {})).await.ok();
        });
    }

    /// The client has gone: so do the tasks.
    async fn end(mut self) -> Result<()> {
        for (signal, patience) in [(Signal::SIGTERM, GRACE), (Signal::SIGKILL, GRACE)] {
            self.signal(signal);
            self.signal(Signal::SIGCONT);
            let all_over = async {
                while !self.groups.is_empty() {
                    if let Some(rank) = self.ended.recv().await {
                        self.groups.remove(&rank);
                    }
                }
            };
            if tokio::time::timeout(patience, all_over).await.is_ok() {
                break;
            }
        }
        Ok(())
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> CliError {
    CliError::failed(format!("cannot write {}: {error}", path.display()))
}

fn spawn(command: &mut Command) -> Result<Child> {
    command.spawn().context("a task cannot be started")
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(
        child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .unwrap_or(i32::MAX),
    )
}

/// One of a task's outputs.
struct Stream {
    stderr: bool,
    from: Box<dyn AsyncRead + Unpin + Send>,
    /// None: it is sent to the client.
    file: Option<tokio::fs::File>,
}

impl Stream {
    fn new(stderr: bool, from: impl AsyncRead + Unpin + Send + 'static, file: Option<File>) -> Self {
        Self {
            stderr,
            from: Box::new(from),
            file: file.map(tokio::fs::File::from_std),
        }
    }
}

/// Who hears what a task says.
#[derive(Clone)]
struct Heard {
    rank: u32,
    events: mpsc::Sender<Event>,
    /// None: nothing of it is kept.
    copies: Option<Copies>,
}

impl Heard {
    /// Hands on all that comes from an output, until its end or until nothing came for a while after the task's.
    async fn hear(self, stream: Stream, mut is_over: watch::Receiver<bool>) {
        let Stream {
            stderr,
            mut from,
            mut file,
        } = stream;
        let mut buffer = BytesMut::with_capacity(READ);
        let mut wanted = true;
        loop {
            buffer.reserve(READ);
            // Both are safe to cancel. How long the client takes for what was read counts for nothing.
            let read = tokio::select! {
                read = from.read_buf(&mut buffer) => read,
                () = silence(&mut is_over) => break,
            };
            // A terminal whose last process has gone says so with an error.
            if !read.is_ok_and(|read| read > 0) {
                break;
            }
            if let Some(copies) = &self.copies {
                copies.add(self.rank, &buffer);
            }
            let data = buffer.split();
            if !wanted {
                // The task is not held up.
            } else if let Some(out) = &mut file {
                if let Err(error) = out.write_all(&data).await {
                    self.lost(&error).await;
                    wanted = false;
                }
            } else {
                let (rank, data) = (self.rank, data.to_vec());
                let output = v1::StepOutput { rank, stderr, data };
                wanted = self.events.send(Event::Output(output)).await.is_ok();
            }
        }
        if let Some(out) = file.as_mut().filter(|_| wanted)
            && let Err(error) = out.flush().await
        {
            self.lost(&error).await;
        }
    }

    /// The file takes no more.
    async fn lost(&self, error: &std::io::Error) {
        let note = format!("the output file of task {} cannot be written: {error}", self.rank);
        self.events.send(Event::Note(note)).await.ok();
    }
}

/// So long nothing came after the task's end.
async fn silence(is_over: &mut watch::Receiver<bool>) {
    // The other end lives as long as whoever reads.
    is_over.wait_for(|over| *over).await.ok();
    tokio::time::sleep(AFTERWARDS).await;
}

/// Tells what a task writes, and then how it ended.
async fn follow(mut child: Child, streams: Vec<Stream>, heard: Heard, ends: mpsc::Sender<u32>) {
    let (rank, events) = (heard.rank, heard.events.clone());
    let mut readers = tokio::task::JoinSet::new();
    let (over, is_over) = watch::channel(false);
    for stream in streams {
        readers.spawn(heard.clone().hear(stream, is_over.clone()));
    }
    let status = child.wait().await;
    over.send_replace(true);
    while readers.join_next().await.is_some() {}
    let exited = match status {
        Ok(status) => v1::StepExited {
            rank,
            status: status
                .code()
                .and_then(|code| u32::try_from(code).ok())
                .unwrap_or(0),
            signal: status.signal().unwrap_or(0),
            failure: String::new(),
        },
        Err(error) => v1::StepExited {
            rank,
            status: 1,
            signal: 0,
            failure: format!("how it ended is not known: {error}"),
        },
    };
    events.send(Event::Exited(exited)).await.ok();
    ends.send(rank).await.ok();
}
