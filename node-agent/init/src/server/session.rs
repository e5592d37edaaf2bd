//! One exec or shell: a process, its files, and the channel that they are joined to.

use std::io;
use std::sync::{Arc, OnceLock};

use bytes::BytesMut;
use carrel_core::terminal::{Screen, notice};
use russh::server::{Handle, Msg};
use russh::{Channel, ChannelId, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Sig};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tracing::debug;

use super::command::{self, Context, Run};
use super::keeper::Process;
use super::pipes::{Sink, Source, input_pipe, output_pipe};
use super::pty::Master;
use super::shared::Shared;
use crate::wire::{self, Exited};

/// Extended data that is stderr (RFC 4254, 5.2).
pub const STDERR: u32 = 1;

/// Exit status of what could not be started.
const STATUS_NOT_STARTED: u32 = 127;

/// What a channel asked for before its command.
pub struct Request {
    pub run: Run,
    /// The terminal, with the side for the child.
    pub terminal: Option<(Arc<AsyncFd<Master>>, std::os::fd::OwnedFd)>,
    /// `NAME`, value.
    pub variables: Vec<(String, String)>,
    /// The allocation's banner is shown.
    pub banner: bool,
}

/// Runs a command to its end and closes the channel. Dropping it hangs a terminal up and closes
/// pipes, as a lost connection does.
pub async fn run(
    shared: Arc<Shared>,
    channel: Channel<Msg>,
    handle: Handle,
    request: Request,
    id: Arc<OnceLock<u64>>,
) {
    shared.touch();
    let (mut from_channel, to_channel) = channel.split();
    let channel_id = to_channel.id();
    if request.banner {
        show_banner(&shared, &to_channel).await;
    }
    match start(&shared, request).await {
        Ok(started) => {
            // Signals that come before this are lost, as they are before a process exists.
            let _ = id.set(started.process.id);
            serve(&shared, started, &mut from_channel, &to_channel, &handle).await;
        }
        Err(text) => {
            debug!(reason = text.trim_end(), "not started");
            // The channel may be gone, here and below.
            let _ = to_channel.extended_data_bytes(STDERR, text.into_bytes()).await;
            let _ = handle.exit_status_request(channel_id, STATUS_NOT_STARTED).await;
        }
    }
    let _ = handle.eof(channel_id).await;
    let _ = handle.close(channel_id).await;
}

async fn show_banner(shared: &Shared, channel: &ChannelWriteHalf<Msg>) {
    let text = banner(shared);
    if !text.is_empty() {
        // The channel may be gone.
        let _ = channel.data_bytes(text.into_bytes()).await;
    }
}

/// The allocation's banner, as a terminal shows it; may be empty.
pub fn banner(shared: &Shared) -> String {
    let settings = shared.settings();
    let mut text = settings.config.banner.replace("\r\n", "\n").replace('\n', "\r\n");
    if !text.is_empty() && !text.ends_with('\n') {
        text.push_str("\r\n");
    }
    text
}

/// What a channel's request executes; an error is what the user is told.
pub fn command(
    shared: &Shared,
    run: &Run,
    variables: Vec<(String, String)>,
) -> Result<wire::Command, String> {
    let settings = shared.settings();
    let identity = settings.identity();
    let context = Context {
        identity: &identity,
        env: &settings.config.env,
        workdir: &settings.config.workdir,
        extra: variables,
        over_ssh: true,
    };
    command::build(run, &context)
}

/// What the user is told when the keeper cannot start a process.
pub fn failed(error: io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::E2BIG) => "carrel: the command and its environment are too long\n".to_owned(),
        Some(libc::EAGAIN) => "carrel: no process can be started: too many run already\n".to_owned(),
        Some(libc::ESHUTDOWN) => "carrel: the session is ending\n".to_owned(),
        _ => format!("carrel: no process can be started: {error}\n"),
    }
}

struct Started {
    process: Process,
    input: Sink,
    output: Source,
    errors: Option<Source>,
}

async fn start(shared: &Shared, request: Request) -> Result<Started, String> {
    let command = command(shared, &request.run, request.variables)?;
    if let Some((master, slave)) = request.terminal {
        let process = shared.keeper.spawn(&command, vec![slave]).await.map_err(failed)?;
        let input = Sink::Terminal(Arc::clone(&master));
        return Ok(Started {
            process,
            input,
            output: Source::Terminal(master),
            errors: None,
        });
    }
    let (input, stdin) = input_pipe().map_err(failed)?;
    let (output, stdout) = output_pipe().map_err(failed)?;
    let (errors, stderr) = output_pipe().map_err(failed)?;
    let process = shared
        .keeper
        .spawn(&command, vec![stdin, stdout, stderr])
        .await
        .map_err(failed)?;
    Ok(Started {
        process,
        input: Sink::Pipe(input),
        output: Source::Pipe(output),
        errors: Some(Source::Pipe(errors)),
    })
}

/// As sshd does: the exit status is sent when the process ends, and the channel closes when its
/// files have ended too, so that what a background process still writes arrives.
async fn serve(
    shared: &Shared,
    started: Started,
    from_channel: &mut ChannelReadHalf,
    to_channel: &ChannelWriteHalf<Msg>,
    handle: &Handle,
) {
    let Started {
        mut process,
        input,
        mut output,
        errors,
    } = started;
    let outputs = async {
        let errors = async {
            if let Some(mut errors) = errors {
                pump(to_channel, Some(STDERR), &mut errors).await;
            }
        };
        let output = async {
            match output {
                Source::Terminal(_) => pump_terminal(to_channel, &mut output, shared.notices()).await,
                Source::Pipe(_) => pump(to_channel, None, &mut output).await,
            }
        };
        tokio::join!(output, errors);
    };
    let ending = async {
        tokio::pin!(outputs);
        tokio::select! {
            exited = &mut process.exited => {
                report(handle, to_channel.id(), exited.ok()).await;
                outputs.await;
            }
            () = &mut outputs => report(handle, to_channel.id(), process.exited.await.ok()).await,
        }
    };
    tokio::select! {
        // Safe to cancel: what was not yet read of the channel is for a process that has ended.
        () = ending => {}
        () = feed(shared, from_channel, input) => {}
    }
}

