//! The network between broker and agents: it loses, repeats, delays, reorders, and parts.

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

/// What of a node's link is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Both ways.
    Both,
    /// Only what the node says.
    ToBroker,
    /// Only what the broker says.
    FromBroker,
}

/// Messages under way, and what may happen to them.
#[derive(Debug, Default)]
pub struct Network {
    /// Arrival in milliseconds since the world began, and the message.
    flying: Vec<(u64, Message)>,
    /// Nodes that are cut off, how, and until when.
    pub cuts: Vec<(NodeName, Cut, u64)>,
    /// No faults any more.
    pub calm: bool,
}

/// The usual way of a message, milliseconds.
const USUAL_DELAY: u64 = 20;
/// The longest delay of a message that arrives, milliseconds: longer than many other things take.
const LONG_DELAY: u64 = 30_000;
/// What a connection that hangs may hold a message back for, milliseconds.
const HANGING_DELAY: u64 = 120_000;

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
        // A connection of which one direction is dead hangs in the other more often than not.
        let hangs = match &message {
            Message::Desired(node, _) => {
                let mut cuts = self.cuts.iter();
                cuts.any(|(cut, how, _)| cut == node && *how == Cut::ToBroker)
            }
            Message::Observed(_) => false,
        };
        let delay = if rng.one_in(if hangs { 2 } else { 40 }) {
            counts.add("message held back");
            rng.below(HANGING_DELAY)
        } else if rng.one_in(8) {
            counts.add("message delayed");
            rng.below(LONG_DELAY)
        } else {
            rng.below(USUAL_DELAY)
        };
        self.flying.push((now + delay, message));
    }

    /// What is on its way to a node hangs.
    pub fn hold_back(&mut self, of: &NodeName, rng: &mut Rng) {
        for (at, message) in &mut self.flying {
            if matches!(message, Message::Desired(node, _) if node == of) {
                *at += rng.below(HANGING_DELAY);
            }
        }
    }

    fn is_cut(&self, message: &Message) -> bool {
        let (node, unhurt) = match message {
            Message::Observed(observed) => (&observed.node, Cut::FromBroker),
            Message::Desired(node, _) => (node, Cut::ToBroker),
        };
        self.cuts
            .iter()
            .any(|(cut, how, _)| cut == node && *how != unhurt)
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

    /// When the next message arrives, or a cut ends.
    pub fn next(&self) -> Option<u64> {
        let cuts = self.cuts.iter().map(|(_, _, until)| *until);
        self.flying.iter().map(|(at, _)| *at).chain(cuts).min()
    }

    /// Ends the cuts that are over; the nodes of those.
    pub fn heal(&mut self, now: u64) -> Vec<NodeName> {
        let over = self.cuts.iter().filter(|(_, _, until)| *until <= now);
        let over = over.map(|(node, _, _)| node.clone()).collect();
        self.cuts.retain(|(_, _, until)| *until > now);
        over
    }

    /// The broker's process died: what was said to it is gone, and sometimes what it had said as well.
    pub fn drop_all(&mut self, rng: &mut Rng) {
        let keep = !rng.one_in(3);
        self.flying
            .retain(|(_, message)| keep && matches!(message, Message::Desired(_, _)));
    }

    /// A node's connections are gone, with what was under way on them.
    pub fn drop_of(&mut self, of: &NodeName) {
        self.flying.retain(|(_, message)| match message {
            Message::Observed(observed) => observed.node != *of,
            Message::Desired(node, _) => node != of,
        });
    }
}
