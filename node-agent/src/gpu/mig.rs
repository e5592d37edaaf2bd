//! GPUs in MIG mode: what they can be cut into, and what they are cut into now.
//!
//! NVML's numbers and names are the driver's (nvml.h, "Multi Instance GPU Management"). What a driver
//! says that cannot be (two instances in one place, a hundred slices) makes the GPU one that nobody is
//! given, with the reason.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_uint};
use std::ptr;

use anyhow::{Context as _, Result, bail, ensure};
use carrel_core::model::gpu::{GpuInfo, MAX_MEMORY_SLICES, Mig, MigInstance, MigProfile};
use carrel_core::model::gpu_unit::is_profile;
use carrel_core::model::ids::GpuUuid;
use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper_sys::bindings as sys;

use super::policy::GpuPolicy;

/// Kinds of GPU instances that are asked for: nvml.h numbers 17, and new drivers add some.
const MAX_KINDS: u32 = 32;
/// Most GPU instances of a GPU, and most MIG devices in them: an instance takes one of its slices at least.
const MAX_INSTANCES: usize = MAX_MEMORY_SLICES as usize;
/// Most places of a profile that are looked at.
const MAX_PLACES: usize = MAX_MEMORY_SLICES as usize;

/// A GPU in MIG mode, as the driver has it at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigState {
    /// What it can be cut into.
    pub profiles: Vec<MigProfile>,
    /// GPU instances that there are, by where they start.
    pub instances: Vec<GpuInstance>,
}

/// A GPU instance that there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInstance {
    /// The driver's number of it on its GPU.
    pub id: u32,
    /// Its profile's name.
    pub profile: String,
    /// Its profile's number.
    pub profile_id: u32,
    /// First of its memory slices.
    pub start: u8,
    /// Number of its memory slices.
    pub width: u8,
    /// What is in it.
    pub inside: Inside,
}

/// The compute instances of a GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inside {
    /// One, over all of it: a device.
    Device(MigDevice),
    /// None, so that nobody can use it.
    Nothing,
    /// Several, or one over a part of it.
    Parts(usize),
}

/// A MIG device: what a program is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigDevice {
    /// The driver's UUID, "MIG-…".
    pub uuid: GpuUuid,
    /// The driver's index on its GPU.
    pub index: u32,
    /// The driver's number of its compute instance in its GPU instance.
    pub compute_instance: u32,
}

impl GpuInstance {
    /// Whether it has a memory slice of that place.
    pub fn overlaps(&self, start: u8, width: u8) -> bool {
        self.start < start.saturating_add(width) && start < self.start.saturating_add(self.width)
    }
}

impl MigState {
    /// What may be given to jobs. Where `recut`, what instances are in the way of, and may not be removed, is left out.
    pub fn offered(&self, recut: bool) -> Mig {
        let whole = self
            .instances
            .iter()
            .filter_map(|instance| match &instance.inside {
                Inside::Device(device) => Some(MigInstance {
                    profile: instance.profile.clone(),
                    start: instance.start,
                    width: instance.width,
                    uuid: device.uuid.clone(),
                }),
                Inside::Nothing | Inside::Parts(_) => None,
            });
        let profiles = self.profiles.iter().map(|profile| {
            let mut profile = profile.clone();
            let width = profile.width;
            let blocked = |start: u8| self.fixed().any(|instance| instance.overlaps(start, width));
            profile.starts.retain(|start| !blocked(*start));
            let taken = self.fixed().filter(|instance| instance.profile_id == profile.id);
            profile.most = profile.most.saturating_sub(taken.count() as u8);
            profile
        });
        Mig {
            profiles: profiles.collect(),
            instances: whole.collect(),
            recut,
        }
    }

    /// Instances that are neither given to jobs nor removed.
    pub fn fixed(&self) -> impl Iterator<Item = &GpuInstance> {
        let parts = |instance: &&GpuInstance| matches!(instance.inside, Inside::Parts(_));
        self.instances.iter().filter(parts)
    }

