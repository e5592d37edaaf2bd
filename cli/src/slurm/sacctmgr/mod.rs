//! `sacctmgr`, as far as it reads: accounts, the users in them, qualities of service, and the cluster.

mod entities;

use super::format::{self, Column, Style};
use super::options::Takes::{Nothing, Perhaps, Value};
use super::options::{Given, NO_MORE_TALK, NONE, ONE_CLUSTER, Usage, refused, taken, used};
use super::{Called, sacct, user_name};
use crate::error::{CliError, Result};
use crate::output;
use entities::{Entity, Line, World};

/// The command.
pub const USAGE: Usage = Usage {
    name: "sacctmgr",
    line: "[OPTIONS] show|list user|account|association|qos|cluster [NAME…] [where KEY=VALUE…] [format=FIELD,…]",
    about: "Lists accounts, users in them, QOS and the cluster. `carrel admin` changes them.",
    options: &[
        used(
            's',
            "associations",
            Nothing,
            "with users, their places in accounts; with accounts, their users",
        ),
        used(NONE, "delimiter", Value, "between fields, with -p and -P"),
        used('h', "help", Nothing, "this text"),
        taken('i', "immediate", Nothing, "nothing is changed"),
        refused(
            NONE,
            "json",
            Perhaps,
            "`carrel admin … list --output json` is there",
        ),
        taken('M', "clusters", Value, ONE_CLUSTER),
        used('n', "noheader", Nothing, "no header"),
        taken('o', "oneliner", Nothing, "each has a line of its own"),
        used('p', "parsable", Nothing, "'|' behind each field"),
        used('P', "parsable2", Nothing, "'|' between fields"),
        used('Q', "quiet", Nothing, "nothing more is said"),
        used('r', "readonly", Nothing, "nothing is changed"),
        used(NONE, "usage", Nothing, "how it is called"),
        taken('v', "verbose", Nothing, NO_MORE_TALK),
        used('V', "version", Nothing, "the version"),
        refused(
            NONE,
            "yaml",
            Perhaps,
            "`carrel admin … list --output json` is there",
        ),
    ],
};

/// What sacctmgr calls what it changes with, and what does it here.
const WRITES: [&str; 11] = [
    "add",
    "archive",
    "clear",
    "create",
    "delete",
    "dump",
    "load",
    "modify",
    "reconfigure",
    "remove",
    "shutdown",
];

/// What is asked for.
#[derive(Debug, Default)]
struct Wanted {
    /// Fields, by the words that stand for them; none: the usual ones.
    fields: Vec<String>,
    /// Users and accounts with their associations.
    with_associations: bool,
    users: Vec<String>,
    accounts: Vec<String>,
    parents: Vec<String>,
    qos: Vec<String>,
    clusters: Vec<String>,
    /// Associations with a partition of their own: there are none.
    partitions: Vec<String>,
}

/// Runs it.
pub async fn run(called: &Called, given: Given) -> Result<u8> {
    let mut words = given.words.iter().map(String::as_str);
    let Some(verb) = words.next() else {
        return Err(USAGE.wrong("too few arguments: show what?"));
    };
    let lower = verb.to_ascii_lowercase();
    let entity = words.next();
    match lower.as_str() {
        "help" => return output::text(USAGE.help()).map(|()| 0),
        "version" => return output::text(format_args!("slurm {}\n", super::LIKE)).map(|()| 0),
        "exit" | "quit" => return Ok(0),
        _ if is_begun(&lower, "show") || is_begun(&lower, "list") => {}
        _ if WRITES.iter().any(|write| is_begun(&lower, write)) => return Err(refusal(&lower, entity)),
        _ => return Err(USAGE.wrong(&format!("Unknown command: {verb}"))),
    }
    let Some(named) = entity else {
        return Err(USAGE.wrong("too few arguments: show what?"));
    };
    let Some(entity) = Entity::named(named) else {
        return Err(USAGE
            .wrong(&format!("Invalid entity to list: {named}"))
            .hint("user, account, association, qos, cluster"));
    };
    let mut wanted = Wanted::of(entity, words)?;
    wanted.with_associations |= given.has("associations");
    let columns = columns(entity, &wanted)?;
    let world = World::of(called).await?;
    let mut lines = world.lines(entity, wanted.with_associations);
    lines.retain(|line| wanted.takes(entity, line));
    output::text(listed(&columns, &lines, &given)).map(|()| 0)
}

fn listed(columns: &[Column<Line>], lines: &[Line], given: &Given) -> String {
    let style: Style = sacct::style(given);
    format::table(columns, lines, &style, !given.has("noheader"))
}

/// Whether a word is a beginning of another, of three letters at least, as sacctmgr reads all of its words.
fn is_begun(word: &str, whole: &str) -> bool {
    word.len() >= 3.min(whole.len()) && whole.starts_with(word)
}

