//! Who looks at a terminal: whose size it has, and who may hold it back.
//!
//! **Size.** A terminal has the size of the writer that attached, typed or resized last: the one
//! that somebody sits at. One that only reads never counts.
//!
//! **Pace.** A program is held back by the writer that is furthest ahead, as by a terminal of its
//! own, so that nobody misses output. A writer that has taken nothing for a while does not count:
//! it sleeps, or its line is cut. Who falls behind by more than the scrollback misses the middle.

use std::time::Duration;

use tokio::time::Instant;

use crate::server::pty::Size;

/// Viewers of one terminal: a class that watches a demonstration.
pub const MAX_VIEWERS: usize = 32;

/// Output that the foremost writer may be behind by, before the program waits: a fraction of the
/// scrollback, that others may be further behind.
const AHEAD: u64 = 256 * 1024;

/// A writer that has taken nothing for so long does not hold the program back. Longer than the
/// stalls of a bad network, short enough that nobody's work waits for a sleeping laptop.
const STALLED: Duration = Duration::from_secs(3);

/// Names a viewer of a terminal.
pub type ViewerId = u64;

#[derive(Debug)]
struct Viewer {
    id: ViewerId,
    read_only: bool,
    size: Size,
    /// Position of the next byte for it.
    position: u64,
    /// When it last took something, or was given something new with nothing left to take.
    moved: Instant,
    /// When it was active last, in the order of such events.
    active: u64,
}

/// All viewers of a terminal.
#[derive(Debug, Default)]
pub struct Viewers {
    all: Vec<Viewer>,
    next: ViewerId,
    events: u64,
}

impl Viewers {
    /// One more; `None`: there are too many.
    pub fn join(&mut self, read_only: bool, size: Size, position: u64, now: Instant) -> Option<ViewerId> {
        if self.all.len() >= MAX_VIEWERS {
            return None;
        }
        self.next += 1;
        self.all.push(Viewer {
            id: self.next,
            read_only,
            size,
            position,
            moved: now,
            active: 0,
        });
        self.active(self.next);
        Some(self.next)
    }

    /// One less.
    pub fn leave(&mut self, id: ViewerId) {
        self.all.retain(|viewer| viewer.id != id);
    }

    /// Somebody typed.
    pub fn active(&mut self, id: ViewerId) {
        self.events += 1;
        let event = self.events;
        if let Some(viewer) = self.get(id) {
            viewer.active = event;
        }
    }

    /// A viewer's own terminal changed its size.
    pub fn resize(&mut self, id: ViewerId, size: Size) {
        if let Some(viewer) = self.get(id) {
            viewer.size = size;
        }
        self.active(id);
    }

    /// The size that the terminal is to have; `None`: nobody says.
    pub fn size(&self) -> Option<Size> {
        let writers = self.all.iter().filter(|viewer| !viewer.read_only);
        writers
            .max_by_key(|viewer| viewer.active)
            .map(|viewer| viewer.size)
    }

    /// Position of the next byte for a viewer.
    pub fn position(&self, id: ViewerId) -> Option<u64> {
        let viewer = self.all.iter().find(|viewer| viewer.id == id);
        viewer.map(|viewer| viewer.position)
    }

    /// A viewer has taken all before a position.
    pub fn took(&mut self, id: ViewerId, position: u64, now: Instant) {
        if let Some(viewer) = self.get(id) {
            viewer.position = position;
            viewer.moved = now;
        }
    }

    /// Output was added to what ended at `head`.
    pub fn written(&mut self, head: u64, now: Instant) {
        for viewer in &mut self.all {
            if viewer.position == head {
                viewer.moved = now;
            }
        }
    }

    /// Until when the program is held back, at the longest; `None`: it is not.
    pub fn hold(&self, head: u64, now: Instant) -> Option<Instant> {
        let mut until = None;
        for viewer in &self.all {
            let patience_ends = viewer.moved + STALLED;
            if viewer.read_only || patience_ends <= now {
                continue;
            }
            if head.saturating_sub(viewer.position) < AHEAD {
                return None;
            }
            // Those that move are waited for; at the end of each one's patience it is asked again.
            until = until.max(Some(patience_ends));
        }
        until
    }

