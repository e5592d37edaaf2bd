//! What tasks write, as the person or a file gets it: in order for each task, whole lines where several write.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;

use carrel_proto::v1;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::stdio;

/// A line that is longer is handed on in pieces.
const LONGEST_LINE: usize = 64 * 1024;
/// Pieces on their way to the person.
const QUEUE: usize = 64;

/// How it is shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// Each line begins with its task's rank; so wide.
    pub label: Option<usize>,
    /// Only whole lines are shown, so that those of several tasks do not mix.
    pub lines: bool,
}

/// Where it goes.
pub enum Place {
    /// This program's own stdout or stderr.
    Own,
    /// A file.
    File(File),
}

/// Which places a task's output and its standard error go to, by rank.
pub type OfTasks = BTreeMap<u32, (usize, usize)>;

/// Something of a task's.
#[derive(Debug)]
pub enum Piece {
    /// It has written this.
    Output(v1::StepOutput),
    /// It writes no more.
    End(u32),
}

/// Begins to show what comes, in `places`, of which `of_tasks` says whose they are: those of output have even numbers, those
/// of standard error odd ones. What is shown last is through when the task has ended.
pub fn begin(
    style: Style,
    places: Vec<Place>,
    of_tasks: OfTasks,
) -> (mpsc::Sender<Piece>, tokio::task::JoinHandle<()>) {
    let (sender, pieces) = mpsc::channel(QUEUE);
    let writer = |(index, place): (usize, Place)| {
        Writer::new(place, || {
            if index % 2 == 0 {
                stdio::output()
            } else {
                Box::new(tokio::io::stderr())
            }
        })
    };
    let mut writers: Vec<Writer> = places.into_iter().enumerate().map(writer).collect();
    let shown = tokio::spawn(async move {
        let mut pieces = pieces;
        let mut lines = Lines::new(style);
        while let Some(piece) = pieces.recv().await {
            let (rank, both): (u32, Vec<(bool, Vec<u8>)>) = match piece {
                Piece::Output(output) => {
                    let bytes = lines.take(output.rank, output.stderr, &output.data);
                    (output.rank, vec![(output.stderr, bytes)])
                }
                Piece::End(rank) => {
                    let rest = [false, true].map(|stderr| (stderr, lines.rest(rank, stderr)));
                    (rank, rest.into())
                }
            };
            let (out, errors) = of_tasks.get(&rank).copied().unwrap_or((0, 1));
            for (is_error, bytes) in both.into_iter().filter(|(_, bytes)| !bytes.is_empty()) {
                if let Some(writer) = writers.get_mut(if is_error { errors } else { out }) {
                    writer.write(&bytes, pieces.is_empty()).await;
                }
            }
        }
        for writer in &mut writers {
            writer.flush().await;
        }
    });
    (sender, shown)
}

enum Writer {
    Own(Box<dyn AsyncWrite + Unpin + Send>),
    File(File),
    /// Nobody reads any more.
    Gone,
}

impl Writer {
    fn new(place: Place, own: impl FnOnce() -> Box<dyn AsyncWrite + Unpin + Send>) -> Self {
        match place {
            Place::Own => Self::Own(own()),
            Place::File(file) => Self::File(file),
        }
    }

    async fn write(&mut self, bytes: &[u8], flush: bool) {
        let written = match self {
            Self::Own(to) => {
                let written = to.write_all(bytes).await;
                if written.is_ok() && flush {
                    to.flush().await
                } else {
                    written
                }
            }
            Self::File(file) => file.write_all(bytes),
            Self::Gone => Ok(()),
        };
        if let Err(error) = written {
            // A reader that has enough (`| head`) is no error.
            if error.kind() != std::io::ErrorKind::BrokenPipe {
                crate::terminal::say(format_args!("carrel: output is lost: {error}"));
            }
            *self = Self::Gone;
        }
    }

    async fn flush(&mut self) {
        if let Self::Own(to) = self {
            // What could not be written was told.
            to.flush().await.ok();
        }
    }
}

/// Puts lines together, and labels them.
struct Lines {
    style: Style,
    /// What has come of lines that are not whole, by task and stream.
    begun: BTreeMap<(u32, bool), Vec<u8>>,
}

impl Lines {
    fn new(style: Style) -> Self {
        Self {
            style,
            begun: BTreeMap::new(),
        }
    }

    /// What is to be shown now.
    fn take(&mut self, rank: u32, stderr: bool, data: &[u8]) -> Vec<u8> {
        if !self.style.lines && self.style.label.is_none() {
            return data.to_vec();
        }
        let style = self.style;
        let begun = self.begun.entry((rank, stderr)).or_default();
        begun.extend_from_slice(data);
        let whole = match begun.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => at + 1,
            None if begun.len() >= LONGEST_LINE => begun.len(),
            None => return Vec::new(),
        };
        let rest = begun.split_off(whole);
        let lines = std::mem::replace(begun, rest);
        label(style, rank, &lines)
    }

    /// What is left of a task that writes no more.
    fn rest(&mut self, rank: u32, stderr: bool) -> Vec<u8> {
        let rest = self.begun.remove(&(rank, stderr)).unwrap_or_default();
        if rest.is_empty() {
            return rest;
        }
        let mut shown = label(self.style, rank, &rest);
        if self.style.label.is_some() && shown.last() != Some(&b'\n') {
            shown.push(b'\n');
        }
        shown
    }
}

fn label(style: Style, rank: u32, lines: &[u8]) -> Vec<u8> {
    let Some(width) = style.label else {
        return lines.to_vec();
    };
    let mut labelled = Vec::with_capacity(lines.len() + 64);
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        labelled.extend_from_slice(format!("{rank:>width$}: ").as_bytes());
        labelled.extend_from_slice(line);
    }
    labelled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_several_tasks_do_not_mix() {
        let mut lines = Lines::new(Style {
            label: None,
            lines: true,
        });
        assert_eq!(lines.take(0, false, b"a b"), b"");
        assert_eq!(lines.take(1, false, b"x\ny"), b"x\n");
        assert_eq!(lines.take(0, false, b" c\nd"), b"a b c\n");
        assert_eq!(lines.rest(0, false), b"d");
        assert_eq!(lines.rest(1, false), b"y");
        assert_eq!(lines.rest(1, false), b"");
        assert_eq!(lines.take(2, true, &vec![b'z'; LONGEST_LINE]).len(), LONGEST_LINE);
    }

    #[test]
    fn lines_say_whose_they_are() {
        let mut lines = Lines::new(Style {
            label: Some(2),
            lines: true,
        });
        assert_eq!(lines.take(7, false, b"a\nb\nc"), b" 7: a\n 7: b\n");
        assert_eq!(lines.rest(7, false), b" 7: c\n");
        assert_eq!(lines.take(12, true, b"e\n"), b"12: e\n");
    }

    #[test]
    fn one_tasks_output_goes_through_as_it_comes() {
        let mut lines = Lines::new(Style::default());
        assert_eq!(lines.take(0, false, b"50 %\r"), b"50 %\r");
    }
}
