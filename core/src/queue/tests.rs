//! The queue's arithmetic, beside slow and obvious models of it.

use std::cmp::Ordering;
use std::time::Duration;

use proptest::prelude::*;

use super::fair_tree::{Branch, Who, standings};
use super::profile::{Free, Profile};
use super::usage::{Decay, Usage};
use super::{Factors, Weights};
use crate::model::ids::{AccountName, NodeName, UserName};
use crate::model::time::Timestamp;

fn account(name: &str) -> AccountName {
    name.parse().expect("a name")
}

fn user(name: &str) -> UserName {
    name.parse().expect("a name")
}

fn leaf(parent: &str, name: &str, shares: u32, usage: f64) -> Branch {
    Branch {
        who: Who::User(account(parent), user(name)),
        shares,
        usage,
        below: Vec::new(),
    }
}

fn node(name: &str, shares: u32, below: Vec<Branch>) -> Branch {
    Branch {
        who: Who::Account(account(name)),
        shares,
        usage: below.iter().map(|one| one.usage).sum(),
        below,
    }
}

/// The example of Slurm's own description: who is in the better account comes first, whatever they used.
#[test]
fn the_account_comes_before_the_user() {
    let tree = [
        node(
            "a",
            1,
            vec![leaf("a", "busy", 1, 90.0), leaf("a", "idle", 1, 0.0)],
        ),
        node(
            "b",
            3,
            vec![leaf("b", "carol", 1, 100.0), leaf("b", "dan", 3, 100.0)],
        ),
    ];
    let found = standings(&tree);
    let factor = |account: &str, name: &str| found[&(self::account(account), user(name))].factor;
    // b has used 200 of 290 with three shares of four, a 90 with one.
    assert!(factor("b", "dan") > factor("b", "carol"));
    assert!(factor("b", "carol") > factor("a", "idle"), "the account decides");
    assert!(factor("a", "idle") > factor("a", "busy"));
    assert_eq!((factor("b", "dan"), factor("a", "busy")), (1.0, 0.25));
}

/// A random tree: shares, usage, and what is below.
fn trees() -> impl Strategy<Value = Vec<Branch>> {
    let users = (0u32..4, 0u32..4).prop_map(|(shares, usage)| (shares, usage, Vec::new()));
    type Shape = (u32, u32, Vec<Sub>);
    #[derive(Clone, Debug)]
    struct Sub(Shape);
    let shapes = users.prop_map(Sub).prop_recursive(3, 24, 4, |inner| {
        (0u32..4, proptest::collection::vec(inner, 1..4)).prop_map(|(shares, below)| Sub((shares, 0, below)))
    });
    fn build(sub: &Sub, parent: &str, next: &mut u32) -> Branch {
        *next += 1;
        let Sub((shares, usage, below)) = sub;
        let name = format!("n{next}");
        if below.is_empty() {
            return leaf(parent, &name, *shares, f64::from(*usage));
        }
        let below = below.iter().map(|one| build(one, &name, next)).collect();
        node(&name, *shares, below)
    }
    proptest::collection::vec(shapes, 1..5).prop_map(|tops| {
        let mut next = 0;
        let tops = tops.iter().map(|one| build(one, "root", &mut next));
        tops.collect::<Vec<_>>()
    })
}

/// Level fair-share by its definition, as a fraction that is compared without division.
fn level(one: &Branch, siblings: &[Branch]) -> (f64, f64) {
    let shares: f64 = siblings.iter().map(|one| f64::from(one.shares)).sum();
    let usage: f64 = siblings.iter().map(|one| one.usage).sum();
    if one.shares == 0 {
        (0.0, 1.0)
    } else if one.usage == 0.0 {
        (1.0, 0.0)
    } else {
        (f64::from(one.shares) * usage, one.usage * shares)
    }
}

/// Every user with the branches that lead to it, and each one's level.
fn paths<'a>(siblings: &'a [Branch], above: &[(f64, f64)], found: &mut Vec<(&'a Branch, Vec<(f64, f64)>)>) {
    for one in siblings {
        let mut path = above.to_vec();
        path.push(level(one, siblings));
        if one.below.is_empty() {
            found.push((one, path));
        } else {
            paths(&one.below, &path, found);
        }
    }
}

fn compare_levels(a: (f64, f64), b: (f64, f64)) -> Ordering {
    match (a.1 == 0.0, b.1 == 0.0) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        (false, false) => {
            let (left, right) = (a.0 / a.1, b.0 / b.1);
            left.partial_cmp(&right).expect("numbers")
        }
    }
}

/// Who is served first, of two: the first difference on the way down decides; who is nearer the top comes first
/// where there is none.
fn compare(a: &[(f64, f64)], b: &[(f64, f64)]) -> Ordering {
    let both = a.iter().zip(b).map(|(a, b)| compare_levels(*a, *b));
    both.into_iter()
        .find(|order| *order != Ordering::Equal)
        .unwrap_or_else(|| b.len().cmp(&a.len()))
}

