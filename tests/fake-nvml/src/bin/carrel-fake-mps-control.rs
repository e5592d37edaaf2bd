//! `nvidia-cuda-mps-control` as far as it can be had without a GPU: daemon, servers and control commands by the rules
//! of "CUDA Multi-Process Service" (Tools and Interface Reference).
//!
//! As the real one, it knows its daemon by `CUDA_MPS_PIPE_DIRECTORY` alone. What a test wants of it stands in files
//! beside the program itself, of which each test has a copy: `mps-faults`, a line each:
//!
//! | fault | meaning |
//! |---|---|
//! | `start exit`, `start hang` | the daemon ends at once; never answers |
//! | `server fail` | no server starts |
//! | `answer hang`, `answer garbage` | so answers every command |
//! | `deaf` | servers do not keep to what their threads are limited to |
//! | `linger` | a server keeps clients that have ended |
//!
//! Each server is written to `busy` (`processes` of a description), and each command to `mps-commands`.
//!
//! `--client SOCKET UID [PERCENT [MEMORY]]` is a CUDA program: it prints what it got, and once more when that was taken
//! from it. It says itself whose it is, so it may be run outside of the container that it stands for. With no more than
//! `--client` it runs in it: socket and limits are what its environment says, and whose it is the kernel tells.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

/// Whoever the kernel says it is.
const SELF: &str = "-";
/// Between two looks at what is waited for.
const POLL: Duration = Duration::from_millis(10);

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["-f"] => daemon(),
        ["--server"] => loop {
            thread::park();
        },
        ["--client"] => client_inside(),
        ["--client", socket, uid, ref limits @ ..] => {
            client(Path::new(socket), &std::process::id().to_string(), uid, limits)
        }
        [] => commands(),
        _ => Err("Unknown option".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn pipes() -> PathBuf {
    env::var_os("CUDA_MPS_PIPE_DIRECTORY").map_or_else(|| "/tmp/nvidia-mps".into(), PathBuf::from)
}

/// A file beside the program.
fn beside(name: &str) -> PathBuf {
    env::current_exe().unwrap_or_default().with_file_name(name)
}

fn fails(fault: &str) -> bool {
    let faults = fs::read_to_string(beside("mps-faults")).unwrap_or_default();
    faults.lines().any(|line| line.trim() == fault)
}

fn note(file: &str, line: &str) -> Result<(), String> {
    let file = OpenOptions::new().create(true).append(true).open(beside(file));
    let written = file.and_then(|mut file| writeln!(file, "{line}"));
    written.map_err(|error| error.to_string())
}

/// What a client may have at most.
#[derive(Clone, Debug)]
struct Limits {
    percent: f64,
    /// MiB; none: no limit.
    memory: Option<u64>,
}

struct Server {
    process: Child,
    uid: u32,
    limits: Limits,
    /// By process: where to tell it that it was terminated.
    clients: BTreeMap<u32, UnixStream>,
}

struct Daemon {
    defaults: Limits,
    server: Option<Server>,
}

type Shared = Arc<Mutex<Daemon>>;

fn lock(daemon: &Shared) -> MutexGuard<'_, Daemon> {
    daemon.lock().unwrap_or_else(PoisonError::into_inner)
}

fn daemon() -> Result<(), String> {
    if fails("start exit") {
        return Err("MPS control daemon failed to start: no CUDA-capable device is detected".into());
    }
    let text = |error: io::Error| error.to_string();
    let (pipes, logs) = (pipes(), env::var("CUDA_MPS_LOG_DIRECTORY").unwrap_or_default());
    fs::create_dir_all(&pipes).map_err(text)?;
    let socket = pipes.join("control");
    if UnixStream::connect(&socket).is_ok() {
        return Err("An instance of this daemon is already running".into());
    }
    if fails("start hang") {
        loop {
            thread::park();
        }
    }
    fs::write(Path::new(&logs).join("control.log"), "Start\n").map_err(text)?;
    fs::write(
        pipes.join("nvidia-cuda-mps-control.pid"),
        format!("{}\n", std::process::id()),
    )
    .map_err(text)?;
    fs::remove_file(&socket).ok();
    let listener = UnixListener::bind(&socket).map_err(text)?;
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).map_err(text)?;
    let daemon = Arc::new(Mutex::new(Daemon {
        defaults: Limits {
            percent: 100.0,
            memory: None,
        },
        server: None,
    }));
    for stream in listener.incoming() {
        let (daemon, stream) = (Arc::clone(&daemon), stream.map_err(text)?);
        thread::spawn(move || serve(&daemon, stream).unwrap_or_else(|error| eprintln!("{error}")));
    }
    Ok(())
}

