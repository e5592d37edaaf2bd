//! Images for real: archives of every kind, and a registry on loopback.

mod rig;

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use oci_client::Reference;
use oci_client::client::{Client, ClientConfig, ClientProtocol};
use rig::{Rig, architecture, archive, busybox_layer, digest, eventually, gzip, job, with_rig};
use serde_json::{Value, json};

/// An image of two layers: a busybox, and a file and an environment on top.
struct Image {
    layers: Vec<Vec<u8>>,
    config: Vec<u8>,
    manifest: Vec<u8>,
}

impl Image {
    fn new(marker: &str) -> Self {
        let plain = [busybox_layer(&[]), archive(&[("marker", marker.as_bytes())])];
        let layers: Vec<_> = plain.iter().map(|layer| gzip(layer)).collect();
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {"Env": ["PATH=/bin", "FROM_IMAGE=yes"], "WorkingDir": "/work", "User": "nobody"},
            "rootfs": {"type": "layers", "diff_ids": plain.iter().map(|layer| digest(layer)).collect::<Vec<_>>()},
        });
        let config = config.to_string().into_bytes();
        let describe = |kind: &str, bytes: &[u8]| json!({"mediaType": kind, "digest": digest(bytes), "size": bytes.len()});
        let layer = |bytes: &Vec<u8>| describe("application/vnd.oci.image.layer.v1.tar+gzip", bytes);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": describe("application/vnd.oci.image.config.v1+json", &config),
            "layers": layers.iter().map(layer).collect::<Vec<_>>(),
        });
        Self {
            layers,
            config,
            manifest: manifest.to_string().into_bytes(),
        }
    }

    /// An index in which it is one of two.
    fn index(&self, annotations: &Value) -> Vec<u8> {
        let foreign = json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest(b"absent"), "size": 6,
            "platform": {"os": "windows", "architecture": architecture()},
        });
        let own = json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest(&self.manifest),
            "size": self.manifest.len(), "platform": {"os": "linux", "architecture": architecture()},
            "annotations": annotations,
        });
        let index = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [foreign, own],
        });
        index.to_string().into_bytes()
    }

    fn blobs(&self) -> Vec<&[u8]> {
        let mut blobs: Vec<&[u8]> = self.layers.iter().map(Vec::as_slice).collect();
        blobs.extend([self.config.as_slice(), self.manifest.as_slice()]);
        blobs
    }

    fn layout(&self) -> Vec<u8> {
        let index = self.index(&json!({}));
        let named: Vec<_> = self
            .blobs()
            .into_iter()
            .map(|blob| (digest(blob).replace(':', "/"), blob))
            .collect();
        let paths: Vec<_> = named
            .iter()
            .map(|(path, blob)| (format!("blobs/{path}"), *blob))
            .collect();
        let mut files: Vec<(&str, &[u8])> = vec![
            ("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#),
            ("index.json", &index),
        ];
        files.extend(paths.iter().map(|(path, blob)| (path.as_str(), *blob)));
        archive(&files)
    }

    /// In the form of `docker save`, with uncompressed layers, as Docker writes them.
    fn docker_save(&self, tag: &str) -> Vec<u8> {
        let plain = [busybox_layer(&[]), archive(&[("marker", b"saved")])];
        let mut config: Value = serde_json::from_slice(&self.config).unwrap();
        config["rootfs"]["diff_ids"] = plain.iter().map(|layer| digest(layer)).collect();
        let config = config.to_string().into_bytes();
        let manifest =
            json!([{"Config": "config.json", "RepoTags": [tag], "Layers": ["a/layer.tar", "b/layer.tar"]}]);
        archive(&[
            ("a/layer.tar", &plain[0]),
            ("b/layer.tar", &plain[1]),
            ("config.json", &config),
            ("manifest.json", manifest.to_string().as_bytes()),
        ])
    }
}

const SHOW: &str = "busybox cat /marker; echo \" $FROM_IMAGE $PATH\"";

async fn import(rig: &Rig, archive: &[u8], name: &str) -> anyhow::Result<String> {
    let path = rig.dir.join("archive");
    fs::write(&path, archive).unwrap();
    Ok(rig.runtime.import_image(&path, name, &rig.progress()).await?.name)
}