    /// How many may type, and how many only see.
    pub fn count(&self) -> (usize, usize) {
        let readers = self.all.iter().filter(|viewer| viewer.read_only).count();
        (self.all.len() - readers, readers)
    }

    fn get(&mut self, id: ViewerId) -> Option<&mut Viewer> {
        self.all.iter_mut().find(|viewer| viewer.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(columns: u32) -> Size {
        Size {
            columns,
            rows: 24,
            ..Size::default()
        }
    }

    #[test]
    fn the_size_is_that_of_the_writer_who_was_active_last() {
        let now = Instant::now();
        let mut viewers = Viewers::default();
        assert_eq!(viewers.size(), None);
        let reader = viewers.join(true, size(10), 0, now).unwrap();
        assert_eq!(viewers.size(), None, "a reader has no say");
        let desk = viewers.join(false, size(200), 0, now).unwrap();
        let laptop = viewers.join(false, size(80), 0, now).unwrap();
        assert_eq!(viewers.size(), Some(size(80)), "who came last");
        viewers.active(desk);
        assert_eq!(viewers.size(), Some(size(200)), "who typed last");
        viewers.resize(laptop, size(90));
        viewers.resize(reader, size(11));
        assert_eq!(viewers.size(), Some(size(90)), "who resized last");
        viewers.leave(laptop);
        assert_eq!(viewers.size(), Some(size(200)), "who is left");
        viewers.leave(desk);
        assert_eq!(viewers.size(), None);
        assert_eq!(viewers.count(), (0, 1));
    }

    #[test]
    fn the_foremost_writer_holds_back_for_a_while_and_nobody_else() {
        let now = Instant::now();
        let later = |millis| now + Duration::from_millis(millis);
        let mut viewers = Viewers::default();
        assert_eq!(viewers.hold(u64::MAX, now), None, "nobody looks");
        let reader = viewers.join(true, size(80), 0, now).unwrap();
        assert_eq!(viewers.hold(u64::MAX, now), None, "readers do not hold back");
        let slow = viewers.join(false, size(80), 0, now).unwrap();
        assert_eq!(viewers.hold(AHEAD - 1, now), None);
        assert_eq!(viewers.hold(AHEAD, now), Some(now + STALLED));
        let quick = viewers.join(false, size(80), AHEAD, now).unwrap();
        assert_eq!(viewers.hold(AHEAD, now), None, "one keeps up");
        viewers.took(quick, 2 * AHEAD, later(1000));
        assert_eq!(viewers.hold(3 * AHEAD, later(1000)), Some(later(1000) + STALLED));
        // All have stalled: the program goes on. One moves: it is waited for again.
        assert_eq!(viewers.hold(3 * AHEAD, later(1000) + STALLED), None);
        viewers.took(slow, AHEAD, later(5000));
        assert_eq!(viewers.hold(3 * AHEAD, later(5000)), Some(later(5000) + STALLED));
        viewers.leave(slow);
        viewers.leave(quick);
        viewers.leave(reader);
    }

    #[test]
    fn one_that_had_nothing_to_take_has_not_stalled() {
        let now = Instant::now();
        let mut viewers = Viewers::default();
        viewers.join(false, size(80), 5, now).unwrap();
        let hour = now + Duration::from_hours(1);
        viewers.written(5, hour);
        assert_eq!(viewers.hold(5 + AHEAD, hour), Some(hour + STALLED));
    }

    #[test]
    fn there_are_so_many_and_no_more() {
        let now = Instant::now();
        let mut viewers = Viewers::default();
        for _ in 0..MAX_VIEWERS {
            viewers.join(true, size(80), 0, now).unwrap();
        }
        assert_eq!(viewers.join(false, size(80), 0, now), None);
        viewers.leave(1);
        assert!(viewers.join(false, size(80), 0, now).is_some());
    }
}
