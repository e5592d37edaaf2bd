//! The broker: everything that users and agents talk to, and the gateway.
//!
//! [`serve::Server`] puts it together: listeners ([`listen`]) hand connections
//! to the services ([`api`], [`agents`], [`control`]), which read snapshots of
//! the state and send inputs to the single writer ([`actor`]), which owns the
//! core and the [`store`]. The [`gateway`] is a process of its own.

pub mod actor;
pub mod agents;
pub mod api;
pub mod auth;
pub mod ca;
pub mod clock;
pub mod config;
pub mod context;
pub mod control;
pub mod gateway;
pub mod handshakes;
pub mod limits;
pub mod listen;
pub mod lock;
pub mod mail;
pub mod name_service;
pub mod notes;
pub mod secret;
pub mod serve;
pub mod signin;
pub mod start;
pub mod store;
