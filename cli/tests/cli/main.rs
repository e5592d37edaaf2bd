//! The program as people run it, against a broker that does what a test tells it to.

mod alloc;
mod fake;
mod open;
mod proxy;
mod read;
mod run;
mod up;
