//! What a request executes, and in what environment.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use carrel_proto::v1::{EnvVar, Identity};
use nix::unistd::{AccessFlags, access};

use crate::wire::Command;

/// Where the agent mounts Carrel's own programs.
const OWN_PROGRAMS: &str = "/.carrel/bin";

/// Where programs are, unless the image says otherwise.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a login shell shall say where there is none.
pub const NO_SHELL: &str = "carrel: this image has no shell: no bash, sh or busybox in /bin. \
     Plain commands work (`ssh HOST PROGRAM ARGUMENT…`), and so do sftp and forwards.\n";

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Run {
    /// A login shell.
    Shell,
    /// A command line.
    Line(Vec<u8>),
    /// A program with its arguments, as they are.
    Program(Vec<Vec<u8>>),
}

/// What a command needs to know besides.
pub struct Context<'a> {
    pub identity: &'a Identity,
    /// Of the allocation.
    pub env: &'a [EnvVar],
    pub workdir: &'a str,
    /// Of this channel, in the order in which they count.
    pub extra: Vec<(String, String)>,
    /// It runs for somebody who came over SSH.
    pub over_ssh: bool,
}

/// The command; an error is what the user is told, with exit status 127.
pub fn build(run: &Run, context: &Context<'_>) -> Result<Command, String> {
    let shell = find_shell(&context.identity.shell);
    let shell_path = shell.as_ref().map_or("/bin/sh", |shell| &shell.path);
    let environment = environment(context, shell_path);
    let (program, arguments) = match (run, &shell) {
        (Run::Shell, Some(shell)) => {
            let name = format!("-{}", shell.name);
            (shell.path.clone().into_bytes(), vec![name.into_bytes()])
        }
        (Run::Shell, None) => return Err(NO_SHELL.to_owned()),
        (Run::Line(line), Some(shell)) => {
            let arguments = vec![shell.name.clone().into_bytes(), b"-c".to_vec(), line.clone()];
            (shell.path.clone().into_bytes(), arguments)
        }
        (Run::Program(words), _) => {
            let first = words.first().ok_or("carrel: there is no command\n")?;
            let program = find_program(first, path_of(&environment))
                .ok_or_else(|| format!("carrel: {}: not found\n", String::from_utf8_lossy(first)))?;
            (program, words.clone())
        }
        (Run::Line(line), None) => {
            let words = plain_words(line).ok_or(NO_SHELL)?;
            let first = words.first().ok_or(NO_SHELL)?;
            let program = find_program(first, path_of(&environment)).ok_or_else(|| {
                format!(
                    "carrel: {}: not found (and this image has no shell)\n",
                    String::from_utf8_lossy(first)
                )
            })?;
            (program, words)
        }
    };
    let directories = [context.workdir, &context.identity.home, "/"]
        .iter()
        .filter(|directory| !directory.is_empty())
        .map(|directory| directory.as_bytes().to_vec())
        .collect();
    Ok(Command {
        program,
        arguments,
        environment,
        directories,
    })
}

struct Shell {
    path: String,
    /// Its zeroth argument: for busybox it is what chooses the shell.
    name: String,
}

fn find_shell(wanted: &str) -> Option<Shell> {
    [wanted, "/bin/bash", "/bin/sh", "/bin/busybox", "/usr/bin/busybox"]
        .into_iter()
        .find(|path| path.starts_with('/') && executable(Path::new(path)))
        .map(|path| {
            let name = path.rsplit('/').next().unwrap_or(path);
            Shell {
                path: path.to_owned(),
                name: if name == "busybox" { "sh" } else { name }.to_owned(),
            }
        })
}

fn executable(path: &Path) -> bool {
    path.is_file() && access(path, AccessFlags::X_OK).is_ok()
}

/// Words of a line that means the same to every shell; `None`: only a shell can tell.
fn plain_words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b" \t_-./:=,@%+".contains(byte) || *byte >= 0x80;
    if !line.iter().all(plain) {
        return None;
    }
    let words: Vec<Vec<u8>> = line
        .split(|byte| b" \t".contains(byte))
        .filter(|word| !word.is_empty())
        .map(<[u8]>::to_vec)
        .collect();
    // An assignment before the command.
    (!words.first()?.contains(&b'=')).then_some(words)
}

/// The value of PATH.
fn path_of(environment: &[Vec<u8>]) -> &[u8] {
    let mut entries = environment.iter();
    entries
        .find_map(|entry| entry.strip_prefix(b"PATH=".as_slice()))
        .unwrap_or_default()
}

fn find_program(name: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    use std::ffi::OsStr;
    if name.contains(&b'/') {
        return Some(name.to_vec());
    }
    path.split(|byte| *byte == b':')
        .map(|directory| Path::new(OsStr::from_bytes(directory)).join(OsStr::from_bytes(name)))
        .find(|candidate| executable(candidate))
        .map(|found| found.into_os_string().as_bytes().to_vec())
}

