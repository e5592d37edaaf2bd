//! Fair tree: in which order users are served, by what they were promised and what they have used.
//!
//! The algorithm is Slurm's (<https://slurm.schedmd.com/fair_tree.html>): siblings are ordered by level
//! fair-share, the share of what their parent is promised over the share of what their parent has used; who is
//! in a better account comes before everybody in a worse one, whatever they used themselves. Siblings
//! with the same level fair-share are as one: what is below them is ordered together.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::model::ids::{AccountName, UserName};

/// A place in the tree.
#[derive(Clone, Debug)]
pub struct Branch {
    /// Whose.
    pub who: Who,
    /// Shares beside its siblings.
    pub shares: u32,
    /// What it, or everybody below it, has used.
    pub usage: f64,
    /// What is below an account.
    pub below: Vec<Branch>,
}

/// Whose place in the tree it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// An account's.
    Account(AccountName),
    /// A user's in an account.
    User(AccountName, UserName),
}

/// A user's place among all, and how it came to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// From 0 (served last) to 1 (served first).
    pub factor: f64,
    /// Level fair-share beside its siblings; infinite where nothing was used.
    pub level: f64,
}

/// The standing of each user in each account.
pub type Standings = BTreeMap<(AccountName, UserName), Standing>;

/// Ranks everybody.
pub fn standings(top: &[Branch]) -> Standings {
    let mut order = Vec::new();
    rank(with_levels(top), &mut order);
    let users = order.iter().map(Vec::len).sum::<usize>();
    let mut ahead = 0;
    let mut standings = Standings::new();
    for equals in order {
        // Equals have the rank of the first of them.
        let factor = (users - ahead) as f64 / users as f64;
        ahead += equals.len();
        for (account, user, level) in equals {
            standings.insert((account, user), Standing { factor, level });
        }
    }
    standings
}

/// Siblings with their level fair-share.
fn with_levels(siblings: &[Branch]) -> Vec<(f64, &Branch)> {
    let shares: u64 = siblings.iter().map(|one| u64::from(one.shares)).sum();
    let usage: f64 = siblings.iter().map(|one| one.usage).sum();
    let level = |one: &Branch| {
        if one.shares == 0 {
            0.0
        } else if one.usage <= 0.0 || usage <= 0.0 {
            f64::INFINITY
        } else {
            // One division: what is equal comes out equal.
            (f64::from(one.shares) * usage) / (one.usage * shares as f64)
        }
    };
    siblings.iter().map(|one| (level(one), one)).collect()
}

/// Appends users to `order`, those that are equal together.
fn rank(mut siblings: Vec<(f64, &Branch)>, order: &mut Vec<Vec<(AccountName, UserName, f64)>>) {
    siblings.sort_by(|(a, _), (b, _)| b.partial_cmp(a).unwrap_or(Ordering::Equal));
    let mut rest = siblings.as_slice();
    while let Some((level, _)) = rest.first() {
        let equal = rest
            .iter()
            .take_while(|(other, _)| other.total_cmp(level).is_eq())
            .count();
        let (equals, worse) = rest.split_at(equal);
        rest = worse;
        // Users come before accounts with the same level.
        let mut users = Vec::new();
        let mut below = Vec::new();
        for (level, one) in equals {
            match &one.who {
                Who::User(account, user) => users.push((account.clone(), user.clone(), *level)),
                Who::Account(_) => below.extend(with_levels(&one.below)),
            }
        }
        if !users.is_empty() {
            order.push(users);
        }
        if !below.is_empty() {
            rank(below, order);
        }
    }
}
