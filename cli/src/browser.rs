//! The browser of the person at the terminal, where there is one.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Opens a page; false where there is no browser to open it with. It is not waited for: a browser
/// may go on for days.
pub fn open(page: &str) -> bool {
    let Some(mut command) = command(page, |name| std::env::var(name).ok()) else {
        return false;
    };
    let started = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    started.is_ok()
}

/// An address that a browser loads, and no option of its, nor a file.
pub fn is_web_address(page: &str) -> bool {
    let rest = page
        .strip_prefix("https://")
        .or_else(|| page.strip_prefix("http://"));
    rest.is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_graphic()))
}

/// BROWSER, whose commands are parted by ':' and may hold %s for the page (environ(7)); or the
/// desktop's, where a desktop is on this screen.
fn command(page: &str, variable: impl Fn(&str) -> Option<String>) -> Option<Command> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let Some(browser) = set("BROWSER") {
        let first = browser.split(':').next().unwrap_or_default();
        let mut words: Vec<String> = first.split_whitespace().map(str::to_owned).collect();
        if words.iter().any(|word| word.contains("%s")) {
            words = words.iter().map(|word| word.replace("%s", page)).collect();
        } else {
            words.push(page.to_owned());
        }
        let mut command = Command::new(words.first()?);
        command.args(&words[1..]);
        return (words.len() > 1).then_some(command);
    }
    let opener = if cfg!(target_os = "macos") {
        // Over SSH it would open on a screen that nobody may be at.
        set("SSH_CONNECTION").is_none().then_some("open")
    } else {
        let screen = set("WAYLAND_DISPLAY").or_else(|| set("DISPLAY").filter(|display| is_here(display)));
        screen.and(Some("xdg-open"))
    }?;
    let mut command = Command::new(found(opener, set("PATH")?)?);
    command.arg(page);
    Some(command)
}

/// A screen of this machine, and not one that SSH forwards ("localhost:10.0"), where a browser of
/// this machine would be slow and somebody else's.
fn is_here(display: &str) -> bool {
    display.starts_with(':')
}

fn found(program: &str, path: String) -> Option<PathBuf> {
    std::env::split_paths(&OsString::from(path))
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "https://sso.example/device?user_code=A-B";

    fn words(variables: &[(&str, &str)]) -> Option<Vec<String>> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(own, _)| *own == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let command = command(PAGE, variable)?;
        let words = [command.get_program()].into_iter().chain(command.get_args());
        Some(words.map(|word| word.to_string_lossy().into_owned()).collect())
    }

    #[test]
    fn browser_names_the_command() {
        let with = |browser: &str| words(&[("BROWSER", browser)]);
        assert_eq!(with("firefox"), Some(vec!["firefox".into(), PAGE.into()]));
        assert_eq!(
            with("w3m -o x=%s:lynx"),
            Some(vec!["w3m".into(), "-o".into(), format!("x={PAGE}")])
        );
        assert_eq!(with(""), None);
        assert_eq!(with(":"), None);
    }

    /// Where nobody looks at a screen nothing is opened.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_desktop_opens_it_where_there_is_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let opener = dir.path().join("xdg-open");
        std::fs::write(&opener, "").expect("written");
        let path = ("PATH", dir.path().to_str().expect("text"));
        let opened = Some(vec![opener.to_str().expect("text").to_owned(), PAGE.to_owned()]);
        assert_eq!(words(&[("DISPLAY", ":0"), path]), opened);
        assert_eq!(words(&[("WAYLAND_DISPLAY", "wayland-0"), path]), opened);
        assert_eq!(words(&[("DISPLAY", "localhost:10.0"), path]), None);
        assert_eq!(words(&[path]), None);
        assert_eq!(words(&[("DISPLAY", ":0"), ("PATH", "/nowhere")]), None);
    }

    #[test]
    fn only_the_web_s_addresses_are_opened() {
        assert!(is_web_address(PAGE) && is_web_address("http://127.0.0.1:7/device"));
        for bad in [
            "",
            "https://",
            "--help",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "https://a b",
            "https://a\u{1b}[2J",
        ] {
            assert!(!is_web_address(bad), "{bad}");
        }
    }
}
