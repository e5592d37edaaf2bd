//! `carrel attach`: the terminals of a session.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use carrel_core::terminal::{Attach, Request, TerminalName, Which};
use carrel_proto::v1;
use prost::Message as _;

use crate::attach::{self, Exit, Left, Way};
use crate::connect::Client;
use crate::context::{Context, Member, no_session};
use crate::error::{CliError, Context as _, Kind, Result};
use crate::shell::{REPORT_VARIABLE, Reported, SSH_FAILED, reported};
use crate::signals::Signals;
use crate::ssh::access::Access;
use crate::ssh::alias;
use crate::ssh::client::{Route, cannot_start, shell_word};
use crate::{output, terminal, units, view};

/// Attach to a terminal of a session: a shell that goes on when nobody looks.
///
/// `carrel alloc` and `carrel ssh NAME` open such terminals. Without --terminal or --new it is the
/// one that was used last, or a new one if there is none. What it showed last is shown again (up to
/// 1 MiB), and a program that draws the whole screen is asked to do so anew. Any number of people,
/// up to 32, may look at one; it has the size of whoever typed or came last.
///
/// Closing the window, or SSH's escape `~.` at the beginning of a line, leaves it; it goes on, and so
/// does all that runs in it, until its shell exits or the job ends. When the connection breaks, this
/// program attaches again by itself, and Ctrl-C meanwhile gives up. The shell's exit code is this
/// program's, also when the shell ended while nobody looked.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel attach dev\n  \
    carrel attach dev --list\n  \
    carrel attach dev --terminal 2 --read-only   look over somebody's shoulder\n  \
    carrel attach dev --new=build -- make -j     a command that goes on without you\n  \
    carrel attach dev.1                          on the gang's second node")]
pub struct AttachArgs {
    /// Session, with a rank if wanted: dev, dev.1
    #[arg(value_name = "NAME[.RANK]", add = super::completion::sessions())]
    pub member: Member,
    /// List the terminals instead
    #[arg(short, long, conflicts_with_all = ["terminal", "new", "read_only"])]
    pub list: bool,
    /// This terminal: its number, or its name
    #[arg(short, long, value_name = "ID|NAME", value_parser = parse_terminal, conflicts_with = "new")]
    pub terminal: Option<Which>,
    /// A new terminal, by this name if one is given
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = parse_new, conflicts_with = "read_only")]
    pub new: Option<New>,
    /// Only look: nothing that is typed arrives, and the size stays
    #[arg(short, long)]
    pub read_only: bool,
    /// Command for the new terminal, in place of a login shell
    #[arg(last = true, value_name = "CMD", requires = "new")]
    pub command: Vec<String>,
}

/// A terminal to be made.
#[derive(Clone, Debug)]
pub struct New(Option<TerminalName>);

fn parse_new(text: &str) -> Result<New, String> {
    let name = Some(text).filter(|text| !text.is_empty());
    let name = name.map(str::parse).transpose();
    name.map(New)
        .map_err(|error: carrel_core::terminal::RequestError| error.to_string())
}

fn parse_terminal(text: &str) -> Result<Which, String> {
    if let Ok(number) = text.parse() {
        return Ok(Which::Number(number));
    }
    text.parse()
        .map(Which::Named)
        .map_err(|error: carrel_core::terminal::RequestError| error.to_string())
}

/// Runs the verb.
pub async fn run(context: &Context, args: AttachArgs) -> Result<u8> {
    if !args.list && !terminal::is_interactive() {
        return Err(
            CliError::usage("a terminal is needed to attach one to").hint(format!(
                "`carrel ssh {} COMMAND` runs a command without",
                args.member
            )),
        );
    }
    let mut signals = Signals::catch()?;
    let address = context.address()?;
    let mut client = crate::connect::connect(&address).await?;
    let session = running(&mut client, &args.member.session).await?;
    let access = Access::prepare(&mut client, &address).await?;
    let mut route = access.route(&session, args.member.rank);
    route.start = false;
    if args.list {
        return list(context, &route).await;
    }
    let which = match (args.terminal, args.new) {
        (_, Some(New(name))) => Which::New {
            name,
            command: (!args.command.is_empty()).then(|| line_of(&args.command)),
        },
        (Some(which), None) => which,
        (None, None) => Which::Latest,
    };
    let mut asked = Attach::new(which);
    asked.read_only = args.read_only;
    asked.job = session.job.as_ref().map(|job| job.id);
    let mut way = Way {
        client: &mut client,
        address: &address,
        route,
    };
    let left = attach::run(&mut way, asked, &mut signals).await?;
    outcome(&session.name, &args.member.to_string(), left)
}

/// The program's exit code for how a terminal was left, of which it is said what became.
pub fn outcome(session: &str, member: &str, left: Left) -> Result<u8> {
    match left {
        Left::Exited(exit) => Ok(code(exit)),
        Left::Detached => {
            terminal::say(format_args!(
                "carrel: left; the terminal goes on: `carrel attach {member}` returns to it"
            ));
            Ok(0)
        }
        Left::GivenUp => Err(CliError::new(
            Kind::Interrupted,
            format!("not reattached; the terminal in session {session} goes on"),
        )
        .hint(format!("`carrel attach {member}` returns to it"))),
        Left::Over => Err(
            CliError::new(Kind::Connection, format!("session {session} has ended"))
                .hint(format!("`carrel show {session}` says how")),
        ),
        Left::Refused(why) => Err(CliError::failed(format!("{session}: {why}"))
            .hint(format!("`carrel attach {member} --list` shows its terminals"))),
        Left::NoConnection(why) => Err(no_connection(session, &why)),
        Left::Signal(signal) => Ok(signal.exit_code()),
    }
}

