//! Features of nodes, and what may be asked of them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Features of one node.
pub const MAX_FEATURES: usize = 64;
/// Characters of a feature's name.
const MAX_NAME: usize = 64;
/// Characters of an expression.
const MAX_TEXT: usize = 1_024;
/// Parentheses within each other.
const MAX_DEPTH: usize = 16;

/// Whether a text can be a feature's name: what an expression can name.
pub fn is_feature(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(is_name_byte)
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-=+:/@".contains(&byte)
}

/// What nodes' features are to be, as Slurm's `--constraint` says it: names joined by '&' or '|', and parentheses; in
/// brackets, choices of which all nodes of a job meet the same one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum FeatureExpression {
    /// It has this one.
    Has(String),
    /// All of these hold.
    All(Vec<FeatureExpression>),
    /// One of these holds.
    Any(Vec<FeatureExpression>),
    /// One of these holds, the same for all nodes of a job: of each node by itself it means [`Self::Any`].
    Same(Vec<FeatureExpression>),
}

impl FeatureExpression {
    /// Whether a node with these features is meant.
    pub fn holds(&self, features: &BTreeSet<String>) -> bool {
        match self {
            Self::Has(name) => features.contains(name),
            Self::All(parts) => parts.iter().all(|part| part.holds(features)),
            Self::Any(parts) | Self::Same(parts) => parts.iter().any(|part| part.holds(features)),
        }
    }
}

impl fmt::Display for FeatureExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (parts, between) = match self {
            Self::Has(name) => return f.write_str(name),
            Self::All(parts) => (parts, "&"),
            Self::Any(parts) | Self::Same(parts) => (parts, "|"),
        };
        let brackets = matches!(self, Self::Same(_));
        f.write_str(if brackets { "[" } else { "" })?;
        for (n, part) in parts.iter().enumerate() {
            f.write_str(if n > 0 { between } else { "" })?;
            match part {
                Self::Has(name) => f.write_str(name)?,
                Self::All(_) | Self::Any(_) => write!(f, "({part})")?,
                Self::Same(_) => write!(f, "{part}")?,
            }
        }
        f.write_str(if brackets { "]" } else { "" })
    }
}

impl From<FeatureExpression> for String {
    fn from(expression: FeatureExpression) -> Self {
        expression.to_string()
    }
}

impl TryFrom<String> for FeatureExpression {
    type Error = BadExpression;

    fn try_from(text: String) -> Result<Self, BadExpression> {
        text.parse()
    }
}

/// A text that is no expression over features.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("constraint {text:?} is not valid: {why}")]
pub struct BadExpression {
    /// What was given, or its beginning.
    pub text: String,
    /// What is wrong with it, and what to do.
    pub why: String,
}

impl FromStr for FeatureExpression {
    type Err = BadExpression;

    fn from_str(text: &str) -> Result<Self, BadExpression> {
        let bad = |why: String| BadExpression {
            text: text.chars().take(80).collect(),
            why,
        };
        if text.len() > MAX_TEXT {
            return Err(bad(format!("over {MAX_TEXT} characters")));
        }
        let text = text.trim();
        let inside = in_brackets(text);
        let mut reader = Reader {
            rest: inside.unwrap_or(text),
        };
        let read = reader.expression(0).map_err(bad)?;
        match (reader.rest.chars().next(), read) {
            (None, FeatureExpression::Any(choices)) if inside.is_some() => {
                Ok(FeatureExpression::Same(choices))
            }
            (None, read) => Ok(read),
            (Some(c), _) => Err(bad(unexpected(c))),
        }
    }
}

fn in_brackets(text: &str) -> Option<&str> {
    text.strip_prefix('[')?.strip_suffix(']')
}

/// What a job asks of its nodes' features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeatureRequest {
    /// This of each, or the same of all.
    Each(FeatureExpression),
    /// Of so many of them at least, this: `[rack1*2&rack2*4]`.
    Counted(Vec<(FeatureExpression, u32)>),
}

impl FeatureRequest {
    /// Nodes that are counted.
    pub fn nodes(&self) -> u32 {
        match self {
            Self::Each(_) => 0,
            Self::Counted(parts) => parts.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count)),
        }
    }
}

impl fmt::Display for FeatureRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = match self {
            Self::Each(expression) => return write!(f, "{expression}"),
            Self::Counted(parts) => parts,
        };
        for (n, (part, count)) in parts.iter().enumerate() {
            f.write_str(if n > 0 { "&" } else { "[" })?;
            match part {
                FeatureExpression::Has(name) => write!(f, "{name}*{count}")?,
                other => write!(f, "({other})*{count}")?,
            }
        }
        f.write_str("]")
    }
}

impl FromStr for FeatureRequest {
    type Err = BadExpression;

    fn from_str(text: &str) -> Result<Self, BadExpression> {
        if !text.contains('*') || text.len() > MAX_TEXT {
            return text.parse().map(Self::Each);
        }
        let text = text.trim();
        let bad = |why: &str| BadExpression {
            text: text.chars().take(80).collect(),
            why: why.to_owned(),
        };
        let mut parts = Vec::new();
        for part in between_ands(in_brackets(text).unwrap_or(text)) {
            let (features, count) = part
                .rsplit_once('*')
                .ok_or_else(|| bad("where nodes are counted, each part has its count: rack1*2&rack2*4"))?;
            let count = count.parse().ok().filter(|count| *count > 0);
            let count = count.ok_or_else(|| bad("after '*' comes a number of nodes"))?;
            let features: FeatureExpression = features.parse()?;
            if matches!(features, FeatureExpression::Same(_)) {
                return Err(bad("brackets stand around all of it: [rack1*2&rack2*4]"));
            }
            parts.push((features, count));
        }
        Ok(Self::Counted(parts))
    }
}

