//! Which nodes, and how close to each other: the flags that `alloc` and `open` share, in Slurm's spelling.

use std::time::Duration;

use carrel_core::model::features::{BadExpression, FeatureRequest};
use carrel_core::model::host_list;
use carrel_proto::v1;

use crate::units;

/// Which nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Which nodes")]
pub struct ConstraintArgs {
    /// These nodes, all of them; with more --nodes, others too: gpu[01-04],gpu7
    #[arg(short = 'w', long, value_name = "LIST", value_parser = parse_hosts)]
    pub nodelist: Option<String>,
    /// None of these nodes
    #[arg(short = 'x', long, value_name = "LIST", value_parser = parse_hosts)]
    pub exclude: Option<String>,
    /// Nodes with these features: ib, 'ib&(rack1|rack2)', all in one rack: '[rack1|rack2]', so many: 'rack1*2&rack2*4';
    /// `carrel nodes` shows them
    #[arg(short = 'C', long, value_name = "FEATURES", value_parser = parse_features)]
    pub constraint: Option<String>,
    /// Nodes on at most N leaf switches; with a time, on any once the job has waited for so long
    #[arg(long, value_name = "N[@TIME]", value_parser = parse_switches)]
    pub switches: Option<Switches>,
    /// Every K nodes, by rank, within one block: GPUs joined by NVLink from node to node
    #[arg(long, value_name = "K", value_parser = units::parse_count, allow_hyphen_values = true)]
    pub segment: Option<u32>,
    /// Nodes that follow each other in the order of their names
    #[arg(long)]
    pub contiguous: bool,
    /// Hold out for GPUs joined by NVLink for so long, then take any: nvlink@10m
    #[arg(long, value_name = "WISH@TIME", value_parser = parse_wish, conflicts_with = "nvlink")]
    pub prefer: Option<Duration>,
}

/// At most so many leaf switches, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    count: u32,
    patience: Option<Duration>,
}

fn parse_hosts(text: &str) -> Result<String, String> {
    let hosts = host_list::parse(text).map_err(|bad| bad.why)?;
    Ok(host_list::format(&hosts))
}

fn parse_features(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Ok(String::new());
    }
    // To Slurm a ',' is a '&' (`_feature_string2list`).
    let text = text.replace(',', "&");
    let read: FeatureRequest = text.parse().map_err(|bad: BadExpression| bad.why)?;
    Ok(read.to_string())
}

fn parse_switches(text: &str) -> Result<Switches, String> {
    let (count, time) = text
        .split_once('@')
        .map_or((text, None), |(count, time)| (count, Some(time)));
    if time == Some("") {
        return Err(format!(
            "say for how long, as in {count}@10m; without the '@' it is for ever"
        ));
    }
    Ok(Switches {
        count: units::parse_count(count)?,
        patience: time.map(units::parse_time).transpose()?,
    })
}

const WITHOUT_TIME: &str = "say for how long, as in nvlink@10m; --nvlink insists for ever";

fn parse_wish(text: &str) -> Result<Duration, String> {
    match text.split_once('@') {
        Some(("nvlink", "")) => Err(WITHOUT_TIME.to_owned()),
        Some(("nvlink", time)) => units::parse_time(time),
        Some((wish, _)) => Err(format!("{wish:?} cannot be held out for; nvlink can: nvlink@10m")),
        None if text == "nvlink" => Err(WITHOUT_TIME.to_owned()),
        None => Err("write nvlink@10m".to_owned()),
    }
}

impl ConstraintArgs {
    /// Changes what is asked for here. An empty list or feature takes a former wish back; with `insists`,
    /// NVLink is not given up any more.
    pub fn over(&self, resources: &mut v1::ResourceRequest, insists: bool) {
        let mut wishes = resources.constraints.take().unwrap_or_default();
        let mut patience = resources.patience.take().unwrap_or_default();
        for (wish, asked) in [
            (&mut wishes.nodelist, &self.nodelist),
            (&mut wishes.exclude, &self.exclude),
            (&mut wishes.features, &self.constraint),
        ] {
            if let Some(asked) = asked {
                wish.clone_from(asked);
            }
        }
        if let Some(switches) = self.switches {
            wishes.switches = switches.count;
            patience.switches_ms = switches.patience.map(millis);
        }
        wishes.segment = self.segment.unwrap_or(wishes.segment);
        wishes.contiguous |= self.contiguous;
        if let Some(time) = self.prefer {
            resources.nvlink = true;
            patience.nvlink_ms = Some(millis(time));
        } else if insists {
            patience.nvlink_ms = None;
        }
        resources.constraints = Some(wishes).filter(|wishes| *wishes != v1::NodeConstraints::default());
        resources.patience = Some(patience).filter(|patience| *patience != v1::Patience::default());
    }