/// `NAME=value` each, no name twice; later ones count.
fn environment(context: &Context<'_>, shell: &str) -> Vec<Vec<u8>> {
    let identity = context.identity;
    let mut all: Vec<(&str, String)> = Vec::new();
    let mut set = |name, value: String| {
        all.retain(|(other, _)| *other != name);
        all.push((name, value));
    };
    set("PATH", DEFAULT_PATH.to_owned());
    for variable in context.env {
        if valid_name(&variable.name) && !variable.value.contains('\0') {
            set(&variable.name, variable.value.clone());
        }
    }
    set("HOME", identity.home.clone());
    set("USER", identity.name.clone());
    set("LOGNAME", identity.name.clone());
    set("SHELL", shell.to_owned());
    if context.over_ssh {
        // Programs ask whether they run over SSH; addresses are not known behind the relays.
        set("SSH_CLIENT", "127.0.0.1 0 22".to_owned());
        set("SSH_CONNECTION", "127.0.0.1 0 127.0.0.1 22".to_owned());
    }
    for (name, value) in &context.extra {
        set(name, value.clone());
    }
    if let Some((_, path)) = all.iter_mut().find(|(name, _)| *name == "PATH")
        && Path::new(OWN_PROGRAMS).is_dir()
        && !path.split(':').any(|directory| directory == OWN_PROGRAMS)
    {
        path.push(':');
        path.push_str(OWN_PROGRAMS);
    }
    all.into_iter()
        .map(|(name, value)| format!("{name}={value}").into_bytes())
        .collect()
}

fn valid_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// Whether a client may set a variable: locale and terminal, as distributions configure sshd, and
/// what cannot change which code a shell or a loader runs.
pub fn client_may_set(name: &str, value: &str) -> bool {
    let known = matches!(
        name,
        "LANG" | "LANGUAGE" | "TZ" | "TERM" | "COLORTERM" | "TERM_PROGRAM" | "NO_COLOR" | "EDITOR"
    ) || name.starts_with("LC_")
        // Where the broker is from outside is not where it is from inside.
        || name.starts_with("CARREL_") && name != "CARREL_BROKER"
        || matches!(
            name,
            "GIT_AUTHOR_NAME"
                | "GIT_AUTHOR_EMAIL"
                | "GIT_COMMITTER_NAME"
                | "GIT_COMMITTER_EMAIL"
                | "GIT_PROTOCOL"
        );
    known && valid_name(name) && !value.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_without_shell_syntax_are_split() {
        let words = |line: &str| {
            plain_words(line.as_bytes()).map(|words| {
                words
                    .into_iter()
                    .map(|word| String::from_utf8(word).unwrap())
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(words("nvidia-smi  -L").unwrap(), ["nvidia-smi", "-L"]);
        assert_eq!(
            words("/bin/x --name=a,b c:d").unwrap(),
            ["/bin/x", "--name=a,b", "c:d"]
        );
        for line in [
            "", "a; b", "a | b", "a > b", "$x", "a \"b\"", "a 'b'", "a *", "A=b c", "~/x", "a\nb", "a & b",
        ] {
            assert_eq!(words(line), None, "{line}");
        }
    }

    #[test]
    fn the_allocation_is_in_the_environment_and_the_identity_counts_over_it() {
        let identity = Identity {
            name: "alice".into(),
            home: "/home/alice".into(),
            ..Identity::default()
        };
        let variable = |name: &str, value: &str| EnvVar {
            name: name.into(),
            value: value.into(),
        };
        let env = [
            variable("SLURM_JOB_ID", "7"),
            variable("HOME", "/wrong"),
            variable("BAD=NAME", "x"),
        ];
        let extra = vec![("TERM".to_owned(), "xterm".to_owned())];
        let context = Context {
            identity: &identity,
            env: &env,
            workdir: "",
            extra,
            over_ssh: true,
        };
        let environment = environment(&context, "/bin/sh");
        let has = |entry: &str| environment.contains(&entry.as_bytes().to_vec());
        assert!(has("SLURM_JOB_ID=7") && has("HOME=/home/alice") && has("TERM=xterm") && has("USER=alice"));
        assert!(!environment.iter().any(|entry| entry.starts_with(b"BAD")));
    }

    #[test]
    fn clients_cannot_set_what_chooses_code() {
        assert!(client_may_set("LC_ALL", "C") && client_may_set("TERM", "xterm"));
        for name in [
            "LD_PRELOAD",
            "PATH",
            "BASH_ENV",
            "ENV",
            "GIT_SSH_COMMAND",
            "GIT_EXEC_PATH",
            "CUDA_VISIBLE_DEVICES",
            "CARREL_BROKER",
            "",
        ] {
            assert!(!client_may_set(name, "x"), "{name}");
        }
    }
}
