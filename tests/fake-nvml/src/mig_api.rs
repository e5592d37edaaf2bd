//! NVML's C symbols: Multi Instance GPU Management.

// C symbols of nvml.h: the names are NVIDIA's, and raw pointers the point of it.
#![allow(unsafe_code, non_snake_case, non_upper_case_globals, clippy::wildcard_imports)]

use std::ffi::{c_char, c_uint};
use std::ptr;

use nvml_wrapper_sys::bindings::*;

use crate::api::{Answer, call, call_on, gpu_of, put, put_text};
use crate::host::{Gpu, Host};
use crate::mig::{Instance, Profile};

/// Handles of GPU instances and MIG devices are the GPU's, and more above its bits.
const GPU_BITS: u32 = 16;
const GPU_MASK: usize = (1 << GPU_BITS) - 1;

/// The handle of a GPU alone.
pub(crate) fn gpu_part(handle: usize) -> Option<usize> {
    (handle <= GPU_MASK).then_some(handle)
}

/// The GPU instance and compute instance that a MIG device's handle stands for, as they are now.
fn device_of(host: &Host, device: nvmlDevice_t) -> Answer<(&Gpu, Instance, usize)> {
    let (gpu, instance, part) = split(host, device.addr())?;
    let part = part.ok_or(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT)?;
    if part >= instance.parts.len() {
        return Err(nvmlReturn_enum_NVML_ERROR_NOT_FOUND);
    }
    Ok((gpu, instance, part))
}

/// GPU, GPU instance, and the compute instance's position, of a handle.
fn split(host: &Host, handle: usize) -> Answer<(&Gpu, Instance, Option<usize>)> {
    let gpu = gpu_of(host, ptr::without_provenance_mut(handle & GPU_MASK))?;
    let rest = handle >> GPU_BITS;
    let (id, part) = ((rest & 0xff) as u32, rest >> 8);
    let id = id
        .checked_sub(1)
        .ok_or(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT)?;
    let geometry = host.geometry(gpu);
    let mut instances = host.mig(gpu).instances.into_iter();
    let instance = instances.find(|instance| instance.id(geometry) == id);
    let instance = instance.ok_or(nvmlReturn_enum_NVML_ERROR_NOT_FOUND)?;
    Ok((gpu, instance, part.checked_sub(1)))
}

fn handle(host: &Host, gpu: &Gpu, instance: &Instance, part: Option<usize>) -> usize {
    let part = part.map_or(0, |part| part + 1);
    let id = instance.id(host.geometry(gpu)) as usize + 1;
    (part << 8 | id) << GPU_BITS | (gpu.index + 1)
}

/// The UUID of a MIG device.
pub(crate) fn uuid(host: &Host, device: nvmlDevice_t, out: *mut c_char, length: c_uint) -> Answer<()> {
    let (gpu, instance, part) = device_of(host, device)?;
    put_text(out, length, &host.mig_uuid(gpu, &instance, part))
}

pub(crate) fn in_mig_mode(host: &Host, gpu: &Gpu) -> Answer<()> {
    if host.mig(gpu).on {
        Ok(())
    } else {
        Err(nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED)
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigMode(
    device: nvmlDevice_t,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetMigMode", device, |host, gpu| {
        let state = host.mig(gpu);
        put(current, c_uint::from(state.on))?;
        put(pending, c_uint::from(state.pending))
    })
}

