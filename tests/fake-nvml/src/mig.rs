//! MIG of a described host: what GPUs can be cut into by the hardware's rules, and what they are cut into.
//!
//! The library and the fake `nvidia-smi` agree through a file, which the description names (`mig_state`).
//! It has a line for each GPU and each GPU instance:
//!
//! ```text
//! gpu 0 on on                  # index, MIG mode now, MIG mode after a reset
//! instance 0 9 0 3             # index of the GPU, profile, first memory slice, slices of each compute instance
//! ```

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::host::{Gpu, Host, uuid_of};

/// A kind of GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// `NVML_GPU_INSTANCE_PROFILE_*`.
    pub kind: u32,
    /// As `nvidia-smi mig -lgip` prints it.
    pub id: u32,
    /// Compute slices.
    pub compute: u32,
    /// Memory slices.
    pub width: u32,
    /// Memory slices that it may start at.
    pub starts: &'static [u32],
    /// Most of them.
    pub most: u32,
    /// End of its name.
    pub attribute: &'static str,
}

/// What GPUs of a kind can be cut into.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// Compute slices.
    pub compute: u32,
    /// Memory slices.
    pub memory: u32,
    /// Kinds of instances.
    pub profiles: &'static [Profile],
}

const fn profile(
    kind: u32,
    id: u32,
    compute: u32,
    width: u32,
    starts: &'static [u32],
    most: u32,
    attribute: &'static str,
) -> Profile {
    Profile {
        kind,
        id,
        compute,
        width,
        starts,
        most,
        attribute,
    }
}

/// A100, H100 and their kind, as `nvidia-smi mig -lgipp` prints it there.
const SEVEN: Geometry = Geometry {
    compute: 7,
    memory: 8,
    profiles: &[
        profile(0, 19, 1, 1, &[0, 1, 2, 3, 4, 5, 6], 7, ""),
        profile(7, 20, 1, 1, &[0, 1, 2, 3, 4, 5, 6], 1, "+me"),
        profile(9, 15, 1, 2, &[0, 2, 4, 6], 4, ""),
        profile(1, 14, 2, 2, &[0, 2, 4], 3, ""),
        profile(2, 9, 3, 4, &[0, 4], 2, ""),
        profile(3, 5, 4, 4, &[0], 1, ""),
        profile(4, 0, 7, 8, &[0], 1, ""),
    ],
};

/// A30.
const FOUR: Geometry = Geometry {
    compute: 4,
    memory: 4,
    profiles: &[
        profile(0, 14, 1, 1, &[0, 1, 2, 3], 4, ""),
        profile(7, 21, 1, 1, &[0, 1, 2, 3], 1, "+me"),
        profile(1, 5, 2, 2, &[0, 2], 2, ""),
        profile(8, 6, 2, 2, &[0, 2], 1, "+me"),
        profile(3, 0, 4, 4, &[0], 1, ""),
    ],
};

impl Geometry {
    /// By the product's name.
    pub fn of(model: &str) -> &'static Self {
        if model.contains("A30") { &FOUR } else { &SEVEN }
    }

    /// By the driver's number.
    pub fn by_id(&self, id: u32) -> Option<&'static Profile> {
        self.profiles.iter().find(|profile| profile.id == id)
    }

    /// Memory of an instance: its slices', less what the driver keeps.
    pub fn memory_mib(&self, profile: &Profile, gpu_mib: u64) -> u64 {
        gpu_mib * u64::from(profile.width) / u64::from(self.memory) - 64 * u64::from(profile.width)
    }

    /// "1g.10gb+me": gibibytes of the GPU, rounded up, times its share of the slices, rounded.
    pub fn name(&self, profile: &Profile, gpu_mib: u64) -> String {
        let total = gpu_mib.div_ceil(1024) as f64;
        let gb = (total * f64::from(profile.width) / f64::from(self.memory)).round();
        format!("{}g.{gb}gb{}", profile.compute, profile.attribute)
    }
}

/// MIG of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// MIG mode now.
    pub on: bool,
    /// MIG mode after a reset.
    pub pending: bool,
    /// In the order of their ids.
    pub instances: Vec<Instance>,
}

