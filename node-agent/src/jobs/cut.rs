//! What must be done to a GPU in MIG mode so that it has the slice that a job was given.

use carrel_core::model::gpu::MigProfile;
use carrel_core::model::gpu_unit::Slice;

use crate::gpu::{GpuInstance, Inside, MigDevice, MigState};

/// Where a slice is to be, as the broker names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Its profile's name.
    pub profile: String,
    /// First of its memory slices.
    pub start: u8,
    /// Number of its memory slices.
    pub width: u8,
}

impl Wanted {
    /// Whether it is this slice.
    pub fn is(&self, slice: &Slice) -> bool {
        match slice {
            Slice::Mig {
                profile,
                start,
                width,
            } => (profile, start, width) == (&self.profile, &self.start, &self.width),
            Slice::Whole | Slice::Share { .. } => false,
        }
    }
}

/// What must be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Nothing.
    There {
        /// Its GPU instance's number.
        gpu_instance: u32,
        /// Its device.
        device: MigDevice,
    },
    /// These instances are removed, and one of this profile is made.
    Cut {
        /// In the order of their places.
        remove: Vec<GpuInstance>,
        /// The driver's number of the profile.
        profile: u32,
    },
}

/// Why it cannot be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CannotCut {
    /// It may be later: another job holds what is in the way.
    Held(String),
    /// As long as the GPU and the configuration are as they are.
    Never(String),
}

/// The instance that is there for a slice; none: there is none, or it is no device.
pub(super) fn find<'a>(
    state: &'a MigState,
    profile: &str,
    start: u8,
) -> Option<(&'a GpuInstance, &'a MigDevice)> {
    let mut instances = state.instances.iter();
    instances.find_map(|instance| match &instance.inside {
        Inside::Device(device) if instance.profile == profile && instance.start == start => {
            Some((instance, device))
        }
        Inside::Device(_) | Inside::Nothing | Inside::Parts(_) => None,
    })
}

/// What must be done to a GPU. `held` is what jobs hold of it, cut or still to be cut, without the one that is asked for.
pub(super) fn plan(
    state: &MigState,
    wanted: &Wanted,
    held: &[Slice],
    recut: bool,
) -> Result<Plan, CannotCut> {
    let Wanted {
        profile,
        start,
        width,
    } = wanted;
    let never = |why: String| Err(CannotCut::Never(why));
    if let Some((instance, device)) = find(state, profile, *start) {
        if instance.width != *width {
            return never(format!(
                "its {profile} at {start} has {} memory slices and not {width}",
                instance.width
            ));
        }
        return Ok(Plan::There {
            gpu_instance: instance.id,
            device: device.clone(),
        });
    }
    if !recut {
        return never(format!(
            "it has no slice {profile} at {start}, and this node's configuration does not let it be cut anew \
             ([mig] recut)"
        ));
    }
    let Some(kind) = state.profiles.iter().find(|kind| kind.name == *profile) else {
        return never(format!("it has no profile {profile}"));
    };
    if !kind.starts.contains(start) || kind.width != *width {
        return never(format!(
            "a {profile} of {width} memory slices cannot be at {start} on it"
        ));
    }
    let remove = in_the_way(state, kind, *start, held)?;
    Ok(Plan::Cut {
        remove,
        profile: kind.id,
    })
}

