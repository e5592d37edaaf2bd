//! `carrel up`: a cluster of this machine.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;

use carrel_proto::v1;

use crate::connect::Address;
use crate::context::Context;
use crate::error::{CliError, Context as _, Kind, Result};
use crate::paths;
use crate::signals::{Signal, Signals};
use crate::terminal::say;
use crate::up::{Cluster, Plan};

/// Start a broker, a gateway and this machine's agent, until Ctrl-C.
///
/// The same programs as in production, with a state directory of their own. At the end every
/// session is stopped and nothing is left running; the sessions and what they keep are there again
/// at the next start. A second Ctrl-C hurries. Needs root, since it starts containers.
///
/// broker.toml and node.toml in the state directory hold settings, as in /etc/carrel elsewhere.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel up\n  \
    carrel up --import local/debian=debian.tar --default-image local/debian\n  \
    carrel up -- carrel alloc --gpus 1 -- nvidia-smi   up, run, down, with its exit code")]
pub struct UpArgs {
    /// State directory [default: $XDG_STATE_HOME/carrel/up]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// NVML library that the agent finds GPUs through [default: the system's]
    #[arg(long, value_name = "FILE")]
    pub nvml_library: Option<PathBuf>,
    /// The agent's config file [default: node.toml in the state directory]
    #[arg(long, value_name = "FILE")]
    pub node_config: Option<PathBuf>,
    /// Import an image archive under a name; may be repeated
    #[arg(long, value_name = "NAME=FILE", value_parser = parse_import)]
    pub import: Vec<(String, PathBuf)>,
    /// Image of sessions that name none [default: the broker's]
    #[arg(long, visible_alias = "image", value_name = "IMAGE")]
    pub default_image: Option<String>,
    /// Command to run once it is up, with CARREL_BROKER set; its end ends everything
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
}

fn parse_import(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, file)) if !name.is_empty() && !file.is_empty() => Ok((name.to_owned(), file.into())),
        Some(_) | None => Err("an import is NAME=FILE".into()),
    }
}

/// Runs the verb.
pub async fn run(_context: &Context, args: UpArgs) -> Result<u8> {
    if !nix::unistd::geteuid().is_root() {
        return Err(CliError::new(
            Kind::Denied,
            "`carrel up` starts containers on this machine, which only root may",
        )
        .hint("sudo carrel up; on a cluster, `carrel login` is all that a user needs"));
    }
    let plan = plan(&args)?;
    // Under sudo, others than this user will want to use it.
    let found_by_itself = args.state.is_none() && std::env::var_os("SUDO_USER").is_none();
    let mut signals = Signals::catch()?;
    let mut cluster = Cluster::new(plan)?;
    let code = match until_left(&mut cluster, &args, found_by_itself, &mut signals).await {
        Ok(Left::Command(code)) => Ok(code),
        Ok(Left::Signal(signal)) => {
            say("carrel: stopping (again Ctrl-C: at once)");
            // To be told to end is this command's ordinary end.
            Ok(if args.command.is_empty() && signal == Signal::Interrupt {
                0
            } else {
                signal.exit_code()
            })
        }
        Err(error) => Err(error),
    };
    let ended = take_down(&mut cluster, &mut signals).await;
    match (code, ended) {
        (Ok(code), Ok(())) => Ok(code),
        (Ok(_), Err(error)) | (Err(error), Ok(())) => Err(error),
        (Err(error), Err(second)) => {
            crate::terminal::show_error(&second);
            Err(error)
        }
    }
}

fn plan(args: &UpArgs) -> Result<Plan> {
    let dir = match &args.state {
        Some(dir) => dir.clone(),
        None => paths::up_dir()?,
    };
    let absolute = |path: &PathBuf| std::path::absolute(path).context(format_args!("{}", path.display()));
    let existing = |path: &PathBuf| {
        let path = absolute(path)?;
        if path.exists() {
            Ok(path)
        } else {
            Err(CliError::usage(format!("{} does not exist", path.display())))
        }
    };
    let dir = absolute(&dir)?;
    Ok(Plan {
        node_config: match &args.node_config {
            Some(file) => existing(file)?,
            None => dir.join("node.toml"),
        },
        dir,
        nvml_library: args.nvml_library.as_ref().map(existing).transpose()?,
        imports: args
            .import
            .iter()
            .map(|(name, file)| Ok((name.clone(), existing(file)?)))
            .collect::<Result<_>>()?,
        default_image: args.default_image.clone(),
    })
}

