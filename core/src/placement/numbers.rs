//! Numbers for values that many hosts share.

use imbl::OrdMap;

/// Gives equal values one number, as long as somebody has it.
#[derive(Clone, Debug)]
pub(super) struct Numbers<T: Ord + Clone> {
    /// Number of each value, and how many have it.
    values: OrdMap<T, (u32, usize)>,
    next: u32,
}

impl<T: Ord + Clone> Default for Numbers<T> {
    fn default() -> Self {
        Self {
            values: OrdMap::new(),
            next: 0,
        }
    }
}

impl<T: Ord + Clone> Numbers<T> {
    /// The number of a value that somebody has.
    pub fn number(&self, value: &T) -> Option<u32> {
        self.values.get(value).map(|(number, _)| *number)
    }

    /// One more has the value.
    pub fn take(&mut self, value: &T) -> u32 {
        let (number, holders) = self.values.get(value).copied().unwrap_or((self.next, 0));
        self.next = self.next.max(number + 1);
        self.values.insert(value.clone(), (number, holders + 1));
        number
    }

    /// One less has the value of this number.
    pub fn give_back(&mut self, number: u32) {
        let Some((value, (_, holders))) = self.values.iter().find(|(_, (known, _))| *known == number) else {
            return;
        };
        let (value, holders) = (value.clone(), *holders);
        if holders > 1 {
            self.values.insert(value, (number, holders - 1));
        } else {
            self.values.remove(&value);
        }
    }

    /// Nobody has any.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// All values, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.values.iter().map(|(value, (number, _))| (*number, value))
    }
}