    /// Nodes that are named, or counted by their features: as many are asked for where no number is.
    pub fn named(&self) -> Option<u32> {
        let named = || {
            let hosts = host_list::parse(self.nodelist.as_deref()?).ok()?;
            u32::try_from(hosts.len()).ok()
        };
        let counted = || {
            let features: FeatureRequest = self.constraint.as_deref()?.parse().ok()?;
            Some(features.nodes())
        };
        let some = |count: &u32| *count > 0;
        named().filter(some).or_else(|| counted().filter(some))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What is asked of the nodes, for people: "with gpu[01-04], features ib, on at most 1 leaf switch"; empty: nothing.
pub fn describe(request: &v1::ResourceRequest) -> String {
    let wishes = request.constraints.clone().unwrap_or_default();
    let patience = request.patience.unwrap_or_default();
    let within = |ms: Option<u64>| {
        let time = ms.map(|ms| units::clock(Duration::from_millis(ms)));
        time.map(|time| format!(" (for {time} of waiting)"))
            .unwrap_or_default()
    };
    let mut parts = Vec::new();
    for (what, list) in [
        ("with", &wishes.nodelist),
        ("without", &wishes.exclude),
        ("features", &wishes.features),
    ] {
        if !list.is_empty() {
            parts.push(format!("{what} {list}"));
        }
    }
    if wishes.switches > 0 {
        let s = if wishes.switches == 1 { "" } else { "es" };
        let time = within(patience.switches_ms);
        parts.push(format!("on at most {} leaf switch{s}{time}", wishes.switches));
    }
    if wishes.segment > 1 {
        parts.push(format!("every {} in one block", wishes.segment));
    }
    if wishes.contiguous {
        parts.push("following each other".to_owned());
    }
    if request.nvlink && patience.nvlink_ms.is_some() {
        parts.push(format!("NVLink{}", within(patience.nvlink_ms)));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parse(line: &str) -> Result<v1::ResourceRequest, String> {
        let cli = Cli::try_parse_from(format!("carrel alloc {line}").split_whitespace());
        let Command::Alloc(args) = cli.map_err(|error| error.to_string())?.command else {
            panic!("{line} is an alloc");
        };
        let spec = args.request.over(v1::SessionSpec::default());
        spec.map(|spec| spec.resources.unwrap_or_default())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn slurm_s_spellings() {
        let request = parse(
            "-N4 -w gpu[1-2] -x gpu7,gpu8 -C ib&(rack1|rack2) --switches=2@10 --segment=2 --contiguous",
        )
        .expect("a request");
        let wishes = request.constraints.clone().expect("constraints");
        assert_eq!(
            (wishes.nodelist.as_str(), wishes.exclude.as_str()),
            ("gpu[1-2]", "gpu[7-8]")
        );
        assert_eq!(wishes.features, "ib&(rack1|rack2)");
        let commas = parse("-C gpu,hbm80g").expect("a request").constraints;
        assert_eq!(commas.expect("constraints").features, "gpu&hbm80g");
        assert_eq!((wishes.switches, wishes.segment, wishes.contiguous), (2, 2, true));
        assert_eq!(request.patience.expect("patience").switches_ms, Some(600_000));
        assert_eq!(
            describe(&parse("-N4 -C ib --switches 1@90").expect("a request")),
            "features ib, on at most 1 leaf switch (for 1:30:00 of waiting)"
        );
        // The nodes that are named are the number of nodes, where none is said.
        assert_eq!(parse("-w gpu[1-3]").expect("a request").nodes, 3);
        assert_eq!(parse("-C rack1*2&rack2*4").expect("a request").nodes, 6);
        assert_eq!(parse("-N 8 -C [rack1*2&rack2*4]").expect("a request").nodes, 8);
        let preferred = parse("--gpus 4 --prefer nvlink@10m").expect("a request");
        assert!(preferred.nvlink);
        assert_eq!(preferred.patience.expect("patience").nvlink_ms, Some(600_000));
    }

    #[test]
    fn mistakes_are_named() {
        for (line, why) in [
            ("-w gpu[1-", "no ']'"),
            ("-w gpu[9-1]", "counts down"),
            ("-x gpu[1-1000000000]", "65536"),
            ("-C ib&", "missing"),
            ("-C [rack1*2&rack2]", "its count"),
            ("--switches 0", "at least 1"),
            ("--switches 1@soon", "a time"),
            ("--switches 1@", "for how long"),
            ("--gpus 2 --prefer nvlink@", "for how long"),
            ("--segment 0", "at least 1"),
            ("--gpus 2 --prefer nvlink", "for how long"),
            ("--gpus 2 --prefer gold@10m", "nvlink can"),
            ("--prefer nvlink@10m", "GPUs"),
        ] {
            let error = parse(line).expect_err(line);
            assert!(error.contains(why), "{line}: {error}");
        }
    }

    #[test]
    fn a_former_wish_is_taken_back() {
        let mut request = parse("-N2 -w gpu[1-2] -C ib").expect("a request");
        let args = ConstraintArgs {
            nodelist: Some(String::new()),
            constraint: Some(String::new()),
            ..ConstraintArgs::default()
        };
        args.over(&mut request, false);
        assert_eq!(request.constraints, None);
    }
}
