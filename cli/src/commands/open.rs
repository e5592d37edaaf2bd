//! `carrel open`: a named session, with an editor in it.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use carrel_proto::v1;
use clap::ValueEnum;
use serde::Serialize;

use crate::batch::environment;
use crate::connect::Client;
use crate::context::{self, Context};
use crate::error::{CliError, Result};
use crate::progress::Progress;
use crate::request::{self, IdleArgs, RequestArgs};
use crate::signals::Signals;
use crate::ssh::access::Access;
use crate::ssh::{client, include};
use crate::start::StartArgs;
use crate::terminal::say;
use crate::wait::{self, End, Limit};
use crate::{output, plan, view};

/// Find or create a named session, and open an editor in it.
///
/// Waits until the session runs, gives it a permanent SSH alias (carrel-NAME, for ssh, scp, rsync
/// and editors), and starts the editor. The alias is written to ~/.ssh/carrel/config, which one
/// Include line in your SSH config brings in.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel open dev --gpus 4 --nvlink --editor cursor\n  \
    carrel open dev                        tomorrow: the same session, as it was\n  \
    carrel open dev --editor none && rsync -a src/ carrel-dev:src/")]
pub struct OpenArgs {
    /// Name of the session
    #[arg(value_name = "NAME", value_parser = context::parse_session, add = super::completion::sessions())]
    pub name: String,
    /// Editor to start [default: the config's, or the first that is installed]
    #[arg(long, value_enum, value_name = "EDITOR", env = "CARREL_EDITOR")]
    pub editor: Option<Editor>,
    /// Folder to open [default: the home directory]
    #[arg(long, value_name = "PATH")]
    pub path: Option<String>,
    /// The SSH config to include the aliases in [default: ~/.ssh/config]
    #[arg(long, value_name = "FILE", env = "CARREL_SSH_CONFIG")]
    pub ssh_config: Option<PathBuf>,
    /// What is asked for.
    #[command(flatten)]
    pub request: RequestArgs,
    /// For how long when nobody uses it.
    #[command(flatten)]
    pub idle: IdleArgs,
    /// When.
    #[command(flatten)]
    pub start: StartArgs,
}

/// Editors that open a folder over SSH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Editor {
    /// VS Code
    Code,
    /// Cursor
    Cursor,
    /// Windsurf
    Windsurf,
    /// VSCodium
    Codium,
    /// No editor: write the alias, say its name
    None,
}

impl Editor {
    const ALL: [Self; 4] = [Self::Code, Self::Cursor, Self::Windsurf, Self::Codium];

    /// Its program; none for none.
    fn program(self) -> Option<&'static str> {
        match self {
            Self::Code => Some("code"),
            Self::Cursor => Some("cursor"),
            Self::Windsurf => Some("windsurf"),
            Self::Codium => Some("codium"),
            Self::None => None,
        }
    }

    /// Scheme of its links.
    fn scheme(self) -> &'static str {
        match self {
            Self::Code | Self::None => "vscode",
            Self::Cursor => "cursor",
            Self::Windsurf => "windsurf",
            Self::Codium => "vscodium",
        }
    }

    fn name(self) -> &'static str {
        self.program().unwrap_or("none")
    }
}

/// What `--output json` prints.
#[derive(Debug, Serialize)]
struct Opened {
    session: view::Session,
    ssh_alias: String,
    /// A job was started by this command.
    started: bool,
    editor: &'static str,
    /// The editor was started.
    opened: bool,
    folder_uri: String,
    link: Option<String>,
}

