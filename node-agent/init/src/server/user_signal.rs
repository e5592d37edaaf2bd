//! Signals that somebody sends to the job: a count in the configuration says how many there were, and what is new of it
//! is executed, once. Of a server that is restarted all that its predecessor was told counts as done: better one too few
//! than one too many.

use std::sync::Arc;

use carrel_proto::v1::UserSignal;
use tracing::{info, warn};

use super::shared::Shared;

/// Sends what the configuration says, until cancelled.
pub async fn obey(shared: Arc<Shared>) {
    let mut changes = shared.watch();
    let mut done = Done::from(shared.settings().config.user_signal);
    loop {
        changes.mark_unchanged();
        let wanted = done.due(shared.settings().config.user_signal);
        if let Some(sent) = wanted {
            info!(signal = sent.signal, "a signal from outside");
            for (wanted, shells) in [(sent.others, false), (sent.shells, true)] {
                if wanted && let Err(error) = shared.keeper.signal_all(sent.signal, shells).await {
                    warn!(%error, "signalling");
                }
            }
        }
        // It only wakes.
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// How many signals are done.
#[derive(Debug, Default)]
struct Done(u32);

impl From<Option<UserSignal>> for Done {
    fn from(sent: Option<UserSignal>) -> Self {
        Self(sent.map_or(0, |sent| sent.count))
    }
}

impl Done {
    /// The signal that is to be sent now, once.
    fn due(&mut self, wanted: Option<UserSignal>) -> Option<UserSignal> {
        let wanted = wanted.filter(|sent| sent.count > self.0)?;
        self.0 = wanted.count;
        Some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signal_is_sent_once() {
        let sent = |count| {
            Some(UserSignal {
                count,
                signal: 10,
                shells: false,
                others: true,
            })
        };
        let mut done = Done::from(None);
        assert_eq!(done.due(None), None);
        assert_eq!(done.due(sent(1)), sent(1));
        assert_eq!(done.due(sent(1)), None, "the same state, said again");
        assert_eq!(done.due(sent(3)), sent(3), "two at once are one");
        assert_eq!(done.due(sent(2)), None, "what is late is old");
        assert_eq!(Done::from(sent(3)).due(sent(3)), None, "after a restart");
    }
}
