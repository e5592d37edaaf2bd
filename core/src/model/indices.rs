//! Sets of array indices, as Slurm writes them: "0-99", "1,3,5-7", "0-15:4".

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Greatest index that there can be: Slurm's own bound of `MaxArraySize` less one. A cluster's is smaller.
pub const MAX_INDEX: u32 = 4_000_000;
/// Characters of a set.
const MAX_TEXT: usize = 64 << 10;
/// Indices that a set may write out, those included that it says twice.
const MAX_WRITTEN: u64 = 2 * (MAX_INDEX as u64 + 1);
/// So many with a step between them are written one by one where a range without follows.
const FEW: usize = 3;
/// How it is written, for messages.
const RULE: &str = "write 0-99, 1,3,5-7 or 0-15:4";

/// A text that is no set of indices.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is no set of array indices: {why} ({RULE})")]
pub struct BadIndices {
    /// What was given, or its beginning.
    pub text: String,
    /// What is wrong with it.
    pub why: String,
}

/// Indices with equal steps between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: u32,
    /// Part of the run.
    last: u32,
    /// 1 or more.
    step: u32,
}

impl Run {
    const fn one(index: u32) -> Self {
        Self {
            first: index,
            last: index,
            step: 1,
        }
    }

    /// A part of it.
    const fn part(self, first: u32, last: u32) -> Self {
        Self {
            first,
            last,
            step: if first == last { 1 } else { self.step },
        }
    }

    /// Whether it can go on by such a step.
    const fn goes_by(self, step: u32) -> bool {
        self.first == self.last || self.step == step
    }

    fn len(self) -> usize {
        ((self.last - self.first) / self.step) as usize + 1
    }

    fn contains(self, index: u32) -> bool {
        (self.first..=self.last).contains(&index) && (index - self.first).is_multiple_of(self.step)
    }

    fn iter(self) -> impl Iterator<Item = u32> {
        (self.first..=self.last).step_by(self.step as usize)
    }
}

/// A set of array indices, in as many ranges as it takes: twelve bytes each.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct IndexSet {
    /// In order, none reaching into another.
    runs: Vec<Run>,
}

/// The same indices may be in other ranges.
impl PartialEq for IndexSet {
    fn eq(&self, other: &Self) -> bool {
        self.runs == other.runs || self.iter().eq(other.iter())
    }
}

impl Eq for IndexSet {}

impl IndexSet {
    /// One index.
    pub fn one(index: u32) -> Self {
        Self {
            runs: vec![Run::one(index)],
        }
    }

    /// Indices.
    pub fn len(&self) -> usize {
        self.runs.iter().map(|run| run.len()).sum()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Ranges that it takes.
    pub fn ranges(&self) -> usize {
        self.runs.len()
    }

    /// The least.
    pub fn first(&self) -> Option<u32> {
        self.runs.first().map(|run| run.first)
    }

    /// The greatest.
    pub fn last(&self) -> Option<u32> {
        self.runs.last().map(|run| run.last)
    }

    /// The only one; none: there are more, or none.
    pub fn only(&self) -> Option<u32> {
        match self.runs.as_slice() {
            [run] if run.first == run.last => Some(run.first),
            _ => None,
        }
    }

    /// The step, where all are in one range with one; else 1.
    pub fn step(&self) -> u32 {
        match self.runs.as_slice() {
            [run] => run.step,
            _ => 1,
        }
    }

    /// All, the least first.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.runs.iter().flat_map(|run| run.iter())
    }

    /// Whether an index is among them.
    pub fn contains(&self, index: u32) -> bool {
        let at = self.runs.partition_point(|run| run.last < index);
        self.runs.get(at).is_some_and(|run| run.contains(index))
    }

    /// Takes one out. Whether it was there.
    pub fn remove(&mut self, index: u32) -> bool {
        let at = self.runs.partition_point(|run| run.last < index);
        let Some(run) = self.runs.get(at).copied().filter(|run| run.contains(index)) else {
            return false;
        };
        let before = (index > run.first).then(|| run.part(run.first, index - run.step));
        let after = (index < run.last).then(|| run.part(index + run.step, run.last));
        self.runs.splice(at..=at, before.into_iter().chain(after));
        true
    }

    /// Puts one in, joining it to its neighbours where that makes fewer ranges.
    pub fn insert(&mut self, index: u32) {
        let at = self.runs.partition_point(|run| run.last < index);
        let Some(next) = self.runs.get(at).copied() else {
            self.push(index);
            return;
        };
        if next.contains(index) {
            return;
        }
        if next.first < index {
            // Between two of a range.
            let before = next.first + (index - next.first) / next.step * next.step;
            let parts = [
                next.part(next.first, before),
                Run::one(index),
                next.part(before + next.step, next.last),
            ];
            self.runs.splice(at..=at, parts);
            return;
        }
        let above = next.first - index;
        let joins_next = next.goes_by(above);
        let former = at.checked_sub(1).map(|before| self.runs[before]);
        let below = former.map(|former| (former, index - former.last));
        match below {
            Some((former, gap)) if gap == above && joins_next && former.goes_by(gap) => {
                let joined = Run {
                    first: former.first,
                    last: next.last,
                    step: gap,
                };
                self.runs.splice(at - 1..=at, [joined]);
            }
            Some((former, gap)) if former.goes_by(gap) && (gap == 1 || former.len() > 1) => {
                self.runs[at - 1] = Run {
                    last: index,
                    step: gap,
                    ..former
                };
            }
            _ if joins_next && (above == 1 || next.len() > 1) => {
                self.runs[at] = Run {
                    first: index,
                    step: above,
                    ..next
                };
            }
            _ => self.runs.insert(at, Run::one(index)),
        }
    }

