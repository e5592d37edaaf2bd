//! The queue: in which order jobs start, and what they may hold.
//!
//! What is here decides nothing about nodes: [`fair_tree`] and [`priority`] order pending jobs, [`tally`] counts
//! what is held against limits, [`headroom`] what is to be kept free, [`pending`] arranges what waits for passes.

pub mod fair_tree;
pub mod headroom;
pub mod past;
pub mod pending;
pub mod priority;
pub mod profile;
pub mod tally;
pub mod usage;

#[cfg(test)]
mod tests;

pub use headroom::Kept;
pub use past::PastUse;
pub use pending::{Class, ClassKey, Line, LineKey, Pending, Wait};
pub use priority::{Factors, Points, Weights};
pub use tally::{Holder, Limit, Reached, Tallies, Tally};
pub use usage::{Decay, Usage};
