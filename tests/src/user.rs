//! The people of a test cluster.

/// Somebody who exists inside a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// Login name.
    pub name: &'static str,
    /// User id, and group id.
    pub uid: u32,
}

/// The administrator.
pub const ROOT: User = User { name: "root", uid: 0 };
/// One user.
pub const ALICE: User = User {
    name: "alice",
    uid: 61_001,
};
/// Another, who is nobody to the first.
pub const BOB: User = User {
    name: "bob",
    uid: 61_002,
};