proptest! {
    #[test]
    fn ranks_are_those_of_comparing_any_two(tree in trees()) {
        let found = standings(&tree);
        let mut users = Vec::new();
        paths(&tree, &[], &mut users);
        prop_assert_eq!(found.len(), users.len());
        let factor = |branch: &Branch| match &branch.who {
            Who::User(account, user) => found[&(account.clone(), user.clone())].factor,
            Who::Account(_) => unreachable!("a leaf is a user"),
        };
        for (one, path) in &users {
            let ahead = users.iter().filter(|(_, other)| compare(other, path) == Ordering::Greater).count();
            let expected = (users.len() - ahead) as f64 / users.len() as f64;
            prop_assert!((factor(one) - expected).abs() < 1e-9, "{:?}: {} and not {expected}", one.who, factor(one));
        }
    }

    /// Counting as things begin and end is adding up all of it, second by second.
    #[test]
    fn use_is_what_adding_it_up_gives(
        runs in proptest::collection::vec((0u64..5_000, 1u64..5_000, 1u64..9_000), 1..8),
        half_life in 1u64..4_000,
        period in 0u64..4_000,
        order in any::<bool>(),
    ) {
        let decay = Decay {
            half_life: Duration::from_secs(half_life),
            period: Duration::from_secs(period),
        };
        let at = |second: u64| Timestamp(second * 1_000);
        let now = at(12_000);
        let mut events: Vec<(u64, bool, u64)> = Vec::new();
        for (from, length, rate) in &runs {
            events.push((*from, true, *rate));
            events.push((from + length, false, *rate));
        }
        // As they happen, or job by job, as a store is read back.
        if order {
            events.sort_unstable();
        }
        let mut usage = Usage::default();
        for (second, begins, rate) in events {
            if begins {
                usage.begin(at(second), rate, decay);
            } else {
                usage.end(at(second), rate, decay);
            }
        }
        let mut expected = 0.0;
        let mut in_period = 0u128;
        let start = decay.period_start(now).0 / 1_000;
        for (from, length, rate) in &runs {
            for second in *from..from + length {
                let age = 12_000.0 - (second as f64 + 0.5);
                expected += *rate as f64 / 1_000.0 * (-age / half_life as f64).exp2();
                if second >= start {
                    in_period += u128::from(*rate);
                }
            }
        }
        let found = usage.decayed(now, decay);
        prop_assert!((found - expected).abs() <= expected * 1e-4 + 1e-6, "{found} and not {expected}");
        prop_assert_eq!(usage.rate_milli(), 0);
        // The period of what is counted last may be another one when it is read back in the order of ids.
        if order {
            prop_assert_eq!(usage.in_period(now, decay), in_period);
        }
    }

    /// Jobs keep their order as time passes.
    #[test]
    fn time_alone_changes_no_order(
        a in (0.0f64..=1.0, 0u64..1_000_000_000, -1_000i32..1_000),
        b in (0.0f64..=1.0, 0u64..1_000_000_000, -1_000i32..1_000),
        later in 0u64..100_000_000_000,
    ) {
        let weights = Weights::default();
        let factors = |(fair_share, since, nice): (f64, u64, i32)| Factors {
            fair_share,
            since: Timestamp(since),
            nice,
            ..Factors::default()
        };
        let (a, b) = (factors(a), factors(b));
        let now = Timestamp(1_000_000_000 + later);
        let total = |factors: &Factors| weights.priority(factors, now).iter().map(|line| line.points).sum::<i64>();
        let by_score = weights.score(&a).cmp(&weights.score(&b));
        let difference = total(&a) - total(&b);
        // Points are whole numbers where they are shown.
        if difference.abs() > 3 {
            prop_assert_eq!(by_score, difference.cmp(&0));
        }
    }
}

#[test]
fn whoever_has_waited_long_enough_comes_first() {
    let weights = Weights::default();
    let longest = weights.longest_overtaking().expect("age counts");
    let worst = Factors {
        since: Timestamp(0),
        ..Factors::default()
    };
    let best = |since| Factors {
        fair_share: 1.0,
        size: 1.0,
        qos: 1.0,
        partition: 1.0,
        interactive: 1.0,
        since,
        nice: 0,
    };
    let bound = Timestamp(0).after(longest);
    assert!(weights.score(&worst) > weights.score(&best(bound.after(Duration::from_secs(1)))));
    assert!(weights.score(&worst) < weights.score(&best(Timestamp(bound.0 - 1_000))));
}

#[test]
fn a_profile_tells_when_nodes_come_free() {
    let name = |name: &str| name.parse::<NodeName>().expect("a name");
    let amount = |gpus: u64| Free {
        gpu_milli: gpus * 1_000,
        cpus: gpus,
        memory: gpus,
        idle: 0,
    };
    let (a, b) = (name("a"), name("b"));
    let mut profile = Profile::default();
    let freed = vec![(Timestamp(50), amount(4)), (Timestamp(30), amount(2))];
    profile.set_node(&a, Timestamp(10), amount(2), freed);
    let freed = vec![(Timestamp(40), amount(8)), (Timestamp(20), amount(1))];
    profile.set_node(&b, Timestamp(10), amount(0), freed);
    profile.set_node(&b, Timestamp(10), amount(0), vec![(Timestamp(40), amount(8))]);
    let at = |gpus| -> Vec<u64> {
        let times = (1..=3).filter_map(|nodes| profile.free_at(amount(gpus), nodes));
        times.map(|at| at.0).collect()
    };
    assert_eq!(at(2), [10, 40]);
    assert_eq!(at(4), [30, 40]);
    assert_eq!(at(8), [40, 50]);
    assert!(at(9).is_empty());
    let ending = |after: Option<u64>, until| -> Vec<&NodeName> {
        profile.ending(after.map(Timestamp), Timestamp(until)).collect()
    };
    assert_eq!(ending(None, 30), [&a]);
    assert_eq!(ending(Some(30), 50), [&b, &a]);
    assert!(ending(Some(50), 50).is_empty());
    assert_eq!(
        profile.ends().collect::<Vec<_>>(),
        [Timestamp(30), Timestamp(40), Timestamp(50)]
    );
}