/// Serves a connection: a line from a program, or commands.
fn serve(daemon: &Shared, stream: UnixStream) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let mut reader = BufReader::new(stream.try_clone().map_err(text)?);
    let mut line = String::new();
    while reader.read_line(&mut line).map_err(text)? > 0 {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["CLIENT", pid, uid, ref rest @ ..] = words[..] {
            let (pid, uid) = match pid {
                SELF => {
                    let own = getsockopt(&stream, PeerCredentials).map_err(|error| error.to_string())?;
                    (own.pid().unsigned_abs(), own.uid())
                }
                _ => (
                    pid.parse().map_err(|_| "a client without a process")?,
                    uid.parse().map_err(|_| "a client without a user")?,
                ),
            };
            return serve_client(daemon, pid, uid, rest, &stream);
        }
        let answer = answer(daemon, &words);
        let quits = words == ["quit"];
        (&stream).write_all(answer.as_bytes()).map_err(text)?;
        (&stream).write_all(b"\0").map_err(text)?;
        if quits {
            std::process::exit(0);
        }
        line.clear();
    }
    Ok(())
}

fn serve_client(
    daemon: &Shared,
    pid: u32,
    uid: u32,
    asked: &[&str],
    stream: &UnixStream,
) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let (server, limits) = loop {
        let mut daemon = lock(daemon);
        // One server, for one user: others wait until its last client has left.
        let idle_of_another = daemon
            .server
            .as_ref()
            .is_some_and(|server| server.uid != uid && server.clients.is_empty());
        if idle_of_another {
            daemon.end_server();
        }
        if daemon.server.is_none() {
            daemon.start_server(uid)?;
        }
        if let Some(server) = daemon.server.as_mut().filter(|server| server.uid == uid) {
            server.clients.insert(pid, stream.try_clone().map_err(text)?);
            break (server.process.id(), server.limits.clone());
        }
        drop(daemon);
        thread::sleep(POLL);
    };
    // What a program says of itself can only be less.
    let percent = asked.first().and_then(|percent| percent.parse::<f64>().ok());
    let percent = percent.unwrap_or(100.0).min(limits.percent);
    let memory = asked.get(1).and_then(|memory| mib(memory.rsplit('=').next()?));
    let memory = memory.into_iter().chain(limits.memory).min();
    let memory = memory.map_or_else(|| "all".to_owned(), |memory| format!("{memory}M"));
    writeln!(&*stream, "server {server}, {percent} %, {memory}").map_err(text)?;
    let mut rest = Vec::new();
    (&*stream).read_to_end(&mut rest).ok();
    while fails("linger") {
        thread::sleep(POLL);
    }
    if let Some(server) = &mut lock(daemon).server {
        server.clients.remove(&pid);
    }
    Ok(())
}

/// "512M" or "2G".
fn mib(text: &str) -> Option<u64> {
    let number = |digits: &str| digits.parse::<u64>().ok();
    match (text.strip_suffix('M'), text.strip_suffix('G')) {
        (Some(mib), _) => number(mib),
        (None, Some(gib)) => Some(number(gib)? << 10),
        (None, None) => None,
    }
}

impl Daemon {
    fn start_server(&mut self, uid: u32) -> Result<(), String> {
        if fails("server fail") {
            return Err("MPS server failed to start".into());
        }
        let program = env::current_exe().map_err(|error| error.to_string())?;
        let process = Command::new(program).arg("--server").uid(uid).spawn();
        let process = process.map_err(|error| error.to_string())?;
        let gpu = env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
        note("busy", &format!("{gpu} {}", process.id()))?;
        self.server = Some(Server {
            process,
            uid,
            limits: self.defaults.clone(),
            clients: BTreeMap::new(),
        });
        Ok(())
    }

    fn end_server(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.process.kill().ok();
            server.process.wait().ok();
        }
    }
}

