//! Host lists as Slurm writes them: "gpu[01-16,20],login1".

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt::Write as _;

use thiserror::Error;

use super::ids::{BadName, NodeName};

/// Names that one expression may stand for: several times the hosts of the largest GPU cluster known.
pub const MAX_HOSTS: usize = 65_536;
/// Characters of an expression.
const MAX_TEXT: usize = 64 << 10;
/// Bracketed groups of one name; Slurm's own limit is as small.
const MAX_GROUPS: usize = 4;
/// Digits of a number in brackets: fits 64 bits.
const MAX_DIGITS: usize = 18;

/// A text that is no host list.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("host list {text:?} is not valid: {why} (write gpu1,gpu[03-07,9])")]
pub struct BadHostList {
    /// What was given, or its beginning.
    pub text: String,
    /// What is wrong with it.
    pub why: String,
}

/// The names that an expression stands for, each once. An empty text stands for none.
///
/// The grammar is that of `scontrol show hostnames`: names with commas between them, each with numbers
/// and ranges of numbers in brackets; a range is padded with zeros to the width of its first number.
pub fn parse(text: &str) -> Result<BTreeSet<NodeName>, BadHostList> {
    let bad = |why: String| BadHostList {
        text: text.chars().take(80).collect(),
        why,
    };
    if text.len() > MAX_TEXT {
        return Err(bad(format!("over {MAX_TEXT} characters")));
    }
    let mut names = BTreeSet::new();
    // Several words may stand for the same names: what is written out is counted, not what results.
    let mut written = 0;
    for word in words(text).map_err(&bad)? {
        for name in expand(word, MAX_HOSTS - written).map_err(&bad)? {
            written += 1;
            let name: NodeName = name
                .parse()
                .map_err(|name: BadName| bad(format!("{:?} is no {}", name.text, name.rule)))?;
            names.insert(name);
        }
    }
    Ok(names)
}

/// Counts of nodes in their order, as Slurm writes them: "4(x2),2".
pub fn in_short<'a>(counts: impl IntoIterator<Item = &'a u32>) -> String {
    let counts: Vec<u32> = counts.into_iter().copied().collect();
    let same = counts.chunk_by(|a, b| a == b);
    let words = same.map(|same| match same {
        [one, _, ..] => format!("{one}(x{})", same.len()),
        [one] => one.to_string(),
        [] => String::new(),
    });
    words.collect::<Vec<_>>().join(",")
}

/// The names that an expression stands for, in its own order and as often as it names them, whatever they are: what
/// `scontrol show hostnames` prints.
///
/// # Errors
/// As [`parse`].
pub fn expanded(text: &str) -> Result<Vec<String>, BadHostList> {
    let bad = |why: String| BadHostList {
        text: text.chars().take(80).collect(),
        why,
    };
    if text.len() > MAX_TEXT {
        return Err(bad(format!("over {MAX_TEXT} characters")));
    }
    let mut names = Vec::new();
    for word in words(text).map_err(&bad)? {
        names.extend(expand(word, MAX_HOSTS - names.len()).map_err(&bad)?);
    }
    Ok(names)
}

/// The parts between commas that are not in brackets.
fn words(text: &str) -> Result<Vec<&str>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let (mut words, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '[' if inside => return Err("a '[' in brackets".to_owned()),
            '[' => inside = true,
            ']' if !inside => return Err("a ']' without its '['".to_owned()),
            ']' => inside = false,
            ',' if !inside => {
                words.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err("no ']' closes its '['".to_owned());
    }
    words.push(&text[start..]);
    if words.iter().any(|word| word.trim().is_empty()) {
        return Err("nothing between two commas".to_owned());
    }
    Ok(words.into_iter().map(str::trim).collect())
}

/// The names that one word stands for, in order; no more than `most`.
fn expand(word: &str, most: usize) -> Result<Vec<String>, String> {
    let mut names = vec![String::new()];
    let (mut rest, mut groups) = (word, 0);
    while let Some((before, after)) = rest.split_once('[') {
        let (inside, behind) = after.split_once(']').ok_or("no ']' closes its '['")?;
        groups += 1;
        if groups > MAX_GROUPS {
            return Err(format!("over {MAX_GROUPS} pairs of brackets in a name"));
        }
        let numbers = numbers(inside, most / names.len())?;
        names = names
            .iter()
            .flat_map(|name| {
                numbers
                    .iter()
                    .map(move |number| format!("{name}{before}{number}"))
            })
            .collect();
        rest = behind;
    }
    if names.len() > most {
        return Err(too_many());
    }
    for name in &mut names {
        name.push_str(rest);
    }
    Ok(names)
}