/// Input to the process; comes back only when the channel is closed.
async fn feed(shared: &Shared, from: &mut ChannelReadHalf, sink: Sink) {
    let terminal = matches!(sink, Sink::Terminal(_));
    let mut sink = Some(sink);
    loop {
        match from.wait().await {
            Some(ChannelMsg::Data { data }) => {
                if terminal {
                    shared.touch();
                } else {
                    shared.carried(data.len());
                }
                if let Some(open) = &mut sink
                    && let Err(error) = open.write_all(&data).await
                {
                    // It reads no more; what still comes is dropped.
                    debug!(%error, "input");
                    sink = None;
                }
            }
            // A terminal has no end of input; a pipe's is its closing.
            Some(ChannelMsg::Eof) if !terminal => sink = None,
            Some(ChannelMsg::Close) | None => return,
            Some(_) => {}
        }
    }
}

/// Output to the channel, no faster than its window.
async fn pump(to: &ChannelWriteHalf<Msg>, extended: Option<u32>, source: &mut Source) {
    let mut buffer = BytesMut::new();
    loop {
        match source.read(&mut buffer).await {
            Ok(length) if length > 0 => {}
            Ok(_) => return,
            Err(error) => {
                debug!(%error, "output");
                return;
            }
        }
        let bytes = buffer.split().freeze();
        let sent = match extended {
            None => to.data_bytes(bytes).await,
            Some(kind) => to.extended_data_bytes(kind, bytes).await,
        };
        if sent.is_err() {
            return;
        }
    }
}

/// A terminal's output, and between its sequences what its user is to be told.
async fn pump_terminal(
    to: &ChannelWriteHalf<Msg>,
    source: &mut Source,
    mut notices: watch::Receiver<String>,
) {
    let mut buffer = BytesMut::new();
    let mut screen = Screen::default();
    let mut waiting: Option<String> = None;
    loop {
        // Each arm only waits: a read that is cancelled has taken nothing.
        let read = tokio::select! {
            read = source.read(&mut buffer) => Some(read),
            Ok(()) = notices.changed() => None,
        };
        match read {
            Some(Ok(length)) if length > 0 => screen.advance(&buffer),
            Some(Ok(_)) => return,
            Some(Err(error)) => {
                debug!(%error, "output");
                return;
            }
            None => {
                buffer.clear();
                waiting = Some(notices.borrow_and_update().clone());
            }
        }
        let mut bytes = buffer.split();
        if let Some(told) = waiting.as_ref().and_then(|text| notice(text, &screen)) {
            waiting = None;
            bytes.extend_from_slice(&told);
        }
        if !bytes.is_empty() && to.data_bytes(bytes.freeze()).await.is_err() {
            return;
        }
    }
}

/// Tells a client how its command ended.
pub async fn report(handle: &Handle, channel: ChannelId, exited: Option<Exited>) {
    let Some(exited) = exited else { return };
    // The connection may be gone.
    if exited.signal == 0 {
        let _ = handle.exit_status_request(channel, exited.status).await;
    } else {
        let name = signal_name(exited.signal);
        let _ = handle
            .exit_signal_request(channel, name, exited.core_dumped, String::new(), String::new())
            .await;
    }
}

/// Names of RFC 4254, 6.10; others as OpenSSH has them.
fn signal_name(number: i32) -> Sig {
    match number {
        libc::SIGABRT => Sig::ABRT,
        libc::SIGALRM => Sig::ALRM,
        libc::SIGFPE => Sig::FPE,
        libc::SIGHUP => Sig::HUP,
        libc::SIGILL => Sig::ILL,
        libc::SIGINT => Sig::INT,
        libc::SIGKILL => Sig::KILL,
        libc::SIGPIPE => Sig::PIPE,
        libc::SIGQUIT => Sig::QUIT,
        libc::SIGSEGV => Sig::SEGV,
        libc::SIGTERM => Sig::TERM,
        libc::SIGUSR1 => Sig::USR1,
        libc::SIGUSR2 => Sig::Custom("USR2".into()),
        libc::SIGBUS => Sig::Custom("BUS@openssh.com".into()),
        other => Sig::Custom(format!("SIG{other}@openssh.com")),
    }
}

/// The number of a signal that a client may send.
pub fn signal_number(signal: &Sig) -> Option<i32> {
    Some(match signal {
        Sig::ABRT => libc::SIGABRT,
        Sig::ALRM => libc::SIGALRM,
        Sig::FPE => libc::SIGFPE,
        Sig::HUP => libc::SIGHUP,
        Sig::ILL => libc::SIGILL,
        Sig::INT => libc::SIGINT,
        Sig::KILL => libc::SIGKILL,
        Sig::PIPE => libc::SIGPIPE,
        Sig::QUIT => libc::SIGQUIT,
        Sig::SEGV => libc::SIGSEGV,
        Sig::TERM => libc::SIGTERM,
        Sig::USR1 => libc::SIGUSR1,
        Sig::Custom(name) => match name.as_str() {
            "USR2" => libc::SIGUSR2,
            "INFO@openssh.com" => return None,
            "CONT" => libc::SIGCONT,
            "STOP" => libc::SIGSTOP,
            "TSTP" => libc::SIGTSTP,
            "WINCH" => libc::SIGWINCH,
            _ => return None,
        },
    })
}