/// Every kind of archive that people have becomes an image that runs, with its environment.
#[test]
fn archives_of_every_kind_are_imported() {
    with_rig(
        |_| {},
        |rig| async move {
            let image = Image::new("layout");
            assert_eq!(
                import(&rig, &image.layout(), "from-layout").await.unwrap(),
                "from-layout"
            );
            let (_, output) = rig.run(&job(1, "from-layout", SHOW)).await;
            assert_eq!(output, "layout yes /bin:/.carrel/bin");

            assert_eq!(
                import(&rig, &gzip(&image.layout()), "zipped").await.unwrap(),
                "zipped"
            );
            assert_eq!(
                import(&rig, &image.docker_save("lab/tool:2"), "").await.unwrap(),
                "lab/tool:2"
            );
            let (_, output) = rig.run(&job(2, "lab/tool:2", SHOW)).await;
            assert_eq!(output, "saved yes /bin:/.carrel/bin");

            let rootfs = busybox_layer(&[
                ("marker", b"rootfs"),
                ("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n"),
            ]);
            import(&rig, &gzip(&rootfs), "plain").await.unwrap();
            import(&rig, &rootfs, "plain")
                .await
                .expect("importing may be repeated");
            let (_, output) = rig.run(&job(3, "plain:latest", SHOW)).await;
            assert!(output.starts_with("rootfs"), "{output}");

            assert_eq!(
                rig.runtime.images().await.unwrap(),
                ["from-layout", "lab/tool:2", "plain", "zipped"]
            );
        },
    );
}

/// What is no image is refused in words.
#[test]
fn what_is_no_image_is_refused() {
    with_rig(
        |_| {},
        |rig| async move {
            for (bytes, says) in [
                (b"hello".repeat(200), "not a tar archive"),
                (archive(&[("README", b"x")]), "no OCI layout"),
                (vec![0xfd, b'7', b'z', b'X', b'Z', 0, 0], "xz -d"),
                (busybox_layer(&[]), "give a name"),
            ] {
                let error = format!("{:#}", import(&rig, &bytes, "").await.unwrap_err());
                assert!(error.contains(says), "{error}");
            }
            let mut image = Image::new("broken");
            image.layers[1] = gzip(&archive(&[("marker", b"forged")]));
            let error = import(&rig, &image.layout(), "broken").await.unwrap_err();
            assert!(
                format!("{error:#}").contains("missing from the archive"),
                "{error:#}"
            );
            assert_eq!(rig.runtime.images().await.unwrap(), [""; 0]);
        },
    );
}

/// A registry of Debian's package docker-registry, on a port of its own.
struct Registry {
    process: Child,
    host: String,
}

