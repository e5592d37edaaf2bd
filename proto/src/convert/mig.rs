//! GPUs in MIG mode.

use carrel_core::model::gpu::{MAX_MEMORY_SLICES, Mig, MigInstance, MigProfile};
use carrel_core::model::gpu_unit::is_profile;

use super::ConvertError;
use crate::v1;

/// Most profiles of a GPU that are looked at: today's have fewer than 10.
const MAX_PROFILES: usize = 64;

impl From<&Mig> for v1::Mig {
    fn from(mig: &Mig) -> Self {
        let profile = |profile: &MigProfile| v1::MigProfile {
            name: profile.name.clone(),
            id: profile.id,
            compute: profile.compute.into(),
            memory_bytes: profile.memory_bytes,
            width: profile.width.into(),
            starts: profile.starts.iter().copied().map(Into::into).collect(),
            most: profile.most.into(),
        };
        let instance = |instance: &MigInstance| v1::MigInstance {
            profile: instance.profile.clone(),
            start: instance.start.into(),
            width: instance.width.into(),
            uuid: instance.uuid.to_string(),
        };
        Self {
            profiles: mig.profiles.iter().map(profile).collect(),
            instances: mig.instances.iter().map(instance).collect(),
            recut: mig.recut,
        }
    }
}

fn invalid<T>(field: &'static str, why: &'static str) -> Result<T, ConvertError> {
    Err(ConvertError::Invalid { field, why })
}

fn name(name: String) -> Result<String, ConvertError> {
    if is_profile(&name) {
        Ok(name)
    } else {
        invalid("MIG profile", "a name such as 1g.10gb")
    }
}

/// A number of slices, or of instances: each takes one at least.
fn slices(number: u32) -> Result<u8, ConvertError> {
    match u8::try_from(number) {
        Ok(number) if number <= MAX_MEMORY_SLICES => Ok(number),
        Ok(_) | Err(_) => invalid("MIG slices", "at most 32"),
    }
}

/// Where a GPU instance lies on its GPU.
fn place(start: u32, width: u32) -> Result<(u8, u8), ConvertError> {
    let (start, width) = (slices(start)?, slices(width)?);
    if width == 0 || start + width > MAX_MEMORY_SLICES {
        return invalid("MIG slices", "1 to 32 of them");
    }
    Ok((start, width))
}

impl TryFrom<v1::Mig> for Mig {
    type Error = ConvertError;

    fn try_from(mig: v1::Mig) -> Result<Self, ConvertError> {
        if mig.profiles.len() > MAX_PROFILES || mig.instances.len() > usize::from(MAX_MEMORY_SLICES) {
            return invalid("MIG profiles and instances", "at most 64 and 32");
        }
        let profile = |profile: v1::MigProfile| {
            let starts = profile.starts.iter();
            let starts = starts.map(|start| Ok(place(*start, profile.width)?.0));
            Ok(MigProfile {
                starts: starts.collect::<Result<_, ConvertError>>()?,
                name: name(profile.name)?,
                id: profile.id,
                compute: slices(profile.compute)?,
                memory_bytes: profile.memory_bytes,
                width: slices(profile.width)?,
                most: slices(profile.most)?,
            })
        };
        let instance = |instance: v1::MigInstance| {
            let (start, width) = place(instance.start, instance.width)?;
            Ok(MigInstance {
                profile: name(instance.profile)?,
                start,
                width,
                uuid: instance.uuid.parse()?,
            })
        };
        Ok(Self {
            profiles: mig
                .profiles
                .into_iter()
                .map(profile)
                .collect::<Result<_, ConvertError>>()?,
            instances: mig
                .instances
                .into_iter()
                .map(instance)
                .collect::<Result<_, ConvertError>>()?,
            recut: mig.recut,
        })
    }
}