/// What is changed is changed by a command of our own.
fn refusal(verb: &str, entity: Option<&str>) -> CliError {
    let subject = match entity.and_then(Entity::named) {
        Some(Entity::User | Entity::Association) => "user",
        Some(Entity::Account) => "account",
        Some(Entity::Qos) => "qos",
        Some(Entity::Cluster) | None => {
            return USAGE
                .wrong(&format!("{verb} cannot be had here: sacctmgr only shows"))
                .hint("`carrel admin --help` says what changes accounts, users, QOS and partitions");
        }
    };
    let own = match verb {
        _ if is_begun(verb, "add") || is_begun(verb, "create") => "add",
        _ if is_begun(verb, "delete") || is_begun(verb, "remove") => "rm",
        _ => "set",
    };
    USAGE
        .wrong(&format!("{verb} cannot be had here: sacctmgr only shows"))
        .hint(format!("`carrel admin {subject} {own}` does it"))
}

fn columns(entity: Entity, wanted: &Wanted) -> Result<Vec<Column<Line>>> {
    let usual = || {
        entity
            .usual(wanted.with_associations)
            .split(',')
            .map(str::to_owned)
    };
    let words: Vec<String> = if wanted.fields.is_empty() {
        usual().collect()
    } else {
        wanted.fields.clone()
    };
    let known = |word: &String| {
        let (name, size) = word.split_once('%').unwrap_or((word, ""));
        let name = entity
            .field(name)
            .ok_or_else(|| CliError::usage(format!("Unknown field '{name}'")))?;
        Ok(if size.is_empty() {
            name.to_owned()
        } else {
            format!("{name}%{size}")
        })
    };
    let words: Result<Vec<String>> = words.iter().map(known).collect();
    format::names(&words?, entities::FIELDS)
}

impl Wanted {
    /// Reads what follows the entity: names, "where", "format=…", conditions and words like "withassoc".
    fn of<'a>(entity: Entity, words: impl Iterator<Item = &'a str>) -> Result<Self> {
        let mut wanted = Self::default();
        for word in words {
            let (key, value) = match word.split_once('=') {
                Some((key, value)) => (key.to_ascii_lowercase(), Some(value)),
                None => (word.to_ascii_lowercase(), None),
            };
            let key = key.trim_end_matches(['+', '-', '!']);
            let begins = |whole: &str| is_begun(key, whole);
            let list = || parts(value.unwrap_or_default());
            match (key, value) {
                ("where" | "", _) => {}
                ("set", None) => return Err(refusal("modify", None)),
                (_, None) if begins("withassociations") || key == "withassoc" || key == "wassoc" => {
                    wanted.with_associations = true;
                }
                // Of what is not there nothing can be shown.
                (_, None)
                    if key.starts_with("with")
                        || key.starts_with("wo")
                        || begins("tree")
                        || begins("onlydefaults") => {}
                (_, None) => wanted.names(entity).extend(parts(word)),
                (_, Some(_)) if begins("format") => wanted.fields.extend(list()),
                (_, Some(_)) if begins("users") || begins("usernames") => {
                    wanted.users.extend(list().iter().map(|user| user_name(user)));
                }
                (_, Some(_)) if begins("accounts") || begins("acct") || key == "defaultaccount" => {
                    wanted.accounts.extend(list());
                }
                (_, Some(_)) if begins("names") => wanted.names(entity).extend(list()),
                (_, Some(_)) if begins("parents") => wanted.parents.extend(list()),
                (_, Some(_)) if begins("clusters") => wanted.clusters.extend(list()),
                (_, Some(_)) if begins("partitions") => wanted.partitions.extend(list()),
                (_, Some(_)) if begins("qoslevel") => wanted.qos.extend(list()),
                (_, Some(_)) => {
                    return Err(USAGE
                        .wrong(&format!("Unknown condition: {word}"))
                        .hint("user, account, name, parent, qos, cluster, partition"));
                }
            }
        }
        Ok(wanted)
    }

    /// What names of the entity itself are conditions on.
    fn names(&mut self, entity: Entity) -> &mut Vec<String> {
        match entity {
            Entity::User => &mut self.users,
            Entity::Account | Entity::Association => &mut self.accounts,
            Entity::Qos => &mut self.qos,
            Entity::Cluster => &mut self.clusters,
        }
    }

    fn takes(&self, entity: Entity, line: &Line) -> bool {
        let one_of = |wanted: &[String], own: &str| {
            wanted.is_empty() || wanted.iter().any(|name| name.eq_ignore_ascii_case(own))
        };
        let qos = match entity {
            Entity::Qos => one_of(&self.qos, &line.name),
            _ => self.qos.is_empty() || self.qos.iter().any(|name| line.qos.contains(name)),
        };
        let own = match entity {
            Entity::Qos | Entity::Cluster => true,
            // An account by itself is in no account; a user by itself has a default one.
            Entity::User if !self.with_associations => {
                one_of(&self.users, &line.user) && one_of(&self.accounts, &line.default_account)
            }
            Entity::Account if !self.with_associations => one_of(&self.accounts, &line.account),
            Entity::User | Entity::Account | Entity::Association => {
                one_of(&self.users, &line.user) && one_of(&self.accounts, &line.account)
            }
        };
        own && qos
            && one_of(&self.parents, &line.parent)
            && one_of(&self.clusters, &line.cluster)
            && self.partitions.is_empty()
    }
}