/// A GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its profile's number.
    pub profile: u32,
    /// First memory slice.
    pub start: u32,
    /// Slices of each compute instance; their numbers are their positions.
    pub parts: Vec<u32>,
}

impl Instance {
    /// The driver's number: by its place, which two never have at once.
    pub fn id(&self, geometry: &Geometry) -> u32 {
        let width = geometry.by_id(self.profile).map_or(1, |profile| profile.width);
        match width {
            1 => 7 + self.start,
            2 => 3 + self.start / 2,
            4 if self.start > 0 => 1,
            4 => 2,
            _ => 0,
        }
    }
}

impl State {
    /// Why an instance cannot be made, in NVML's words; else it is made, without compute instances.
    pub fn create(
        &mut self,
        geometry: &Geometry,
        profile: u32,
        start: u32,
    ) -> Result<&mut Instance, &'static str> {
        let kind = geometry.by_id(profile).ok_or("Invalid Argument")?;
        if !kind.starts.contains(&start) {
            return Err("Invalid Argument");
        }
        let of = |instance: &Instance| {
            geometry
                .by_id(instance.profile)
                .map_or((0, 0), |p| (p.width, p.compute))
        };
        let overlaps =
            |other: &Instance| start < other.start + of(other).0 && other.start < start + kind.width;
        let compute: u32 = self.instances.iter().map(|other| of(other).1).sum();
        let same = self
            .instances
            .iter()
            .filter(|other| other.profile == profile)
            .count();
        if self.instances.iter().any(overlaps)
            || compute + kind.compute > geometry.compute
            || same as u32 >= kind.most
        {
            return Err("Insufficient Resources");
        }
        let instance = Instance {
            profile,
            start,
            parts: Vec::new(),
        };
        let id = instance.id(geometry);
        let at = self.instances.partition_point(|other| other.id(geometry) < id);
        self.instances.insert(at, instance);
        Ok(&mut self.instances[at])
    }
}

/// Gives the first place that is free for a profile, as `nvidia-smi` takes it where none is named.
pub fn free_place(state: &State, geometry: &Geometry, profile: u32) -> Option<u32> {
    let starts = geometry.by_id(profile)?.starts;
    let fits = |start: &&u32| state.clone().create(geometry, profile, **start).is_ok();
    starts.iter().find(fits).copied()
}

impl Host {
    /// MIG of a GPU now.
    pub fn mig(&self, gpu: &Gpu) -> State {
        self.mig_states().remove(gpu.index)
    }