    /// What an operator should know of instances that are not offered.
    pub(super) fn notes(&self, recut: bool) -> Vec<String> {
        let note = |instance: &GpuInstance| {
            let GpuInstance {
                id, profile, start, ..
            } = instance;
            let what = match &instance.inside {
                Inside::Device(_) => return None,
                // The next cut removes it.
                Inside::Nothing if recut => return None,
                Inside::Nothing => "has no compute instance (`nvidia-smi mig -cci` makes one)".to_owned(),
                Inside::Parts(count) => format!("is divided further, into {count} of its compute instances"),
            };
            Some(format!(
                "its GPU instance {id} ({profile} at {start}) {what} and is not offered"
            ))
        };
        self.instances.iter().filter_map(note).collect()
    }
}

/// Whether a GPU is in MIG mode now.
pub(super) fn is_on(device: &Device<'_>) -> bool {
    let mode = device.mig_mode();
    mode.is_ok_and(|mode| mode.current == sys::NVML_DEVICE_MIG_ENABLE)
}

/// Fills in what a GPU in MIG mode is cut into, and can be; gives what an operator should know.
pub(super) fn describe(device: &Device<'_>, policy: &GpuPolicy, gpu: &mut GpuInfo) -> Vec<String> {
    let index = gpu.index;
    let mut notes = Vec::new();
    if let Ok(mode) = device.mig_mode()
        && mode.current != mode.pending
    {
        let (now, then) = if gpu.mig.is_some() {
            ("on", "off")
        } else {
            ("off", "on")
        };
        notes.push(format!(
            "MIG mode of GPU {index} is {now}, and {then} once the GPU is reset (`nvidia-smi --gpu-reset -i {index}`)"
        ));
    }
    if gpu.mig.is_some() {
        let recut = policy.may_cut(gpu);
        match look(device, gpu.memory_bytes) {
            Ok(state) => {
                gpu.mig = Some(state.offered(recut));
                let own = state.notes(recut).into_iter();
                notes.extend(own.map(|note| format!("GPU {index}: {note}")));
            }
            Err(error) => {
                let why = format!("it is in MIG mode, and its slices are not known: {error:#}");
                gpu.drained.get_or_insert(why);
            }
        }
    }
    notes
}

/// Asks the driver about a GPU that is in MIG mode. `memory_bytes` is the GPU's, for profiles' names.
///
/// # Errors
/// It does not say, or says what cannot be.
pub(super) fn look(device: &Device<'_>, memory_bytes: u64) -> Result<MigState> {
    let profiles = profiles(device, memory_bytes)?;
    let mut instances = Vec::new();
    let mut inside = devices(device)?;
    for profile in &profiles {
        for (id, start, width) in instances_of(device, profile)? {
            let devices = inside.remove(&id).unwrap_or_default();
            let count = devices.len();
            let inside = match devices.into_iter().next() {
                None => Inside::Nothing,
                Some((device, true)) if count == 1 => Inside::Device(device),
                Some(_) => Inside::Parts(count),
            };
            instances.push(GpuInstance {
                id,
                profile: profile.name.clone(),
                profile_id: profile.id,
                start,
                width,
                inside,
            });
        }
    }
    ensure!(
        inside.is_empty(),
        "there are MIG devices in GPU instances {:?}, which are of no profile that the driver lists",
        inside.keys().collect::<Vec<_>>()
    );
    instances.sort_by_key(|instance| instance.start);
    let mut pairs = instances.windows(2);
    let twice = pairs.find(|pair| pair[0].overlaps(pair[1].start, pair[1].width));
    if let Some([first, second]) = twice {
        bail!(
            "the driver says that GPU instances {} and {} are in one place",
            first.id,
            second.id
        );
    }
    Ok(MigState { profiles, instances })
}