enum Left {
    Command(u8),
    Signal(Signal),
}

/// Starts the cluster, and runs the command or waits to be told to end.
async fn until_left(
    cluster: &mut Cluster,
    args: &UpArgs,
    found_by_itself: bool,
    signals: &mut Signals,
) -> Result<Left> {
    // A start that is cut off leaves programs that `take_down` knows of, or that end with this one.
    let node = tokio::select! {
        node = cluster.start() => node?,
        signal = signals.next() => return Ok(Left::Signal(signal)),
    };
    let address = cluster.address();
    say(format_args!(
        "carrel: node {} is up: {}",
        node.name,
        describe(&node)
    ));
    if args.command.is_empty() {
        say(usage(&address, found_by_itself));
        return tokio::select! {
            error = cluster.broken() => Err(error),
            signal = signals.next() => Ok(Left::Signal(signal)),
        };
    }
    run_command(cluster, &args.command, &address, signals).await
}

fn describe(node: &v1::Node) -> String {
    let inventory = node.inventory.clone().unwrap_or_default();
    let total = inventory.gpus.len();
    let usable = inventory.gpus.iter().filter(|gpu| gpu.drained.is_empty()).count();
    let mut text = match inventory.gpus.first() {
        Some(gpu) if usable == total => format!("{total} x {}", gpu.model),
        Some(gpu) => format!(
            "{usable} usable of {total} x {} (`carrel nodes` says why)",
            gpu.model
        ),
        None => "no GPUs".to_owned(),
    };
    text += &format!(
        ", {}, {}",
        crate::units::counted(inventory.cpus, "CPU"),
        crate::units::bytes(inventory.memory_bytes)
    );
    if !inventory.gpu_note.is_empty() {
        text += &format!(" ({})", inventory.gpu_note);
    }
    text
}

fn usage(address: &Address, found_by_itself: bool) -> String {
    let export = if found_by_itself {
        String::new()
    } else {
        format!("  export CARREL_BROKER={address}\n")
    };
    format!(
        "carrel: from another terminal:\n{export}  carrel alloc --gpus 1\n  carrel open dev\ncarrel: Ctrl-C ends it"
    )
}

/// Runs the command in the terminal's foreground.
async fn run_command(
    cluster: &mut Cluster,
    command: &[String],
    address: &Address,
    signals: &mut Signals,
) -> Result<Left> {
    let [program, rest @ ..] = command else {
        return Err(CliError::usage("a command is needed after --"));
    };
    let mut child = tokio::process::Command::new(program)
        .args(rest)
        .env("CARREL_BROKER", address.to_string())
        .spawn()
        .context(format_args!("cannot start {program}"))?;
    let pid = child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .map(nix::unistd::Pid::from_raw);
    let pass_on = |signal| {
        if let Some(pid) = pid {
            // One that has ended meanwhile needs no signal.
            nix::sys::signal::kill(pid, signal).ok();
        }
    };
    loop {
        // Safe to cancel: exits and signals are kept until they are taken.
        tokio::select! {
            status = child.wait() => {
                let status = status.context(format_args!("cannot wait for {program}"))?;
                let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
                return Ok(Left::Command(u8::try_from(code).unwrap_or(1)));
            }
            error = cluster.broken() => {
                pass_on(nix::sys::signal::Signal::SIGTERM);
                child.wait().await.context(format_args!("cannot wait for {program}"))?;
                return Err(error);
            }
            signal = signals.next() => match signal {
                // The terminal sent it to the command as well, whose affair it is.
                Signal::Interrupt => {}
                Signal::Terminate => pass_on(nix::sys::signal::Signal::SIGTERM),
                Signal::HangUp => pass_on(nix::sys::signal::Signal::SIGHUP),
            }
        }
    }
}

/// Ends everything; a signal meanwhile skips what only politeness asks for.
async fn take_down(cluster: &mut Cluster, signals: &mut Signals) -> Result<()> {
    let hurried = tokio::select! {
        () = cluster.stop_jobs() => false,
        _ = signals.next() => true,
    };
    cluster.end(hurried).await
}