    /// Those that are in both, the least first.
    pub fn common<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = u32> + 'a {
        let (few, many) = if self.len() <= other.len() {
            (self, other)
        } else {
            (other, self)
        };
        few.iter().filter(|index| many.contains(*index))
    }

    /// Those that are in one or the other.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let (mut left, mut right) = (self.iter().peekable(), other.iter().peekable());
        let merged = std::iter::from_fn(|| match (left.peek(), right.peek()) {
            (Some(a), Some(b)) if a == b => {
                right.next();
                left.next()
            }
            (Some(a), Some(b)) if a > b => right.next(),
            (None, _) => right.next(),
            (Some(_), _) => left.next(),
        });
        Self::sorted(merged)
    }

    /// Those that are not in another.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self::sorted(self.iter().filter(|index| !other.contains(*index)))
    }

    /// Those that are in both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self::sorted(self.common(other))
    }

    fn sorted(indices: impl Iterator<Item = u32>) -> Self {
        let mut set = Self::default();
        indices.for_each(|index| set.push(index));
        set
    }

    /// Adds one that is greater than all.
    fn push(&mut self, index: u32) {
        let Some(run) = self.runs.last_mut() else {
            self.runs.push(Run::one(index));
            return;
        };
        let gap = index - run.last;
        let pair = run.last - run.first == run.step;
        if run.first == run.last {
            *run = Run {
                first: run.first,
                last: index,
                step: gap,
            };
        } else if gap == run.step {
            run.last = index;
        } else if run.step > 1 && (pair || (gap == 1 && run.len() <= FEW)) {
            // Few are no range; with the next one the last may begin one: 1,3,5-7.
            let few = *run;
            self.runs.pop();
            self.runs.extend(few.iter().take(few.len() - 1).map(Run::one));
            self.runs.push(Run {
                first: few.last,
                last: index,
                step: gap,
            });
        } else {
            self.runs.push(Run::one(index));
        }
    }
}

impl FromIterator<u32> for IndexSet {
    fn from_iter<I: IntoIterator<Item = u32>>(indices: I) -> Self {
        let mut all: Vec<u32> = indices.into_iter().collect();
        all.sort_unstable();
        all.dedup();
        Self::sorted(all.into_iter())
    }
}

impl fmt::Display for IndexSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, run) in self.runs.iter().enumerate() {
            if number > 0 {
                f.write_str(",")?;
            }
            match *run {
                Run { first, last, .. } if first == last => write!(f, "{first}")?,
                Run { first, last, step: 1 } => write!(f, "{first}-{last}")?,
                Run { first, last, step } if last - first == step => write!(f, "{first},{last}")?,
                Run { first, last, step } => write!(f, "{first}-{last}:{step}")?,
            }
        }
        Ok(())
    }
}

impl From<IndexSet> for String {
    fn from(set: IndexSet) -> Self {
        set.to_string()
    }
}

impl TryFrom<String> for IndexSet {
    type Error = BadIndices;

    /// As it is kept: it may be empty, unlike what people write.
    fn try_from(text: String) -> Result<Self, BadIndices> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        text.parse()
    }
}

/// As `--array` takes it, less the throttle. An index that is said twice is one.
impl FromStr for IndexSet {
    type Err = BadIndices;

    fn from_str(text: &str) -> Result<Self, BadIndices> {
        let bad = |why: String| BadIndices {
            text: text.chars().take(80).collect(),
            why,
        };
        if text.len() > MAX_TEXT {
            return Err(bad(format!("over {MAX_TEXT} characters")));
        }
        if text.trim().is_empty() {
            return Err(bad("an array of zero tasks".to_owned()));
        }
        let runs = text.split(',').map(|part| read_run(part.trim()));
        let runs = runs.collect::<Result<Vec<Run>, String>>().map_err(bad)?;
        let written: u64 = runs.iter().map(|run| run.len() as u64).sum();
        if written > MAX_WRITTEN {
            return Err(bad(format!("it writes out {written} indices")));
        }
        let in_order = runs.windows(2).all(|pair| pair[0].last < pair[1].first);
        Ok(if in_order {
            Self::sorted(runs.iter().flat_map(|run| run.iter()))
        } else {
            runs.iter().flat_map(|run| run.iter()).collect()
        })
    }
}

