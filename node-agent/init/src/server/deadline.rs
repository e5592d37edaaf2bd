//! The end is told of before it comes, by the node's wall clock: to everybody with a terminal in words, and to the
//! processes by the signal that their user wants. There are two: the deadline, which the node itself keeps, and the end
//! of what nobody uses, which the broker keeps and takes back once somebody does.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tracing::{info, warn};

use super::shared::Shared;

/// The wall clock may be set, and a host may sleep: it is looked at so often at least.
const LOOK: Duration = Duration::from_secs(20);

/// Tells of the deadline as the configuration has it, until cancelled.
pub async fn tell(shared: Arc<Shared>) {
    let mut changes = shared.watch();
    let mut warned = Warned::default();
    let mut signalled = Warned::default();
    let (mut idle, mut idle_signalled) = (Idle::default(), Idle::default());
    loop {
        changes.mark_unchanged();
        let settings = shared.settings();
        let config = &settings.config;
        let now = now_ms();
        if let Some(left) = warned.due(config.deadline_ms, &config.warn_before_s, now) {
            shared.announce(text(left, config.deadline_ms));
        }
        let sent: Vec<u32> = config.end_signal.iter().map(|sent| sent.before_s).collect();
        match idle.due(config.idle_ends_ms, &config.idle_warn_before_s, now) {
            Some(Said::Ends(left)) => shared.announce(idle_text(left, config.idle_ends_ms)),
            Some(Said::Stays) => {
                shared.announce("carrel: this session is in use again, and stays".to_owned());
            }
            None => {}
        }
        let by_deadline = signalled.due(config.deadline_ms, &sent, now).is_some();
        let by_idleness = idle_signalled.due(config.idle_ends_ms, &sent, now);
        let due = by_deadline || matches!(by_idleness, Some(Said::Ends(_)));
        if let (true, Some(sent)) = (due, config.end_signal) {
            info!(signal = sent.signal, "the end is near");
            if let Err(error) = shared.keeper.signal_all(sent.signal, sent.shells).await {
                warn!(%error, "signalling before the end");
            }
        }
        let with = |warnings: &[u32]| -> Vec<u32> { warnings.iter().chain(&sent).copied().collect() };
        let deadline = next(config.deadline_ms, &with(&config.warn_before_s), now);
        let idleness = next(config.idle_ends_ms, &with(&config.idle_warn_before_s), now);
        let next = deadline.into_iter().chain(idleness).min();
        tokio::select! {
            // Both only wake: what is due is worked out anew.
            () = tokio::time::sleep(next.unwrap_or(LOOK).min(LOOK)) => {}
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

/// What was told of which deadline.
#[derive(Debug, Default)]
struct Warned {
    deadline_ms: i64,
    /// The last warning whose time has come, seconds before the deadline.
    passed: Option<u32>,
}

impl Warned {
    /// How long there is left, if that is to be told now. What was due before a deadline was known, or had moved, is not
    /// made up for.
    fn due(&mut self, deadline_ms: i64, before_s: &[u32], now_ms: i64) -> Option<Duration> {
        let left = deadline_ms - now_ms;
        let come = before_s
            .iter()
            .filter(|before| i64::from(**before) * 1_000 >= left);
        let passed = come.min().copied();
        let moved = self.deadline_ms != deadline_ms;
        let nearer = passed.is_some() && self.passed.is_none_or(|last| passed < Some(last));
        if moved || nearer {
            *self = Self { deadline_ms, passed };
        }
        (nearer && !moved && left > 0).then(|| Duration::from_millis(left.unsigned_abs()))
    }
}

/// What is to be told of an end that may be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// It comes in so long.
    Ends(Duration),
    /// It does not come.
    Stays,
}

/// What was told of the end of what nobody uses.
#[derive(Debug, Default)]
struct Idle {
    warned: Warned,
    /// Something was, and that still holds.
    told: bool,
}

impl Idle {
    /// What is to be told now. It is known only when the time of its first warning has come: that one is made up for.
    fn due(&mut self, ends_ms: i64, before_s: &[u32], now_ms: i64) -> Option<Said> {
        if ends_ms == 0 {
            self.warned = Warned::default();
            return std::mem::take(&mut self.told).then_some(Said::Stays);
        }
        let due = self.warned.due(ends_ms, before_s, now_ms);
        let left = u64::try_from(ends_ms - now_ms).ok().filter(|left| *left > 0);
        let first = !self.told && self.warned.passed.is_some();
        let due = due.or_else(|| left.filter(|_| first).map(Duration::from_millis));
        self.told |= due.is_some();
        due.map(Said::Ends)
    }
}

/// How long until the next warning.
fn next(deadline_ms: i64, before_s: &[u32], now_ms: i64) -> Option<Duration> {
    let times = before_s
        .iter()
        .map(|before| deadline_ms - i64::from(*before) * 1_000);
    let next = times.filter(|at| *at > now_ms).min()?;
    Some(Duration::from_millis((next - now_ms).unsigned_abs()))
}

/// "carrel: this session ends in 10 minutes, at 14:05 UTC; `carrel extend 2h` moves that"
fn text(left: Duration, deadline_ms: i64) -> String {
    format!(
        "carrel: this session ends {}; `carrel extend 2h` moves that",
        when(left, deadline_ms)
    )
}

/// "carrel: nobody uses this session: it ends in 30 minutes, at 14:05 UTC; …"
fn idle_text(left: Duration, ends_ms: i64) -> String {
    format!(
        "carrel: nobody uses this session: it ends {}; type something, or `carrel extend 2h`, and it stays",
        when(left, ends_ms)
    )
}

/// "in 10 minutes, at 14:05 UTC"
fn when(left: Duration, at_ms: i64) -> String {
    let seconds = left.as_millis().div_ceil(1_000);
    let left = match seconds {
        1 => "1 second".to_owned(),
        2..=59 => format!("{seconds} seconds"),
        60..=119 => "1 minute".to_owned(),
        _ => format!("{} minutes", seconds / 60),
    };
    let minute = at_ms.div_euclid(60_000).rem_euclid(24 * 60);
    format!("in {left}, at {:02}:{:02} UTC", minute / 60, minute % 60)
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000;
    const BEFORE: [u32; 3] = [600, 300, 60];

    #[test]
    fn each_warning_comes_once_and_a_moved_deadline_begins_anew() {
        let mut warned = Warned::default();
        let mut told = Vec::new();
        let end = 100 * MINUTE;
        for second in 0..100 * 60 {
            told.extend(
                warned
                    .due(end, &BEFORE, second * 1_000)
                    .map(|left| left.as_secs()),
            );
        }
        assert_eq!(told, [600, 300, 60]);
        // A clock that is set back says nothing twice.
        assert_eq!(warned.due(end, &BEFORE, end - 8 * MINUTE), None);
        assert_eq!(warned.due(end, &BEFORE, end - 4 * MINUTE), None);
        // Moved to where only the last is left.
        let later = end + 4 * MINUTE;
        assert_eq!(warned.due(later, &BEFORE, end), None);
        assert_eq!(
            warned.due(later, &BEFORE, later - 30_000),
            Some(Duration::from_secs(30))
        );
        // Two at once are one; none after the end, and none of a deadline that nobody knows.
        let mut warned = Warned::default();
        assert_eq!(warned.due(end, &BEFORE, 0), None);
        assert_eq!(
            warned.due(end, &BEFORE, end - 3 * MINUTE),
            Some(Duration::from_mins(3))
        );
        assert_eq!(warned.due(end, &BEFORE, end + 1), None);
        assert_eq!(Warned::default().due(0, &[], end), None);
    }

    #[test]
    fn an_end_that_may_be_taken_back_is_told_at_once_and_taken_back() {
        let mut idle = Idle::default();
        let end = 100 * MINUTE;
        assert_eq!(idle.due(0, &[], 0), None);
        // The broker's word comes a little after the first warning's time.
        let at = end - 10 * MINUTE + 700;
        assert_eq!(
            idle.due(end, &BEFORE, at),
            Some(Said::Ends(Duration::from_millis(599_300)))
        );
        assert_eq!(idle.due(end, &BEFORE, at + 1), None);
        assert_eq!(
            idle.due(end, &BEFORE, end - 5 * MINUTE),
            Some(Said::Ends(Duration::from_mins(5)))
        );
        assert_eq!(idle.due(0, &[], end - 4 * MINUTE), Some(Said::Stays));
        assert_eq!(idle.due(0, &[], end - 4 * MINUTE), None);
        // And again; but not after the end, and not before the first warning's time.
        let later = end + 60 * MINUTE;
        assert_eq!(idle.due(later, &BEFORE, end), None);
        assert_eq!(
            idle.due(later, &BEFORE, later - 30_000),
            Some(Said::Ends(Duration::from_secs(30)))
        );
        assert_eq!(idle.due(later, &BEFORE, later + 1), None);
        let mut late = Idle::default();
        assert_eq!(late.due(end, &BEFORE, end + 1), None);
        assert_eq!(late.due(0, &[], end + 2), None);
    }

    #[test]
    fn the_next_warning_is_waited_for() {
        let end = 100 * MINUTE;
        assert_eq!(next(end, &BEFORE, 0), Some(Duration::from_mins(90)));
        assert_eq!(
            next(end, &BEFORE, end - 10 * MINUTE),
            Some(Duration::from_mins(5))
        );
        assert_eq!(next(end, &BEFORE, end - MINUTE), None);
    }

    #[test]
    fn what_is_left_is_said_in_words() {
        let at = 14 * 60 * MINUTE + 5 * MINUTE;
        assert_eq!(
            text(Duration::from_millis(599_990), at),
            "carrel: this session ends in 10 minutes, at 14:05 UTC; `carrel extend 2h` moves that"
        );
        assert!(text(Duration::from_secs(9), at).contains("in 9 seconds,"));
        assert!(text(Duration::from_mins(1), at).contains("in 1 minute,"));
    }
}