/// The profiles of a GPU, in the driver's order.
fn profiles(device: &Device<'_>, memory_bytes: u64) -> Result<Vec<MigProfile>> {
    let mut profiles: Vec<MigProfile> = Vec::new();
    for kind in 0..MAX_KINDS {
        let info = match profile_info(device, kind) {
            Ok(info) => info,
            // Not one of this GPU's, or of this driver's.
            Err(NvmlError::NotSupported | NvmlError::InvalidArg | NvmlError::NotFound) => continue,
            Err(error) => return Err(error).context("MIG profiles are not known"),
        };
        let places = places(device, info.id)?;
        let Some(&(_, width)) = places.first() else {
            continue;
        };
        let name = info
            .name
            .or_else(|| computed_name(kind, info.slices, info.memory_mib, memory_bytes));
        let Some(name) = name else { continue };
        ensure!(
            places.iter().all(|place| place.1 == width),
            "instances of profile {name} have several widths: {places:?}"
        );
        if profiles
            .iter()
            .any(|known| known.id == info.id || known.name == name)
        {
            continue;
        }
        let slices = |number: u32, what: &str| {
            let number = u8::try_from(number)
                .ok()
                .filter(|number| *number <= MAX_MEMORY_SLICES);
            number.with_context(|| format!("profile {name} has too many {what}"))
        };
        profiles.push(MigProfile {
            id: info.id,
            compute: slices(info.slices, "compute slices")?,
            memory_bytes: info.memory_mib.saturating_mul(1 << 20),
            width,
            starts: places.iter().map(|place| place.0).collect(),
            most: slices(info.instances, "instances")?,
            name,
        });
    }
    Ok(profiles)
}

struct ProfileInfo {
    id: u32,
    slices: u32,
    instances: u32,
    memory_mib: u64,
    /// As the driver names it, without "MIG "; none: it does not.
    name: Option<String>,
}

fn profile_info(device: &Device<'_>, kind: u32) -> Result<ProfileInfo, NvmlError> {
    let Ok(call) = device.nvml().lib().nvmlDeviceGetGpuInstanceProfileInfoV.as_ref() else {
        return unnamed_profile_info(device, kind);
    };
    let mut info = sys::nvmlGpuInstanceProfileInfo_v2_t {
        // NVML_STRUCT_VERSION(GpuInstanceProfileInfo, 2).
        version: (size_of::<sys::nvmlGpuInstanceProfileInfo_v2_t>() | 2 << 24) as c_uint,
        id: 0,
        isP2pSupported: 0,
        sliceCount: 0,
        instanceCount: 0,
        multiprocessorCount: 0,
        copyEngineCount: 0,
        decoderCount: 0,
        encoderCount: 0,
        jpegCount: 0,
        ofaCount: 0,
        memorySizeMB: 0,
        name: [0; 96],
    };
    // SAFETY: the handle is of this library, and NVML writes one structure of the version that it says.
    #[allow(unsafe_code)]
    let code = unsafe { call(device.handle(), kind, &raw mut info) };
    nvml_try(code)?;
    Ok(ProfileInfo {
        id: info.id,
        slices: info.sliceCount,
        instances: info.instanceCount,
        memory_mib: info.memorySizeMB,
        name: given_name(&info.name),
    })
}

/// As drivers before 525 know it.
fn unnamed_profile_info(device: &Device<'_>, kind: u32) -> Result<ProfileInfo, NvmlError> {
    let info = device.profile_info(kind)?;
    Ok(ProfileInfo {
        id: info.id,
        slices: info.slice_count,
        instances: info.instance_count,
        memory_mib: info.memory_size_mb,
        name: None,
    })
}

/// "1g.10gb+me" of "MIG 1g.10gb+me".
fn given_name(name: &[c_char]) -> Option<String> {
    let bytes: Vec<u8> = name.iter().map(|byte| *byte as u8).collect();
    let name = CStr::from_bytes_until_nul(&bytes).ok()?.to_str().ok()?;
    let name = name.strip_prefix("MIG ").unwrap_or(name);
    is_profile(name).then(|| name.to_owned())
}