/// What stands between the '&' that are in no parentheses.
fn between_ands(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let parts = text.split(move |c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == '&' && depth == 0
    });
    parts.collect()
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    /// Parts with one kind of operator between them.
    fn expression(&mut self, depth: usize) -> Result<FeatureExpression, String> {
        if depth > MAX_DEPTH {
            return Err(format!("over {MAX_DEPTH} parentheses within each other"));
        }
        let first = self.part(depth)?;
        let Some(operator @ ('&' | '|')) = self.rest.chars().next() else {
            return Ok(first);
        };
        let mut parts = vec![first];
        while let Some(next @ ('&' | '|')) = self.rest.chars().next() {
            if next != operator {
                // Slurm goes from left to right, most languages bind '&' closer: no guess is right for all.
                return Err("'&' and '|' side by side: say with parentheses what belongs together".into());
            }
            self.rest = &self.rest[1..];
            parts.push(self.part(depth)?);
        }
        Ok(match operator {
            '&' => FeatureExpression::All(parts),
            _ => FeatureExpression::Any(parts),
        })
    }

    fn part(&mut self, depth: usize) -> Result<FeatureExpression, String> {
        if let Some(inside) = self.rest.strip_prefix('(') {
            self.rest = inside;
            let part = self.expression(depth + 1)?;
            self.rest = self.rest.strip_prefix(')').ok_or_else(|| {
                let next = self.rest.chars().next();
                next.map_or_else(|| "no ')' closes its '('".to_owned(), unexpected)
            })?;
            return Ok(part);
        }
        let end = self.rest.bytes().take_while(|byte| is_name_byte(*byte)).count();
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        if is_feature(name) {
            return Ok(FeatureExpression::Has(name.to_owned()));
        }
        Err(match rest.chars().next() {
            _ if !name.is_empty() => format!("a feature's name has at most {MAX_NAME} characters"),
            Some(c) if !matches!(c, '&' | '|' | ')') => unexpected(c),
            Some(_) | None => "a feature's name is missing".to_owned(),
        })
    }
}

/// What Slurm has and Carrel has not is told from what nobody has.
fn unexpected(c: char) -> String {
    match c {
        '[' | ']' => "brackets stand around all of it: [rack1|rack2], [rack1*2&rack2*4]".into(),
        '*' => "a count stands behind a feature or a ')', and its parts are joined by '&'".into(),
        '!' => "there is no 'not', as there is none in Slurm; --exclude leaves nodes out".into(),
        ',' | ' ' => "join features by '&' or '|'".into(),
        other => format!("{other:?} has no place here; features are joined by & | ( )"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn holds(expression: &str, features: &[&str]) -> bool {
        let features = features.iter().map(|&name| name.to_owned()).collect();
        expression
            .parse::<FeatureExpression>()
            .expect(expression)
            .holds(&features)
    }

    #[test]
    fn expressions_mean_what_slurm_s_do() {
        assert!(holds("ib", &["ib", "rack1"]));
        assert!(!holds("ib", &["roce"]));
        assert!(holds("ib&rack1", &["ib", "rack1"]));
        assert!(!holds("ib&rack1", &["ib"]));
        assert!(holds("ib|roce", &["roce"]));
        assert!(holds("ib&(rack1|rack2)", &["ib", "rack2"]));
        assert!(!holds("(ib&rack1)|x", &["ib"]));
        assert!(holds("a&b&c", &["c", "b", "a"]));
    }

    #[test]
    fn what_is_none_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "missing"),
            ("a&", "missing"),
            ("&a", "missing"),
            ("a|b&c", "parentheses"),
            ("(a", "no ')'"),
            ("a)", "')'"),
            ("a&[b|c]", "brackets"),
            ("[a|b", "brackets"),
            ("rack1*2", "count"),
            ("!a", "--exclude"),
            ("a,b", "join"),
            ("a b", "join"),
            (&"(".repeat(100), "within each other"),
            (&"a".repeat(65), "64"),
            (&"a&".repeat(600), "1024"),
            ("a;b", "';'"),
        ] {
            let error = text.parse::<FeatureExpression>().expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn choices_and_counts_are_read() {
        assert!(holds("[rack1|rack2]", &["rack2"]));
        let asked = |text: &str| text.parse::<FeatureRequest>();
        let has = |name: &str| FeatureExpression::Has(name.into());
        assert_eq!(
            asked("[a|(b&c)]").map(|asked| asked.to_string()),
            Ok("[a|(b&c)]".to_owned())
        );
        // One choice is none.
        assert_eq!(asked("[a]"), Ok(FeatureRequest::Each(has("a"))));
        let counted = FeatureRequest::Counted(vec![(has("a"), 2), ("b|c".parse().expect("one"), 4)]);
        assert_eq!(asked("[a*2&(b|c)*4]"), Ok(counted.clone()));
        assert_eq!(asked(&counted.to_string()), Ok(counted.clone()));
        assert_eq!(counted.nodes(), 6);
        assert_eq!(asked("a*3"), Ok(FeatureRequest::Counted(vec![(has("a"), 3)])));
        for (text, why) in [
            ("a*0", "number of nodes"),
            ("a*x", "number of nodes"),
            ("a*2|b*2", "joined by '&'"),
            ("a*2&b", "its count"),
            ("[a|b]*2", "brackets"),
            ("*2", "missing"),
        ] {
            let error = asked(text).expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(text in r"[ab&|()\[\]]{0,24}") {
            if let Ok(read) = text.parse::<FeatureExpression>() {
                prop_assert_eq!(read.to_string().parse::<FeatureExpression>(), Ok(read));
            }
        }
    }
}
