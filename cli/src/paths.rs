//! Where Carrel keeps a user's files.

use std::path::{Path, PathBuf};

use crate::error::{CliError, Context as _, Result};

/// The user's home (`$HOME` first).
pub fn home() -> Result<PathBuf> {
    dirs::home_dir()
        .filter(|home| home.is_absolute())
        .ok_or_else(|| CliError::failed("there is no home directory").hint("set HOME"))
}

/// Directory of `config.toml` and `credentials.toml`: `$CARREL_CONFIG_DIR`, or `carrel` in the
/// user's config directory (`$XDG_CONFIG_HOME`, `~/.config`).
pub fn config_dir() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("CARREL_CONFIG_DIR").filter(|dir| !dir.is_empty()) {
        return Ok(dir.into());
    }
    Ok(dirs::config_dir()
        .ok_or_else(|| CliError::failed("there is no config directory").hint("set HOME"))?
        .join("carrel"))
}

/// State directory of the user's own `carrel up`: `$XDG_STATE_HOME/carrel/up`, `~/.local/state/carrel/up`.
pub fn up_dir() -> Result<PathBuf> {
    let state = match dirs::state_dir() {
        Some(dir) => dir,
        None => home()?.join(".local/state"),
    };
    Ok(state.join("carrel/up"))
}

/// Creates a directory, with those above it, that only its owner may enter.
pub fn create_private_dir(dir: &Path) -> Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
        .create(dir)
        .context(format_args!("cannot create {}", dir.display()))
}

/// Replaces a file's content, whole or not at all, readable by its owner only.
pub fn write_private(path: &Path, content: &[u8]) -> Result<()> {
    write_atomically(path, content).context(format_args!("cannot write {}", path.display()))
}

fn write_atomically(path: &Path, content: &[u8]) -> std::io::Result<()> {
    use std::io::Write as _;
    let dir = path.parent().unwrap_or(Path::new("."));
    // tempfile makes its files 0600.
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(content)?;
    file.as_file().sync_data()?;
    file.persist(path)?;
    Ok(())
}
