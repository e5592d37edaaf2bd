//! The real programs, containerd and OpenSSH, used as their users use them.
//!
//! Most tests share one cluster and own sessions in it; those that kill or
//! starve something start a cluster of their own.

mod accounts;
mod alone;
mod arrays;
mod bad_input;
mod batch;
mod batch_mail;
mod bench;
mod channels;
mod chaos;
mod cpus;
mod deadlines;
mod device_login;
mod drivers;
mod fabric;
mod faults;
mod fence;
mod forward;
mod gang_kills;
mod gangs;
mod gpus;
mod history;
mod hostile;
mod idle;
mod images;
mod inside;
mod lost_store;
mod measured;
mod mps;
mod notebooks;
mod open;
mod placement;
mod processes;
mod queue;
mod ranks;
mod reservations;
mod resume;
mod root;
mod sandbox;
mod shared;
mod sharing;
mod shell;
mod sign_in;
mod slices;
mod slurm;
mod steps;
mod terminals;
mod tidy;
mod transfer;
mod users;
mod whole;