/// The name as the driver makes it: memory in eighths of the GPU's, rounded up, of its whole gibibytes
/// (as NVIDIA's go-nvlib computes it, and as its results for A30 to H200 are printed).
fn computed_name(kind: u32, slices: u32, memory_mib: u64, gpu_bytes: u64) -> Option<String> {
    if gpu_bytes == 0 {
        return None;
    }
    let memory = u128::from(memory_mib) << 20;
    let eighths = (memory * 8).div_ceil(u128::from(gpu_bytes)).min(8);
    let gibibytes = u128::from(gpu_bytes.div_ceil(1 << 30));
    let gb = (eighths * gibibytes * 2 + 8) / 16;
    let attributes = match kind {
        sys::NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1 | sys::NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1 => "+me",
        sys::NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX
        | sys::NVML_GPU_INSTANCE_PROFILE_2_SLICE_GFX
        | sys::NVML_GPU_INSTANCE_PROFILE_4_SLICE_GFX => "+gfx",
        sys::NVML_GPU_INSTANCE_PROFILE_1_SLICE_NO_ME | sys::NVML_GPU_INSTANCE_PROFILE_2_SLICE_NO_ME => "-me",
        sys::NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME | sys::NVML_GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME => {
            "+me.all"
        }
        _ => "",
    };
    let name = format!("{slices}g.{gb}gb{attributes}");
    is_profile(&name).then_some(name)
}

/// Where instances of a profile may start, in order, and how many memory slices each takes there.
/// (nvml-wrapper's own call gives an empty list.)
fn places(device: &Device<'_>, profile: u32) -> Result<Vec<(u8, u8)>> {
    let lib = device.nvml().lib();
    let call = lib
        .nvmlDeviceGetGpuInstancePossiblePlacements_v2
        .as_ref()
        .or(lib.nvmlDeviceGetGpuInstancePossiblePlacements.as_ref())
        .ok()
        .context("the driver does not know where MIG instances may be: it is too old")?;
    let mut count: c_uint = 0;
    // SAFETY: the handle is of this library; without a buffer, NVML writes the number alone.
    #[allow(unsafe_code)]
    let code = unsafe { call(device.handle(), profile, ptr::null_mut(), &raw mut count) };
    nvml_try(code).with_context(|| format!("the places of MIG profile {profile} are not known"))?;
    ensure!(
        count as usize <= MAX_PLACES,
        "the driver says that MIG profile {profile} may be in {count} places"
    );
    let mut places = vec![sys::nvmlGpuInstancePlacement_t { start: 0, size: 0 }; MAX_PLACES];
    // SAFETY: the buffer has room for more than the number that NVML has just said, which it gets.
    #[allow(unsafe_code)]
    let code = unsafe { call(device.handle(), profile, places.as_mut_ptr(), &raw mut count) };
    nvml_try(code).with_context(|| format!("the places of MIG profile {profile} are not known"))?;
    places.truncate(count as usize);
    let mut places = places
        .iter()
        .map(|place| place_of(place.start, place.size))
        .collect::<Result<Vec<_>>>()?;
    places.sort_unstable();
    places.dedup();
    Ok(places)
}

/// Memory slices that can be.
fn place_of(start: u32, width: u32) -> Result<(u8, u8)> {
    let end = start.checked_add(width).filter(|_| width > 0);
    ensure!(
        end.is_some_and(|end| end <= u32::from(MAX_MEMORY_SLICES)),
        "the driver names {width} memory slices from {start} on"
    );
    Ok((start as u8, width as u8))
}

