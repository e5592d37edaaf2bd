//! What a person sees while something is on its way: one living line on a terminal, a line for
//! each change elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::Instant;

use crate::terminal;

/// What is granted faster than this was never waited for, and nothing is said of it.
pub const PATIENCE: Duration = Duration::from_millis(300);
/// How often the living line moves.
const TICK: Duration = Duration::from_millis(120);

/// The wait, as shown on stderr.
#[derive(Debug)]
pub struct Progress {
    line: Option<ProgressBar>,
    shown: String,
    begun: Instant,
}

impl Progress {
    /// Begins; shows nothing yet.
    pub fn begin() -> Self {
        Self {
            line: None,
            shown: String::new(),
            begun: Instant::now(),
        }
    }

    /// When something may be shown at the earliest.
    pub fn patience_ends(&self) -> Instant {
        self.begun + PATIENCE
    }

    /// Shows where things are, if it has lasted a while. `key` is what a line is written for when
    /// it changes; `text` is what is shown.
    pub fn show(&mut self, key: &str, text: &str) {
        if Instant::now() >= self.patience_ends() {
            self.show_now(key, text);
        }
    }

    /// The same, however short it has lasted.
    pub fn show_now(&mut self, key: &str, text: &str) {
        if terminal::stderr_is_terminal() {
            self.living_line().set_message(text.to_owned());
        } else if self.shown != key {
            key.clone_into(&mut self.shown);
            terminal::say(format_args!("carrel: {text}"));
        }
    }

    /// Says something that stays.
    pub fn say(&mut self, text: impl std::fmt::Display) {
        match &self.line {
            Some(line) => line.suspend(|| terminal::say(format_args!("carrel: {text}"))),
            None => terminal::say(format_args!("carrel: {text}")),
        }
    }

    /// Takes the living line away.
    pub fn end(&mut self) {
        if let Some(line) = self.line.take() {
            line.finish_and_clear();
        }
    }

    fn living_line(&mut self) -> &ProgressBar {
        let elapsed = self.begun.elapsed();
        self.line.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner());
            let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
                .with_style(style)
                .with_elapsed(elapsed);
            line.enable_steady_tick(TICK);
            line
        })
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}