fn parts(text: &str) -> Vec<String> {
    let text = text.trim_matches(['"', '\'']);
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::super::options;
    use super::entities::tests::world;
    use super::*;

    fn show(line: &[&str]) -> Result<String> {
        let words: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
        let given = options::parse(&USAGE, &words, false)?;
        let entity = Entity::named(&given.words[1]).expect("an entity");
        let mut wanted = Wanted::of(entity, given.words[2..].iter().map(String::as_str))?;
        wanted.with_associations |= given.has("associations");
        let columns = columns(entity, &wanted)?;
        let mut lines = world().lines(entity, wanted.with_associations);
        lines.retain(|line| wanted.takes(entity, line));
        Ok(listed(&columns, &lines, &given))
    }

    #[test]
    fn what_portals_ask_is_answered() {
        for (line, said) in [
            (
                &["-nP", "show", "user", "alice", "withassoc", "format=account"][..],
                "physics\nscience\n",
            ),
            (
                &["-nP", "-s", "list", "user", "alice", "format=account%256"],
                "physics\nscience\n",
            ),
            (
                &[
                    "-np",
                    "show",
                    "users",
                    "where",
                    "user=alice",
                    "withassoc",
                    "format=account,cluster,partition,qos",
                ],
                "physics|carrel||normal,urgent|\nscience|carrel||normal|\n",
            ),
            (
                &[
                    "-P",
                    "show",
                    "assoc",
                    "where",
                    "user=bob",
                    "format=Cluster,Account,User,Share,MaxJobs,GrpTRES,QOS",
                ],
                "Cluster|Account|User|Share|MaxJobs|GrpTRES|QOS\ncarrel|physics|bob|3|4|gres/gpu=8|normal,urgent\n",
            ),
            (
                &["-nP", "list", "user", "format=user,defaultaccount,admin"],
                "alice|physics|None\nbob|physics|Administrator\n",
            ),
            (
                &["-nP", "show", "user", "where", "name=bob", "format=user"],
                "bob\n",
            ),
            (
                &["show", "account", "-nP", "format=account,desc"],
                "physics|who look\nscience|\n",
            ),
            (
                &[
                    "-nP",
                    "show",
                    "acc",
                    "where",
                    "parent=science",
                    "withassoc",
                    "format=account,user,par",
                ],
                "physics||science\n",
            ),
            (
                &[
                    "-nP",
                    "show",
                    "qos",
                    "format=name,priority,maxwall,preemptmode,maxtrespu",
                ],
                "normal|0||off|gres/gpu=2\nurgent|800|1-00:00:00|off|\n",
            ),
            (&["-nP", "show", "qos", "urgent", "format=Name%-30"], "urgent\n"),
            (&["-nP", "show", "cluster", "format=cluster"], "carrel\n"),
            (
                &[
                    "-nP",
                    "show",
                    "assoc",
                    "where",
                    "user=alice",
                    "partition=x",
                    "format=user",
                ],
                "",
            ),
        ] {
            assert_eq!(show(line).expect("answered"), said, "{line:?}");
        }
    }

    #[test]
    fn tables_have_slurm_s_headers() {
        let table = show(&["show", "user", "alice"]).expect("a table");
        assert_eq!(
            table,
            "      User   Def Acct     Admin \n---------- ---------- --------- \n     alice    physics      None \n"
        );
        let header = show(&["-P", "show", "associations", "where", "user=x"]).expect("a header");
        assert_eq!(
            header,
            "Cluster|Account|User|Partition|Share|Priority|GrpJobs|GrpTRES|GrpSubmit|GrpWall|GrpTRESMins|MaxJobs|MaxTRES|\
             MaxTRESPerNode|MaxSubmit|MaxWall|MaxTRESMins|QOS|Def QOS|GrpTRESRunMin\n"
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, said) in [
            (
                &["show", "user", "format=nonsense"][..],
                "Unknown field 'nonsense'",
            ),
            (&["show", "user", "where", "shoe=3"], "Unknown condition: shoe=3"),
        ] {
            assert_eq!(show(line).expect_err(said).message, said);
        }
        for (verb, entity, said) in [
            ("add", Some("user"), "`carrel admin user add` does it"),
            ("delete", Some("account"), "`carrel admin account rm` does it"),
            ("mod", Some("qos"), "`carrel admin qos set` does it"),
        ] {
            assert_eq!(refusal(verb, entity).hint.as_deref(), Some(said));
        }
        assert!(refusal("dump", Some("cluster")).message.contains("dump"));
    }
}