/// Number, start and width of the instances of a profile.
fn instances_of(device: &Device<'_>, profile: &MigProfile) -> Result<Vec<(u32, u8, u8)>> {
    let lib = device.nvml().lib();
    let (Ok(list), Ok(info_of)) = (
        lib.nvmlDeviceGetGpuInstances.as_ref(),
        lib.nvmlGpuInstanceGetInfo.as_ref(),
    ) else {
        bail!("the driver does not list MIG instances: it is too old");
    };
    let mut handles = [ptr::null_mut(); MAX_INSTANCES];
    let mut count = MAX_INSTANCES as c_uint;
    // SAFETY: the handle is of this library; the buffer has room for as many as a GPU has slices, and
    // nvml.h asks for room for the profile's most, which was checked to be no more.
    #[allow(unsafe_code)]
    let code = unsafe { list(device.handle(), profile.id, handles.as_mut_ptr(), &raw mut count) };
    match nvml_try(code) {
        Err(NvmlError::NotFound) => return Ok(Vec::new()),
        listed => listed.context("the MIG instances are not known")?,
    }
    ensure!(
        count as usize <= MAX_INSTANCES,
        "the driver says that there are {count} MIG instances of {}",
        profile.name
    );
    let mut found = Vec::new();
    for handle in &handles[..count as usize] {
        let mut info = sys::nvmlGpuInstanceInfo_t {
            device: ptr::null_mut(),
            id: 0,
            profileId: 0,
            placement: sys::nvmlGpuInstancePlacement_t { start: 0, size: 0 },
        };
        // SAFETY: NVML has just given the handle, and writes one structure.
        #[allow(unsafe_code)]
        let code = unsafe { info_of(*handle, &raw mut info) };
        match nvml_try(code) {
            // It was removed meanwhile.
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => continue,
            known => known.context("a MIG instance is not known")?,
        }
        let (start, width) = place_of(info.placement.start, info.placement.size)?;
        found.push((info.id, start, width));
    }
    Ok(found)
}

