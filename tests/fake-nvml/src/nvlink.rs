//! NVML's C symbols: NVLink and its domains. Signatures and semantics are nvml.h's.

// C symbols of nvml.h: the names are NVIDIA's, and raw pointers the point of it.
#![allow(unsafe_code, non_snake_case, non_upper_case_globals, clippy::wildcard_imports)]

use std::ffi::{c_uchar, c_uint};

use nvml_wrapper_sys::bindings::*;

use crate::api::{Answer, call_on, gpu_of, pci_info, put};
use crate::description::nvlinks;
use crate::host::{FarEnd, Gpu, Host};

/// NVLinks that a GPU has ports for; links beyond are no valid argument.
const PORTS: c_uint = 18;

/// What an active link ends at.
fn far_end(gpu: &Gpu, link: c_uint) -> Answer<FarEnd> {
    if link >= PORTS {
        return Err(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
    }
    gpu.nvlinks
        .get(link as usize)
        .copied()
        .ok_or(nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkState(
    device: nvmlDevice_t,
    link: c_uint,
    active: *mut nvmlEnableState_t,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetNvLinkState", device, |_, gpu| {
        far_end(gpu, link)?;
        put(active, nvmlEnableState_enum_NVML_FEATURE_ENABLED)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkVersion(
    device: nvmlDevice_t,
    link: c_uint,
    version: *mut c_uint,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetNvLinkVersion", device, |host, gpu| {
        far_end(gpu, link)?;
        let code = match host.description.nvlink_version {
            Some(1) => nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_1_0,
            Some(2) => nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_2_0,
            Some(3) => nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_3_0,
            Some(4) => nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_4_0,
            Some(5) => nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_5_0,
            Some(_) | None => return Err(nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED),
        };
        put(version, code)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkCapability(
    device: nvmlDevice_t,
    link: c_uint,
    _capability: nvmlNvLinkCapability_t,
    result: *mut c_uint,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetNvLinkCapability", device, |_, gpu| {
        far_end(gpu, link)?;
        put(result, 1)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    device: nvmlDevice_t,
    link: c_uint,
    info: *mut nvmlPciInfo_t,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetNvLinkRemotePciInfo_v2", device, |_, gpu| {
        let (FarEnd::Gpu(address) | FarEnd::Switch(address)) = far_end(gpu, link)?;
        put(info, pci_info(address))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType(
    device: nvmlDevice_t,
    link: c_uint,
    kind: *mut nvmlIntNvLinkDeviceType_t,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetNvLinkRemoteDeviceType", device, |_, gpu| {
        let code = match far_end(gpu, link)? {
            FarEnd::Gpu(_) => nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU,
            FarEnd::Switch(_) => nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH,
        };
        put(kind, code)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetP2PStatus(
    device: nvmlDevice_t,
    other: nvmlDevice_t,
    capability: nvmlGpuP2PCapsIndex_t,
    status: *mut nvmlGpuP2PStatus_t,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetP2PStatus", device, |host, gpu| {
        let other = gpu_of(host, other)?;
        if other.index == gpu.index {
            return Err(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
        }
        let over_nvlink = capability == nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK;
        let joined = nvlinks(&host.topology, gpu.index, other.index) > 0
            && host.description.nvlink_works == Some(true);
        let code = if over_nvlink && !joined {
            nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED
        } else {
            nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK
        };
        put(status, code)
    })
}

/// State, cluster and clique of the GPU's NVLink domain.
fn fabric(host: &Host) -> (c_uchar, [c_uchar; 16], c_uint) {
    let Some(fabric) = &host.description.fabric else {
        return (NVML_GPU_FABRIC_STATE_NOT_SUPPORTED as c_uchar, [0; 16], 0);
    };
    let mut cluster = [0; 16];
    for (at, byte) in cluster.iter_mut().enumerate() {
        let digits = fabric.cluster.get(2 * at..2 * at + 2).unwrap_or("00");
        *byte = u8::from_str_radix(digits, 16).unwrap_or(0);
    }
    (NVML_GPU_FABRIC_STATE_COMPLETED as c_uchar, cluster, fabric.clique)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuFabricInfo(
    device: nvmlDevice_t,
    info: *mut nvmlGpuFabricInfo_t,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetGpuFabricInfo", device, |host, _| {
        let (state, cluster_uuid, clique) = fabric(host);
        let status = nvmlReturn_enum_NVML_SUCCESS;
        put(
            info,
            nvmlGpuFabricInfo_t {
                clusterUuid: cluster_uuid,
                status,
                cliqueId: clique,
                state,
            },
        )
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuFabricInfoV(
    device: nvmlDevice_t,
    info: *mut nvmlGpuFabricInfoV_t,
) -> nvmlReturn_t {
    call_on("nvmlDeviceGetGpuFabricInfoV", device, |host, _| {
        // SAFETY: the caller gives one structure whose version, its first field, is set; or null.
        let version = unsafe { info.cast::<c_uint>().as_ref() }.copied();
        let version = version.ok_or(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT)?;
        let (state, cluster_uuid, clique) = fabric(host);
        let status = nvmlReturn_enum_NVML_SUCCESS;
        // NVML_STRUCT_VERSION: the size, and the version from bit 24.
        match version >> 24 {
            2 => put(
                info.cast(),
                nvmlGpuFabricInfo_v2_t {
                    version,
                    clusterUuid: cluster_uuid,
                    status,
                    cliqueId: clique,
                    state,
                    healthMask: 0,
                },
            ),
            3 => put(
                info,
                nvmlGpuFabricInfo_v3_t {
                    version,
                    clusterUuid: cluster_uuid,
                    status,
                    cliqueId: clique,
                    state,
                    healthMask: 0,
                    healthSummary: NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY as c_uchar,
                },
            ),
            _ => Err(nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH),
        }
    })
}
