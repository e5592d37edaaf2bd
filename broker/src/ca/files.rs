//! Small secret files: written whole, on disk before they are relied upon.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result};

/// Makes a directory that only its owner may enter, and its parents.
pub fn private_directory(path: &Path) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("cannot make the directory {}", path.display()))
}

/// Replaces a file that only its owner may read and write. After success the
/// new content is on disk; after failure, or a crash, the old one is whole.
pub fn write_secret(path: &Path, content: &[u8]) -> Result<()> {
    replace(path, content).with_context(|| format!("cannot write {}", path.display()))
}

fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let directory = path.parent().context("the path has no directory")?;
    let name = path
        .file_name()
        .context("the path has no file name")?
        .to_string_lossy()
        .into_owned();
    let temporary = directory.join(format!(".{name}.{}", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)?;
    // A file left by a crash keeps its mode through `open`.
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(directory)?.sync_all()?;
    Ok(())
}

/// Reads a file; none when there is none.
pub fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Reads a text file; none when there is none.
pub fn read_text_if_there(path: &Path) -> Result<Option<String>> {
    let Some(content) = read_if_there(path)? else {
        return Ok(None);
    };
    let text = String::from_utf8(content).with_context(|| format!("{} is not text", path.display()))?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_private_and_replaced_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("inner/key");
        private_directory(&dir.path().join("inner")).expect("a directory");
        assert_eq!(read_if_there(&path).expect("no error"), None);
        write_secret(&path, b"one").expect("written");
        write_secret(&path, b"two").expect("written");
        assert_eq!(
            read_text_if_there(&path).expect("no error").as_deref(),
            Some("two")
        );
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(&dir.path().join("inner")), 0o700);
        assert_eq!(
            fs::read_dir(dir.path().join("inner"))
                .expect("a directory")
                .count(),
            1
        );
    }
}