/// The MIG devices of a GPU, by their GPU instance's number; and whether each is over all of it.
fn devices(device: &Device<'_>) -> Result<BTreeMap<u32, Vec<(MigDevice, bool)>>> {
    let lib = device.nvml().lib();
    let most = device
        .mig_device_count()
        .context("the MIG devices are not known")?;
    let mut found: BTreeMap<u32, Vec<(MigDevice, bool)>> = BTreeMap::new();
    for index in 0..most.min(MAX_INSTANCES as u32) {
        let mig = match device.mig_device_by_index(index) {
            Err(NvmlError::NotFound) => continue,
            mig => mig.with_context(|| format!("MIG device {index} is not known"))?,
        };
        let number =
            |call: Option<&unsafe extern "C" fn(sys::nvmlDevice_t, *mut c_uint) -> sys::nvmlReturn_t>| {
                let call = call.context("the driver does not number MIG devices: it is too old")?;
                let mut number: c_uint = 0;
                // SAFETY: the handle is of this library, and NVML writes one number.
                #[allow(unsafe_code)]
                let code = unsafe { call(mig.handle(), &raw mut number) };
                nvml_try(code).with_context(|| format!("MIG device {index} is not known"))?;
                anyhow::Ok(number)
            };
        let gpu_instance = number(lib.nvmlDeviceGetGpuInstanceId.as_ref().ok())?;
        let compute_instance = number(lib.nvmlDeviceGetComputeInstanceId.as_ref().ok())?;
        let uuid = mig
            .uuid()
            .with_context(|| format!("MIG device {index} has no UUID"))?;
        // Not known to be over all of it is not offered as all of it.
        let whole = mig
            .attributes()
            .is_ok_and(|slices| slices.compute_instance_slice_count == slices.gpu_instance_slice_count);
        let device = MigDevice {
            uuid: uuid.parse()?,
            index,
            compute_instance,
        };
        found.entry(gpu_instance).or_default().push((device, whole));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `nvidia-smi mig -lgip` prints them on these GPUs.
    #[test]
    fn names_are_the_drivers() {
        let (mib, one) = (1_u64 << 20, sys::NVML_GPU_INSTANCE_PROFILE_1_SLICE);
        for (gpu_mib, slices, memory_mib, name) in [
            (24_576, 1, 5_952, "1g.6gb"),
            (40_960, 1, 4_864, "1g.5gb"),
            (40_960, 7, 40_192, "7g.40gb"),
            (81_920, 1, 9_728, "1g.10gb"),
            (81_559, 3, 40_448, "3g.40gb"),
            (95_830, 1, 11_008, "1g.12gb"),
            (95_830, 2, 22_272, "2g.24gb"),
            (143_771, 1, 16_384, "1g.18gb"),
            (143_771, 1, 33_280, "1g.35gb"),
            (143_771, 4, 69_888, "4g.71gb"),
            (143_771, 7, 142_000, "7g.141gb"),
        ] {
            assert_eq!(
                computed_name(one, slices, memory_mib, gpu_mib * mib).as_deref(),
                Some(name)
            );
        }
        let media = sys::NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1;
        assert_eq!(
            computed_name(media, 1, 9_728, 81_920 * mib).as_deref(),
            Some("1g.10gb+me")
        );
        assert_eq!(computed_name(one, 1, 9_728, 0), None);
        let text = |text: &str| {
            let mut name = [0; 96];
            for (to, from) in name.iter_mut().zip(text.bytes()) {
                *to = from as c_char;
            }
            given_name(&name)
        };
        assert_eq!(text("MIG 1g.10gb+me").as_deref(), Some("1g.10gb+me"));
        assert_eq!(text("").as_deref(), None);
        assert_eq!(text("a slice").as_deref(), None);
        assert_eq!(given_name(&[1; 96]), None, "no end");
    }

    #[test]
    fn places_that_cannot_be_are_refused() {
        assert_eq!(place_of(4, 4).unwrap(), (4, 4));
        for (start, width) in [(0, 0), (0, 33), (30, 4), (u32::MAX, 1), (1, u32::MAX)] {
            assert!(place_of(start, width).is_err(), "{start}+{width}");
        }
    }

    /// What stands where it may not be removed is not offered for a cut; the rest is.
    #[test]
    fn instances_that_are_not_one_device_keep_their_slices() {
        let profile = |name: &str, id: u32, width: u8, starts: &[u8], most: u8| MigProfile {
            name: name.into(),
            id,
            compute: width,
            memory_bytes: 0,
            width,
            starts: starts.to_vec(),
            most,
        };
        let instance = |id: u32, start: u8, inside: Inside| GpuInstance {
            id,
            profile: "1g.10gb".into(),
            profile_id: 19,
            start,
            width: 1,
            inside,
        };
        let device = MigDevice {
            uuid: "MIG-1".parse().unwrap(),
            index: 0,
            compute_instance: 0,
        };
        let state = MigState {
            profiles: vec![
                profile("1g.10gb", 19, 1, &[0, 1, 2, 3, 4, 5, 6], 7),
                profile("3g.40gb", 9, 4, &[0, 4], 2),
            ],
            instances: vec![
                instance(7, 0, Inside::Device(device)),
                instance(8, 1, Inside::Nothing),
                instance(9, 5, Inside::Parts(2)),
            ],
        };
        let offered = state.offered(true);
        assert_eq!(offered.instances.len(), 1);
        assert_eq!(offered.profiles[0].starts, [0, 1, 2, 3, 4, 6]);
        assert_eq!((offered.profiles[0].most, offered.profiles[1].most), (6, 2));
        assert_eq!(offered.profiles[1].starts, [0]);
        let notes = state.notes(true);
        assert_eq!(
            notes,
            [
                "its GPU instance 9 (1g.10gb at 5) is divided further, into 2 of its compute instances and is not offered"
            ]
        );
        assert_eq!(state.notes(false).len(), 2);
    }
}