/// Runs the verb.
pub async fn run(context: &Context, args: OpenArgs) -> Result<u8> {
    let ssh_config = context.ssh_config(args.ssh_config.clone())?;
    let editor = choose_editor(context, &args)?;
    let path = args.path.as_deref().map(checked_path).transpose()?;
    let mut signals = Signals::catch()?;
    let address = context.address()?;
    let mut client = crate::connect::connect(&address).await?;
    let access = Access::prepare(&mut client, &address).await?;

    let (session, started) = find_or_create(context, &mut client, &args).await?;
    let mut progress = Progress::begin();
    let (session, end) =
        wait::until_running(&mut client, session, Limit::None, &mut progress, &mut signals).await?;
    progress.end();
    match end {
        End::Running => {}
        End::Over => return Err(wait::over_error(&session)),
        End::Left(signal) => {
            let name = &session.name;
            if started {
                let job = session.job.as_ref().map_or(0, |job| job.id);
                wait::stop_job(&mut client, &session, job, None).await?;
                say(format_args!("carrel: session {name} is stopped again"));
            } else {
                say(format_args!(
                    "carrel: session {name} was on its way before, and still is"
                ));
            }
            return Ok(signal.exit_code());
        }
        // There is no limit.
        End::TimedOut => {
            return Err(CliError::failed(format!(
                "session {} did not start",
                session.name
            )));
        }
    }

    let alias = access.write_alias(&session)?;
    include_aliases(&ssh_config, &access)?;
    let home = access
        .cluster
        .user
        .as_ref()
        .map(|user| user.home.clone())
        .unwrap_or_default();
    let path = path.unwrap_or(if home.starts_with('/') { home } else { "/".into() });
    let folder = Folder {
        alias: &alias,
        path: &path,
    };
    let editor = editor.unwrap_or(Editor::None);
    let opened = match editor.program() {
        Some(program) => start_editor(program, &folder)?,
        None => false,
    };
    let link = (editor != Editor::None).then(|| folder.link(editor));
    if context.json() {
        output::json(&Opened {
            session: session.into(),
            ssh_alias: alias.clone(),
            started,
            editor: editor.name(),
            opened,
            folder_uri: folder.uri(),
            link,
        })?;
        return Ok(0);
    }
    match link {
        Some(link) if !opened => {
            say(format_args!(
                "carrel: {} is not on the path here; this link opens it:",
                editor.name()
            ));
            output::text(format_args!("{link}\n"))?;
        }
        Some(_) => say(format_args!("carrel: {} opens {alias}:{path}", editor.name())),
        None => output::text(format_args!("{alias}\n"))?,
    }
    Ok(0)
}

async fn find_or_create(
    context: &Context,
    client: &mut Client,
    args: &OpenArgs,
) -> Result<(v1::Session, bool)> {
    for note in args.request.notes() {
        say(format_args!("carrel: {note}"));
    }
    let name = args.name.clone();
    let existing = match client
        .get_session(v1::GetSessionRequest { name: name.clone() })
        .await
    {
        Ok(session) => Some(session.into_inner()),
        Err(status) if status.code() == tonic::Code::NotFound => None,
        Err(status) => return Err(status.into()),
    };
    let mut spec = match &existing {
        None => {
            let base = v1::SessionSpec {
                image: context.config.image.clone().unwrap_or_default(),
                ..Default::default()
            };
            let mut spec = args.request.over(base)?;
            environment::put_tasks(&mut spec, &args.request);
            args.idle.over(&mut spec);
            Some(spec)
        }
        Some(_) if args.request.is_empty() && args.idle.is_empty() => None,
        Some(session) => {
            let mut spec = args.request.over(request::last_spec(session))?;
            environment::put_tasks(&mut spec, &args.request);
            args.idle.over(&mut spec);
            if is_live(session) && differs(session, &spec) {
                say(format_args!(
                    "carrel: session {name} goes on as it was started; `carrel stop {name}` first to have what you ask for now"
                ));
            }
            Some(spec)
        }
    };
    if let Some(spec) = &mut spec
        && let Some(note) = plan::settle_partition(client, spec).await?
    {
        say(format_args!("carrel: {note}"));
    }
    let request = v1::OpenSessionRequest {
        name,
        spec,
        must_start: false,
        request_key: request::new_key(),
        ephemeral: false,
        start: args.start.wish(),
    };
    wait::session_of(wait::open_session(client, request).await?)
}

fn is_live(session: &v1::Session) -> bool {
    use v1::SessionState as S;
    match session.state() {
        S::Pending | S::Starting | S::Running | S::Parked => true,
        S::Stopped | S::Stopping | S::Unspecified => false,
    }
}