    /// What the GPU can be cut into.
    pub fn geometry(&self, gpu: &Gpu) -> &'static Geometry {
        Geometry::of(&gpu.model)
    }

    /// The UUID of a MIG device: the same for the same slice.
    pub fn mig_uuid(&self, gpu: &Gpu, instance: &Instance, part: usize) -> String {
        let text = format!("{}/{}@{}/{part}", gpu.uuid, instance.profile, instance.start);
        uuid_of(&text).replacen("GPU-", "MIG-", 1)
    }

    /// The MIG devices of a GPU, in the driver's order: instance, and position of its compute instance.
    pub fn mig_devices(&self, gpu: &Gpu) -> Vec<(Instance, usize)> {
        let state = self.mig(gpu);
        let of = |instance: Instance| (0..instance.parts.len()).map(move |part| (instance.clone(), part));
        state
            .instances
            .into_iter()
            .filter(|_| state.on)
            .flat_map(of)
            .collect()
    }

    fn state_file(&self) -> Option<PathBuf> {
        let name = self.description.mig_state.as_ref()?;
        let dir = self.path.parent().unwrap_or(Path::new(""));
        Some(if self.name.is_empty() {
            dir.join(name)
        } else {
            dir.join(format!("{}.{}", name.display(), self.name))
        })
    }

    /// MIG of all GPUs: as the file says, else as the description does.
    fn mig_states(&self) -> Vec<State> {
        let text = self.state_file().and_then(|file| fs::read_to_string(file).ok());
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            return self.parse(&text);
        }
        let described = |gpu: &Gpu| match self.description.gpus.get(gpu.index) {
            Some(special) => special.mig.state(self, gpu),
            None => State::default(),
        };
        self.gpus.iter().map(described).collect()
    }

    /// Changes MIG of a GPU; what the change fails for is given back, and nothing is kept then.
    pub fn change_mig<T>(
        &self,
        gpu: &Gpu,
        change: impl FnOnce(&mut State) -> Result<T, &'static str>,
    ) -> Result<T, String> {
        let file = self
            .state_file()
            .ok_or("the description has no mig_state: its GPUs cannot be cut")?;
        let lock = File::create(file.with_extension("lock")).map_err(|error| error.to_string())?;
        lock.lock().map_err(|error| error.to_string())?;
        let mut states = self.mig_states();
        let changed = change(&mut states[gpu.index])?;
        let mut text = String::new();
        for (index, state) in states.iter().enumerate() {
            let word = |on: bool| if on { "on" } else { "off" };
            let _infallible = writeln!(text, "gpu {index} {} {}", word(state.on), word(state.pending));
            for Instance {
                profile,
                start,
                parts,
            } in &state.instances
            {
                let parts: Vec<String> = parts.iter().map(u32::to_string).collect();
                let _infallible = writeln!(text, "instance {index} {profile} {start} {}", parts.join(","));
            }
        }
        // At once, so that readers need no lock.
        let new = file.with_extension("new");
        fs::write(&new, text).map_err(|error| error.to_string())?;
        fs::rename(&new, &file).map_err(|error| error.to_string())?;
        Ok(changed)
    }

    fn parse(&self, text: &str) -> Vec<State> {
        let mut states = vec![State::default(); self.gpus.len()];
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |at: usize| words.get(at).and_then(|word| word.parse::<u32>().ok());
            let Some(state) = number(1).and_then(|index| states.get_mut(index as usize)) else {
                continue;
            };
            match (words.first(), number(2), number(3)) {
                (Some(&"gpu"), ..) => {
                    state.on = words.get(2) == Some(&"on");
                    state.pending = words.get(3) == Some(&"on");
                }
                (Some(&"instance"), Some(profile), Some(start)) => {
                    let parts = words.get(4).map(|parts| parts.split(','));
                    state.instances.push(Instance {
                        profile,
                        start,
                        parts: parts
                            .into_iter()
                            .flatten()
                            .filter_map(|part| part.parse().ok())
                            .collect(),
                    });
                }
                _ => {}
            }
        }
        states
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_are_printed() {
        for (model, gpu_mib, names) in [
            (
                "NVIDIA A100-SXM4-40GB",
                40_960,
                "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
            ),
            (
                "NVIDIA H100 80GB HBM3",
                81_559,
                "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
            ),
            (
                "NVIDIA H200",
                143_771,
                "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
            ),
            (
                "NVIDIA A30",
                24_576,
                "1g.6gb 1g.6gb+me 2g.12gb 2g.12gb+me 4g.24gb",
            ),
        ] {
            let geometry = Geometry::of(model);
            let found: Vec<String> = geometry
                .profiles
                .iter()
                .map(|p| geometry.name(p, gpu_mib))
                .collect();
            assert_eq!(found.join(" "), names);
        }
    }

    #[test]
    fn the_hardwares_rules_hold() {
        let mut state = State::default();
        assert!(state.create(&SEVEN, 9, 0).is_ok());
        assert_eq!(state.create(&SEVEN, 9, 2).err(), Some("Invalid Argument"));
        assert_eq!(state.create(&SEVEN, 19, 3).err(), Some("Insufficient Resources"));
        assert_eq!(free_place(&state, &SEVEN, 19), Some(4));
        assert!(state.create(&SEVEN, 20, 4).is_ok());
        assert_eq!(state.create(&SEVEN, 20, 5).err(), Some("Insufficient Resources"));
        let ids: Vec<u32> = state
            .instances
            .iter()
            .map(|instance| instance.id(&SEVEN))
            .collect();
        assert_eq!(ids, [2, 11]);
    }
}
