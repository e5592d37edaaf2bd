//! What is asked for, and what comes of it, in words.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use carrel_core::model::topology::Link;
use carrel_proto::v1;
use carrel_proto::v1::gpu_unit_request::Unit;

use crate::output::visible;
use crate::request::{Cpus, Memory};
use crate::units;

/// "4 GPUs joined by NVLink, slowest link NV18, exclusive, on h100-01: now", "… by 14:32 at the latest". The words are
/// those of what was found, which may be less than a request prefers.
pub fn describe(choice: &v1::Choice) -> String {
    let request = choice.request.clone().unwrap_or_default();
    let links = choice.seats.iter().map(|seat| seat.worst_link.as_str());
    let slowest = links
        .filter(|link| !link.is_empty())
        .min_by_key(|link| Link::from_name(link));
    let joined = slowest.is_some_and(|link| Link::from_name(link).is_some_and(Link::is_nvlink));
    let without_wish = preferred(&request).is_some() && !choice.seats.is_empty() && !joined;
    let mut text = if choice.seats.is_empty() {
        units_of(&request)
    } else {
        units_where(&request, joined)
    };
    if let Some(link) = slowest {
        text += &format!(", slowest link {}", visible(link));
    }
    let gpus = choice.seats.iter().flat_map(|seat| &seat.gpus);
    let mut classes: Vec<String> = gpus.map(|gpu| visible(&gpu.isolation)).collect();
    classes.retain(|class| !class.is_empty());
    classes.sort_unstable();
    classes.dedup();
    for class in classes {
        text += &format!(", {class}");
    }
    let nodes: Vec<String> = choice.seats.iter().map(|seat| visible(&seat.node)).collect();
    if !nodes.is_empty() && choice.now {
        text += &format!(", on {}", nodes.join(", "));
    }
    text += ": ";
    text += &when(choice);
    if without_wish && !choice.now {
        text += " (joined by NVLink if that comes free first)";
    }
    text
}

/// "now", "in about 12 min, by 2026-11-21T14:32:00Z at the latest".
fn when(choice: &v1::Choice) -> String {
    match choice.start_ms {
        _ if choice.now => "now".to_owned(),
        Some(start) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now = now.map_or(0, |now| now.as_millis() as i64);
            let left = Duration::from_millis(u64::try_from(start - now).unwrap_or(0));
            format!(
                "in about {}, by {} at the latest",
                units::about(left),
                units::rfc3339(start)
            )
        }
        None => "when cannot be said".to_owned(),
    }
}

/// "4 GPUs joined by NVLink", "2 slices 1g.10gb", "4 CPUs, 8 GiB", "2 GPUs, NVLink preferred for 10 min".
pub fn units_of(request: &v1::ResourceRequest) -> String {
    let text = units_where(request, false);
    match preferred(request) {
        None => text,
        Some(time) if time.as_secs().is_multiple_of(60) => {
            format!("{text}, NVLink preferred for {}", units::about(time))
        }
        Some(time) => format!("{text}, NVLink preferred for {}", units::clock(time)),
    }
}

/// How long NVLink is held out for; none: as long as it takes, or not at all.
fn preferred(request: &v1::ResourceRequest) -> Option<Duration> {
    let patience = request.patience.and_then(|patience| patience.nvlink_ms);
    patience
        .filter(|_| request.nvlink && request.gpus_per_node > 1)
        .map(Duration::from_millis)
}

/// Of all components; those that are alike but for their number of nodes, or for which nodes, are one. `fulfilled`:
/// NVLink that is only preferred is there.
fn units_where(request: &v1::ResourceRequest, fulfilled: bool) -> String {
    let mut parts: Vec<(String, bool, u32)> = Vec::new();
    for component in std::iter::once(request).chain(&request.more) {
        let joined = component.nvlink && (fulfilled || preferred(component).is_none());
        let what = units_on_each(component, joined);
        let nodes = component.nodes.max(1);
        let mut parts_before = parts.iter_mut();
        match parts_before.find(|(other, whole, _)| (other, *whole) == (&what, component.exclusive)) {
            Some((.., sum)) => *sum += nodes,
            None => parts.push((what, component.exclusive, nodes)),
        }
    }
    let text = |(what, whole, nodes): (String, bool, u32)| match (nodes, whole) {
        (1, false) => what,
        (1, true) => format!("a whole node with {what}"),
        (nodes, false) => format!("{nodes} nodes with {what} each"),
        (nodes, true) => format!("{nodes} whole nodes with {what} each"),
    };
    parts.into_iter().map(text).collect::<Vec<_>>().join(" + ")
}