fn answer(daemon: &Shared, words: &[&str]) -> String {
    note("mps-commands", &words.join(" ")).ok();
    while fails("answer hang") {
        thread::sleep(POLL);
    }
    if fails("answer garbage") {
        return "\u{fffd}\u{1}no such thing\n".into();
    }
    let mut daemon = lock(daemon);
    let daemon = &mut *daemon;
    let of = |pid: &str, server: &Server| pid.parse() == Ok(server.process.id());
    match (words, &mut daemon.server) {
        (["get_server_list"], Some(server)) => format!("{}\n", server.process.id()),
        (["get_client_list", pid], Some(server)) if of(pid, server) => server
            .clients
            .keys()
            .map(|client| format!("{client}\n"))
            .collect(),
        (["start_server", "-uid", uid], None) => {
            let started = uid.parse().map_err(|_| "Invalid UID".to_owned());
            started
                .and_then(|uid| daemon.start_server(uid))
                .err()
                .unwrap_or_default()
        }
        (["set_default_active_thread_percentage", percent], _) => match percent.parse() {
            Ok(percent) if percent > 0.0 && percent <= 100.0 => {
                daemon.defaults.percent = percent;
                format!("{percent:.1}\n")
            }
            _ => "Invalid percentage\n".into(),
        },
        (["get_default_active_thread_percentage"], _) => format!("{:.1}\n", daemon.defaults.percent),
        (["set_active_thread_percentage", pid, percent], Some(server)) if of(pid, server) => {
            if let (Ok(percent), false) = (percent.parse(), fails("deaf")) {
                server.limits.percent = percent;
            }
            String::new()
        }
        (["get_active_thread_percentage", pid], Some(server)) if of(pid, server) => {
            format!("{:.1}\n", server.limits.percent)
        }
        (["set_default_device_pinned_mem_limit", gpu, memory], _) if is_own(gpu) => {
            daemon.defaults.memory = mib(memory);
            String::new()
        }
        (["set_device_pinned_mem_limit", pid, gpu, memory], Some(server))
            if of(pid, server) && is_own(gpu) =>
        {
            server.limits.memory = mib(memory);
            String::new()
        }
        (["terminate_client", pid, client], Some(server)) if of(pid, server) => {
            let client = client
                .parse()
                .ok()
                .and_then(|client: u32| server.clients.get(&client));
            match client.map(|mut stream| stream.write_all(b"terminated\n")) {
                Some(Ok(())) => "0\n".into(),
                Some(Err(_)) | None => "201\n".into(),
            }
        }
        (["quit"], _) => {
            daemon.end_server();
            String::new()
        }
        (["get_server_list"], None) => String::new(),
        _ => "Invalid command\n".into(),
    }
}

fn is_own(gpu: &str) -> bool {
    env::var("CUDA_VISIBLE_DEVICES").is_ok_and(|own| own == gpu)
}

/// Commands from standard input.
fn commands() -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let daemon = UnixStream::connect(pipes().join("control"));
    let daemon = daemon.map_err(|_| "Cannot find MPS control daemon process")?;
    let mut answers = BufReader::new(daemon.try_clone().map_err(text)?);
    for line in io::stdin().lock().lines() {
        writeln!(&daemon, "{}", line.map_err(text)?).map_err(text)?;
        let mut answer = Vec::new();
        answers.read_until(0, &mut answer).map_err(text)?;
        answer.pop();
        io::stdout().write_all(&answer).map_err(text)?;
    }
    Ok(())
}

fn client_inside() -> Result<(), String> {
    let told = |name: &str| env::var(name).unwrap_or_default();
    let percent = told("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    let memory = told("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    client(&pipes().join("control"), SELF, SELF, &[&percent, &memory])
}

fn client(socket: &Path, pid: &str, uid: &str, limits: &[&str]) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let daemon = UnixStream::connect(socket).map_err(text)?;
    let line = format!("CLIENT {pid} {uid} {}", limits.join(" "));
    writeln!(&daemon, "{line}").map_err(text)?;
    for answer in BufReader::new(daemon).lines() {
        println!("{}", answer.map_err(text)?);
    }
    println!("the daemon is gone");
    // It goes on with an error that stays, as programs do that lost their server.
    loop {
        thread::park();
    }
}
