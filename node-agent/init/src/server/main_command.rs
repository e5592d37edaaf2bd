//! The job's command: what it executes, where, and into which files. Process 1 starts it.

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use carrel_proto::v1::MainCommand;
use nix::unistd::{AccessFlags, access};
use prost::Message;
use tracing::{error, info};

use super::command::{self, Context, Run};
use super::settings::Settings;
use super::shared::Shared;
use crate::files;
use crate::wire;

/// Asks process 1 to start the job's command, once the configuration says that it may begin. Process 1 starts it only
/// once, whoever asks.
pub async fn see_to(shared: &Arc<Shared>) {
    let settings = shared.settings();
    let Some(main) = settings.config.main.clone().filter(|main| main.go) else {
        return;
    };
    if !shared.is_first_to_begin() {
        return;
    }
    // The user's file systems may be slow, or dead.
    let prepared = tokio::task::spawn_blocking(move || prepare(&settings, &main)).await;
    let (asked, files) = prepared.unwrap_or_else(|error| (failed(error.to_string()), Vec::new()));
    info!(failure = asked.failure, "the job's command begins");
    if let Err(error) = shared.keeper.start_main(asked, &files).await {
        error!(%error, "the job's command cannot be started");
    }
}

fn failed(failure: String) -> wire::Main {
    wire::Main {
        failure,
        ..wire::Main::default()
    }
}

/// What process 1 is told, and the files beside it.
fn prepare(settings: &Settings, main: &MainCommand) -> (wire::Main, Vec<OwnedFd>) {
    match try_prepare(settings, main) {
        Ok(prepared) => prepared,
        Err(failure) => (failed(failure), Vec::new()),
    }
}

fn try_prepare(settings: &Settings, main: &MainCommand) -> Result<(wire::Main, Vec<OwnedFd>), String> {
    let identity = settings.identity();
    let workdir = &settings.config.workdir;
    let context = Context {
        identity: &identity,
        env: &settings.config.env,
        workdir,
        extra: Vec::new(),
        over_ssh: false,
    };
    if main.script
        && let Some(script) = main.command.first()
    {
        must_have_interpreter(script)?;
    }
    let run = Run::Program(
        main.command
            .iter()
            .map(|word| word.clone().into_bytes())
            .collect(),
    );
    let command = command::build(&run, &context).map_err(|text| {
        let text = text.trim_end();
        text.strip_prefix("carrel: ").unwrap_or(text).to_owned()
    })?;
    let directory = directory_of(&command);
    let open = |name: &str| open_output(&directory.join(name));
    let mut outputs = vec![open(&main.stdout)?];
    if !main.stderr.is_empty() {
        outputs.push(open(&main.stderr)?);
    }
    let is_elsewhere = !workdir.is_empty() && directory != Path::new(workdir);
    let note = if is_elsewhere {
        let directory = directory.display();
        format!("carrel: there is no directory {workdir} here: working in {directory}\n")
    } else {
        String::new()
    };
    let encoded = command.encode_to_vec();
    if encoded.len() > wire::MAX_COMMAND {
        return Err("the command and its environment are too long".to_owned());
    }
    let mut all = vec![files::sealed("carrel-command", &encoded).map_err(|error| error.to_string())?];
    all.extend(outputs);
    let asked = wire::Main {
        failure: String::new(),
        note,
        append: main.append,
        script: main.script,
    };
    Ok((asked, all))
}

/// The working directory, as the command will find it.
fn directory_of(command: &wire::Command) -> PathBuf {
    let directories = command.directories.iter();
    let mut paths = directories.map(|path| PathBuf::from(std::ffi::OsStr::from_bytes(path)));
    let enterable = |path: &PathBuf| path.is_dir() && access(path, AccessFlags::X_OK).is_ok();
    paths.find(enterable).unwrap_or_else(|| PathBuf::from("/"))
}

/// Opened to be written at its end: jobs that write to one file leave each other's output alone.
fn open_output(path: &Path) -> Result<OwnedFd, String> {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened
        .map(OwnedFd::from)
        .map_err(|error| format!("cannot write its output to {}: {error}", path.display()))
}

/// What the kernel would say of a script without one names the script.
fn must_have_interpreter(script: &str) -> Result<(), String> {
    let text = std::fs::read(script).map_err(|error| format!("cannot read the script: {error}"))?;
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line.strip_prefix(b"#!").unwrap_or_default()).into_owned();
    let interpreter = line.split_whitespace().next().unwrap_or_default();
    if access(interpreter, AccessFlags::X_OK).is_ok() {
        return Ok(());
    }
    Err(format!(
        "this image has no {interpreter}, which the script's first line asks for"
    ))
}
