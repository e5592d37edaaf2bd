//! Jobs of a test's cluster: the files that they read and write, how they are submitted, and what becomes of them.

use std::path::PathBuf;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::user::{ROOT, User};

/// A request that leaves room for many others.
pub const SMALL: [&str; 4] = ["-c", "1", "--mem", "512M"];

impl Cluster {
    /// A file in a user's home, which is mounted in his jobs.
    pub fn home(&self, user: User, name: &str) -> PathBuf {
        self.sandbox().home(user).join(name)
    }

    /// Writes a file of the user's into his home.
    ///
    /// # Panics
    /// It cannot be written.
    #[track_caller]
    pub fn write(&self, user: User, name: &str, text: impl AsRef<[u8]>) {
        let path = self.home(user, name);
        std::fs::write(&path, text).expect("a file");
        std::os::unix::fs::chown(&path, Some(user.uid), Some(user.uid)).expect("root may give away");
    }

    /// What a file in a user's home says; nothing where there is none yet.
    pub fn read(&self, user: User, name: &str) -> String {
        std::fs::read_to_string(self.home(user, name)).unwrap_or_default()
    }

    /// `carrel submit`: the number of the job, or of the array.
    ///
    /// # Panics
    /// It is refused.
    #[track_caller]
    pub fn submit(&self, user: User, args: &[&str]) -> String {
        let all = [&["submit", "--parsable"][..], args].concat();
        self.carrel(user, all).ok().trim().to_owned()
    }

    /// The same of a job that is [`SMALL`].
    #[track_caller]
    pub fn submit_small(&self, user: User, args: &[&str]) -> String {
        self.submit(user, &[&SMALL, args].concat())
    }

    /// A job's record.
    #[track_caller]
    pub fn show(&self, id: &str) -> Value {
        self.json(ROOT, ["show", id])
    }

    /// Waits until a job is in a state; its record.
    #[track_caller]
    pub fn until(&self, id: &str, state: &str) -> Value {
        let mut last = Value::Null;
        self.ready(&format!("job {id} is {state}"), |this| {
            last = this.show(id);
            last["state"] == state
        });
        last
    }

    /// Waits until a job has said so much.
    #[track_caller]
    pub fn says(&self, user: User, id: &str, text: &str) {
        self.ready(&format!("job {id} says {text:?}"), |this| {
            this.carrel(user, ["logs", id]).run().stdout.contains(text)
        });
    }
}
