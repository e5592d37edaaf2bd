//! A copy of what tasks write, for the container to keep by rank (`carrel logs --rank`).
//!
//! Tasks never wait for it: of what cannot be handed on in time the oldest is left out, as it would be of what is kept.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use carrel_proto::v1;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use v1::ranks_says::What;

use super::frames;

/// Held back of one task, bytes: about what is kept of it, so that the newest is there after a burst.
const MAX_TASK: usize = 1 << 20;
/// Held back of all tasks of a node, bytes.
const MAX_ALL: usize = 16 << 20;
/// Pieces are joined up to this many bytes.
const PIECE: usize = 32 * 1024;
/// What comes within this time is handed on at once.
const BATCH: Duration = Duration::from_millis(100);
/// A container whose process 1 is busy, or is starting who listens, has so long at the end of the step.
const LAST: Duration = Duration::from_secs(2);
/// Characters of the step's command that are told: more than are shown, and less than is listened to.
const MAX_COMMAND: usize = 1_000;
/// Between attempts to reach who listens.
const RETRY: Duration = Duration::from_millis(250);

/// Takes copies. Cheap to clone.
#[derive(Clone)]
pub struct Copies(Arc<Shared>);

struct Shared {
    held: Mutex<Held>,
    changed: Notify,
}

/// What waits to be handed on.
#[derive(Default)]
struct Held {
    tasks: BTreeMap<u32, Task>,
    bytes: usize,
    /// No more comes.
    over: bool,
}

#[derive(Default)]
struct Task {
    pieces: VecDeque<Vec<u8>>,
    bytes: usize,
    left_out: u64,
}

impl Held {
    fn add(&mut self, rank: u32, data: &[u8]) {
        if self.over {
            // Nobody takes it any more.
            return;
        }
        let task = self.tasks.entry(rank).or_default();
        match task.pieces.back_mut() {
            Some(piece) if piece.len() + data.len() <= PIECE => piece.extend_from_slice(data),
            _ => task.pieces.push_back(data.to_vec()),
        }
        task.bytes += data.len();
        self.bytes += data.len();
        // Where all together are too much, it is at the cost of who writes now.
        while task.bytes > MAX_TASK || self.bytes > MAX_ALL {
            let Some(piece) = task.pieces.pop_front() else {
                break;
            };
            task.bytes -= piece.len();
            self.bytes -= piece.len();
            task.left_out += piece.len() as u64;
        }
    }

    fn take(&mut self) -> BTreeMap<u32, Task> {
        self.bytes = 0;
        mem::take(&mut self.tasks)
    }
}

impl Copies {
    /// Takes what a task has written.
    pub fn add(&self, rank: u32, data: &[u8]) {
        self.held(|held| held.add(rank, data));
        self.0.changed.notify_one();
    }

