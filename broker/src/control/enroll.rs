//! A gateway comes, at its start and every few minutes.

use std::time::SystemTime;

use carrel_core::model::audit::{Action, AuditRecord, Origin};
use carrel_proto::stream::Endpoint;
use carrel_proto::v1::{EnrollRequest, EnrollResponse};
use tonic::Status;

use super::Gateway;
use crate::api::refuse::invalid;
use crate::ca::ssh::{HOST_VALIDITY, parse_public_key};
use crate::ca::x509::SignError;
use crate::context::Context;

/// Longest name or endpoint.
const MAX_TEXT: usize = 300;
/// Most endpoints of one gateway.
const MAX_ENDPOINTS: usize = 16;

pub(super) async fn enroll(
    context: &Context,
    origin: Origin,
    request: EnrollRequest,
) -> Result<EnrollResponse, Status> {
    check(&request)?;
    let now = SystemTime::now();
    let names = dialled_names(&request);
    let signed = context
        .authority
        .sign_gateway(&request.csr_der, &request.name, &names, now);
    let certificate = signed.map_err(|error| match error {
        SignError::BadRequest(_) => invalid(error.to_string()),
        SignError::Failed(_) => Status::internal(error.to_string()),
    })?;
    let key = parse_public_key(&request.ssh_host_public_key).map_err(|error| invalid(error.to_string()))?;
    let host = host_of(&request.ssh).unwrap_or_default().to_owned();
    let principals = vec![host, request.name.clone()];
    let ssh = context.ssh.sign_host(&key, &principals, now, HOST_VALIDITY);
    let ssh = ssh.map_err(|error| Status::internal(format!("{error:#}")))?;

    let gateway = Gateway {
        name: request.name,
        link: request.link,
        streams: request.streams,
        ssh: request.ssh,
        client_streams: request.client_streams,
    };
    let subject = format!("gateway {}", gateway.name);
    tracing::info!(gateway = gateway.name, serial = %certificate.serial, "a gateway enrolled");
    let changed = context
        .gateways
        .enroll(gateway)
        .map_err(|error| Status::internal(format!("{error:#}")))?;
    if changed {
        context.agents.wake_all();
    }
    let detail = format!("TLS serial {}, SSH serial {}", certificate.serial, ssh.serial);
    let record = AuditRecord::new(None, origin, Action::GatewayCertificate, subject, detail);
    context.note(record).await;
    Ok(EnrollResponse {
        certificate_pem: certificate.pem,
        ca_pem: context.authority.certificate_pem().to_owned(),
        stream_key: context.gateways.stream_key().to_vec(),
        user_cas: vec![context.ssh.user_ca()],
        ssh_host_certificate: ssh.text,
        revoked_serials: context.gateways.revoked(context.handle.snapshot().state()),
    })
}

fn check(request: &EnrollRequest) -> Result<(), Status> {
    let endpoints = &request.client_streams;
    let texts = [&request.name, &request.link, &request.streams, &request.ssh];
    if texts
        .into_iter()
        .chain(endpoints)
        .any(|text| text.is_empty() || text.len() > MAX_TEXT)
    {
        return Err(invalid(format!(
            "a gateway's name and endpoints have 1 to {MAX_TEXT} characters"
        )));
    }
    if endpoints.is_empty() || endpoints.len() > MAX_ENDPOINTS {
        return Err(invalid(format!(
            "a gateway has 1 to {MAX_ENDPOINTS} stream endpoints for clients"
        )));
    }
    for endpoint in endpoints.iter().chain([&request.streams]) {
        endpoint
            .parse::<Endpoint>()
            .map_err(|error| invalid(error.to_string()))?;
    }
    let link = request.link.strip_prefix("https://").and_then(host_of);
    if link.is_none() {
        return Err(invalid(format!(
            "{:?} is no link: write https://host:port",
            request.link
        )));
    }
    if host_of(&request.ssh).is_none() {
        return Err(invalid(format!(
            "{:?} is no jump host: write host:port",
            request.ssh
        )));
    }
    Ok(())
}

/// Names that the gateway's TLS certificate is to carry.
fn dialled_names(request: &EnrollRequest) -> Vec<String> {
    let addresses = [
        request.link.trim_start_matches("https://"),
        &request.ssh,
        &request.streams,
    ];
    let mut names: Vec<String> = addresses
        .into_iter()
        .filter_map(host_of)
        .map(str::to_owned)
        .collect();
    names.sort();
    names.dedup();
    names
}

/// The host of "host:port", without the brackets of an IPv6 address.
fn host_of(address: &str) -> Option<&str> {
    if address.starts_with("unix:") {
        return None;
    }
    let (host, port) = address.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    (!host.is_empty()).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_found_in_endpoints() {
        assert_eq!(host_of("head.example:22"), Some("head.example"));
        assert_eq!(host_of("[::1]:22"), Some("::1"));
        for bad in ["unix:/a:1", "head", ":22", "head:x"] {
            assert_eq!(host_of(bad), None, "{bad}");
        }
    }
}
