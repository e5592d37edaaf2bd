//! `sshare`: accounts, the users in them, their shares and what they have used.

use carrel_proto::v1;

use super::format::{self, Field};
use super::options::Takes::{Nothing, Perhaps, Value};
use super::options::{Given, NO_MORE_TALK, NONE, ONE_CLUSTER, Usage, refused, taken, used};
use super::{Called, sacct, user_name};
use crate::error::Result;
use crate::output;

/// The command.
pub const USAGE: Usage = Usage {
    name: "sshare",
    line: "[OPTIONS]",
    about: "Lists accounts and the shares in them.",
    options: &[
        used('A', "accounts", Value, "these accounts"),
        used('a', "all", Nothing, "all users in them"),
        used(NONE, "delimiter", Value, "between fields, with -p and -P"),
        used('o', "format", Value, "what is shown: Account,User,FairShare"),
        used('h', "noheader", Nothing, "no header"),
        used('n', "no-header", Nothing, "no header"),
        used(NONE, "help", Nothing, "this text"),
        refused(
            NONE,
            "json",
            Perhaps,
            "`carrel admin account list --output json` is there",
        ),
        used('l', "long", Nothing, "more of each"),
        taken('M', "clusters", Value, ONE_CLUSTER),
        refused(
            'm',
            "partition",
            Nothing,
            "shares are not told apart by partition",
        ),
        used('p', "parsable", Nothing, "'|' behind each field"),
        used('P', "parsable2", Nothing, "'|' between fields"),
        used('u', "users", Value, "these users"),
        used('U', "Users", Nothing, "users, and not accounts"),
        used(NONE, "usage", Nothing, "how it is called"),
        taken('v', "verbose", Nothing, NO_MORE_TALK),
        used('V', "version", Nothing, "the version"),
    ],
};

const USUAL: &str = "Account,User,RawShares,NormShares,RawUsage,EffectvUsage,FairShare";

/// An account, or a user in one.
struct Line {
    /// Blanks before it say how deep it lies.
    account: String,
    user: String,
    shares: u32,
    of_shares: u32,
    /// GPU-hours, weighed and decayed.
    used: f64,
    of_used: f64,
    fair_share: Option<f64>,
}

const fn field(name: &'static str, width: i32, value: fn(&Line) -> String) -> Field<Line> {
    Field {
        letter: None,
        name,
        header: name,
        width,
        value,
    }
}

fn part(of: f64, all: f64) -> String {
    if all > 0.0 {
        format!("{:.6}", of / all)
    } else {
        "0.000000".to_owned()
    }
}

const FIELDS: &[Field<Line>] = &[
    field("Account", -20, |line| line.account.clone()),
    field("User", 10, |line| line.user.clone()),
    field("RawShares", 10, |line| line.shares.to_string()),
    field("NormShares", 11, |line| {
        part(f64::from(line.shares), f64::from(line.of_shares))
    }),
    // Seconds of a GPU, as Slurm counts those of its billing unit.
    field("RawUsage", 11, |line| format!("{:.0}", line.used * 3_600.0)),
    field("NormUsage", 11, |line| part(line.used, line.of_used)),
    field("EffectvUsage", 13, |line| part(line.used, line.of_used)),
    field("FairShare", 10, |line| {
        line.fair_share
            .map_or_else(String::new, |share| format!("{share:.6}"))
    }),
    field("LevelFS", 10, |_| String::new()),
    field("GrpTRESMins", 30, |_| String::new()),
    field("TRESRunMins", 30, |_| String::new()),
];

/// Runs it.
pub async fn run(called: &Called, given: Given) -> Result<u8> {
    if let Some(word) = given.words.first() {
        return Err(USAGE.wrong(&format!("Unrecognized option: {word}")));
    }
    let words = match given.value("format") {
        Some(_) => given.list("format"),
        None => USUAL.split(',').map(str::to_owned).collect(),
    };
    let columns = format::names(&words, FIELDS)?;
    let mut client = called.context.client().await?;
    let accounts = client
        .list_accounts(v1::ListAccountsRequest {})
        .await?
        .into_inner()
        .accounts;
    let users: Vec<String> = match (given.has("users"), given.has("all")) {
        (true, _) => given.list("users").iter().map(|user| user_name(user)).collect(),
        (false, true) => Vec::new(),
        (false, false) => vec![Called::user()?],
    };
    let wanted = given.list("accounts");
    let mut lines = Vec::new();
    for account in accounts.iter().filter(|account| account.parent.is_empty()) {
        below(&accounts, account, 0, &mut lines, &users);
    }
    lines.retain(|line| wanted.is_empty() || wanted.iter().any(|name| name == line.account.trim()));
    if given.has("Users") {
        lines.retain(|line| !line.user.is_empty());
    }
    let header = !given.has("noheader") && !given.has("no-header");
    output::text(format::table(&columns, &lines, &sacct::style(&given), header)).map(|()| 0)
}

/// An account, its users, and the accounts below it.
fn below(all: &[v1::Account], account: &v1::Account, depth: usize, lines: &mut Vec<Line>, users: &[String]) {
    let used = |held: &Option<v1::Held>| held.as_ref().map_or(0.0, |held| held.used_gpu_hours);
    let siblings = || all.iter().filter(|other| other.parent == account.parent);
    lines.push(Line {
        account: format!("{}{}", " ".repeat(depth), account.name),
        user: String::new(),
        shares: account.shares,
        of_shares: siblings().map(|other| other.shares).sum(),
        used: used(&account.held),
        of_used: siblings().map(|other| used(&other.held)).sum(),
        fair_share: None,
    });
    let children = || all.iter().filter(|other| other.parent == account.name);
    let of_shares = account.members.iter().map(|member| member.shares).sum::<u32>()
        + children().map(|other| other.shares).sum::<u32>();
    for member in &account.members {
        if users.is_empty() || users.contains(&member.user) {
            lines.push(Line {
                account: format!("{}{}", " ".repeat(depth + 1), account.name),
                user: member.user.clone(),
                shares: member.shares,
                of_shares,
                used: used(&member.held),
                of_used: used(&account.held),
                fair_share: member.fair_share,
            });
        }
    }
    // Deeper than people go a loop would be meant.
    if depth < 64 {
        for child in children() {
            below(all, child, depth + 1, lines, users);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_stand_below_their_accounts() {
        let held = |hours| {
            Some(v1::Held {
                used_gpu_hours: hours,
                ..v1::Held::default()
            })
        };
        let member = |user: &str, shares, hours| v1::Member {
            user: user.into(),
            shares,
            held: held(hours),
            fair_share: Some(0.5),
            ..v1::Member::default()
        };
        let accounts = [
            v1::Account {
                name: "root".into(),
                shares: 1,
                held: held(4.0),
                ..v1::Account::default()
            },
            v1::Account {
                name: "physics".into(),
                parent: "root".into(),
                shares: 3,
                held: held(4.0),
                members: vec![member("alice", 1, 3.0), member("bob", 3, 1.0)],
                ..v1::Account::default()
            },
        ];
        let mut lines = Vec::new();
        below(&accounts, &accounts[0], 0, &mut lines, &["bob".to_owned()]);
        let columns = format::names(
            &[
                "Account".into(),
                "User".into(),
                "NormShares".into(),
                "RawUsage".into(),
            ],
            FIELDS,
        );
        let style = format::Style::Parsable {
            delimiter: "|".into(),
            trailing: false,
        };
        assert_eq!(
            format::table(&columns.expect("fields"), &lines, &style, false),
            "root||1.000000|14400\n physics||1.000000|14400\n  physics|bob|0.750000|3600\n"
        );
    }
}