impl Registry {
    async fn start(dir: &Path) -> Self {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let host = format!("127.0.0.1:{port}");
        let config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {host}\n",
            dir.join("registry").display()
        );
        fs::write(dir.join("registry.yml"), config).unwrap();
        let log = fs::File::create(dir.join("registry.log")).unwrap();
        let process = Command::new("docker-registry")
            .arg("serve")
            .arg(dir.join("registry.yml"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("install the package docker-registry");
        let registry = Self { process, host };
        eventually("the registry answers", || async {
            tokio::net::TcpStream::connect(&registry.host).await.is_ok()
        })
        .await;
        registry
    }

    /// Puts an image there; `index`: behind an index of several platforms.
    async fn push(&self, image: &Image, name: &str, index: bool) -> String {
        let reference = format!("{}/{name}", self.host);
        let parsed: Reference = reference.parse().unwrap();
        let client = Client::new(ClientConfig {
            protocol: ClientProtocol::Http,
            ..ClientConfig::default()
        });
        for blob in image.blobs() {
            client
                .push_blob(&parsed, blob.to_vec(), &digest(blob))
                .await
                .unwrap();
        }
        let push = async |reference: &Reference, bytes: &[u8], kind: &str| {
            client
                .push_manifest_raw(reference, bytes.to_vec(), kind.parse().unwrap())
                .await
                .unwrap();
        };
        if index {
            let by_digest = parsed.clone_with_digest(digest(&image.manifest));
            push(
                &by_digest,
                &image.manifest,
                "application/vnd.oci.image.manifest.v1+json",
            )
            .await;
            // The registry insists on manifests that exist.
            let mut index: Value = serde_json::from_slice(&image.index(&json!({}))).unwrap();
            index["manifests"][0]["digest"] = json!(digest(&image.manifest));
            index["manifests"][0]["size"] = json!(image.manifest.len());
            push(
                &parsed,
                index.to_string().as_bytes(),
                "application/vnd.oci.image.index.v1+json",
            )
            .await;
        } else {
            push(
                &parsed,
                &image.manifest,
                "application/vnd.oci.image.manifest.v1+json",
            )
            .await;
        }
        reference
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Pulling works as with Docker, tells how far it is, and is done once for all who wait for it.
#[test]
fn images_are_pulled_from_a_registry() {
    // The TLS library wants to know its provider even for plain HTTP.
    let _installed_before = rustls::crypto::ring::default_provider().install_default();
    with_rig(
        |_| {},
        |rig| async move {
            let registry = Registry::start(&rig.dir).await;
            let image = Image::new("pulled");
            let plain = registry.push(&image, "lab/tool:1", false).await;
            let listed = registry.push(&Image::new("listed"), "lab/many", true).await;

            let one = job(1, &plain, SHOW);
            let two = job(2, &plain, SHOW);
            let progress = rig.progress();
            let (first, second) = tokio::join!(
                rig.runtime.create(&one, &progress),
                rig.runtime.create(&two, &progress)
            );
            first.unwrap();
            second.unwrap();
            let told = rig.told.lock().unwrap().clone();
            assert_eq!(
                told.iter().filter(|line| *line == "pulling image").count(),
                1,
                "{told:?}"
            );
            assert!(told.iter().any(|line| line == "pulling image, 100 %"), "{told:?}");
            for spec in [one, two] {
                assert_eq!(rig.ended(spec.record.key).await, "pulled yes /bin:/.carrel/bin");
                rig.runtime.remove(spec.record.key).await.unwrap();
            }
            let (_, output) = rig.run(&job(3, &listed, SHOW)).await;
            assert_eq!(
                output, "listed yes /bin:/.carrel/bin",
                "an index gives this platform's image"
            );

            let by_digest = format!("{}/lab/tool@{}", registry.host, digest(&image.manifest));
            rig.runtime.ensure_image(&by_digest, &progress).await.unwrap();
            drop(registry);
            let (_, output) = rig.run(&job(4, &plain, SHOW)).await;
            assert_eq!(
                output, "pulled yes /bin:/.carrel/bin",
                "what is there is not asked for again"
            );
        },
    );
}

/// A name that leads nowhere ends in one message: what, where, and what to do.
#[test]
fn an_image_that_is_not_there_is_said_once_and_clearly() {
    with_rig(
        |_| {},
        |rig| async move {
            let registry = Registry::start(&rig.dir).await;
            let absent = format!("{}/lab/none:1", registry.host);
            let host = registry.host.clone();
            let error = rig
                .runtime
                .create(&job(1, &absent, SHOW), &rig.progress())
                .await
                .unwrap_err();
            assert_eq!(
                format!("{error:#}"),
                format!(
                    "image {absent} is not on this node, and registry {host} does not have it. Check the name, or load an \
                 archive of it on the node with `carrel-node image import`"
                )
            );
            drop(registry);
            let error = rig
                .runtime
                .create(&job(1, &absent, SHOW), &rig.progress())
                .await
                .unwrap_err();
            let text = format!("{error:#}");
            assert!(
                text.contains(&format!("registry {host} cannot be reached")) && text.contains("refused"),
                "{text}"
            );
            let error = rig
                .runtime
                .create(&job(1, "No Such", SHOW), &rig.progress())
                .await
                .unwrap_err();
            assert!(
                format!("{error:#}").contains("not a valid reference"),
                "{error:#}"
            );
            rig.assert_gone(job(1, "", "").record.key).await;
        },
    );
}
