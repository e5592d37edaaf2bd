//! The vocabulary: what a cluster is made of.

pub mod account;
pub mod activity;
pub mod audit;
pub mod batch;
pub mod constraints;
pub mod cpus;
pub mod fabric;
pub mod features;
pub mod gpu;
pub mod gpu_unit;
pub mod host_list;
pub mod ids;
pub mod job;
pub mod node;
pub mod partition;
pub mod policy;
pub mod qos;
pub mod reservation;
pub mod resources;
pub mod session;
pub mod shared;
pub mod start;
pub mod terms;
pub mod time;
pub mod topology;
pub mod user;