/// What is asked for on each node.
fn units_on_each(request: &v1::ResourceRequest, joined: bool) -> String {
    let count = request.gpus_per_node;
    let s = if count == 1 { "" } else { "s" };
    let model = match request.gpu_model.as_str() {
        "" => String::new(),
        model => format!("{} ", visible(model)),
    };
    match request.unit.as_ref().and_then(|unit| unit.unit.as_ref()) {
        _ if count == 0 => format!("{}, {}", Cpus(request), Memory(request)),
        None | Some(Unit::Least(false)) => {
            let joined = if joined && count > 1 {
                " joined by NVLink"
            } else {
                ""
            };
            format!("{count} {model}GPU{s}{joined}")
        }
        Some(Unit::Least(true)) => {
            let memory = units::gpu_bytes(request.gpu_memory_bytes);
            format!("{count} {model}GPU{s} or slice{s} with {memory}")
        }
        Some(Unit::MigProfile(profile)) => format!("{count} {model}slice{s} {}", visible(profile)),
        Some(Unit::Share(share)) => format!("{} of a {model}GPU", f64::from(share.milli) / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(nodes: u32, gpus_per_node: u32) -> v1::ResourceRequest {
        v1::ResourceRequest {
            nodes,
            gpus_per_node,
            cpus_per_node: 1,
            memory_bytes_per_node: 4 << 30,
            ..Default::default()
        }
    }

    fn seat(node: &str, link: &str) -> v1::Seat {
        v1::Seat {
            node: node.into(),
            worst_link: link.into(),
            gpus: vec![v1::Gpu {
                isolation: "exclusive".into(),
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    /// What was found is described as it is, though something better is preferred.
    #[test]
    fn a_preference_promises_nothing() {
        let preferring = v1::ResourceRequest {
            nvlink: true,
            patience: Some(v1::Patience {
                nvlink_ms: Some(600_000),
                switches_ms: None,
            }),
            ..request(1, 2)
        };
        assert_eq!(units_of(&preferring), "2 GPUs, NVLink preferred for 10 min");
        let choice = |seats: Vec<v1::Seat>, now| {
            let choice = v1::Choice {
                request: Some(preferring.clone()),
                start_ms: Some(0),
                now,
                seats,
            };
            describe(&choice)
        };
        let when = "in about 0 s, by 1970-01-01T00:00:00Z at the latest";
        assert_eq!(
            choice(vec![seat("n1", "SYS")], false),
            format!(
                "2 GPUs, slowest link SYS, exclusive: {when} (joined by NVLink if that comes free first)"
            )
        );
        assert_eq!(
            choice(vec![seat("n1", "NV12")], false),
            format!("2 GPUs joined by NVLink, slowest link NV12, exclusive: {when}")
        );
        assert_eq!(
            choice(vec![seat("n1", "SYS")], true),
            "2 GPUs, slowest link SYS, exclusive, on n1: now"
        );
        assert_eq!(
            choice(Vec::new(), false),
            format!("2 GPUs, NVLink preferred for 10 min: {when}")
        );
    }

    #[test]
    fn all_components_are_counted() {
        let mut whole = request(1, 0);
        whole.more = vec![request(2, 8)];
        assert_eq!(units_of(&whole), "1 CPU, 4G + 2 nodes with 8 GPUs each");
        let mut racks = request(2, 1);
        racks.more = vec![request(1, 1)];
        assert_eq!(units_of(&racks), "3 nodes with 1 GPU each");
    }
}