/// Whether a live session is not what `spec` asks for.
fn differs(session: &v1::Session, spec: &v1::SessionSpec) -> bool {
    let was = request::last_spec(session);
    let (Some(old), Some(new)) = (&was.resources, &spec.resources) else {
        return true;
    };
    // Zero is "the default", which the live job's own figures are then.
    let other = |old: u64, new: u64| new != 0 && old != new;
    (old.nodes, old.gpus_per_node, old.nvlink) != (new.nodes, new.gpus_per_node, new.nvlink)
        || old.gpu_model != new.gpu_model
        || (&old.unit, old.gpu_memory_bytes) != (&new.unit, new.gpu_memory_bytes)
        || other(old.cpus_per_node.into(), new.cpus_per_node.into())
        || other(old.memory_bytes_per_node, new.memory_bytes_per_node)
        || old.exclusive != new.exclusive
        || (new.memory_bytes_per_node != 0 || new.all_memory) && old.all_memory != new.all_memory
        || was.image != spec.image
        || (&was.env, &was.workdir, &was.mounts, was.root)
            != (&spec.env, &spec.workdir, &spec.mounts, spec.root)
        || (was.end_signal, was.idle_s) != (spec.end_signal, spec.idle_s)
        || other(was.time_limit_s, spec.time_limit_s)
}

/// The editor that was asked for, or the config's, or the first one installed.
fn choose_editor(context: &Context, args: &OpenArgs) -> Result<Option<Editor>> {
    if args.editor.is_some() {
        return Ok(args.editor);
    }
    if let Some(name) = &context.config.editor {
        return Editor::from_str(name, true).map(Some).map_err(|_| {
            CliError::usage(format!("editor = {name:?} in config.toml is not known"))
                .hint("code, cursor, windsurf, codium or none")
        });
    }
    Ok(Editor::ALL
        .into_iter()
        .find(|editor| editor.program().is_some_and(is_installed)))
}

fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

fn checked_path(path: &str) -> Result<String> {
    if path.starts_with('/') && !path.chars().any(char::is_control) {
        Ok(path.to_owned())
    } else {
        Err(CliError::usage(format!(
            "--path {path:?} is not an absolute path in the session"
        )))
    }
}

/// Sees that the user's SSH config includes ours.
fn include_aliases(ssh_config: &std::path::Path, access: &Access) -> Result<()> {
    if include::ensure(ssh_config, &access.config_path())? {
        client::check_version()?;
        say(format_args!(
            "carrel: {} now includes the aliases of your sessions",
            ssh_config.display()
        ));
    }
    Ok(())
}

/// A folder in a session.
struct Folder<'a> {
    alias: &'a str,
    path: &'a str,
}

impl Folder<'_> {
    fn uri(&self) -> String {
        format!("vscode-remote://ssh-remote+{}{}", self.alias, percent(self.path))
    }

    fn link(&self, editor: Editor) -> String {
        format!(
            "{}://vscode-remote/ssh-remote+{}{}",
            editor.scheme(),
            self.alias,
            percent(self.path)
        )
    }
}

/// A path in a URI (RFC 3986).
fn percent(path: &str) -> String {
    let mut text = String::new();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            text.push(byte as char);
        } else {
            text += &format!("%{byte:02X}");
        }
    }
    text
}

/// Starts an editor, which goes on by itself. False when it is not installed.
fn start_editor(program: &str, folder: &Folder<'_>) -> Result<bool> {
    let started = Command::new(program)
        .args(["--folder-uri", &folder.uri()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    match started {
        Ok(status) if status.success() => Ok(true),
        Ok(status) => Err(CliError::failed(format!("{program} failed ({status})"))
            .hint(format!("the session runs: `ssh {}` enters it", folder.alias))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(CliError::failed(format!("cannot start {program}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_uris() {
        let folder = Folder {
            alias: "carrel-dev",
            path: "/home/a b/ü",
        };
        assert_eq!(
            folder.uri(),
            "vscode-remote://ssh-remote+carrel-dev/home/a%20b/%C3%BC"
        );
        assert_eq!(
            folder.link(Editor::Cursor),
            "cursor://vscode-remote/ssh-remote+carrel-dev/home/a%20b/%C3%BC"
        );
    }

    #[test]
    fn a_live_session_differs_only_in_what_is_said() {
        let request = v1::ResourceRequest {
            nodes: 1,
            gpus_per_node: 4,
            cpus_per_node: 32,
            ..Default::default()
        };
        let job = v1::Job {
            request: Some(request),
            time_limit_s: 3600,
            ..Default::default()
        };
        let session = v1::Session {
            job: Some(job),
            image: "torch".into(),
            ..Default::default()
        };
        let same = request::last_spec(&session);
        assert!(!differs(&session, &same));
        let mut defaults = same.clone();
        defaults.resources.as_mut().unwrap().cpus_per_node = 0;
        assert!(!differs(&session, &defaults));
        let mut other = same;
        other.image = "jax".into();
        assert!(differs(&session, &other));
    }
}