/// Instances that must go: those in its place, and idle ones that the GPU could not have beside it.
fn in_the_way(
    state: &MigState,
    kind: &MigProfile,
    start: u8,
    held: &[Slice],
) -> Result<Vec<GpuInstance>, CannotCut> {
    let is_held = |instance: &GpuInstance| held.iter().any(|slice| is_of(slice, instance));
    let (mut remove, mut keep): (Vec<&GpuInstance>, Vec<&GpuInstance>) = state
        .instances
        .iter()
        .partition(|instance| instance.overlaps(start, kind.width));
    for instance in &remove {
        let GpuInstance {
            id, profile, start, ..
        } = instance;
        if is_held(instance) {
            return Err(CannotCut::Held(format!(
                "waits for the job that holds its slice {profile} at {start}"
            )));
        }
        if let Inside::Parts(_) = instance.inside {
            let why = format!(
                "its GPU instance {id} ({profile} at {start}), which is divided further, is in the way"
            );
            return Err(CannotCut::Never(why));
        }
    }
    let compute = |id: u32| {
        let profile = state.profiles.iter().find(|profile| profile.id == id);
        profile.map_or(0, |profile| u32::from(profile.compute))
    };
    // A GPU's compute slices are those of its largest instance.
    let most = state
        .profiles
        .iter()
        .map(|profile| u32::from(profile.compute))
        .max()
        .unwrap_or(0);
    let may_go = |instance: &GpuInstance| !is_held(instance) && !matches!(instance.inside, Inside::Parts(_));
    loop {
        let same = keep
            .iter()
            .filter(|instance| instance.profile_id == kind.id)
            .count();
        let used: u32 = keep.iter().map(|instance| compute(instance.profile_id)).sum();
        let too_many = same >= usize::from(kind.most);
        if !too_many && used + u32::from(kind.compute) <= most {
            break;
        }
        let next = keep
            .iter()
            .position(|instance| may_go(instance) && (!too_many || instance.profile_id == kind.id));
        let Some(next) = next else {
            let why = format!(
                "waits for jobs that hold slices of it: it cannot have a {} beside them",
                kind.name
            );
            return Err(CannotCut::Held(why));
        };
        remove.push(keep.remove(next));
    }
    remove.sort_by_key(|instance| instance.start);
    Ok(remove.into_iter().cloned().collect())
}

/// Whether the instance is a slice that a job holds. One that merely overlaps it is idle: it is in the way of the
/// job's slice, which is still to be cut.
fn is_of(slice: &Slice, instance: &GpuInstance) -> bool {
    match slice {
        Slice::Mig {
            profile,
            start,
            width,
        } => (profile, start, width) == (&instance.profile, &instance.start, &instance.width),
        // As a whole it was given before it was in MIG mode.
        Slice::Whole | Slice::Share { .. } => true,
    }
}

/// What differs between what should be on a GPU and what is, for people; none: nothing does.
pub(super) fn difference(should: &[GpuInstance], is: &[GpuInstance]) -> Option<String> {
    let lacks = |all: &[GpuInstance], one: &GpuInstance| {
        !all.iter().any(|other| {
            let place = |instance: &GpuInstance| (instance.profile_id, instance.start, instance.width);
            place(other) == place(one) && same_kind(&other.inside, &one.inside)
        })
    };
    let named = |instance: &GpuInstance| format!("{} at {}", instance.profile, instance.start);
    let missing: Vec<String> = should.iter().filter(|one| lacks(is, one)).map(named).collect();
    let more: Vec<String> = is.iter().filter(|one| lacks(should, one)).map(named).collect();
    match (&missing[..], &more[..]) {
        ([], []) => None,
        (missing, []) => Some(format!("{} is missing", missing.join(", "))),
        ([], more) => Some(format!("{} is there besides", more.join(", "))),
        (missing, more) => Some(format!(
            "{} is missing and {} is there",
            missing.join(", "),
            more.join(", ")
        )),
    }
}

