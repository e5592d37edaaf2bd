//! What `carrel-node` can be told, one verb a file.

pub mod down;
pub mod image;
pub mod join;
pub mod probe;
pub mod run;
