//! SFTP: the fields of a client's packets, as carrel-init reads them.

use crate::Target;

// carrel-init is a program, not a library; what reads packets in it stands on its own.
#[allow(dead_code, missing_docs, unreachable_pub)]
#[path = "../../../../node-agent/init/src/server/sftp/attributes.rs"]
mod attributes;
#[allow(dead_code, missing_docs, unreachable_pub)]
#[path = "../../../../node-agent/init/src/server/sftp/wire.rs"]
mod wire;

/// A request with a name, a number and attributes.
pub const ATTRIBUTES: Target = Target {
    name: "sftp",
    run: |data| {
        let mut reader = wire::Reader(data);
        let mut read = || -> Result<(), wire::Failure> {
            reader.byte()?;
            reader.number()?;
            let name = reader.string()?;
            assert!(name.len() <= data.len());
            reader.long()?;
            attributes::Wanted::read(&mut reader)?;
            Ok(())
        };
        // What is cut short is told.
        let _ = read();
    },
    seeds: || {
        let mut packet = vec![3, 0, 0, 0, 1, 0, 0, 0, 4];
        packet.extend(b"/tmp");
        packet.extend([0; 8]);
        packet.extend(0x8000_000f_u32.to_be_bytes());
        packet.extend([1; 28]);
        packet.extend([0, 0, 0, 1, 0, 0, 0, 1, b'a', 0, 0, 0, 1, b'b']);
        vec![packet]
    },
};
