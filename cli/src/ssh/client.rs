//! The system's OpenSSH client: how it is told the way to a session.

use std::path::PathBuf;
use std::process::Command;

use super::ClusterDir;
use crate::error::{CliError, Kind, Result};

/// The way to one rank of a session.
#[derive(Clone, Debug)]
pub struct Route {
    /// This program.
    pub carrel: PathBuf,
    /// The broker's address.
    pub broker: String,
    /// Session name.
    pub session: String,
    /// Rank of the gang.
    pub rank: u32,
    /// SSH user name.
    pub user: String,
    /// Principal of the session's host certificate, without rank.
    pub host_principal: String,
    /// Where key, certificate and known hosts are.
    pub cluster: ClusterDir,
    /// A stopped session is started.
    pub start: bool,
}

impl Route {
    /// SSH options, their values as an SSH config wants them.
    pub fn options(&self) -> Result<Vec<(&'static str, String)>> {
        let principal = match self.rank {
            0 => self.host_principal.clone(),
            rank => format!("{rank}.{}", self.host_principal),
        };
        let path = |path: PathBuf| config_value(&path.to_string_lossy());
        Ok(vec![
            ("User", config_value(&self.user)?),
            ("HostKeyAlias", config_value(&principal)?),
            ("IdentityFile", path(self.cluster.key().into())?),
            ("CertificateFile", path(self.cluster.certificate())?),
            ("UserKnownHostsFile", path(self.cluster.known_hosts())?),
            ("IdentitiesOnly", "yes".into()),
            ("StrictHostKeyChecking", "yes".into()),
            ("UpdateHostKeys", "no".into()),
            ("PreferredAuthentications", "publickey".into()),
            // The proxy finds out whether the way is there, and comes back; ssh is to wait for it.
            ("ServerAliveInterval", "0".into()),
            ("ProxyCommand", self.proxy_command()?),
        ])
    }

    fn proxy_command(&self) -> Result<String> {
        let carrel = quoted(&self.carrel.to_string_lossy())?;
        let mut command = format!(
            "{carrel} --broker {} proxy {}",
            quoted(&self.broker)?,
            quoted(&self.session)?
        );
        if self.rank > 0 {
            command += &format!(" --rank {}", self.rank);
        }
        if !self.start {
            command += " --no-start";
        }
        Ok(command)
    }

    /// `ssh` with these options and none from a config file, up to the host name; arguments follow.
    pub fn command(&self) -> Result<Command> {
        // "Connection to … closed." is noise after every shell.
        self.command_at("ERROR")
    }

    /// The same, with OpenSSH's `LogLevel`.
    pub fn command_at(&self, log_level: &str) -> Result<Command> {
        let mut command = Command::new(program());
        command.args(["-F", "none"]);
        for (key, value) in self.options()? {
            command.arg("-o").arg(format!("{key}={value}"));
        }
        command.arg("-o").arg(format!("LogLevel={log_level}"));
        Ok(command)
    }
}

/// The SSH client: `$CARREL_SSH`, or `ssh` on the path.
pub fn program() -> std::ffi::OsString {
    std::env::var_os("CARREL_SSH")
        .filter(|p| !p.is_empty())
        .unwrap_or_else(|| "ssh".into())
}

/// A failure to start the SSH client.
pub fn cannot_start(error: &std::io::Error) -> CliError {
    let program = program();
    let program = program.to_string_lossy();
    if error.kind() == std::io::ErrorKind::NotFound {
        CliError::failed(format!("the SSH client {program:?} is not there"))
            .hint("install OpenSSH's client (Debian: apt-get install openssh-client)")
    } else {
        CliError::failed(format!("cannot start {program}: {error}"))
    }
}

/// Refuses an OpenSSH whose config knows no Include (older than 7.3).
pub fn check_version() -> Result<()> {
    let output = Command::new(program())
        .arg("-V")
        .output()
        .map_err(|e| cannot_start(&e))?;
    let text = String::from_utf8_lossy(&output.stderr);
    match version_of(&text) {
        Some(version) if version < (7, 3) => Err(CliError::failed(format!(
            "{} knows no Include in its config",
            text.trim()
        ))
        .hint("OpenSSH 7.3 or newer is needed for aliases; `carrel ssh NAME` works without")),
        // A client that names no version is taken at its word.
        Some(_) | None => Ok(()),
    }
}

fn version_of(text: &str) -> Option<(u32, u32)> {
    let after = text.split("OpenSSH_").nth(1)?;
    let after = after.strip_prefix("for_Windows_").unwrap_or(after);
    let mut numbers = after.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// A value for an SSH config: in double quotes when it has blanks.
fn config_value(text: &str) -> Result<String> {
    let text = expressible(text)?;
    Ok(if text.contains(' ') {
        format!("\"{text}\"")
    } else {
        text
    })
}

/// A word of a command in an SSH config, for a shell, with SSH's own % doubled.
pub fn quoted(text: &str) -> Result<String> {
    let text = expressible(text)?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-:=@%+,[]".contains(&b);
    Ok(if !text.is_empty() && text.bytes().all(plain) {
        text
    } else {
        format!("'{text}'")
    })
}

/// OpenSSH's releases differ in how they read quotes and backslashes within quotes, and `${X}`
/// names a variable in some values: none of these may occur.
fn expressible(text: &str) -> Result<String> {
    if text.contains(['\'', '"', '\\', '\n', '\r', '\0']) || text.contains("${") {
        return Err(CliError::new(
            Kind::Failed,
            format!("{text:?} cannot be written into an SSH config"),
        )
        .hint("paths without quotes, backslashes and ${ are needed"));
    }
    Ok(text.replace('%', "%%"))
}

/// One argument for a POSIX shell at the other end.
pub fn shell_word(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-:@%+,".contains(&b);
    if !text.is_empty() && text.bytes().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_openssh() {
        assert_eq!(
            version_of("OpenSSH_9.2p1 Debian-2+deb12u3, OpenSSL 3.0.15"),
            Some((9, 2))
        );
        assert_eq!(version_of("OpenSSH_for_Windows_8.1p1, LibreSSL"), Some((8, 1)));
        assert_eq!(version_of("OpenSSH_10.0p2"), Some((10, 0)));
        assert_eq!(version_of("dropbear"), None);
        assert!(version_of("OpenSSH_6.6.1p1") < Some((7, 3)));
    }

    #[test]
    fn words_survive_a_shell() {
        for word in ["", "a b", "it's", "$HOME", "*", "a\nb", "--x=1", "`id`", "\\"] {
            let output = Command::new("sh")
                .arg("-c")
                .arg(format!("printf %s {}", shell_word(word)))
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }

    #[test]
    fn what_ssh_config_cannot_hold_is_refused() {
        for bad in ["a'b", "a\"b", "a\\b", "a\nb", "${HOME}"] {
            assert!(quoted(bad).is_err(), "{bad}");
        }
        assert_eq!(quoted("/a b%").unwrap(), "'/a b%%'");
    }
}
