//! NVML's C symbols: the system and single GPUs. Signatures and semantics are nvml.h's.

// C symbols of nvml.h: the names are NVIDIA's, and raw pointers the point of it.
#![allow(unsafe_code, non_snake_case, non_upper_case_globals, clippy::wildcard_imports)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_ulonglong};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use carrel_core::model::topology::Link;
use nvml_wrapper_sys::bindings::*;

use crate::description::Init;
use crate::host::{Gpu, Host, PciAddress, bus_id, pci_address};
use crate::mig_api;

/// The host, while NVML is initialised, and how often it is.
static STATE: Mutex<Option<(Arc<Host>, u32)>> = Mutex::new(None);

/// What a call answers: a value, or NVML's error.
pub(crate) type Answer<T> = Result<T, nvmlReturn_t>;

fn state() -> MutexGuard<'static, Option<(Arc<Host>, u32)>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a call on the host, unless the description says that it is not supported.
pub(crate) fn call(name: &str, answer: impl FnOnce(&Host) -> Answer<()>) -> nvmlReturn_t {
    let host = match &*state() {
        Some((host, _)) => Arc::clone(host),
        None => return nvmlReturn_enum_NVML_ERROR_UNINITIALIZED,
    };
    if host
        .description
        .unsupported
        .iter()
        .any(|unsupported| unsupported == name)
    {
        return nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
    }
    match answer(&host) {
        Ok(()) => nvmlReturn_enum_NVML_SUCCESS,
        Err(code) => code,
    }
}

/// Runs a call on one GPU that is still on the bus.
pub(crate) fn call_on(
    name: &str,
    device: nvmlDevice_t,
    answer: impl FnOnce(&Host, &Gpu) -> Answer<()>,
) -> nvmlReturn_t {
    call(name, |host| {
        let gpu = gpu_of(host, device)?;
        if gpu.lost {
            Err(nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST)
        } else {
            answer(host, gpu)
        }
    })
}

/// The GPU that a handle stands for: handles are positions, from 1.
pub(crate) fn gpu_of(host: &Host, device: nvmlDevice_t) -> Answer<&Gpu> {
    let position = device
        .addr()
        .checked_sub(1)
        .and_then(|position| host.gpus.get(position));
    position.ok_or(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT)
}