/// The exit code that says how a command ended.
pub fn code(exit: Exit) -> u8 {
    match exit {
        Exit::Code(code) => code,
        Exit::Signal(signal) => 128_u8.saturating_add(u8::try_from(signal).unwrap_or(127)),
    }
}

fn no_connection(session: &str, why: &str) -> CliError {
    CliError::new(
        Kind::Connection,
        format!("no connection to session {session}: {why}"),
    )
}

/// A command line for the user's shell in the session that runs exactly these words.
pub fn line_of(command: &[String]) -> Vec<u8> {
    let words: Vec<_> = command.iter().map(|word| shell_word(word)).collect();
    words.join(" ").into_bytes()
}

/// The session, which has to run.
async fn running(client: &mut Client, name: &str) -> Result<v1::Session> {
    let request = v1::GetSessionRequest {
        name: name.to_owned(),
    };
    let session = client
        .get_session(request)
        .await
        .map_err(|status| no_session(name, status))?
        .into_inner();
    if session.state() != v1::SessionState::Running {
        let state = view::session_state(session.state());
        return Err(
            CliError::failed(format!("session {name} is {state}, and has no terminals"))
                .hint(format!("`carrel ssh {name}` starts it, with a terminal")),
        );
    }
    Ok(session)
}

async fn list(context: &Context, route: &Route) -> Result<u8> {
    let terminals = ask(route).await?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as i64);
    if context.json() {
        let all: Vec<_> = terminals.into_iter().map(view::Terminal::from).collect();
        output::json(&all)?;
    } else if terminals.is_empty() {
        terminal::say("carrel: no terminals");
    } else {
        let header = ["ID", "NAME", "COMMAND", "SIZE", "VIEWERS", "AGE", "IDLE", "STATE"];
        let rows = terminals.iter().map(|terminal| row(terminal, now));
        output::text(output::table(header, rows))?;
    }
    Ok(0)
}

fn row(terminal: &v1::Terminal, now: i64) -> [String; 8] {
    let command = match terminal.command.as_str() {
        "" => "(shell)".to_owned(),
        line => line.to_owned(),
    };
    let viewers = match (terminal.writers, terminal.readers) {
        (writers, 0) => writers.to_string(),
        (writers, readers) => format!("{writers} + {readers} read-only"),
    };
    let age = u64::try_from(now - terminal.created_ms).unwrap_or(0);
    [
        terminal.id.to_string(),
        terminal.name.clone(),
        command,
        format!("{}x{}", terminal.columns, terminal.rows),
        viewers,
        units::clock(Duration::from_millis(age)),
        units::clock(Duration::from_millis(terminal.idle_ms)),
        view::terminal_state(terminal),
    ]
}

/// Asks the session for its terminals.
async fn ask(route: &Route) -> Result<Vec<v1::Terminal>> {
    let report = tempfile::NamedTempFile::new().context("cannot make a temporary file")?;
    let mut ssh = tokio::process::Command::from(route.command()?);
    ssh.args(["-T", "-s", "--", &alias::name_of(&route.session)]);
    ssh.arg(Request::List.to_string());
    ssh.env(REPORT_VARIABLE, report.path());
    ssh.stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::inherit());
    let output = ssh.output().await.map_err(|error| cannot_start(&error))?;
    if !output.status.success() {
        let why = match reported(report.path()) {
            Some(Reported::NoConnection(why) | Reported::Broken(why)) => why,
            None => format!("ssh failed ({})", output.status),
        };
        debug_assert_eq!(Kind::Connection.exit_code(), SSH_FAILED);
        return Err(no_connection(&route.session, &why));
    }
    let list = v1::TerminalList::decode(&output.stdout[..]).context("the session's list of terminals")?;
    Ok(list.terminals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_for_each_terminal() {
        let shell = v1::Terminal {
            id: 1,
            columns: 120,
            rows: 40,
            writers: 1,
            created_ms: 1_000_000,
            idle_ms: 61_000,
            ..Default::default()
        };
        let build = v1::Terminal {
            id: 2,
            name: "build".into(),
            command: "make -j".into(),
            readers: 2,
            exit: Some(v1::TerminalExit { status: 2, signal: 0 }),
            ..shell.clone()
        };
        let killed = v1::Terminal {
            id: 3,
            exit: Some(v1::TerminalExit { status: 0, signal: 9 }),
            ..shell.clone()
        };
        let rows = [&shell, &build, &killed].map(|terminal| row(terminal, 4_600_000));
        insta::assert_snapshot!(output::table(["ID", "NAME", "COMMAND", "SIZE", "VIEWERS", "AGE", "IDLE", "STATE"], rows), @"
        ID  NAME   COMMAND  SIZE    VIEWERS          AGE      IDLE  STATE
        1          (shell)  120x40  1                1:00:00  1:01  running
        2   build  make -j  120x40  1 + 2 read-only  1:00:00  1:01  exited 2
        3          (shell)  120x40  1                1:00:00  1:01  killed by signal 9
        ");
    }

    #[test]
    fn terminals_are_named_by_number_or_name() {
        assert_eq!(parse_terminal("2"), Ok(Which::Number(2)));
        assert_eq!(
            parse_terminal("build"),
            Ok(Which::Named("build".parse().unwrap()))
        );
        assert!(parse_terminal("Build it").is_err());
        assert!(parse_new("").unwrap().0.is_none());
        assert!(parse_new("7").is_err());
    }
}
