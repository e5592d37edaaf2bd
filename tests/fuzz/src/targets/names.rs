//! Names and addresses: what a jump host's clients ask for, what tickets and configurations say.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use carrel_core::broker::SessionRef;
use carrel_core::model::ids::{Generation, GpuUuid, JobKey, NodeName, SessionName, UserName};
use carrel_core::model::user::{Role, Scope};
use carrel_proto::stream::Endpoint;

use super::with_text;
use crate::Target;

/// Each kind of name.
pub const NAMES: Target = Target {
    name: "name",
    run: |data| with_text(data, names),
    seeds: || {
        [
            "dev.alice",
            "#17",
            "17@3",
            "n1-rack2",
            "GPU-0a1b",
            "unix:/run/carrel/s",
            "127.0.0.1:22",
            "[::1]:7000",
            "admin",
            "read",
        ]
        .map(|name| name.as_bytes().to_vec())
        .to_vec()
    },
};

fn names(text: &str) {
    // Says no more than who is meant.
    let _ = text.parse::<SessionRef>();
    comes_back::<SessionName>(text);
    comes_back::<UserName>(text);
    comes_back::<NodeName>(text);
    comes_back::<GpuUuid>(text);
    comes_back::<JobKey>(text);
    comes_back::<Generation>(text);
    comes_back::<Endpoint>(text);
    comes_back::<Role>(text);
    comes_back::<Scope>(text);
}

/// What is written of it is read as the same.
fn comes_back<T: FromStr + Display + PartialEq + Debug>(text: &str) {
    if let Ok(name) = text.parse::<T>() {
        let again = name.to_string().parse::<T>().ok();
        assert_eq!(again, Some(name));
    }
}
