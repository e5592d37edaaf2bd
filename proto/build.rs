//! Compiles `carrel/v1/*.proto` with protox (no `protoc` needed).

use std::path::Path;

const FILES: [&str; 11] = [
    "carrel/v1/types.proto",
    "carrel/v1/init.proto",
    "carrel/v1/terminal.proto",
    "carrel/v1/agent.proto",
    "carrel/v1/gateway.proto",
    "carrel/v1/queue.proto",
    "carrel/v1/history.proto",
    "carrel/v1/reservation.proto",
    "carrel/v1/broker.proto",
    "carrel/v1/signin.proto",
    "carrel/v1/step.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for file in FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    let descriptors = protox::compile(FILES, [Path::new(".")])?;
    let grpc = std::env::var_os("CARGO_FEATURE_GRPC").is_some();
    tonic_prost_build::configure()
        .build_client(grpc)
        .build_server(grpc)
        // Without the generated `connect(uri)`, whose name AgentLink/Connect needs.
        .build_transport(false)
        .btree_map(".")
        .bytes(".carrel.v1.GatewayAsks")
        .compile_fds(descriptors)?;
    Ok(())
}