fn too_many() -> String {
    format!("over {MAX_HOSTS} names")
}

/// "01-03,7": the numbers as they are written out.
fn numbers(inside: &str, most: usize) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    let number = |text: &str| {
        let digits = !text.is_empty() && text.len() <= MAX_DIGITS && text.bytes().all(|b| b.is_ascii_digit());
        digits
            .then(|| text.parse::<u64>().ok())
            .flatten()
            .ok_or_else(|| format!("{:?} is no number", text.chars().take(40).collect::<String>()))
    };
    for part in inside.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (low, high) = (number(first)?, number(last)?);
        if low > high {
            return Err(format!("{part} counts down"));
        }
        // Before any is written out: a range may be of a thousand million.
        let count = usize::try_from(high - low)
            .unwrap_or(usize::MAX)
            .saturating_add(1);
        if count > most.saturating_sub(all.len()) {
            return Err(too_many());
        }
        all.extend((low..=high).map(|number| format!("{number:0width$}", width = first.len())));
    }
    Ok(all)
}

/// Names as one expression, as short as Slurm writes it: those that differ in the number at their end
/// are put in brackets.
pub fn format<'a>(names: impl IntoIterator<Item = &'a NodeName>) -> String {
    let mut names: Vec<&str> = names.into_iter().map(NodeName::as_str).collect();
    names.sort_unstable_by(|a, b| natural(a, b));
    names.dedup();
    let split = |name: &'a str| {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        name.split_at(name.len() - digits.min(MAX_DIGITS))
    };
    let mut text = String::new();
    let parts: Vec<(&str, &str)> = names.into_iter().map(split).collect();
    for group in parts.chunk_by(|a, b| a.0 == b.0 && !a.1.is_empty() && !b.1.is_empty()) {
        if !text.is_empty() {
            text.push(',');
        }
        match group {
            [(prefix, number)] => text += &format!("{prefix}{number}"),
            _ => text += &format!("{}[{}]", group[0].0, runs(group)),
        }
    }
    text
}

/// "01-03,7".
fn runs(group: &[(&str, &str)]) -> String {
    let value = |text: &str| text.parse::<u64>().unwrap_or_default();
    let mut text = String::new();
    let mut left = group;
    while let Some(((_, first), rest)) = left.split_first() {
        let follows = |(n, (_, number)): &(usize, &(&str, &str))| {
            let next = value(first) + *n as u64 + 1;
            *number == format!("{next:0width$}", width = first.len())
        };
        let more = rest.iter().enumerate().take_while(follows).count();
        let comma = if text.is_empty() { "" } else { "," };
        let _ = match more {
            0 => write!(text, "{comma}{first}"),
            _ => write!(text, "{comma}{first}-{}", rest[more - 1].1),
        };
        left = &rest[more..];
    }
    text
}

/// Orders names as people number them: "gpu2" before "gpu10".
pub fn natural(a: &str, b: &str) -> Ordering {
    let (mut x, mut y) = (a, b);
    loop {
        let ((text_x, number_x, rest_x), (text_y, number_y, rest_y)) = (chunk(x), chunk(y));
        let significant = |number: &str| number.trim_start_matches('0').len();
        let order = text_x
            .cmp(text_y)
            .then_with(|| significant(number_x).cmp(&significant(number_y)))
            .then_with(|| {
                number_x
                    .trim_start_matches('0')
                    .cmp(number_y.trim_start_matches('0'))
            });
        if order != Ordering::Equal {
            return order;
        }
        if rest_x.is_empty() || rest_y.is_empty() {
            return rest_x.len().cmp(&rest_y.len()).then_with(|| a.cmp(b));
        }
        (x, y) = (rest_x, rest_y);
    }
}

