//! Agents: how hosts become nodes, and the links that nodes keep.

mod desired;
mod join;
mod link;
mod registry;

pub use join::Join;
pub use link::Link;
pub use registry::Agents;