/// "7", "0-9", "0-9:3"
fn read_run(part: &str) -> Result<Run, String> {
    let (range, step) = match part.split_once(':') {
        Some((range, step)) => (range, Some(step)),
        None => (part, None),
    };
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last) = (read_index(first, part)?, read_index(last, part)?);
    if last < first {
        return Err(format!("{part} runs backwards"));
    }
    let Some(step) = step else {
        return Ok(Run { first, last, step: 1 });
    };
    if !range.contains('-') {
        return Err(format!("the step of {part} stands after no range"));
    }
    let step: u32 = match step.parse() {
        Ok(0) => return Err(format!("the step of {part} is 1 at least")),
        Ok(step) if step.to_string().len() <= 10 => step,
        _ => return Err(format!("the step of {part} is no number")),
    };
    let last = first + (last - first) / step * step;
    Ok(Run { first, last, step }.part(first, last))
}

fn read_index(text: &str, part: &str) -> Result<u32, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(index) if digits && index <= MAX_INDEX => Ok(index),
        _ if digits => Err(format!("an index is at most {MAX_INDEX}")),
        _ if part.is_empty() => Err("there is nothing between two commas".to_owned()),
        _ => Err(format!("{part:?} is no index and no range")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn set(text: &str) -> IndexSet {
        text.parse().expect(text)
    }

    #[test]
    fn sets_are_written_as_in_slurm() {
        for (text, written, len) in [
            ("0-99", "0-99", 100),
            ("1,3,5-7", "1,3,5-7", 5),
            ("0-15:4", "0-12:4", 4),
            ("3,1,2,2,1-3", "1-3", 3),
            ("7", "7", 1),
            ("0,4", "0,4", 2),
            ("1,5-8", "1,5-8", 5),
            ("0-9:10", "0", 1),
            ("0-4000000", "0-4000000", 4_000_001),
            (" 1 , 2 ", "1-2", 2),
        ] {
            assert_eq!((set(text).to_string().as_str(), set(text).len()), (written, len));
        }
    }

    #[test]
    fn what_is_no_set_is_said_to_be_none() {
        for (text, why) in [
            ("", "an array of zero"),
            ("  ", "an array of zero"),
            ("7-3", "runs backwards"),
            ("0-9:0", "1 at least"),
            ("5:2", "after no range"),
            ("0-9:x", "no number"),
            ("a-b", "no index"),
            ("1,,2", "between two commas"),
            ("-3", "no index"),
            ("+3", "no index"),
            ("4000001", "at most"),
            ("99999999999999999999", "at most"),
        ] {
            let said = text.parse::<IndexSet>().expect_err(text).to_string();
            assert!(said.contains(why), "{text}: {said}");
        }
    }

    /// However large, what is in ranges stays small as its tasks start.
    #[test]
    fn a_large_range_stays_small() {
        for text in ["0-99999", "0-99999:2", "0-49999,50000-99998:3"] {
            let mut left = set(text);
            let ranges = left.ranges();
            while let Some(first) = left.first() {
                assert!(left.ranges() <= ranges + 1, "{text}: {left}");
                assert!(left.remove(first));
            }
        }
    }

    proptest! {
        /// It is a set, whatever ranges it is in, and reads what it writes.
        #[test]
        fn it_is_a_set(
            start in prop::collection::btree_set(0u32..60, 0..40),
            other in prop::collection::btree_set(0u32..60, 0..40),
            steps in prop::collection::vec((0u32..60, any::<bool>()), 0..40),
        ) {
            let mut model = start.clone();
            let mut set: IndexSet = start.iter().copied().collect();
            let beside: IndexSet = other.iter().copied().collect();
            for (index, insert) in steps {
                if insert {
                    set.insert(index);
                    model.insert(index);
                } else {
                    prop_assert_eq!(set.remove(index), model.remove(&index));
                }
                prop_assert!(set.iter().eq(model.iter().copied()));
                prop_assert_eq!(set.len(), model.len());
                prop_assert_eq!(set.is_empty(), model.is_empty());
                prop_assert_eq!(set.last(), model.last().copied());
            }
            prop_assert!((0..60).all(|index| set.contains(index) == model.contains(&index)));
            let read = IndexSet::try_from(set.to_string()).expect("what it writes");
            prop_assert_eq!(&read, &set);
            let ops: [(IndexSet, BTreeSet<u32>); 3] = [
                (set.union(&beside), model.union(&other).copied().collect()),
                (set.without(&beside), model.difference(&other).copied().collect()),
                (set.and(&beside), model.intersection(&other).copied().collect()),
            ];
            for (ours, theirs) in ops {
                prop_assert!(ours.iter().eq(theirs.into_iter()));
            }
        }

        /// Nothing that anybody types does harm.
        #[test]
        fn any_text_is_read_or_refused(text in "[0-9,:% \\-\\[\\]a]{0,24}") {
            if let Ok(set) = text.parse::<IndexSet>() {
                prop_assert_eq!(set.to_string().parse::<IndexSet>().expect("what it writes"), set);
            }
        }
    }
}