    fn held<T>(&self, change: impl FnOnce(&mut Held) -> T) -> T {
        change(&mut self.0.held.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Hands copies on, until the step is over.
pub struct Keeping {
    copies: Copies,
    sender: JoinHandle<()>,
}

impl Keeping {
    /// To who listens at `socket`; where nobody does, nothing is kept. Of a long command its beginning is told.
    pub fn begin(socket: PathBuf, mut begin: v1::RanksBegin) -> Self {
        if let Some((end, _)) = begin.command.char_indices().nth(MAX_COMMAND) {
            begin.command.truncate(end);
        }
        let copies = Copies(Arc::new(Shared {
            held: Mutex::default(),
            changed: Notify::new(),
        }));
        let sender = Sender {
            copies: copies.clone(),
            socket,
            begin,
            connected: None,
        };
        Self {
            copies,
            sender: tokio::spawn(sender.run()),
        }
    }

    /// Where tasks' output is copied to.
    pub fn copies(&self) -> Copies {
        self.copies.clone()
    }

    /// The step is over: until all is handed on, within limits.
    pub async fn end(mut self) {
        self.copies.held(|held| held.over = true);
        self.copies.0.changed.notify_one();
        if tokio::time::timeout(LAST, &mut self.sender).await.is_err() {
            self.sender.abort();
        }
    }
}

struct Sender {
    copies: Copies,
    socket: PathBuf,
    begin: v1::RanksBegin,
    connected: Option<UnixStream>,
}

impl Sender {
    async fn run(mut self) {
        // That tasks have begun is known whether they write or not.
        if let Err(error) = self.connect().await
            && error.kind() == std::io::ErrorKind::NotFound
        {
            // A container of another version of the node's programs keeps nothing.
            return self.copies.held(|held| held.over = true);
        }
        loop {
            let (tasks, over) = self.copies.held(|held| (held.take(), held.over));
            for (rank, task) in tasks {
                self.send(rank, task).await;
            }
            if over {
                return self.finish().await;
            }
            self.copies.0.changed.notified().await;
            if !self.copies.held(|held| held.over) {
                tokio::select! {
                    () = tokio::time::sleep(BATCH) => {}
                    // Woken by each piece; only the end is of interest.
                    () = self.ended() => {}
                }
            }
        }
    }

    /// Until no more comes. Safe to cancel: what it was woken by is looked at anyhow.
    async fn ended(&self) {
        while !self.copies.held(|held| held.over) {
            self.copies.0.changed.notified().await;
        }
    }

    async fn connect(&mut self) -> std::io::Result<()> {
        if self.connected.is_none() {
            let mut stream = UnixStream::connect(&self.socket).await?;
            let begin = What::Begin(self.begin.clone());
            stream.write_all(&frame(begin)).await?;
            self.connected = Some(stream);
        }
        Ok(())
    }

    /// Hands on what a task wrote, however long it takes: what comes meanwhile is held back, or left out.
    async fn send(&mut self, rank: u32, task: Task) {
        let frame = frame(What::Output(v1::RankOutput {
            rank,
            left_out: task.left_out,
            data: Vec::from(task.pieces).concat(),
        }));
        loop {
            let sent = async {
                self.connect().await?;
                match &mut self.connected {
                    Some(stream) => stream.write_all(&frame).await,
                    None => Ok(()),
                }
            };
            if sent.await.is_ok() {
                return;
            }
            // Who listened has died; the next one gets the message whole.
            self.connected = None;
            tokio::time::sleep(RETRY).await;
        }
    }

    /// All is kept when the other side, which has read to the end, has nothing more to wait for.
    async fn finish(&mut self) {
        if let Some(mut stream) = self.connected.take()
            && stream.shutdown().await.is_ok()
        {
            stream.read_u8().await.ok();
        }
    }
}

fn frame(what: What) -> Vec<u8> {
    frames::encode(&v1::RanksSays { what: Some(what) })
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use tokio::net::UnixListener;

    use super::*;

    fn begin() -> v1::RanksBegin {
        v1::RanksBegin {
            step: 0,
            command: "x".into(),
            ranks: vec![3],
        }
    }

    /// All that one connection says, to its end.
    async fn hear(listener: &UnixListener) -> Vec<What> {
        let (mut stream, _) = listener.accept().await.expect("somebody");
        let (mut read, mut said) = (BytesMut::new(), Vec::new());
        loop {
            while let Some(message) = frames::decode::<v1::RanksSays>(&mut read).expect("messages") {
                said.extend(message.what);
            }
            if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
                return said;
            }
        }
    }

    #[tokio::test]
    async fn nobody_waits_and_the_newest_arrives() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let keeping = Keeping::begin(socket, begin());
        let copies = keeping.copies();
        let mut all = Vec::new();
        // Nobody listens yet, and this is more than is held back.
        for number in 0..40_u8 {
            let part = vec![number; 50_000];
            copies.add(3, &part);
            all.extend(part);
        }
        let (said, ()) = tokio::join!(hear(&listener), keeping.end());
        assert_eq!(said.first(), Some(&What::Begin(begin())));
        let (mut kept, mut left_out) = (Vec::new(), 0);
        for what in &said[1..] {
            let What::Output(output) = what else {
                panic!("{what:?}")
            };
            assert_eq!(output.rank, 3);
            left_out += output.left_out;
            kept.extend_from_slice(&output.data);
        }
        assert_eq!(left_out as usize + kept.len(), all.len());
        assert!(kept.len() <= MAX_TASK && kept.len() > MAX_TASK - 50_000);
        assert!(all.ends_with(&kept));
    }

    #[tokio::test]
    async fn a_listener_that_dies_has_a_successor() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let keeping = Keeping::begin(socket, begin());
        drop(listener.accept().await.expect("the first"));
        keeping.copies().add(3, b"after");
        let (said, ()) = tokio::join!(hear(&listener), keeping.end());
        let output = v1::RankOutput {
            rank: 3,
            left_out: 0,
            data: b"after".to_vec(),
        };
        assert_eq!(said, [What::Begin(begin()), What::Output(output)]);
    }

    #[tokio::test]
    async fn where_nobody_listens_nothing_is_held_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let keeping = Keeping::begin(dir.path().join("none"), begin());
        let copies = keeping.copies();
        while !copies.held(|held| held.over) {
            tokio::task::yield_now().await;
        }
        copies.add(3, b"x");
        assert_eq!(copies.held(|held| held.bytes), 0);
        keeping.end().await;
    }

    #[tokio::test]
    async fn of_a_long_command_the_beginning_is_told() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let long = v1::RanksBegin {
            command: "é".repeat(4 << 20),
            ..begin()
        };
        let keeping = Keeping::begin(socket, long);
        let (said, ()) = tokio::join!(hear(&listener), keeping.end());
        let [What::Begin(told)] = &said[..] else {
            panic!("{said:?}")
        };
        assert_eq!(told.command, "é".repeat(MAX_COMMAND));
    }

    #[test]
    fn all_tasks_together_have_a_bound() {
        let mut held = Held::default();
        for rank in 0..100 {
            for _ in 0..10 {
                held.add(rank, &vec![0; 100_000]);
            }
        }
        let tasks: usize = held.tasks.values().map(|task| task.bytes).sum();
        assert_eq!(tasks, held.bytes);
        assert!(held.bytes <= MAX_ALL);
        let left_out: u64 = held.tasks.values().map(|task| task.left_out).sum();
        assert_eq!(tasks as u64 + left_out, 100_000_000);
        // Once that is handed on, all have room again.
        held.take();
        held.add(99, b"x");
        assert_eq!(held.bytes, 1);
    }
}
