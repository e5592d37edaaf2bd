//! Steps: a command over the tasks of an allocation, as srun runs it.
//!
//! `carrel run` deals the tasks out ([`layout`]), starts `carrel step-node` in each container ([`link`]: as a child in its
//! own, over SSH in the others) and hands each its part ([`master`]). That holds what the tasks need ([`claims`]), starts
//! them ([`task`], with their [`variables`]), and speaks of them over its standard input and output ([`frames`],
//! `carrel/v1/step.proto`) until they are over; with its client's connection they end, too ([`node`]). A copy of what they
//! write goes to the container, which keeps the newest by rank ([`kept`]).

pub mod claims;
pub mod file_name;
pub mod frames;
pub mod groups;
pub mod kept;
pub mod layout;
pub mod link;
pub mod master;
pub mod node;
pub mod output;
pub mod programs;
pub mod signals;
pub mod task;
pub mod variables;
pub mod window;
