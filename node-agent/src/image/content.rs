//! Blobs in containerd's content store.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use containerd_client::services::v1::{
    AbortRequest, Info, InfoRequest, ReadContentRequest, UpdateRequest, WriteAction, WriteContentRequest,
};
use futures::stream::{self, BoxStream, StreamExt};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::manifest::{MAX_DOCUMENT, digest_text};
use crate::runtime::client::{Containerd, Lease, Settled, Told};

/// Requests that may wait to be sent: chunks are up to a megabyte each.
const WRITES_AHEAD: usize = 4;

/// Labels of a blob.
pub(crate) type Labels = BTreeMap<String, String>;

/// A blob's bytes as they come.
pub(crate) type Chunks = BoxStream<'static, std::io::Result<Bytes>>;

/// A blob to be written.
pub(crate) struct Blob<'a> {
    /// What it must hash to; none: whatever it hashes to.
    pub digest: Option<&'a str>,
    /// Bytes.
    pub size: u64,
    /// Labels that it gets, unless it is there already.
    pub labels: Labels,
}

/// Whether a blob is there.
pub(crate) async fn has_blob(containerd: &Containerd, digest: &str) -> Result<bool> {
    let request = containerd.request(InfoRequest {
        digest: digest.to_owned(),
    });
    Ok(containerd
        .content()
        .info(request)
        .await
        .absent_ok()
        .told("looking for image content")?
        .is_some())
}

/// A small blob's bytes; none where it is not there.
pub(crate) async fn read_document(containerd: &Containerd, digest: &str) -> Result<Option<Vec<u8>>> {
    let request = ReadContentRequest {
        digest: digest.to_owned(),
        offset: 0,
        size: 0,
    };
    let mut bytes = Vec::new();
    let response = containerd
        .content()
        .read(containerd.request(request))
        .await
        .absent_ok();
    let Some(mut stream) = response.told("reading image content")? else {
        return Ok(None);
    };
    loop {
        match stream.message().await {
            Ok(Some(part)) => bytes.extend_from_slice(&part.data),
            Ok(None) => return Ok(Some(bytes)),
            Err(status) if status.code() == Code::NotFound => return Ok(None),
            Err(status) => return Err(status).told("reading image content"),
        }
        ensure!(
            bytes.len() as u64 <= MAX_DOCUMENT,
            "image document {digest} is larger than {MAX_DOCUMENT} bytes"
        );
    }
}

/// Adds labels to a blob that is there.
pub(crate) async fn add_labels(
    containerd: &Containerd,
    digest: &str,
    labels: Labels,
    lease: &Lease,
) -> Result<()> {
    let paths = labels.keys().map(|key| format!("labels.{key}")).collect();
    let info = Info {
        digest: digest.to_owned(),
        labels: labels.into_iter().collect(),
        ..Info::default()
    };
    let update = UpdateRequest {
        info: Some(info),
        update_mask: Some(prost_types::FieldMask { paths }),
    };
    containerd
        .content()
        .update(containerd.leased(update, lease))
        .await
        .told("labelling image content")?;
    Ok(())
}

/// Writes a small blob of known content; gives its digest.
pub(crate) async fn write_document(
    containerd: &Containerd,
    lease: &Lease,
    bytes: Vec<u8>,
    labels: Labels,
) -> Result<String> {
    let digest = super::manifest::digest_of(&bytes);
    let blob = Blob {
        digest: Some(&digest),
        size: bytes.len() as u64,
        labels: labels.clone(),
    };
    write_blob(
        containerd,
        lease,
        blob,
        stream::iter([Ok(Bytes::from(bytes))]).boxed(),
    )
    .await?;
    if !labels.is_empty() {
        // Content that was there before keeps the labels that it had.
        add_labels(containerd, &digest, labels, lease).await?;
    }
    Ok(digest)
}

/// Streams a blob into the store, which verifies its digest and size; gives the digest.
/// A blob that is there already is left alone.
pub(crate) async fn write_blob(
    containerd: &Containerd,
    lease: &Lease,
    blob: Blob<'_>,
    chunks: Chunks,
) -> Result<String> {
    let reference = match blob.digest {
        Some(digest) => format!("carrel-{digest}"),
        None => format!("carrel-import-{:x}", rand::random::<u64>()),
    };
    let written = write_at(containerd, lease, &reference, blob, chunks).await;
    if written.is_err() {
        let abort = containerd.request(AbortRequest { r#ref: reference });
        if let Err(status) = containerd.content().abort(abort).await {
            tracing::debug!(
                status = status.message(),
                "an interrupted write could not be cleared"
            );
        }
    }
    written
}

async fn write_at(
    containerd: &Containerd,
    lease: &Lease,
    reference: &str,
    blob: Blob<'_>,
    chunks: Chunks,
) -> Result<String> {
    let template = WriteContentRequest {
        action: WriteAction::Write as i32,
        r#ref: reference.to_owned(),
        total: blob.size as i64,
        expected: blob.digest.unwrap_or_default().to_owned(),
        ..WriteContentRequest::default()
    };
    let (sender, receiver) = mpsc::channel(WRITES_AHEAD);
    let sending = send(sender, template, blob.labels, chunks);
    let receiving = async {
        let requests = containerd.leased(ReceiverStream::new(receiver), lease);
        let mut answers = containerd.content().write(requests).await?.into_inner();
        while answers.message().await?.is_some() {}
        Ok::<(), Status>(())
    };
    let (sent, received) = tokio::join!(sending, receiving);
    // Should both have failed, the source's failure is the cause.
    let digest = sent.context("reading the content")?;
    match received {
        Ok(()) => Ok(digest),
        Err(status) if status.code() == Code::AlreadyExists => Ok(digest),
        Err(status) => Err(status).told("storing image content"),
    }
}

/// Sends a blob's chunks and the commit; gives the digest. Ends early where nobody receives any more.
/// A failure ends the stream before the commit: nothing is stored.
async fn send(
    sender: mpsc::Sender<WriteContentRequest>,
    template: WriteContentRequest,
    labels: Labels,
    mut chunks: Chunks,
) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    let mut offset = 0;
    while let Some(chunk) = chunks.next().await {
        let data = chunk?;
        if template.expected.is_empty() {
            hash.update(&data);
        }
        let write = WriteContentRequest {
            offset,
            data: data.to_vec(),
            ..template.clone()
        };
        offset += data.len() as i64;
        if sender.send(write).await.is_err() {
            return Ok(template.expected);
        }
    }
    let digest = match template.expected.as_str() {
        "" => digest_text(&hash.finalize()),
        expected => expected.to_owned(),
    };
    let commit = WriteContentRequest {
        action: WriteAction::Commit as i32,
        // The offset must be the end: with 0 containerd would begin anew.
        offset,
        labels: labels.into_iter().collect(),
        ..template
    };
    // That nobody receives it is seen from the answers.
    let _unheard = sender.send(commit).await;
    Ok(digest)
}
