//! The network between broker and agents: it loses, repeats, delays and reorders.

use carrel_core::model::ids::NodeName;
use carrel_core::model::node::{Desired, Observed};

use super::count::Counts;
use super::rng::Rng;

/// A message under way.
#[derive(Clone, Debug)]
pub enum Message {
    /// Agent to broker.
    Observed(Box<Observed>),
    /// Broker to this agent.
    Desired(NodeName, Box<Desired>),
}

/// Messages under way, and what may happen to them.
#[derive(Debug, Default)]
pub struct Network {
    /// Arrival in milliseconds since the world began, and the message.
    flying: Vec<(u64, Message)>,
    /// Nodes that nothing reaches now.
    pub cut: Vec<NodeName>,
    /// No faults any more.
    pub calm: bool,
}

/// The usual way of a message, milliseconds.
const USUAL_DELAY: u64 = 20;
/// The longest delay of a message that arrives, milliseconds: longer than many other things take.
const LONG_DELAY: u64 = 30_000;

impl Network {
    /// Sends a message, or does not.
    pub fn send(&mut self, now: u64, message: Message, rng: &mut Rng, counts: &mut Counts) {
        if self.is_cut(&message) {
            counts.add("message into a cut");
            return;
        }
        if self.calm {
            self.flying.push((now + 1, message));
            return;
        }
        if rng.one_in(12) {
            counts.add("message lost");
            return;
        }
        if rng.one_in(12) {
            counts.add("message repeated");
            let late = now + rng.below(LONG_DELAY);
            self.flying.push((late, message.clone()));
        }
        let delay = if rng.one_in(8) {
            counts.add("message delayed");
            rng.below(LONG_DELAY)
        } else {
            rng.below(USUAL_DELAY)
        };
        self.flying.push((now + delay, message));
    }

    fn is_cut(&self, message: &Message) -> bool {
        let node = match message {
            Message::Observed(observed) => &observed.node,
            Message::Desired(node, _) => node,
        };
        self.cut.contains(node)
    }

    /// The next message that has arrived by now.
    pub fn arrived(&mut self, now: u64) -> Option<Message> {
        let next = self.flying.iter().enumerate().filter(|(_, (at, _))| *at <= now);
        let (position, _) = next.min_by_key(|(position, (at, _))| (*at, *position))?;
        let (_, message) = self.flying.remove(position);
        if self.is_cut(&message) {
            self.arrived(now)
        } else {
            Some(message)
        }
    }

    /// When the next message arrives.
    pub fn next(&self) -> Option<u64> {
        self.flying.iter().map(|(at, _)| *at).min()
    }

    /// Everything under way to and from the broker is gone: its process died.
    pub fn drop_all(&mut self) {
        self.flying.clear();
    }
}