fn profile_of(host: &Host, gpu: &Gpu, kind: c_uint) -> Answer<&'static Profile> {
    in_mig_mode(host, gpu)?;
    let mut profiles = host.geometry(gpu).profiles.iter();
    if kind >= NVML_GPU_INSTANCE_PROFILE_COUNT {
        return Err(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
    }
    let found = profiles.find(|profile| profile.kind == kind);
    found.ok_or(nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstanceProfileInfo(
    device: nvmlDevice_t,
    kind: c_uint,
    info: *mut nvmlGpuInstanceProfileInfo_t,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetGpuInstanceProfileInfo", device, |host, gpu| {
        let profile = profile_of(host, gpu, kind)?;
        put(
            info,
            nvmlGpuInstanceProfileInfo_t {
                id: profile.id,
                isP2pSupported: 0,
                sliceCount: profile.compute,
                instanceCount: profile.most,
                multiprocessorCount: 14 * profile.compute,
                copyEngineCount: profile.compute,
                decoderCount: 0,
                encoderCount: 0,
                jpegCount: 0,
                ofaCount: 0,
                memorySizeMB: host.geometry(gpu).memory_mib(profile, host.memory_mib()),
            },
        )
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstanceProfileInfoV(
    device: nvmlDevice_t,
    kind: c_uint,
    info: *mut nvmlGpuInstanceProfileInfo_v2_t,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetGpuInstanceProfileInfoV", device, |host, gpu| {
        // NVML_STRUCT_VERSION(GpuInstanceProfileInfo, 2).
        let version = (size_of::<nvmlGpuInstanceProfileInfo_v2_t>() | 2 << 24) as c_uint;
        // SAFETY: the caller gives one structure whose version, its first field, is set; or null.
        let given = unsafe { info.cast::<c_uint>().as_ref() }.copied();
        if given != Some(version) {
            return Err(nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let profile = profile_of(host, gpu, kind)?;
        let geometry = host.geometry(gpu);
        let mut name = [0; 96];
        let text = format!("MIG {}", geometry.name(profile, host.memory_mib()));
        for (to, from) in name.iter_mut().zip(text.bytes()) {
            *to = from as c_char;
        }
        put(
            info,
            nvmlGpuInstanceProfileInfo_v2_t {
                version,
                id: profile.id,
                isP2pSupported: 0,
                sliceCount: profile.compute,
                instanceCount: profile.most,
                multiprocessorCount: 14 * profile.compute,
                copyEngineCount: profile.compute,
                decoderCount: 0,
                encoderCount: 0,
                jpegCount: 0,
                ofaCount: 0,
                memorySizeMB: geometry.memory_mib(profile, host.memory_mib()),
                name,
            },
        )
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    device: nvmlDevice_t,
    profile: c_uint,
    placements: *mut nvmlGpuInstancePlacement_t,
    count: *mut c_uint,
) -> nvmlReturn_t {
    call_on(
        "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
        device,
        |host, gpu| {
            in_mig_mode(host, gpu)?;
            let profile = host.geometry(gpu).by_id(profile);
            let profile = profile.ok_or(nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED)?;
            put(count, profile.starts.len() as c_uint)?;
            for (at, start) in profile
                .starts
                .iter()
                .enumerate()
                .filter(|_| !placements.is_null())
            {
                let placement = nvmlGpuInstancePlacement_t {
                    start: *start,
                    size: profile.width,
                };
                put(placements.wrapping_add(at), placement)?;
            }
            Ok(())
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstances(
    device: nvmlDevice_t,
    profile: c_uint,
    instances: *mut nvmlGpuInstance_t,
    count: *mut c_uint,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetGpuInstances", device, |host, gpu| {
        in_mig_mode(host, gpu)?;
        let all = host.mig(gpu).instances;
        let of_profile = all.iter().filter(|instance| instance.profile == profile);
        let mut found = 0;
        for (at, instance) in of_profile.enumerate() {
            let handle = handle(host, gpu, instance, None);
            put(instances.wrapping_add(at), ptr::without_provenance_mut(handle))?;
            found += 1;
        }
        put(count, found)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpuInstanceGetInfo(
    instance: nvmlGpuInstance_t,
    info: *mut nvmlGpuInstanceInfo_t,
) -> nvmlReturn_t {
    call("nvmlGpuInstanceGetInfo", |host| {
        let (gpu, instance, _) = split(host, instance.addr())?;
        let geometry = host.geometry(gpu);
        let width = geometry
            .by_id(instance.profile)
            .map_or(0, |profile| profile.width);
        put(
            info,
            nvmlGpuInstanceInfo_t {
                device: ptr::without_provenance_mut(gpu.index + 1),
                id: instance.id(geometry),
                profileId: instance.profile,
                placement: nvmlGpuInstancePlacement_t {
                    start: instance.start,
                    size: width,
                },
            },
        )
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, count: *mut c_uint) -> nvmlReturn_t {
    call_on("nvmlDeviceGetMaxMigDeviceCount", device, |host, gpu| {
        put(count, host.geometry(gpu).compute)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    index: c_uint,
    mig: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetMigDeviceHandleByIndex", device, |host, gpu| {
        let devices = host.mig_devices(gpu);
        let (instance, part) = devices
            .get(index as usize)
            .ok_or(nvmlReturn_enum_NVML_ERROR_NOT_FOUND)?;
        put(
            mig,
            ptr::without_provenance_mut(handle(host, gpu, instance, Some(*part))),
        )
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    mig: nvmlDevice_t,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", |host| {
        let (gpu, ..) = device_of(host, mig)?;
        put(device, ptr::without_provenance_mut(gpu.index + 1))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstanceId(device: nvmlDevice_t, id: *mut c_uint) -> nvmlReturn_t {
    call("nvmlDeviceGetGpuInstanceId", |host| {
        let (gpu, instance, _) = device_of(host, device)?;
        put(id, instance.id(host.geometry(gpu)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeInstanceId(device: nvmlDevice_t, id: *mut c_uint) -> nvmlReturn_t {
    call("nvmlDeviceGetComputeInstanceId", |host| {
        let (_, _, part) = device_of(host, device)?;
        put(id, part as c_uint)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetAttributes_v2(
    device: nvmlDevice_t,
    attributes: *mut nvmlDeviceAttributes_t,
) -> nvmlReturn_t {
    call("nvmlDeviceGetAttributes_v2", |host| {
        let (gpu, instance, part) = device_of(host, device)?;
        let geometry = host.geometry(gpu);
        let profile = geometry
            .by_id(instance.profile)
            .ok_or(nvmlReturn_enum_NVML_ERROR_UNKNOWN)?;
        put(
            attributes,
            nvmlDeviceAttributes_t {
                multiprocessorCount: 14 * instance.parts[part],
                sharedCopyEngineCount: profile.compute,
                sharedDecoderCount: 0,
                sharedEncoderCount: 0,
                sharedJpegCount: 0,
                sharedOfaCount: 0,
                gpuInstanceSliceCount: profile.compute,
                computeInstanceSliceCount: instance.parts[part],
                memorySizeMB: geometry.memory_mib(profile, host.memory_mib()),
            },
        )
    })
}
