//! `libnvidia_ml.so`: NVML for a host that is described in a file.
//!
//! It exports the C symbols of NVML that Carrel calls, and serves the host that
//! the file named by the environment variable `CARREL_FAKE_NVML` describes: a
//! [`description`] in TOML, or the bare text of `nvidia-smi topo -m`. It is
//! loaded in the place of the driver's library by giving its path
//! (`--nvml-library`); the product knows nothing of it.
//!
//! `carrel-fake-nvidia-smi` is `nvidia-smi mig` for the same host, `carrel-fake-mps-control` is
//! `nvidia-cuda-mps-control`.
//!
//! | variable | meaning |
//! |---|---|
//! | `CARREL_FAKE_NVML` | the description; read at `nvmlInit`, its processes at each question for them |
//! | `CARREL_FAKE_NVML_HOST` | a name mixed into all UUIDs, so that several hosts can share a description |

mod api;
pub mod cdi;
pub mod description;
pub mod host;
pub mod mig;
mod mig_api;
mod nvlink;