/// Writes an answer where the caller wants it.
pub(crate) fn put<T>(out: *mut T, value: T) -> Answer<()> {
    if out.is_null() {
        return Err(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
    }
    // SAFETY: nvml.h asks callers for a pointer to one T; null was refused.
    unsafe { out.write(value) };
    Ok(())
}

fn put_handle(out: *mut nvmlDevice_t, gpu: Option<&Gpu>) -> Answer<()> {
    let gpu = gpu.ok_or(nvmlReturn_enum_NVML_ERROR_NOT_FOUND)?;
    put(out, ptr::without_provenance_mut(gpu.index + 1))
}

pub(crate) fn put_text(out: *mut c_char, length: c_uint, text: &str) -> Answer<()> {
    if out.is_null() {
        return Err(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
    }
    if (length as usize) <= text.len() {
        return Err(nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE);
    }
    for (at, byte) in text.bytes().chain([0]).enumerate() {
        // SAFETY: the caller gives `length` characters, and the text with its end is no longer.
        unsafe { out.add(at).write(byte as c_char) };
    }
    Ok(())
}

/// Writes a set of bits into `words` words; bits beyond them are left out.
fn put_bits(out: *mut c_ulong, words: c_uint, bits: &[u32]) -> Answer<()> {
    if out.is_null() || words == 0 {
        return Err(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
    }
    for word in 0..words {
        let of_word = bits.iter().filter(|bit| **bit / c_ulong::BITS == word);
        let value = of_word.fold(0, |value, bit| value | 1 << (bit % c_ulong::BITS));
        // SAFETY: the caller gives `words` words, and `word` is below that.
        unsafe { out.add(word as usize).write(value) };
    }
    Ok(())
}

fn text_of<'a>(text: *const c_char) -> Answer<&'a str> {
    if text.is_null() {
        return Err(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
    }
    // SAFETY: nvml.h asks callers for a C string; null was refused.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT)
}

pub(crate) fn pci_info(address: PciAddress) -> nvmlPciInfo_t {
    let (domain, bus, device) = address;
    let mut info = nvmlPciInfo_t {
        busIdLegacy: [0; 16],
        domain,
        bus,
        device,
        pciDeviceId: 0x2330_10de,
        pciSubSystemId: 0,
        busId: [0; 32],
    };
    let text = bus_id(address);
    for (place, byte) in info.busId.iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
    for (place, byte) in info.busIdLegacy.iter_mut().zip(text.bytes().skip(4)) {
        *place = byte as c_char;
    }
    info
}

fn initialise() -> nvmlReturn_t {
    let mut state = state();
    if let Some((_, times)) = &mut *state {
        *times += 1;
        return nvmlReturn_enum_NVML_SUCCESS;
    }
    let host = match Host::from_environment() {
        Ok(host) => host,
        Err(problem) => {
            // The only way to tell whoever wrote the description.
            eprintln!("fake NVML: {problem}");
            return nvmlReturn_enum_NVML_ERROR_UNKNOWN;
        }
    };
    match host.description.init {
        Init::Ok => {
            *state = Some((Arc::new(host), 1));
            nvmlReturn_enum_NVML_SUCCESS
        }
        Init::DriverNotLoaded => nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED,
        Init::LibRmVersionMismatch => nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        Init::NoPermission => nvmlReturn_enum_NVML_ERROR_NO_PERMISSION,
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    initialise()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    initialise()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    let mut state = state();
    match &mut *state {
        None => return nvmlReturn_enum_NVML_ERROR_UNINITIALIZED,
        Some((_, 1)) => *state = None,
        Some((_, times)) => *times -= 1,
    }
    nvmlReturn_enum_NVML_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    let text = match code {
        nvmlReturn_enum_NVML_SUCCESS => c"Success",
        nvmlReturn_enum_NVML_ERROR_UNINITIALIZED => c"Uninitialized",
        nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT => c"Invalid Argument",
        nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED => c"Not Supported",
        nvmlReturn_enum_NVML_ERROR_NO_PERMISSION => c"Insufficient Permissions",
        nvmlReturn_enum_NVML_ERROR_NOT_FOUND => c"Not Found",
        nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE => c"Insufficient Size",
        nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED => c"Driver Not Loaded",
        nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST => c"GPU is lost",
        nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH => c"Driver/library version mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> nvmlReturn_t {
    call("nvmlSystemGetDriverVersion", |host| {
        put_text(
            version,
            length,
            host.description.driver_version.as_deref().unwrap_or_default(),
        )
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) -> nvmlReturn_t {
    call("nvmlSystemGetNVMLVersion", |host| {
        let driver = host.description.driver_version.as_deref().unwrap_or_default();
        put_text(version, length, &format!("12.{driver}"))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> nvmlReturn_t {
    const CUDA_12_8: c_int = 12_080;
    call("nvmlSystemGetCudaDriverVersion_v2", |_| put(version, CUDA_12_8))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> nvmlReturn_t {
    call("nvmlDeviceGetCount_v2", |host| {
        put(count, host.gpus.len() as c_uint)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut nvmlDevice_t) -> nvmlReturn_t {
    call("nvmlDeviceGetHandleByIndex_v2", |host| {
        let gpu = host
            .gpus
            .get(index as usize)
            .ok_or(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT)?;
        put_handle(device, Some(gpu))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut nvmlDevice_t) -> nvmlReturn_t {
    call("nvmlDeviceGetHandleByUUID", |host| {
        let uuid = text_of(uuid)?;
        put_handle(device, host.gpus.iter().find(|gpu| gpu.uuid == uuid))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    address: *const c_char,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    call("nvmlDeviceGetHandleByPciBusId_v2", |host| {
        let address = pci_address(text_of(address)?).ok_or(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT)?;
        put_handle(device, host.gpus.iter().find(|gpu| gpu.pci == address))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetIndex(device: nvmlDevice_t, index: *mut c_uint) -> nvmlReturn_t {
    call("nvmlDeviceGetIndex", |host| {
        put(index, gpu_of(host, device)?.index as c_uint)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUUID(device: nvmlDevice_t, uuid: *mut c_char, length: c_uint) -> nvmlReturn_t {
    call("nvmlDeviceGetUUID", |host| {
        match mig_api::gpu_part(device.addr()) {
            Some(_) => put_text(uuid, length, &gpu_of(host, device)?.uuid),
            None => mig_api::uuid(host, device, uuid, length),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, info: *mut nvmlPciInfo_t) -> nvmlReturn_t {
    call("nvmlDeviceGetPciInfo_v3", |host| {
        put(info, pci_info(gpu_of(host, device)?.pci))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, minor: *mut c_uint) -> nvmlReturn_t {
    call("nvmlDeviceGetMinorNumber", |host| {
        put(minor, gpu_of(host, device)?.minor)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetName(device: nvmlDevice_t, name: *mut c_char, length: c_uint) -> nvmlReturn_t {
    call_on("nvmlDeviceGetName", device, |_, gpu| {
        put_text(name, length, &gpu.model)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: *mut nvmlMemory_t) -> nvmlReturn_t {
    call_on("nvmlDeviceGetMemoryInfo", device, |host, _| {
        let total = memory_bytes(host);
        put(
            memory,
            nvmlMemory_t {
                total,
                free: total,
                used: 0,
            },
        )
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t) -> nvmlReturn_t {
    call_on("nvmlDeviceGetMemoryInfo_v2", device, |host, _| {
        // NVML_STRUCT_VERSION(Memory, 2).
        let version = (size_of::<nvmlMemory_v2_t>() | 2 << 24) as c_uint;
        // SAFETY: the caller gives one nvmlMemory_v2_t with its version set, or null.
        let given = unsafe { memory.as_ref() }.map(|memory| memory.version);
        if given.is_some_and(|given| given != version) {
            return Err(nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let total = memory_bytes(host);
        put(
            memory,
            nvmlMemory_v2_t {
                version,
                total,
                reserved: 0,
                free: total,
                used: 0,
            },
        )
    })
}

fn memory_bytes(host: &Host) -> c_ulonglong {
    host.memory_mib() << 20
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUtilizationRates(
    device: nvmlDevice_t,
    rates: *mut nvmlUtilization_t,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetUtilizationRates", device, |host, gpu| {
        if mig_api::in_mig_mode(host, gpu).is_ok() {
            return Err(nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
        }
        let (gpu, _) = host.utilization(gpu);
        put(rates, nvmlUtilization_t { gpu, memory: 0 })
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetProcessUtilization(
    device: nvmlDevice_t,
    samples: *mut nvmlProcessUtilizationSample_t,
    count: *mut c_uint,
    since: c_ulonglong,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetProcessUtilization", device, |host, gpu| {
        if mig_api::in_mig_mode(host, gpu).is_ok() {
            return Err(nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
        }
        let (_, all) = host.utilization(gpu);
        if all.is_empty() {
            put(count, 0)?;
            return Err(nvmlReturn_enum_NVML_ERROR_NOT_FOUND);
        }
        // SAFETY: nvml.h asks callers for a count, which says how many entries `samples` has room for.
        let room = unsafe { count.as_ref() }.copied();
        let room = room.ok_or(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT)?;
        put(count, all.len() as c_uint)?;
        if samples.is_null() || (room as usize) < all.len() {
            return Err(nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE);
        }
        for (at, (pid, percent)) in all.into_iter().enumerate() {
            let sample = nvmlProcessUtilizationSample_t {
                pid,
                timeStamp: since + 1,
                smUtil: percent,
                memUtil: 0,
                encUtil: 0,
                decUtil: 0,
            };
            put(samples.wrapping_add(at), sample)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetArchitecture(
    device: nvmlDevice_t,
    architecture: *mut nvmlDeviceArchitecture_t,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetArchitecture", device, |host, _| {
        let code = match host.description.nvlink_version {
            Some(1) => NVML_DEVICE_ARCH_PASCAL,
            Some(2) => NVML_DEVICE_ARCH_VOLTA,
            Some(3) => NVML_DEVICE_ARCH_AMPERE,
            Some(4) => NVML_DEVICE_ARCH_HOPPER,
            Some(5) => NVML_DEVICE_ARCH_BLACKWELL,
            Some(_) | None => NVML_DEVICE_ARCH_ADA,
        };
        put(architecture, code)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeMode(device: nvmlDevice_t, mode: *mut nvmlComputeMode_t) -> nvmlReturn_t {
    call_on("nvmlDeviceGetComputeMode", device, |host, gpu| {
        let modes = host.description.compute_modes(&host.path).unwrap_or_default();
        put(mode, modes.get(&gpu.index).copied().unwrap_or_default())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetComputeMode(device: nvmlDevice_t, mode: nvmlComputeMode_t) -> nvmlReturn_t {
    call_on("nvmlDeviceSetComputeMode", device, |host, gpu| {
        let denied = nvmlReturn_enum_NVML_ERROR_NO_PERMISSION;
        let mut modes = host.description.compute_modes(&host.path).ok_or(denied)?;
        modes.insert(gpu.index, mode);
        host.description
            .set_compute_modes(&host.path, &modes)
            .ok_or(denied)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCpuAffinity(
    device: nvmlDevice_t,
    words: c_uint,
    cpus: *mut c_ulong,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetCpuAffinity", device, |host, gpu| {
        let list = &host.topology.cpu_affinity[gpu.index];
        if list.is_empty() {
            return Err(nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
        }
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
        };
        let bits: Vec<u32> = list.split(',').filter_map(range).flatten().collect();
        put_bits(cpus, words, &bits)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryAffinity(
    device: nvmlDevice_t,
    words: c_uint,
    nodes: *mut c_ulong,
    _scope: nvmlAffinityScope_t,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetMemoryAffinity", device, |host, gpu| {
        let node = host.topology.numa_affinity[gpu.index].ok_or(nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED)?;
        put_bits(nodes, words, &[node])
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNumaNodeId(device: nvmlDevice_t, _node: *mut c_uint) -> nvmlReturn_t {
    // Only where a GPU's memory is a NUMA node of its own.
    call_on("nvmlDeviceGetNumaNodeId", device, |_, _| {
        Err(nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTopologyCommonAncestor(
    device: nvmlDevice_t,
    other: nvmlDevice_t,
    level: *mut nvmlGpuTopologyLevel_t,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetTopologyCommonAncestor", device, |host, gpu| {
        let other = gpu_of(host, other)?;
        if other.index == gpu.index {
            return Err(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
        }
        let code = match host.pcie(gpu.index, other.index) {
            Link::Pix => nvmlGpuLevel_enum_NVML_TOPOLOGY_SINGLE,
            Link::Pxb => nvmlGpuLevel_enum_NVML_TOPOLOGY_MULTIPLE,
            Link::Phb => nvmlGpuLevel_enum_NVML_TOPOLOGY_HOSTBRIDGE,
            Link::Node => nvmlGpuLevel_enum_NVML_TOPOLOGY_NODE,
            Link::Sys | Link::NvLink(_) => nvmlGpuLevel_enum_NVML_TOPOLOGY_SYSTEM,
        };
        put(level, code)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetComputeRunningProcesses_v3", device, |host, gpu| {
        put_processes(&host.processes(gpu), count, infos)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetMPSComputeRunningProcesses_v3", device, |_, _| {
        put_processes(&[], count, infos)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetGraphicsRunningProcesses_v3", device, |_, _| {
        put_processes(&[], count, infos)
    })
}

fn put_processes(
    processes: &[(u32, Option<u32>)],
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
) -> Answer<()> {
    // SAFETY: nvml.h asks callers for a count, which says how many entries `infos` has room for.
    let Some(room) = (unsafe { count.as_ref() }).copied() else {
        return Err(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
    };
    put(count, processes.len() as c_uint)?;
    if (room as usize) < processes.len() {
        return Err(nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE);
    }
    for (at, (pid, instance)) in processes.iter().enumerate() {
        const NO_INSTANCE: c_uint = c_uint::MAX;
        let info = nvmlProcessInfo_t {
            pid: *pid,
            usedGpuMemory: 1 << 20,
            gpuInstanceId: instance.unwrap_or(NO_INSTANCE),
            computeInstanceId: instance.map_or(NO_INSTANCE, |_| 0),
        };
        // With room for at least one entry, `infos` may not be null.
        put(infos.wrapping_add(at), info)?;
    }
    Ok(())
}