/// What is no digit, the digits after it, and the rest.
fn chunk(text: &str) -> (&str, &str, &str) {
    let digit = |c: char| c.is_ascii_digit();
    let (before, rest) = text.split_at(text.find(digit).unwrap_or(text.len()));
    let (number, rest) = rest.split_at(rest.find(|c| !digit(c)).unwrap_or(rest.len()));
    (before, number, rest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(text: &str) -> Vec<String> {
        let mut names: Vec<String> = parse(text).expect(text).into_iter().map(String::from).collect();
        names.sort_by(|a, b| natural(a, b));
        names
    }

    #[test]
    fn counts_of_nodes_are_written_as_slurm_does() {
        assert_eq!(in_short(&[4]), "4");
        assert_eq!(in_short(&[4, 4]), "4(x2)");
        assert_eq!(in_short(&[4, 4, 2, 4]), "4(x2),2,4");
    }

    #[test]
    fn names_are_expanded_in_their_own_order() {
        assert_eq!(
            expanded("n[3,1-2],login1,n3").expect("a host list"),
            ["n3", "n1", "n2", "login1", "n3"]
        );
        assert!(expanded("").expect("none").is_empty());
        assert!(expanded("n[1-").is_err());
    }

    #[test]
    fn slurm_s_expressions() {
        assert_eq!(
            names("gpu[1-3,7],login1"),
            ["gpu1", "gpu2", "gpu3", "gpu7", "login1"]
        );
        assert_eq!(names("gpu[08-11]"), ["gpu08", "gpu09", "gpu10", "gpu11"]);
        assert_eq!(names("n[8-11]"), ["n8", "n9", "n10", "n11"]);
        assert_eq!(
            names("r[1-2]n[1-2].lab"),
            ["r1n1.lab", "r1n2.lab", "r2n1.lab", "r2n2.lab"]
        );
        assert_eq!(names("a,a,a"), ["a"]);
        assert_eq!(names(" a , b "), ["a", "b"]);
        assert!(names("").is_empty());
    }

    #[test]
    fn what_is_none_is_refused_with_the_reason() {
        for (text, why) in [
            ("gpu[1-", "no ']'"),
            ("gpu[9-1]", "counts down"),
            ("gpu[1-1000000000]", "65536"),
            ("gpu[1-60000],cpu[1-60000]", "65536"),
            ("a[1-100]b[1-100]c[1-100]", "65536"),
            ("a[1-60000],a[1-60000]", "65536"),
            ("gpu[1-99999999999999999999]", "no number"),
            ("gpu[]", "no number"),
            ("gpu[1-2-3]", "no number"),
            ("gpu[[1]]", "in brackets"),
            ("gpu1]", "without"),
            ("a,,b", "commas"),
            ("a b", "host name"),
            ("[1]a[2]b[3]c[4]d[5]", "4 pairs"),
            ("-x", "host name"),
            ("ü[1-2]", "host name"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn lists_are_written_short() {
        for (text, short) in [
            ("gpu1,gpu2,gpu3", "gpu[1-3]"),
            ("gpu10,gpu9,gpu8", "gpu[8-10]"),
            ("gpu09,gpu10,login", "gpu[09-10],login"),
            ("gpu9,gpu010", "gpu[9,010]"),
            ("a1,a3", "a[1,3]"),
            ("n7", "n7"),
        ] {
            assert_eq!(format(&parse(text).expect(text)), short);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(names in proptest::collection::btree_set("[a-c]{1,2}(0?[0-9]{1,3})?", 0..20)) {
            let names: BTreeSet<NodeName> = names.iter().map(|name| name.parse().expect("a name")).collect();
            prop_assert_eq!(parse(&format(&names)), Ok(names));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[a-c0-9\\[\\],-]{0,40}") {
            if let Ok(names) = parse(&text) {
                prop_assert!(names.len() <= MAX_HOSTS);
            }
        }

        #[test]
        fn natural_order_is_an_order(a in "[a-b0-2]{0,6}", b in "[a-b0-2]{0,6}", c in "[a-b0-2]{0,6}") {
            prop_assert_eq!(natural(&a, &b), natural(&b, &a).reverse());
            if natural(&a, &b).is_le() && natural(&b, &c).is_le() {
                prop_assert!(natural(&a, &c).is_le());
            }
        }
    }
}