fn same_kind(a: &Inside, b: &Inside) -> bool {
    match (a, b) {
        (Inside::Device(_), Inside::Device(_)) | (Inside::Nothing, Inside::Nothing) => true,
        (Inside::Parts(a), Inside::Parts(b)) => a == b,
        (Inside::Device(_) | Inside::Nothing | Inside::Parts(_), _) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, number, compute slices, memory slices, starts, most.
    type Row = (&'static str, u32, u8, u8, &'static [u8], u8);

    const PROFILES: [Row; 5] = [
        ("1g.10gb", 19, 1, 1, &[0, 1, 2, 3, 4, 5, 6], 7),
        ("1g.10gb+me", 20, 1, 1, &[0, 1, 2, 3, 4, 5, 6], 1),
        ("2g.20gb", 14, 2, 2, &[0, 2, 4], 3),
        ("3g.40gb", 9, 3, 4, &[0, 4], 2),
        ("7g.80gb", 0, 7, 8, &[0], 1),
    ];

    fn profiles() -> Vec<MigProfile> {
        let profile = |&(name, id, compute, width, starts, most): &Row| MigProfile {
            name: name.into(),
            id,
            compute,
            memory_bytes: 0,
            width,
            starts: starts.to_vec(),
            most,
        };
        PROFILES.iter().map(profile).collect()
    }

    fn device(start: u8) -> Inside {
        Inside::Device(MigDevice {
            uuid: format!("MIG-{start}").parse().unwrap(),
            index: 0,
            compute_instance: 0,
        })
    }

    /// Instances by profile and first slice, each a device.
    fn cut(instances: &[(&str, u8)]) -> MigState {
        let profiles = profiles();
        let instance = |&(name, start): &(&str, u8)| {
            let profile = profiles.iter().find(|profile| profile.name == name).unwrap();
            GpuInstance {
                id: u32::from(start),
                profile: name.into(),
                profile_id: profile.id,
                start,
                width: profile.width,
                inside: device(start),
            }
        };
        MigState {
            instances: instances.iter().map(instance).collect(),
            profiles,
        }
    }

    fn wanted(profile: &str, start: u8, width: u8) -> Wanted {
        Wanted {
            profile: profile.into(),
            start,
            width,
        }
    }

    fn slice(profile: &str, start: u8, width: u8) -> Slice {
        Slice::Mig {
            profile: profile.into(),
            start,
            width,
        }
    }

    fn removed(plan: Plan) -> Vec<u8> {
        match plan {
            Plan::Cut { remove, .. } => remove.iter().map(|instance| instance.start).collect(),
            Plan::There { .. } => panic!("it is there"),
        }
    }

    #[test]
    fn what_is_there_is_used_and_only_idle_instances_go() {
        let state = cut(&[("1g.10gb", 0), ("1g.10gb", 2), ("3g.40gb", 4)]);
        let there = plan(&state, &wanted("1g.10gb", 2, 1), &[], false).unwrap();
        assert!(matches!(there, Plan::There { gpu_instance: 2, .. }));
        let big = wanted("3g.40gb", 0, 4);
        assert_eq!(
            removed(plan(&state, &big, &[slice("3g.40gb", 4, 4)], true).unwrap()),
            [0, 2]
        );
        let held = plan(&state, &big, &[slice("1g.10gb", 2, 1)], true);
        assert!(matches!(held, Err(CannotCut::Held(why)) if why.contains("1g.10gb at 2")));
        assert!(
            matches!(plan(&state, &big, &[], false), Err(CannotCut::Never(why)) if why.contains("recut"))
        );
        for bad in [
            wanted("3g.40gb", 2, 4),
            wanted("3g.40gb", 0, 1),
            wanted("5g.50gb", 0, 1),
        ] {
            assert!(
                matches!(plan(&state, &bad, &[], true), Err(CannotCut::Never(_))),
                "{bad:?}"
            );
        }
        // Another width than the driver's, though it is there.
        assert!(matches!(
            plan(&state, &wanted("1g.10gb", 2, 2), &[], true),
            Err(CannotCut::Never(_))
        ));
    }

    #[test]
    fn idle_instances_beside_it_go_where_the_gpu_has_room_for_no_more() {
        let state = cut(&[("1g.10gb+me", 0), ("1g.10gb", 1)]);
        let media = wanted("1g.10gb+me", 5, 1);
        assert_eq!(removed(plan(&state, &media, &[], true).unwrap()), [0]);
        let held = plan(&state, &media, &[slice("1g.10gb+me", 0, 1)], true);
        assert!(matches!(held, Err(CannotCut::Held(_))), "{held:?}");
    }

    /// As after a plan was carried out.
    fn done(mut state: MigState, wanted: &Wanted, plan: Plan) -> MigState {
        let Plan::Cut { remove, profile } = plan else {
            return state;
        };
        state.instances.retain(|instance| !remove.contains(instance));
        state.instances.push(GpuInstance {
            id: u32::from(wanted.start),
            profile: wanted.profile.clone(),
            profile_id: profile,
            start: wanted.start,
            width: wanted.width,
            inside: device(wanted.start),
        });
        state
    }

    /// Whether they are of one job or of several makes no difference: all of them are held before the first is cut.
    #[test]
    fn slices_that_share_the_place_of_an_idle_one_are_cut_in_any_order() {
        /// What is cut, and what is held.
        type Case<'a> = (&'a [(&'a str, u8)], &'a [(&'a str, u8, u8)]);
        let cases: [Case<'_>; 4] = [
            (&[("3g.40gb", 0)], &[("2g.20gb", 0, 2), ("2g.20gb", 2, 2)]),
            (&[("3g.40gb", 4)], &[("1g.10gb", 6, 1), ("2g.20gb", 4, 2)]),
            (
                &[("7g.80gb", 0)],
                &[
                    ("1g.10gb", 0, 1),
                    ("2g.20gb", 2, 2),
                    ("3g.40gb", 4, 4),
                    ("1g.10gb", 1, 1),
                ],
            ),
            // One of them is there.
            (
                &[("1g.10gb", 0), ("3g.40gb", 4)],
                &[("1g.10gb", 0, 1), ("2g.20gb", 4, 2), ("1g.10gb", 6, 1)],
            ),
        ];
        for (before, all) in cases {
            for backwards in [false, true] {
                let mut order = all.to_vec();
                if backwards {
                    order.reverse();
                }
                let mut state = cut(before);
                for (n, (profile, start, width)) in order.iter().enumerate() {
                    let others = order.iter().enumerate().filter(|(other, _)| *other != n);
                    let held: Vec<Slice> = others
                        .map(|(_, (profile, start, width))| slice(profile, *start, *width))
                        .collect();
                    let wanted = wanted(profile, *start, *width);
                    let planned = plan(&state, &wanted, &held, true);
                    let planned = planned.unwrap_or_else(|why| panic!("{order:?}, {wanted:?}: {why:?}"));
                    state = done(state, &wanted, planned);
                }
                for (profile, start, _) in &order {
                    assert!(find(&state, profile, *start).is_some(), "{order:?}: {state:?}");
                }
            }
        }
    }

    #[test]
    fn instances_divided_by_others_stay_and_empty_ones_go() {
        let mut state = cut(&[("1g.10gb", 0), ("2g.20gb", 2)]);
        state.instances[0].inside = Inside::Nothing;
        let big = wanted("3g.40gb", 0, 4);
        assert_eq!(removed(plan(&state, &big, &[], true).unwrap()), [0, 2]);
        // An empty one is no slice, though it is in the place.
        assert_eq!(
            removed(plan(&state, &wanted("1g.10gb", 0, 1), &[], true).unwrap()),
            [0]
        );
        state.instances[1].inside = Inside::Parts(2);
        assert!(
            matches!(plan(&state, &big, &[], true), Err(CannotCut::Never(why)) if why.contains("divided"))
        );
    }

    #[test]
    fn differences_are_named() {
        let (one, other) = (cut(&[("1g.10gb", 0)]), cut(&[("1g.10gb", 1)]));
        assert_eq!(difference(&one.instances, &one.instances), None);
        assert_eq!(
            difference(&one.instances, &other.instances).as_deref(),
            Some("1g.10gb at 0 is missing and 1g.10gb at 1 is there")
        );
        let mut empty = one.clone();
        empty.instances[0].inside = Inside::Nothing;
        assert!(difference(&one.instances, &empty.instances).is_some());
    }
}
