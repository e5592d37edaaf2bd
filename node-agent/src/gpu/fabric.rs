//! The NVLink domain that a host's GPUs share with those of other hosts.

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::error::nvml_try;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings as sys;

/// Version 2 of the structure, as NVML tells versions apart: its size, and the number in the highest byte.
const VERSION_2: u32 = size_of::<sys::nvmlGpuFabricInfo_v2_t>() as u32 | 2 << 24;

/// Cluster UUID, '.', clique id; empty: the GPUs are in none, or not all in one, or the driver does not say.
///
/// GPUs of one clique reach each other by NVLink, whichever hosts they are in; a cluster that its fabric
/// manager has not set up yet is none, and neither is that of a host by itself, which has the UUID zero.
pub(super) fn domain(nvml: &Nvml, devices: &[Device<'_>]) -> String {
    let mut domains = devices.iter().map(|device| domain_of(nvml, device));
    let first = domains.next().flatten().unwrap_or_default();
    if domains.all(|domain| domain.as_ref() == Some(&first)) {
        first
    } else {
        String::new()
    }
}

fn domain_of(nvml: &Nvml, device: &Device<'_>) -> Option<String> {
    let told = by_version(nvml, device).or_else(|_| without_version(nvml, device));
    let told = told.ok()?;
    let set_up = told.state == sys::NVML_GPU_FABRIC_STATE_COMPLETED as sys::nvmlGpuFabricState_t;
    let works = told.status == sys::nvmlReturn_enum_NVML_SUCCESS;
    if !set_up || !works || told.clusterUuid == [0; 16] {
        return None;
    }
    let digits: String = told
        .clusterUuid
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let uuid = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| digits[part].to_owned());
    Some(format!("{}.{}", uuid.join("-"), told.cliqueId))
}

/// The call of newer drivers, from 545 on.
fn by_version(nvml: &Nvml, device: &Device<'_>) -> Result<sys::nvmlGpuFabricInfo_t, NvmlError> {
    let symbol = nvml.lib().nvmlDeviceGetGpuFabricInfoV.as_ref();
    let call = symbol.map_err(|error| NvmlError::FailedToLoadSymbol(error.to_string()))?;
    // The binding's type is version 3, which begins as version 2 does; NVML writes what the version says.
    let mut info = sys::nvmlGpuFabricInfo_v3_t {
        version: VERSION_2,
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
        healthMask: 0,
        healthSummary: 0,
    };
    // SAFETY: the handle is of this library, and NVML writes no more than version 2's bytes.
    #[allow(unsafe_code)]
    let code = unsafe { call(device.handle(), &raw mut info) };
    nvml_try(code)?;
    Ok(sys::nvmlGpuFabricInfo_t {
        clusterUuid: info.clusterUuid,
        status: info.status,
        cliqueId: info.cliqueId,
        state: info.state,
    })
}

/// The call of older drivers.
fn without_version(nvml: &Nvml, device: &Device<'_>) -> Result<sys::nvmlGpuFabricInfo_t, NvmlError> {
    let symbol = nvml.lib().nvmlDeviceGetGpuFabricInfo.as_ref();
    let call = symbol.map_err(|error| NvmlError::FailedToLoadSymbol(error.to_string()))?;
    let mut info = sys::nvmlGpuFabricInfo_t {
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
    };
    // SAFETY: the handle is of this library, and NVML writes one nvmlGpuFabricInfo_t.
    #[allow(unsafe_code)]
    let code = unsafe { call(device.handle(), &raw mut info) };
    nvml_try(code).map(|()| info)
}
