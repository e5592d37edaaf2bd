//! The broker from outside: the real program, its sockets, and agents that are played.

mod access;
mod agent;
mod audit;
mod bad_input;
mod configuration;
mod daemon;
mod durability;
mod history;
mod inside;
mod lost_store;
mod nodes;
mod rights;
mod sessions;
mod sharing;
mod sign_in;
mod store;
